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


def peak_resident_mb() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT_BYTES / _MB
