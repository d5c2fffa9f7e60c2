"""Seccomp: which system calls a process may make, for the rest of its life.

An allow-list: a call of `syscall_numbers` is allowed, as it is or on its conditions below. Every
other one fails with EPERM: processes and programs, sockets, signals to others, ptrace and the memory
of others, mounts, namespaces, keyrings, System V IPC, io_uring, BPF, and what kernels yet to come
will offer. Needs no privilege, only `no_new_privileges` before it.

Source: man 2 seccomp; https://docs.kernel.org/userspace-api/seccomp_filter.html.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys
from typing import NamedTuple

from greenward.sandbox.layers.bpf import INSTRUCTION, Assembler
from greenward.sandbox.layers.kernel import raise_last_error
from greenward.sandbox.layers.syscall_numbers import numbers_on

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
KILL_PROCESS, FAIL_WITH, ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
X32_BIT = 0x4000_0000  # in the numbers of x86_64's second set of calls

# struct seccomp_data: number, architecture, instruction pointer, six arguments of two words each.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# The kernel's constants, which both machines share; Python's modules lack some of them.
CLONE_VM, CLONE_THREAD, CLONE_NEW_ANY = 0x100, 0x1_0000, 0x7E02_0000
O_WRONLY, O_RDWR, O_ACCMODE, O_TRUNC = 0o1, 0o2, 0o3, 0o1000
F_SETLKW, F_DUPFD_CLOEXEC = 7, 1030
TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX = 0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451
PR_SET_NAME, PR_GET_NAME = 15, 16
AF_UNIX, SOCK_STREAM, SOCK_FLAGS = 1, 1, 0o2004000  # flags: close-on-exec, non-blocking
MSG_NOSIGNAL = 0x4000
ANY_BIT = 0xFFFF_FFFF
OWN_PID = 0x7FFF_FFFF  # stands for the process's own id, which is never as large


class Condition(NamedTuple):
    """Holds if the bits of `mask` in one word of an argument are one of `values`."""

    argument: int
    values: tuple[int, ...]
    mask: int = ANY_BIT
    word: int = 0  # 1 is the upper half


# Opening with O_TRUNC alone empties a file that may only be read: before ABI 3, Landlock lets it.
_OPENING = (0, O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC, O_RDWR | O_TRUNC)

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "clone": (Condition(0, (CLONE_THREAD | CLONE_VM,), CLONE_THREAD | CLONE_VM | CLONE_NEW_ANY),),
    "open": (Condition(1, _OPENING, O_TRUNC | O_ACCMODE),),
    "openat": (Condition(2, _OPENING, O_TRUNC | O_ACCMODE),),
    # Without F_SETOWN and F_SETSIG, which send signals to others.
    "fcntl": (Condition(1, (*range(F_SETLKW + 1), F_DUPFD_CLOEXEC)),),
    "ioctl": (Condition(1, (TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX)),),
    "prctl": (Condition(0, (PR_SET_NAME, PR_GET_NAME)),),
    "prlimit64": (Condition(0, (0, OWN_PID)),),
    "kill": (Condition(0, (OWN_PID,)),),
    "tgkill": (Condition(0, (OWN_PID,)),),
    # What asyncio's event loop wakes itself with: a connected pair, which can reach nobody else. No
    # address, and no flags that Python does not set: out-of-band data is the kernel's least used path.
    "socketpair": (Condition(0, (AF_UNIX,)), Condition(1, (SOCK_STREAM,), ANY_BIT ^ SOCK_FLAGS)),
    "sendto": (Condition(3, (0, MSG_NOSIGNAL)), Condition(4, (0,)), Condition(4, (0,), word=1)),
}

# Landlock does not guard a file's mode and times, and a host's files may be the user's own. Programs
# that copy files set both, so that a refusal would fail them; here the call succeeds and does nothing.
# Nor need the disk wait for files that are gone in a second.
WITHOUT_EFFECT = frozenset(
    ("chmod", "fchmod", "fchmodat", "fchmodat2", "utimensat", "fsync", "fdatasync", "msync")
)

# Its flags lie in memory, where no filter can look; the C library then takes `clone`.
MISSING = frozenset(("clone3",))


class Program(NamedTuple):
    """A filter, but for the process's own id."""

    instructions: bytes
    own_pid_at: tuple[int, ...]  # offsets in bytes of the constants that are to be the own id


def supported() -> bool:
    """Whether this kernel has seccomp filters and this interpreter can be filtered."""
    if sys.platform != "linux" or sys.maxsize <= 1 << 32:
        return False
    _set_filter(None)  # EFAULT from a kernel that would have looked at a filter
    return ctypes.get_errno() == errno.EFAULT


def build_program(machine: str) -> Program:
    """The filter for one machine, as `os.uname` names it. Raises `OSError` where there is none."""
    numbers = numbers_on(machine)
    code = Assembler()
    kill, refuse = code.answer(KILL_PROCESS), code.answer(FAIL_WITH | errno.EPERM)
    targets = {numbers[name]: _target(code, name, refuse) for name in numbers}
    start = code.choose(targets, refuse)
    if machine == "x86_64":
        start = code.at_least(X32_BIT, kill, start)
    start = code.load(_NUMBER, start)
    start = code.choose({AUDIT_ARCH[machine]: start}, kill)
    code.load(_ARCHITECTURE, start)
    instructions = code.program()
    constants = [constant for *_, constant in INSTRUCTION.iter_unpack(instructions)]
    own_pid_at = [INSTRUCTION.size * at + 4 for at, constant in enumerate(constants) if constant == OWN_PID]
    return Program(instructions, tuple(own_pid_at))


def install(program: Program, own_pid: int) -> None:
    """Filters this process, which has one thread, for good. Raises `OSError`.

    EACCES without no-new-privileges.
    """
    instructions = bytearray(program.instructions)
    for offset in program.own_pid_at:
        struct.pack_into("<I", instructions, offset, own_pid)
    if _set_filter(_Filter(len(instructions) // INSTRUCTION.size, bytes(instructions))) != 0:
        raise_last_error("seccomp")


def _target(code: Assembler, name: str, refuse: int) -> int:
    """The label of what decides on one call."""
    if name in MISSING:
        return code.answer(FAIL_WITH | errno.ENOSYS)
    if name in WITHOUT_EFFECT:
        return code.answer(FAIL_WITH | 0)
    label = code.answer(ALLOW)
    for condition in reversed(CONDITIONS.get(name, ())):
        label = code.choose(dict.fromkeys(condition.values, label), refuse)
        if condition.mask != ANY_BIT:
            label = code.mask(condition.mask, label)
        label = code.load(_ARGUMENTS + 8 * condition.argument + 4 * condition.word, label)
    return label


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


def _set_filter(program: _Filter | None) -> int:
    option, mode = ctypes.c_int(PR_SET_SECCOMP), ctypes.c_ulong(SECCOMP_MODE_FILTER)
    return int(_libc.prctl(option, mode, None if program is None else ctypes.byref(program), 0, 0))
