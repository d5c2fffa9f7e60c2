"""The rows of a log as series that are aligned by step."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from greenward.diagnostics.readers.log import MAX_NAME, Row
from greenward.diagnostics.signals import Bools, Floats, Steps
from greenward.runs.files import OVERFLOWED, from_json_number

_STEP_LIMIT = 2**62
_MOST_NAMES = 4000
_MOST_CELLS = 1 << 24  # of steps and names together, unless most of them have a value
_LONG = 4  # values of a row, from which on rows are taken as a whole
_PEEKED = 200  # rows, by which the key of the step is chosen


class Columns(NamedTuple):
    """Series by name. Arrays of numbers hold 16 bytes a value, where lists of them would hold 56."""

    steps: Steps
    values: dict[str, Floats]
    recorded: dict[str, Bools]
    notes: list[str]

    @classmethod
    def of(cls, rows: Iterable[Row], step_keys: Sequence[str]) -> Columns:
        """Align the rows. Of several values of a step and a name the last one counts."""
        written = array("q")
        columns: dict[str, tuple[array[int], array[float]]] = {}
        whole = _WholeRows()
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
            if not whole.take(row, len(written)):
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
                    column[0].append(len(written))
                    column[1].append(number)
            written.append(int(step))
        found = {name: (np.array(rows), np.array(numbers)) for name, (rows, numbers) in columns.items()}
        for name, taken, numbers in whole.columns():
            if name in found:
                taken, numbers = (
                    np.concatenate(pair) for pair in zip(found[name], (taken, numbers), strict=True)
                )
                order = np.argsort(taken, kind="stable")
                taken, numbers = taken[order], numbers[order]
            found[name] = taken, numbers
        in_order = np.array(written, np.int64)
        steps, places = np.unique(in_order, return_inverse=True)
        found, too_sparse = _dense_enough(found, len(steps))
        values, recorded, repeated = _aligned(len(steps), places, found)
        notes = {
            f"{too_sparse} name(s) with the fewest values were left out: the log has {len(steps)} steps": (
                too_sparse
            ),
            f"{left_out} row(s) without a step were left out": left_out,
            "no row has a step; rows are counted": counted,
            f"{dropped} value(s) whose name is longer than {MAX_NAME} characters, or beyond the first "
            f"{_MOST_NAMES} names, were left out": dropped,
            f"{repeated} step(s) were written again; the last value counts": repeated,
            "the steps were not in order and were sorted": bool(np.any(np.diff(in_order) < 0)),
        }
        return cls(steps, values, recorded, [note for note, applies in notes.items() if applies])


def _dense_enough(
    columns: dict[str, tuple[Steps, Floats]], steps: int
) -> tuple[dict[str, tuple[Steps, Floats]], int]:
    """The fullest columns, as many as can be aligned without more empty cells than `_MOST_CELLS`, and how
    many are left out. A small log could else ask for any memory, by names that each have a step of their own.
    """
    by_size = sorted(columns, key=lambda name: -len(columns[name][0]))
    cells = values = 0
    kept = set()
    for name in by_size:
        cells, values = cells + steps, values + len(columns[name][0])
        if cells - values > _MOST_CELLS:
            break
        kept.add(name)
    return {name: columns[name] for name in columns if name in kept}, len(columns) - len(kept)


def _aligned(
    steps: int, places: Steps, columns: Mapping[str, tuple[Steps, Floats]]
) -> tuple[dict[str, Floats], dict[str, Bools], int]:
    """(values, recorded, how many steps were written again) of columns whose rows belong to `places`."""
    values, recorded, repeated = {}, {}, np.zeros(steps, bool)
    for name, (rows, found) in columns.items():
        known = places[rows]
        values[name], recorded[name] = np.full(steps, np.nan), np.zeros(steps, bool)
        # numpy assigns in order, so that the last value of a step counts.
        values[name][known] = np.where(np.abs(found) > OVERFLOWED, np.copysign(np.inf, found), found)
        recorded[name][known] = True
        if len(known) > recorded[name].sum():
            repeated |= np.bincount(known, minlength=steps) > 1
    return values, recorded, int(repeated.sum())


class _WholeRows:
    """Rows with the names of the first long one, in its order, and nothing but numbers: as a block."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._rows, self._numbers = array("q"), array("d")

    def take(self, row: Row, place: int) -> bool:
        """Whether the row fits, and was taken."""
        names = tuple(row)
        if not self._names and _LONG <= len(names) < _MOST_NAMES and max(map(len, names)) <= MAX_NAME:
            self._names = names
        if not names or names != self._names:
            return False
        before = len(self._numbers)
        try:
            self._numbers.extend(row.values())
        except (TypeError, OverflowError):
            del self._numbers[before:]
            return False
        self._rows.append(place)
        return True

    def columns(self) -> Iterator[tuple[str, Steps, Floats]]:
        """(name, places of the rows, values) of each name."""
        table = np.array(self._numbers).reshape(len(self._rows), -1) if self._rows else np.zeros((0, 0))
        rows = np.array(self._rows)
        for index, name in enumerate(self._names if len(rows) else ()):
            yield name, rows, table[:, index]


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
