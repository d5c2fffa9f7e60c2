"""What a side measures of itself. Standard library only: the sides run in several interpreters."""

from __future__ import annotations

import resource


def peak_memory_bytes() -> int:
    """The most memory that this process has held since it was started."""
    with open("/proc/self/status", encoding="ascii") as file:
        (line,) = (line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def cpu_seconds() -> float:
    """CPU time of this process and of all descendants that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
