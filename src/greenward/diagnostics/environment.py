"""What of the environment of a run keeps it from being repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from greenward.diagnostics.diff_causes import setting_differences
from greenward.errors import DiagnosticsError
from greenward.runs.reading import flattened, is_run, read_config, read_sessions

# Variables that change numbers from one process to the next, and what to set.
_VARIABLES = {
    "PYTHONHASHSEED": "0, where the order of sets or hashes enters",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8, for deterministic CUDA matrix products",
    "OMP_NUM_THREADS": "a fixed number: sums are rounded in another order with another",
}


def audit_environment(path: Path) -> Iterator[str]:
    """Lines that say what differs between the sessions of a run, and what is not fixed here.

    Raises:
        DiagnosticsError: there is no run directory.
        RunError: a file of it that cannot be read.
    """
    if not is_run(path):
        raise DiagnosticsError(f"{path} is no run directory")
    sessions = read_sessions(path)
    if not sessions:
        yield "provenance.json is missing: versions and machine of the run are not known."
    for number, (before, after) in enumerate(pairwise(sessions), start=2):
        for one in sorted(setting_differences(before, after), key=attrgetter("key")):
            yield f"session {number}: {one.key} {_shown(one.a)} -> {_shown(one.b)}"
    if sessions:
        for key, value in sorted(flattened(sessions[-1])):
            yield f"{key}: {_shown(value)}"
    config = read_config(path) if (path / "config.yaml").is_file() else {}
    if "seed" not in config:
        yield "! the config names no seed"
    for name, advice in _VARIABLES.items():
        if name not in os.environ:
            yield f"! {name} is not set here (set it to {advice})"


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)[:100]
