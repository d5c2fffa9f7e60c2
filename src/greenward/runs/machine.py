"""Describes the machine under a run, for provenance.json and memory limits, and what it reaches.

No names, paths or environment variables are recorded.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from greenward.common.control_groups import control_groups
from greenward.common.errors import RepositoryError
from greenward.runs.repository import Repository

_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024  # unit of ru_maxrss
_MB = 1 << 20
_GIT_SECONDS = 5.0
_PACKAGES = ("greenward", "torch", "transformers", "tokenizers", "numpy", "vllm")


def collect_provenance(device: str | None = None) -> dict[str, Any]:
    """Plain data about this session. `device` names the accelerator; none = the processor."""
    return {
        "started_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := version_of(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": os.cpu_count(),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _MB,
        "device": device or _processor(),
        "git": _git_state(),
    }


def version_of(package: str) -> str | None:
    """The version of an installed package, None for one that is not installed."""
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git_state() -> dict[str, Any] | None:
    """Commit of the folder the command runs in, and whether tracked files were changed, None if unknown."""
    modified = None
    try:
        with Repository.around(Path.cwd()) as repository:
            commit = repository.reference("HEAD")
            with contextlib.suppress(RepositoryError):
                modified = repository.is_modified(seconds=_GIT_SECONDS)
    except (RepositoryError, OSError):
        return None
    return None if commit is None else {"commit": commit, "modified": modified}


def probe_seconds() -> float:
    """CPU time of a fixed computation: other work on the machine makes it longer, a slow run does not.

    Other programs stretch CPU time as well as wall time, through shared cores, caches and clocks.
    """
    began = time.thread_time()
    sum(range(10_000))
    return time.thread_time() - began


def resident_mb() -> float:
    """Resident memory of this process now, in MiB; its peak where the system has no /proc."""
    statm = Path("/proc/self/statm")
    if statm.is_file():
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / _MB
    return peak_resident_mb()


def available_mb(root: Path = Path("/")) -> float:
    """Memory that can still be taken without swapping, in MiB: of the machine, or of this control group.

    All physical memory where the system does not say (no /proc).
    """
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _MB
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    return min(int(fields["MemAvailable"].split()[0]) / 1024, _left_in_control_groups_mb(root))


def _left_in_control_groups_mb(root: Path) -> float:
    """What the limits leave; infinite without one."""
    left = [float("inf")]
    for folder in control_groups("memory", root):
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            with contextlib.suppress(OSError, ValueError):  # no such file, or the limit is `max`
                left.append((int((folder / limit).read_text()) - int((folder / used).read_text())) / _MB)
    return min(left)


def peak_resident_mb() -> float:
    """Peak resident memory of this process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES / _MB


def http_status(url: str, seconds: float, method: str = "GET") -> int | None:
    """The status of what a server answers at `url`, None where nothing comes in time.

    Asked in a thread, because looking a name up may hang.
    """
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    found: list[int] = []

    def ask() -> None:
        with contextlib.suppress(OSError, HTTPException, ValueError):
            try:
                with urlopen(Request(url, method=method), timeout=seconds) as answer:
                    found.append(answer.status or 200)
            except HTTPError as error:
                found.append(error.code)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(seconds)
    return found[0] if found else None
