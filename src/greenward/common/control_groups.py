"""How much of the machine a process may use: its control groups (containers, Slurm) and its affinity."""

from __future__ import annotations

import os
from pathlib import Path


def control_groups(controller: str, root: Path = Path("/")) -> list[Path]:
    """The folders of this process's control groups, up to the root, whose limits all hold.

    Those of version 1 where the controller has a hierarchy of its own, else those of version 2.
    """
    mount = root / "sys/fs/cgroup"
    paths = _group_paths(root)
    if not (mount / "cgroup.controllers").is_file():  # the root of version 2 has it
        joined = next((one for one in paths if controller in one.split(",")), controller)
        hierarchy = next((mount / one for one in (controller, joined) if (mount / one).is_dir()), None)
        if hierarchy is not None:
            return _up_to(hierarchy, paths.get(joined, ""))
    return _up_to(mount, paths.get("", ""))


def _group_paths(root: Path) -> dict[str, str]:
    """The control group of this process by the controllers of its hierarchy; those of version 2 are ""."""
    try:
        lines = (root / "proc/self/cgroup").read_text(errors="surrogateescape").splitlines()
    except OSError:
        return {}
    fields = (line.split(":", 2) for line in lines)
    return {one[1]: one[2].strip("/") for one in fields if len(one) == 3}


def _up_to(mount: Path, relative: str) -> list[Path]:
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
        except (OSError, ValueError, ZeroDivisionError):
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
