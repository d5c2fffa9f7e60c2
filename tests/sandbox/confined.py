"""Runs a command as a container runtime would: `python confined.py docker|no_namespaces COMMAND …`.

`docker` stands for Docker's default profile: the calls that its documentation lists as blocked fail with EPERM
(clone3 with ENOSYS, clone with flags of namespaces), and the default capabilities are left. `no_namespaces` is
a kernel whose limit of user namespaces is 0. Source: https://docs.docker.com/engine/security/seccomp/ and the
list of capabilities in https://docs.docker.com/engine/containers/run/, for x86_64.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

from greenward.sandbox.inside import seccomp
from greenward.sandbox.inside.layers import LINUX_CAPABILITY_VERSION_3, PR_CAPBSET_DROP, no_new_privileges
from greenward.sandbox.inside.linux import checked, libc, prctl

CLONE, CLONE3, UNSHARE = 56, 435, 272
BLOCKED = {
    "acct": 163, "add_key": 248, "bpf": 321, "clock_settime": 227, "create_module": 174, "delete_module": 176,
    "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433, "get_kernel_syms": 177,
    "get_mempolicy": 239, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427,
    "io_uring_setup": 425, "ioperm": 173, "iopl": 172, "kcmp": 312, "kexec_file_load": 320, "kexec_load": 246,
    "keyctl": 250, "lookup_dcookie": 212, "mbind": 237, "mount": 165, "mount_setattr": 442, "move_mount": 429,
    "move_pages": 279, "nfsservctl": 180, "open_by_handle_at": 304, "open_tree": 428, "perf_event_open": 298,
    "personality": 135, "pivot_root": 155, "query_module": 178, "quotactl": 179, "reboot": 169,
    "request_key": 249, "set_mempolicy": 238, "setns": 308, "settimeofday": 164, "swapoff": 168, "swapon": 167,
    "sysfs": 139, "_sysctl": 156, "umount2": 166, "unshare": UNSHARE, "uselib": 134, "userfaultfd": 323,
    "ustat": 136,
}  # fmt: skip
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot,
# mknod, audit_write, setfcap
CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)


def profile(name: str) -> bytes:
    """The filter as a program of BPF."""
    code = seccomp.Assembler()
    allow = code.add(seccomp.RETURN, seccomp.ALLOW)

    def fail(number: int) -> int:
        return code.add(seccomp.RETURN, seccomp.FAIL_WITH | number)

    refused = fail(errno.EPERM if name == "docker" else errno.ENOSPC)
    clone = code.choose({0: allow}, refused)
    clone = code.add(seccomp.AND, seccomp.CLONE_NEW_ANY, clone)
    clone = code.add(seccomp.LOAD, 16, clone)  # the lower word of the first argument
    calls = dict.fromkeys(BLOCKED.values(), refused) if name == "docker" else {UNSHARE: refused}
    start = code.choose({**calls, CLONE: clone, CLONE3: fail(errno.ENOSYS)}, allow)
    code.add(seccomp.LOAD, 0, start)
    return code.program()


def main(name: str, *command: str) -> None:
    if os.geteuid() != 0:
        no_new_privileges()  # else only root may install a filter
    seccomp.installer(profile(name))(os.getpid())
    if name == "docker" and os.geteuid() == 0:
        for capability in set(range(41)) - set(CAPABILITIES):
            prctl(PR_CAPBSET_DROP, capability)
        kept = sum(1 << capability for capability in CAPABILITIES)
        # Effective and permitted; nothing inheritable. The upper words are 0.
        checked(libc.capset(struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0), struct.pack("=6I", kept, kept, 0, 0, 0, 0)), "capset")  # fmt: skip
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
