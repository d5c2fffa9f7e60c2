"""Reads the signals of a run from the files that it left.

`READERS` is the table of readers: one for the files of another tracker is a row there. A step that was
written twice (a resumed run) keeps its last row, unordered steps are sorted, a torn last line and rows
without a step are left out. Each of these is said in the notes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.signals import Bools, Floats, RunSignals
from greenward.errors import DiagnosticsError
from greenward.runs.files import JsonRows, from_json_number
from greenward.runs.reading import CONFIG, METRICS, read_config, read_sessions

_BLOCK = 1024  # rows held as objects at once
_STEP_LIMIT = 2**62
_OVERFLOWED = 1e100  # larger values count as infinite: their squares would be
# File in a run directory -> its rows: one flat mapping with a `step` each, under the names that greenward
# logs; `torn` is an unfinished last row, None where there is none.
READERS: Mapping[str, Callable[[Path], JsonRows]] = {METRICS: JsonRows}
# Planted faults are the truth that diagnostics are measured against: they must find it themselves.
_HIDDEN = "faults"


def read_run_signals(run: str | Path) -> RunSignals:
    """Read a run directory, or the file of metrics itself.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a file that is there and cannot be read.
    """
    path = Path(run)
    file = next((path / name for name in READERS if (path / name).is_file()), path)
    if not file.is_file():
        seeds = sorted(str(found.parent) for found in path.glob(f"*/{METRICS}"))
        remedy = f"Runs inside it: {', '.join(seeds)}" if seeds else "Give the folder of a run."
        raise DiagnosticsError(f"{path} has no {METRICS}", remedy=remedy)
    rows = READERS.get(file.name, JsonRows)(file)
    columns = _Columns(rows)
    if not columns.steps:
        raise DiagnosticsError(f"{file} has no row with a step")
    notes = ["the last line is torn and was left out"] if rows.torn is not None else []
    steps, values, recorded = _aligned(columns, notes)
    config = read_config(path) if (path / CONFIG).is_file() else None
    if config is not None:
        config.pop(_HIDDEN, None)
    sessions = read_sessions(path)
    return RunSignals(path, steps, values, recorded, tuple(notes), config, sessions[-1] if sessions else {})


def _aligned(
    columns: _Columns, notes: list[str]
) -> tuple[npt.NDArray[np.int64], dict[str, Floats], dict[str, Bools]]:
    """(steps, values, where there is one) with one entry for each step; `notes` gets what was mended."""
    if columns.left_out:
        notes.append(f"{columns.left_out} row(s) without a step were left out")
    steps = np.array(columns.steps, np.int64)
    order = np.argsort(steps, kind="stable")
    starts = np.flatnonzero(np.diff(steps[order], prepend=steps[order][0] - 1))
    if len(starts) < len(steps):
        notes.append(f"{len(steps) - len(starts)} step(s) were written again; the last value counts")
    if np.any(np.diff(steps) < 0):
        notes.append("the steps were not in order and were sorted")
    values: dict[str, Floats] = {}
    recorded: dict[str, Bools] = {}
    for name, numbers, known in columns:
        numbers, known = numbers[order], known[order]
        newest = np.maximum.reduceat(np.where(known, np.arange(len(order)), -1), starts)
        values[name] = np.where(newest >= 0, numbers[newest], np.nan)
        recorded[name] = newest >= starts
    return steps[order][starts], values, recorded


class _Columns:
    """The numbers of rows, column by column, gathered a block of rows at a time."""

    def __init__(self, rows: Iterable[dict[str, Any]]) -> None:
        self.steps: list[int] = []
        self.left_out = 0
        self._blocks: list[tuple[int, dict[str, tuple[Floats, Bools]]]] = []
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

    def __iter__(self) -> Iterator[tuple[str, Floats, Bools]]:
        """(name, value, whether there is one) of each column that has a number, over all rows."""
        for name in dict.fromkeys(name for _, block in self._blocks for name in block):
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


def _column(cells: list[Any]) -> tuple[Floats, Bools]:
    if set(map(type, cells)) == {float}:
        values = np.array(cells)
        values = np.where(np.abs(values) > _OVERFLOWED, np.copysign(np.inf, values), values)
        return values, np.ones(len(cells), bool)
    numbers = [_number(cell) for cell in cells]
    return np.array(numbers, float), np.array([number is not None for number in numbers])  # None becomes NaN


def _number(value: Any) -> float | None:
    value = from_json_number(value)
    if not isinstance(value, (int, float)):
        return None
    if abs(value) > _OVERFLOWED:
        return math.inf if value > 0 else -math.inf
    return float(value)


def _is_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= _STEP_LIMIT:
        return False
    return float(value).is_integer()
