"""Raw system calls for programs that attack the kernel's interfaces (numbers: asm/unistd.h)."""

from __future__ import annotations

SYSTEM_CALLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
COLUMN = {"x86_64": 0, "aarch64": 1}[os.uname().machine]
NUMBERS = {
    "add_key": (248, 217), "bpf": (321, 280), "clone": (56, 220), "clone3": (435, 435), "execveat": (322, 281),
    "fanotify_init": (300, 262), "fsopen": (430, 430), "init_module": (175, 105), "io_uring_setup": (425, 425),
    "keyctl": (250, 219), "kcmp": (312, 272), "memfd_create": (319, 279), "mlockall": (151, 230),
    "mount": (165, 40), "msgget": (68, 186), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438), "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424), "process_vm_readv": (310, 270), "ptrace": (101, 117), "reboot": (169, 142),
    "rt_sigqueueinfo": (129, 138), "setns": (308, 268), "shmat": (30, 196), "shmget": (29, 194), "syslog": (103, 116),
    "tgkill": (234, 131), "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282),
}
def syscall(name, *arguments):
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result = libc.syscall(NUMBERS[name][COLUMN], *passed)
    if result < 0: raise OSError(ctypes.get_errno(), name)
    return result
"""
