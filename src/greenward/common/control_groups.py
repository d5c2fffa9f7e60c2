"""How much of the machine a process may use: its control groups (containers, Slurm) and its affinity."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """The folders of this process's control groups, up to the root, whose limits all hold; v2, then v1."""
    mount, relative = root / "sys/fs/cgroup", ""
    if (mount / controller).is_dir():
        mount /= controller
    with contextlib.suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or controller in controllers.split(","):
                relative = path.strip("/")
    folder = mount / relative
    return [one for one in (folder, *folder.parents) if one == mount or mount in one.parents]


def cpu_limit(root: Path = Path("/")) -> float | None:
    """The cores that the control group's quota (v2, then v1) amounts to; None without one."""
    limits = []
    for folder in control_groups("cpu", root):
        try:
            if (folder / "cpu.max").is_file():
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                limits.append(int(quota) / int(period))
        except (OSError, ValueError):
            continue
    return min(limits, default=None)


def allowed_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores(root: Path = Path("/")) -> int:
    """How many threads or processes can compute at a time: as many as there are cores, within the quota.

    A quota of 2.5 cores counts as 2: a third thread would have the others wait for it half of the time.
    """
    limit = cpu_limit(root)
    return allowed_cores() if limit is None else max(1, min(allowed_cores(), int(limit)))
