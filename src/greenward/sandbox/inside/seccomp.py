"""Restricts by seccomp which system calls a process may make, for the rest of its life.

The filter is an allow-list: a call of the table below is allowed, as it is or on its conditions. Every other
one fails with EPERM: processes and programs, sockets, signals to others, ptrace and the memory of others,
mounts, namespaces, keyrings, System V IPC, io_uring, BPF, and what kernels yet to come will offer. It needs
no privilege, only `no_new_privileges` before it. A second profile, for the commands of workspaces, also
allows processes and programs (`_PROCESSES`).
Sources: man 2 seccomp; https://docs.kernel.org/userspace-api/seccomp_filter.html; linux/bpf_common.h;
asm/unistd_64.h (x86_64) and asm-generic/unistd.h (aarch64).
"""

from __future__ import annotations

import ctypes
import errno
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from greenward.sandbox.inside.linux import checked, libc

MACHINES = ("x86_64", "aarch64")
# Each call with its number on x86_64 and on aarch64, which lacks the calls that a newer one has replaced.
_TABLE = """
# descriptors and pipes
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69,
pwritev 296 70, preadv2 327 286, pwritev2 328 287, lseek 8 62, close 3 57, close_range 436 436, dup 32 23,
dup2 33 -, dup3 292 24, pipe 22 -, pipe2 293 59, fcntl 72 25, ioctl 16 29, flock 73 32, sendfile 40 71,
copy_file_range 326 285,
# waiting
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, eventfd2 290 19,
# files and folders
open 2 -, openat 257 56, stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, statfs 137 43,
fstatfs 138 44, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -, readlinkat 267 78,
listxattr 194 11, llistxattr 195 12, flistxattr 196 13, getcwd 79 17, chdir 80 49, fchdir 81 50,
getdents64 217 61, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -, unlinkat 263 35, rename 82 -,
renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37, symlink 88 -, symlinkat 266 36,
ftruncate 77 46, umask 95 166,
# attributes and durability
chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, utimensat 280 88, fsync 74 82, fdatasync 75 83,
msync 26 227,
# memory
brk 12 214, mmap 9 222, munmap 11 215, mremap 25 216, mprotect 10 226, madvise 28 233,
# threads
clone 56 220, clone3 435 435, futex 202 98, set_robust_list 273 99, set_tid_address 218 96, rseq 334 293,
sched_yield 24 124, sched_getaffinity 204 123, exit 60 93, exit_group 231 94,
# signals
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigpending 127 136, rt_sigsuspend 130 133,
rt_sigtimedwait 128 137, rt_sigreturn 15 139, sigaltstack 131 132, pause 34 -, kill 62 129, tgkill 234 131,
restart_syscall 219 128,
# clocks
alarm 37 -, setitimer 38 103, getitimer 36 102, time 201 -, gettimeofday 96 169, clock_gettime 228 113,
clock_getres 229 114, clock_nanosleep 230 115, nanosleep 35 101, times 100 153, getrusage 98 165,
# facts
getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, getpgid 121 155, getpgrp 111 -,
uname 63 160, sysinfo 99 179, getrandom 318 278, getrlimit 97 163, prctl 157 167, prlimit64 302 261,
# socketpairs
socketpair 53 199, sendto 44 206, recvfrom 45 207, shutdown 48 210, getsockname 51 204, getpeername 52 205,
getsockopt 55 209,
"""
_PROCESSES = """
fork 57 -, vfork 58 -, execve 59 221, wait4 61 260, waitid 247 95, arch_prctl 158 -, getsid 124 156,
setpgid 109 154, setsid 112 157, fadvise64 221 223, timer_create 222 107, timer_settime 223 110,
timer_delete 226 111, fchown 93 55, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, setxattr 188 5,
lsetxattr 189 6, fsetxattr 190 7,
"""


def _numbers(table: str) -> dict[str, tuple[int | None, ...]]:
    return {
        name: tuple(None if number == "-" else int(number) for number in numbers)
        for line in table.splitlines()
        if not line.startswith("#")
        for name, *numbers in map(str.split, filter(None, line.split(",")))
    }


NUMBERS, PROCESS_NUMBERS = _numbers(_TABLE), _numbers(_PROCESSES)

PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
KILL_PROCESS, FAIL_WITH, ALLOW = 0x8000_0000, 0x0005_0000, 0x7FFF_0000
AUDIT_ARCH = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
X32_BIT = 0x4000_0000  # in the numbers of x86_64's second set of calls

# Classic BPF: the codes of the instructions and struct sock_filter (code, jumps if true and false, constant).
LOAD, AND, GO_TO, IF_EQUAL, IF_AT_LEAST, RETURN = 0x20, 0x54, 0x05, 0x15, 0x35, 0x06
INSTRUCTION, CONSTANT = struct.Struct("<HBBI"), struct.Struct("<I")
_FEW = 7  # intervals in which single values are picked out one after the other

# struct seccomp_data: number, architecture, instruction pointer, six arguments of two words each.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# The kernel's constants, which both machines share; Python's modules lack some of them.
CLONE_VM, CLONE_FILES, CLONE_THREAD, CLONE_NEW_ANY = 0x100, 0x400, 0x1_0000, 0x7E02_0000
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


# The descriptors of a process are those of all its threads: its worker looks there for files without a name.
_OF_A_THREAD = CLONE_THREAD | CLONE_FILES | CLONE_VM
# Opening with O_TRUNC alone empties a file that may only be read: before ABI 3, Landlock lets it.
_OPENING = (0, O_WRONLY, O_RDWR, O_WRONLY | O_TRUNC, O_RDWR | O_TRUNC)

CONDITIONS: dict[str, tuple[Condition, ...]] = {
    "clone": (Condition(0, (_OF_A_THREAD,), _OF_A_THREAD | CLONE_NEW_ANY),),
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
    ("chmod", "fchmod", "fchmodat", "fchmodat2", "fchown", "utimensat", "fsync", "fdatasync", "msync")
)

# What starts processes may not make namespaces, and every process stays in the group of the first one, which
# is killed as a whole at one moment: programs that ask for a group or session of their own are told that they
# have it.
_SHARES = (0, CLONE_FILES, CLONE_THREAD | CLONE_FILES)
PROCESS_CONDITIONS = {"clone": (Condition(0, _SHARES, CLONE_THREAD | CLONE_FILES | CLONE_NEW_ANY),)}
IN_ONE_GROUP = frozenset(("setpgid", "setsid"))

# Landlock does not guard extended attributes, and programs know file systems without them.
UNSUPPORTED = frozenset(("getxattr", "lgetxattr", "fgetxattr", "setxattr", "lsetxattr", "fsetxattr"))

# Its flags lie in memory, where no filter can look; the C library then takes `clone`.
MISSING = frozenset(("clone3",))


def supported() -> bool:
    """Whether this kernel has seccomp filters and this interpreter can be filtered."""
    if sys.platform != "linux" or sys.maxsize <= 1 << 32:
        return False
    _set_filter(None)  # EFAULT from a kernel that would have looked at a filter
    return ctypes.get_errno() == errno.EFAULT


def numbers_on(machine: str, *, processes: bool = False) -> dict[str, int]:
    """Name → number on one machine (as `os.uname` names it). Raises `OSError` for any other."""
    if machine not in MACHINES:
        raise OSError(f"no table of system calls for {machine}, only for {' and '.join(MACHINES)}")
    column = MACHINES.index(machine)
    table = NUMBERS | PROCESS_NUMBERS if processes else NUMBERS
    return {name: number for name, row in table.items() if (number := row[column]) is not None}


def build_program(machine: str, *, processes: bool = False, signals: bool = False) -> bytes:
    """The filter for one machine, as `os.uname` names it, with `OWN_PID`. Raises `OSError` for others.

    `processes` allows starting processes and programs, `signals` to any process: for a process whose signals
    another layer keeps inside.
    """
    numbers = numbers_on(machine, processes=processes)
    conditions = CONDITIONS | PROCESS_CONDITIONS if processes else CONDITIONS
    if signals:
        conditions = {name: one for name, one in conditions.items() if name not in ("kill", "tgkill")}
    code = Assembler()
    kill, refuse = code.add(RETURN, KILL_PROCESS), code.add(RETURN, FAIL_WITH | errno.EPERM)
    decisions = {numbers[name]: _decision(code, name, refuse, conditions.get(name, ())) for name in numbers}
    start = code.choose(decisions, refuse)
    if machine == "x86_64":
        start = code.add(IF_AT_LEAST, X32_BIT, kill, start)
    start = code.add(LOAD, _NUMBER, start)
    start = code.choose({AUDIT_ARCH[machine]: start}, kill)
    code.add(LOAD, _ARCHITECTURE, start)
    return code.program()


def _decision(code: Assembler, name: str, refuse: int, conditions: Sequence[Condition]) -> int:
    """The label of the instructions that decide on one call."""
    if name in MISSING:
        return code.add(RETURN, FAIL_WITH | errno.ENOSYS)
    if name in UNSUPPORTED:
        return code.add(RETURN, FAIL_WITH | errno.EOPNOTSUPP)
    if name in WITHOUT_EFFECT | IN_ONE_GROUP:
        return code.add(RETURN, FAIL_WITH | 0)
    label = code.add(RETURN, ALLOW)
    for condition in reversed(conditions):
        label = code.choose(dict.fromkeys(condition.values, label), refuse)
        if condition.mask != ANY_BIT:
            label = code.add(AND, condition.mask, label)
        label = code.add(LOAD, _ARGUMENTS + 8 * condition.argument + 4 * condition.word, label)
    return label


def installer(program: bytes) -> Callable[[int], None]:
    """What filters the process with a given id, which calls it and has one thread, for good.

    Raises `OSError`: EACCES without no-new-privileges. All that does not need the id is done before.
    """
    memory = bytearray(program)
    found = _Filter(len(memory) // INSTRUCTION.size, ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    places = own_pid_places(program)

    def install(own_pid: int) -> None:
        for place in places:
            CONSTANT.pack_into(memory, place, own_pid)
        checked(_set_filter(found), "seccomp")

    return install


def own_pid_places(program: bytes) -> list[int]:
    """Where the constants of a program begin that stand for the process's own id."""
    size, offset = INSTRUCTION.size, INSTRUCTION.size - CONSTANT.size
    places = range(offset, len(program), size)
    return [place for place in places if CONSTANT.unpack_from(program, place) == (OWN_PID,)]


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _set_filter(program: _Filter | None) -> int:
    option, mode = ctypes.c_int(PR_SET_SECCOMP), ctypes.c_ulong(SECCOMP_MODE_FILTER)
    return int(libc.prctl(option, mode, None if program is None else ctypes.byref(program), 0, 0))


class Assembler:
    """Collects a BPF program from its end: jumps go forward only, so that their targets exist already.

    A label is an instruction's distance from the end. Equal instructions are kept once.
    """

    def __init__(self) -> None:
        self._backwards: list[bytes] = []
        self._labels: dict[tuple[int, ...], int] = {}

    def program(self) -> bytes:
        """All instructions; a run starts at the one that was added last."""
        return b"".join(reversed(self._backwards))

    def add(self, code: int, constant: int, *targets: int) -> int:
        """One instruction that leads to `targets`: none, what comes next, or if true and if false."""
        key = (code, constant, *targets)
        if key not in self._labels:
            top = len(self._backwards)
            if len(targets) == 1 and targets[0] != top:
                self._backwards.append(INSTRUCTION.pack(GO_TO, 0, 0, top - targets[0]))
            top = len(self._backwards)
            if_true, if_false = [top - target for target in targets] if len(targets) == 2 else (0, 0)
            self._backwards.append(INSTRUCTION.pack(code, if_true, if_false, constant))
            self._labels[key] = top + 1
        return self._labels[key]

    def choose(self, targets: Mapping[int, int], otherwise: int) -> int:
        """Goes on at the label that belongs to the loaded word: a binary search over runs of values.

        Whenever an answer installs the filter, the kernel compiles it and tries it for each system
        call: a short program with few steps keeps that fast.
        """
        intervals = [(0, otherwise)]
        for value, label in sorted(targets.items()):
            if intervals[-1][0] == value:
                intervals.pop()
            if not intervals or intervals[-1][1] != label:
                intervals.append((value, label))
            intervals.append((value + 1, otherwise))
        if intervals[-1][0] > ANY_BIT:
            intervals.pop()
        return self._search(intervals)

    def _search(self, intervals: list[tuple[int, int]]) -> int:
        """`intervals` are first values and labels, in order; the first one reaches down to 0."""
        if len(intervals) == 1:
            return intervals[0][1]
        if len(intervals) <= _FEW:
            for at in range(1, len(intervals) - 1):
                (_, before), (value, label), (end, after) = intervals[at - 1 : at + 2]
                if before == after and end == value + 1:
                    rest = self._search(intervals[:at] + intervals[at + 2 :])
                    return self.add(IF_EQUAL, value, label, rest)
        middle = len(intervals) // 2
        below, above = self._search(intervals[:middle]), self._search(intervals[middle:])
        return self.add(IF_AT_LEAST, intervals[middle][0], above, below)
