"""Reads the signals of a run: metrics.jsonl as aligned series, one value for each step.

A step that was written twice (a resumed run) keeps its last row, unordered steps are sorted, a torn
last line and rows without a step are left out. Each of these is said in `notes`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.growth import large_where
from greenward.errors import DiagnosticsError
from greenward.runs.files import JsonRows, from_json_number

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
_NORM = re.compile(r"(.*[_/])?(grad_norm|norm)")
_MEMORY = re.compile(r"perf/.*(rss|memory).*")
_RATIO_SCALE = re.compile(rf"{_NORM.pattern}|perf/.*|time/.*|completion/(mean|max)_length")
# Follow from the recipe or the clock, so a change in them is no finding.
_SCHEDULED = frozenset({"step", "learning_rate", "time/training"})

_BLOCK = 1024  # rows held as objects at once
_STEP_LIMIT = 2**62
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

    def comparable(self, name: str) -> Floats:
        """The values as a test of changes counts them: norms that are not finite count as large.

        A value that is missing stays NaN.
        """
        values = self.values[name]
        return large_where(self.non_finite(name), values) if is_norm(name) else values


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
    rows = JsonRows(file)
    table = _Table(rows)
    if not table.steps:
        raise DiagnosticsError(f"{file} has no row with a step")
    notes = ["the last line is torn and was left out"] if rows.torn is not None else []
    if table.left_out:
        notes.append(f"{table.left_out} row(s) without a step were left out")
    steps = np.array(table.steps, np.int64)
    order = np.argsort(steps, kind="stable")
    starts = np.flatnonzero(np.diff(steps[order], prepend=steps[order][0] - 1))
    if len(starts) < len(steps):
        notes.append(f"{len(steps) - len(starts)} step(s) were written again; the last value counts")
    if np.any(np.diff(steps) < 0):
        notes.append("the steps were not in order and were sorted")
    values: dict[str, Floats] = {}
    recorded: dict[str, npt.NDArray[np.bool_]] = {}
    for name, numbers, known in table.columns():
        values[name], recorded[name] = _aligned(numbers, known, order, starts)
    return Signals(str(path), steps[order][starts], values, recorded, tuple(notes))


def on_ratio_scale(name: str) -> bool:
    """Whether a change of the signal is a factor (norms, memory, times) rather than a difference."""
    return _RATIO_SCALE.fullmatch(name) is not None


def is_norm(name: str) -> bool:
    """Whether the signal is the norm of a gradient."""
    return _NORM.fullmatch(name) is not None


def is_memory(name: str) -> bool:
    """Whether the signal is the memory of the process or of its device."""
    return _MEMORY.fullmatch(name) is not None


def is_scheduled(name: str) -> bool:
    """Whether the signal follows from the recipe or the clock alone."""
    return name in _SCHEDULED


def _is_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= _STEP_LIMIT:
        return False
    return float(value).is_integer()


class _Table:
    """The numbers of the rows, column by column, gathered a block of rows at a time."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.steps: list[int] = []
        self.left_out = 0
        self._blocks: list[tuple[int, dict[str, tuple[Floats, npt.NDArray[np.bool_]]]]] = []
        waiting: list[dict[str, Any]] = []
        for row in rows:
            step = row.pop("step", None)
            if not _is_step(step):
                self.left_out += 1
                continue
            self.steps.append(int(step))
            waiting.append(row)
            if len(waiting) == _BLOCK:
                self._gather(waiting)
                waiting = []
        self._gather(waiting)

    def columns(self) -> Iterator[tuple[str, Floats, npt.NDArray[np.bool_]]]:
        """(name, value, whether there is one) of each column that has a number, over all rows."""
        names = dict.fromkeys(name for _, block in self._blocks for name in block)
        for name in names:
            parts = [
                block.get(name) or (np.full(count, np.nan), np.zeros(count, bool))
                for count, block in self._blocks
            ]
            known = np.concatenate([part[1] for part in parts])
            if known.any():
                yield name, np.concatenate([part[0] for part in parts]), known

    def _gather(self, rows: list[dict[str, Any]]) -> None:
        names = dict.fromkeys(name for row in rows for name in row)
        self._blocks.append((len(rows), {name: _column([row.get(name) for row in rows]) for name in names}))


def _column(cells: list[Any]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    if set(map(type, cells)) == {float}:
        values = np.array(cells)
        values = np.where(np.abs(values) > _OVERFLOWED, np.copysign(np.inf, values), values)
        return values, np.ones(len(cells), bool)
    numbers = [_number(cell) for cell in cells]
    return np.array(numbers, float), np.array([number is not None for number in numbers])  # None becomes NaN


def _aligned(
    values: Floats,
    known: npt.NDArray[np.bool_],
    order: npt.NDArray[np.intp],
    starts: npt.NDArray[np.intp],
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """(value, whether there is one) at each step: the last one that its rows have."""
    values, known = values[order], known[order]
    newest = np.maximum.reduceat(np.where(known, np.arange(len(order)), -1), starts)
    return np.where(newest >= 0, values[newest], np.nan), newest >= starts


def _number(value: Any) -> float | None:
    if isinstance(value, str):
        value = from_json_number(value)
    if not isinstance(value, (int, float)):
        return None
    if abs(value) > _OVERFLOWED:
        return math.inf if value > 0 else -math.inf
    return float(value)
