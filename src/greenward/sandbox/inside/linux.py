"""Linux's system calls and facts of processes that the standard library lacks, and portable substitutes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time

LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
# asm/unistd_64.h and asm-generic/unistd.h: Landlock's numbers are the same everywhere.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_LANDLOCK = {"landlock_create_ruleset": 444, "landlock_add_rule": 445, "landlock_restrict_self": 446}
_MACHINE = os.uname().machine
libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a call of the C library. Raises `OSError` with its error number if it is negative."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return int(result)


def system_call(name: str, *arguments: int | bytes) -> int:
    """Makes one system call by name and returns its result. Raises `OSError`."""
    if _MACHINE not in _PIVOT_ROOT:
        raise OSError(f"{name}: unknown on {_MACHINE}")
    number = _PIVOT_ROOT[_MACHINE] if name == "pivot_root" else _LANDLOCK[name]
    return checked(libc.syscall(ctypes.c_long(number), *arguments), name)


def prctl(option: int, value: int) -> None:
    """Sets one switch of this process; does nothing where there is no such call. Raises `OSError`."""
    if LINUX:
        checked(libc.prctl(option, *map(ctypes.c_ulong, (value, 0, 0, 0))), "prctl")


def raise_priority() -> None:
    """Schedules this process before all ordinary processes, where the user may do so.

    RLIMIT_NPROC does not apply to root. The worker that kills a fork bomb must therefore not compete with it
    for a processor. A forked child calls `reset_priority` before it runs a command.
    """
    if LINUX:
        with contextlib.suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))


def reset_priority() -> None:
    """Returns to the ordinary scheduling policy."""
    if LINUX and os.sched_getscheduler(0) == os.SCHED_RR:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def unnamed_file(content: memoryview, folder: str) -> int:
    """An open file that holds the content and has no name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        import tempfile  # it would make the memory larger that every answer copies

        with tempfile.TemporaryFile(dir=folder) as file:
            descriptor = os.dup(file.fileno())
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, read from outside; 0 where that cannot be read.

    Source: man 2 clock_getres, CPU-time clock ids.
    """
    return time.clock_gettime((~pid << 3) | 2) if LINUX else 0.0


def is_asleep(pid: int) -> bool:
    """Whether no thread of a process runs or waits for a processor or a disk; False where that is unknown."""
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                if file.read().rpartition(b")")[2].split()[0] in (b"R", b"D"):
                    return False
    except OSError:  # there is no such folder, or a thread has ended meanwhile
        return False
    return True


def children(pid: int) -> list[int]:
    """The direct children of a process; none if it is gone."""
    if not os.path.exists("/proc/self/task"):
        import subprocess  # it would make the memory larger that every answer copies

        table = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, check=True).stdout
        pairs = (tuple(map(int, line.split())) for line in table.splitlines())
        return [child for child, parent in pairs if parent == pid]
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    return found


def resident_bytes(pid: int) -> int:
    """The memory that a process holds; 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def descendants(pid: int, *, at_most: int = 1 << 16) -> list[int]:
    """Children, their children and so on, nearest first."""
    found = children(pid)
    for one in found:
        if len(found) >= at_most:
            break
        found.extend(children(one))
    return found


def kill_tree(pid: int) -> None:
    """SIGKILL to a process to which orphans come (PR_SET_CHILD_SUBREAPER), and to all that it started.

    It is stopped first and killed last: what multiplies meanwhile stays among its descendants, which are
    looked for until there are no new ones. This runs before ordinary processes, where the user may do so.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    is_ordinary = LINUX and os.sched_getscheduler(0) == os.SCHED_OTHER
    if is_ordinary:
        raise_priority()
    try:
        killed: set[int] = set()
        while started := set(descendants(pid)) - killed:
            for one in started:
                kill(one)
            killed |= started
        kill(pid)
    finally:
        if is_ordinary:
            reset_priority()


def kill(pid: int) -> None:
    """SIGKILL to one process, which may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
