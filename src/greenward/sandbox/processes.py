"""Facts and switches of Linux processes, from /proc, prctl and the process clocks.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36

_prctl = ctypes.CDLL(None, use_errno=True).prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4


def prctl(option: int, value: int) -> None:
    """Sets one switch of this process. Raises `OSError`."""
    if _prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used, read from outside (man 2 clock_getres: CPU-time clock ids)."""
    return time.clock_gettime((~pid << 3) | 2)


def children(pid: int) -> list[int]:
    """The direct children of a process; none if it is gone."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        return found
    return found


def descendants(pid: int, *, at_most: int = 4096) -> list[int]:
    """Children, their children and so on, nearest first."""
    found = children(pid)
    for one in found:
        if len(found) >= at_most:
            break
        found.extend(children(one))
    return found


def kill(pid: int) -> None:
    """SIGKILL to one process, which may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
