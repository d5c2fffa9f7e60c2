"""Reads the signals of a run: metrics.jsonl as aligned series, one value for each step.

A step that was written twice (a resumed run) keeps its last row, unordered steps are sorted, a torn
last line and rows without a step are left out. Each of these is said in `notes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.errors import DiagnosticsError
from greenward.runs.files import from_json_number, read_jsonl

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]

# Names that other tools and earlier reports use -> ours, in the order of preference.
ALIASES = {
    "gradient_norm": ("grad_norm",),
    "code_score": ("reward/code_score", "reward/tests", "reward/mean"),
    "reward": ("reward/mean",),
    "reward_mean": ("reward/mean",),
    "reward_std": ("reward/std",),
    "lr": ("learning_rate",),
    "kl_mean": ("kl",),
    "entropy_mean": ("entropy",),
    "clip_frac": ("clip/fraction", "clip/high"),
    "memory": ("perf/device_memory_mb", "perf/rss_mb"),
    "rss": ("perf/rss_mb",),
    "throughput": ("perf/tokens_per_second",),
    "length": ("completion/mean_length",),
    "truncation": ("completion/truncated",),
}
# Signals that live on a ratio scale: twice as much means the same everywhere.
_RATIO_SCALE = re.compile(r"(.*_)?(grad_norm|norm)|perf/.*|time/.*|completion/(mean|max)_length")
# Follow from the recipe or the clock, so a change in them is no finding.
_SCHEDULED = frozenset({"step", "learning_rate", "time/training"})

_OVERFLOWED = 1e100  # larger values are infinite for our purposes: their squares would be


@dataclass(frozen=True)
class Signals:
    """The aligned series of a run. A value that a row lacks is NaN, and its `recorded` is false."""

    name: str
    steps: Steps
    values: dict[str, Floats]
    recorded: dict[str, npt.NDArray[np.bool_]]
    notes: tuple[str, ...]

    def resolve(self, wanted: str) -> str:
        """The logged name that `wanted` means: itself, an alias, or the one name `group/wanted`.

        Raises:
            DiagnosticsError: none or several; the nearest names are listed.
        """
        if wanted in self.values:
            return wanted
        for name in ALIASES.get(wanted, ()):
            if name in self.values:
                return name
        inside = [name for name in self.values if name.rpartition("/")[2] == wanted]
        if len(inside) == 1:
            return inside[0]
        near = inside or get_close_matches(wanted, [*self.values, *ALIASES], n=5, cutoff=0.5)
        found = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(self.values)}"
        raise DiagnosticsError(f"{self.name} has no signal {wanted!r}", remedy=found)

    def finite(self, name: str) -> tuple[Steps, Floats]:
        """The steps at which `name` is a finite number, and its values there."""
        keep = np.isfinite(self.values[name])
        return self.steps[keep], self.values[name][keep]

    def non_finite(self, name: str) -> npt.NDArray[np.bool_]:
        """Where `name` was logged as NaN or infinite; a value that is missing is not."""
        return self.recorded[name] & ~np.isfinite(self.values[name])


def read_signals(run: str | Path) -> Signals:
    """Read the signals of a run directory, or of a metrics.jsonl itself.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a broken line that is not the last one.
    """
    path = Path(run)
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not file.is_file():
        seeds = sorted(str(found.parent) for found in path.glob("*/metrics.jsonl"))
        remedy = f"Runs inside it: {', '.join(seeds)}" if seeds else "Give the folder of a run."
        raise DiagnosticsError(f"{path} has no metrics.jsonl", remedy=remedy)
    lines = read_jsonl(file)
    notes = ["the last line is torn and was left out"] if lines.torn is not None else []
    rows = [row for row in lines.rows if _is_step(row.get("step"))]
    if not rows:
        raise DiagnosticsError(f"{file} has no row with a step")
    if len(rows) < len(lines.rows):
        notes.append(f"{len(lines.rows) - len(rows)} row(s) without a step were left out")
    by_step: dict[int, dict[str, Any]] = {}
    for row in rows:
        step = int(row["step"])
        by_step[step] = {**by_step[step], **row} if step in by_step else row
    if len(by_step) < len(rows):
        notes.append(f"{len(rows) - len(by_step)} step(s) were written again; the last value counts")
    ordered = sorted(by_step)
    if [int(row["step"]) for row in rows] != sorted(int(row["step"]) for row in rows):
        notes.append("the steps were not in order and were sorted")
    return _aligned(str(path), ordered, [by_step[step] for step in ordered], notes)


def on_ratio_scale(name: str) -> bool:
    """Whether a change of the signal is a factor (norms, memory, times) rather than a difference."""
    return _RATIO_SCALE.fullmatch(name) is not None


def is_scheduled(name: str) -> bool:
    """Whether the signal follows from the recipe or the clock alone."""
    return name in _SCHEDULED


def _is_step(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and float(value).is_integer()


def _aligned(name: str, steps: Iterable[int], rows: list[dict[str, Any]], notes: list[str]) -> Signals:
    values: dict[str, Floats] = {}
    recorded: dict[str, npt.NDArray[np.bool_]] = {}
    for key in dict.fromkeys(key for row in rows for key in row if key != "step"):
        column = [_number(row.get(key)) for row in rows]
        known = np.array([value is not None for value in column])
        if known.any():
            recorded[key] = known
            values[key] = np.array(column, float)  # None becomes NaN
    return Signals(name, np.array(list(steps), np.int64), values, recorded, tuple(notes))


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = from_json_number(value)
    if not isinstance(value, (int, float)):
        return None
    if abs(value) > _OVERFLOWED:
        return math.inf if value > 0 else -math.inf
    return float(value)
