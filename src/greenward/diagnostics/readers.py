"""Reads the signals of a run from the files that it left.

`READERS` is the table of readers: one for the files of another tracker is a row there. A step that was
written twice (a resumed run) keeps its last row, unordered steps are sorted, a torn last line and rows
without a step are left out. Each of these is said in the notes.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from greenward.diagnostics.signals import Bools, Floats, RunSignals, Steps
from greenward.errors import DiagnosticsError
from greenward.runs.files import JsonRows, from_json_number
from greenward.runs.reading import CONFIG, METRICS, read_config, read_sessions

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
    steps, values, recorded, notes = _read_columns(READERS.get(file.name, JsonRows)(file))
    if not len(steps):
        raise DiagnosticsError(f"{file} has no row with a step")
    config = read_config(path) if (path / CONFIG).is_file() else None
    if config is not None:
        config.pop(_HIDDEN, None)
    sessions = read_sessions(path)
    return RunSignals(path, steps, values, recorded, tuple(notes), config, sessions[-1] if sessions else {})


def _read_columns(source: JsonRows) -> tuple[Steps, dict[str, Floats], dict[str, Bools], list[str]]:
    """(steps, values, where there is one, notes on what was mended) with one entry for each step."""
    written: list[int] = []
    # Each name has the rows with a number, and the numbers; arrays hold 16 bytes for each, lists 56.
    columns: defaultdict[str, tuple[array[int], array[float]]]
    columns = defaultdict(lambda: (array("q"), array("d")))
    left_out = 0
    for row in source:
        step = row.pop("step", None)
        if not _is_step(step):
            left_out += 1
            continue
        for name, cell in row.items():
            rows, numbers = columns[name]
            number = cell if type(cell) is float else _number(cell)
            if number is not None:
                rows.append(len(written))
                numbers.append(number)
        written.append(int(step))
    steps, places = np.unique(np.array(written, np.int64), return_inverse=True)
    values: dict[str, Floats] = {}
    recorded: dict[str, Bools] = {}
    for name, (rows, numbers) in columns.items():
        if rows:
            known, found = places[np.array(rows)], np.array(numbers)
            values[name], recorded[name] = np.full(len(steps), np.nan), np.zeros(len(steps), bool)
            # Of several values of a step the last one counts: numpy assigns in order.
            values[name][known] = np.where(np.abs(found) > _OVERFLOWED, np.copysign(np.inf, found), found)
            recorded[name][known] = True
    repeated = len(written) - len(steps)
    notes = {
        "the last line is torn and was left out": source.torn is not None,
        f"{left_out} row(s) without a step were left out": left_out,
        f"{repeated} step(s) were written again; the last value counts": repeated,
        "the steps were not in order and were sorted": np.any(np.diff(written) < 0),
    }
    return steps, values, recorded, [note for note, applies in notes.items() if applies]


def _number(value: Any) -> float | None:
    value = from_json_number(value)
    if not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _is_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= _STEP_LIMIT:
        return False
    return float(value).is_integer()
