"""The rows of a log as series that are aligned by step."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from greenward.diagnostics.readers.log import MAX_NAME, Row
from greenward.diagnostics.signals import Bools, Floats
from greenward.runs.files import from_json_number

_STEP_LIMIT = 2**62
_OVERFLOWED = 1e100  # larger values count as infinite: their squares would be
_MOST_NAMES = 4000
_PEEKED = 200  # rows, by which the key of the step is chosen


class Columns:
    """Series by name, aligned by step. Of several values of a step and a name the last one counts.

    `notes` say what was left out or mended. Arrays of numbers hold 16 bytes a value, lists would hold 56.
    """

    def __init__(self, rows: Iterable[Row], step_keys: Sequence[str]) -> None:
        written = array("q")
        columns: dict[str, tuple[array[int], array[float]]] = {}
        left_out = counted = dropped = 0
        rows, key = _step_key(iter(rows), step_keys)
        for row in rows:
            if key is None:
                counted += 1
                step: Any = counted
            else:
                step = row.pop(key, None)
                if not _is_step(step):
                    left_out += 1
                    continue
            place = len(written)
            for name, cell in row.items():
                number = cell if type(cell) is float else as_number(cell)
                if number is None:
                    continue
                column = columns.get(name)
                if column is None:
                    if len(name) > MAX_NAME or len(columns) >= _MOST_NAMES:
                        dropped += 1
                        continue
                    column = columns[name] = array("q"), array("d")
                at, numbers = column
                at.append(place)
                numbers.append(number)
            written.append(int(step))
        self.steps, places = np.unique(np.array(written, np.int64), return_inverse=True)
        self.values: dict[str, Floats] = {}
        self.recorded: dict[str, Bools] = {}
        again = np.zeros(len(self.steps), bool)
        for name, (at, numbers) in columns.items():
            known, found = places[np.array(at)], np.array(numbers)
            values, recorded = np.full(len(self.steps), np.nan), np.zeros(len(self.steps), bool)
            # numpy assigns in order, so that the last value of a step counts.
            values[known] = np.where(np.abs(found) > _OVERFLOWED, np.copysign(np.inf, found), found)
            recorded[known] = True
            self.values[name], self.recorded[name] = values, recorded
            if len(known) > recorded.sum():
                again |= np.bincount(known, minlength=len(self.steps)) > 1
        repeated = int(again.sum())
        notes = {
            f"{left_out} row(s) without a step were left out": left_out,
            "no row has a step; rows are counted": counted,
            f"{dropped} value(s) whose name is longer than {MAX_NAME} characters, or beyond the first "
            f"{_MOST_NAMES} names, were left out": dropped,
            f"{repeated} step(s) were written again; the last value counts": repeated,
            "the steps were not in order and were sorted": bool(np.any(np.diff(written) < 0)),
        }
        self.notes = [note for note, applies in notes.items() if applies]


def _step_key(rows: Iterator[Row], keys: Sequence[str]) -> tuple[Iterator[Row], str | None]:
    """The rows, and the first of the keys under which the most of the first rows have a step."""
    first = list(itertools.islice(rows, _PEEKED))
    counts = [sum(_is_step(row.get(key)) for row in first) for key in keys]
    best = max(counts, default=0)
    return itertools.chain(first, rows), keys[counts.index(best)] if best else None


def as_number(value: Any) -> float | None:
    """The number that a cell of a log means, None where it is none; one beyond a float is infinite."""
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
