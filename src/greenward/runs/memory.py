"""How much memory this process and its children hold, from what the operating system says."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

_UNIT_BYTES = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
_MB = 1 << 20


def resident_mb() -> float:
    """Resident memory of this process now, in MiB; its peak where the system has no /proc."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB
    return peak_resident_mb()


def available_mb() -> float:
    """Memory that can still be taken without swapping, in MiB: of the machine, or of this control group.

    All physical memory where the system does not say (no /proc).
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _MB
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) / 1024, _left_in_control_group_mb())


def _left_in_control_group_mb() -> float:
    """What the container's limit (cgroup v2, then v1) leaves; infinite without one."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        file = Path("/sys/fs/cgroup", limit)
        if file.is_file():
            text = file.read_text().strip()
            taken = int(Path("/sys/fs/cgroup", used).read_text())
            return float("inf") if text == "max" else (int(text) - taken) / _MB
    return float("inf")


def peak_resident_mb() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_BYTES / _MB
