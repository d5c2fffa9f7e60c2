"""Aligns the rows of a log by step: parts its runs, and says what became of each row.

Rows may name their steps or not, go back, repeat steps, or count different things in turn.
"""

from __future__ import annotations

import itertools
import math
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from greenward.common.statistics import distinct, median
from greenward.common.text import visible
from greenward.diagnostics.readers.names import known_name
from greenward.diagnostics.readers.rows import (
    MAX_NAME,
    MISSING,
    RUN_KEYS,
    Row,
    as_number,
    evaluated,
    plain_key,
)
from greenward.diagnostics.signals import Bools, Floats, Reading, Steps
from greenward.runs.files import OVERFLOWED

_STEP_LIMIT = 2**62
_MOST_NAMES = 4000
_MOST_CELLS = 1 << 24  # of steps and names together, unless most of them have a value
_LONG = 4  # values of a row, from which on rows are taken as a whole
_PEEKED = 200  # rows, by which the key of the step is chosen
_MOST_RUNS = 200  # in one file
_MOST_KINDS = 1000  # of rows, by their names
_NUMBERED_RUNS = frozenset(["seed", "run", "run_id", "trial", "trial_id"])
# Cells that may say that a row is of an evaluation, as `plain_key` gives their names.
_SPLIT_KEYS = frozenset(["split", "phase", "mode", "stage", "type", "kind", "event", "partition", "subset"])


class Columns(NamedTuple):
    """The series of a run by name, and what became of its rows."""

    steps: Steps
    values: dict[str, Floats]
    recorded: dict[str, Bools]
    notes: list[str]
    reading: Reading
    counted_by: str  # the name of the step as `plain_key` gives it, empty where rows are counted


class RunRows(NamedTuple):
    """The rows of one of the runs in a log, by their places, and how many values its fullest series has."""

    name: str
    rows: Steps
    size: int
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.name} ({self.size:,} row(s), steps {self.first} to {self.last})"


class Table:
    """The rows of a log as they were written. Arrays hold 16 bytes a value, where lists would hold 56."""

    def __init__(self, rows: Iterable[Row], step_keys: Sequence[str]) -> None:
        written, labels, kinds = array("q"), array("q"), array("q")
        columns: dict[str, tuple[array[int], array[float]]] = {}
        texts: dict[str, tuple[int, str]] = {}
        names: dict[str, int] = {"": 0}  # of runs
        of_kind: dict[tuple[str, ...], int] = {}  # rows with the same names
        whole = _WholeRows()
        counted = dropped = 0
        self.set_aside: Counter[str] = Counter()
        by_another: dict[str, array[int]] = {}  # places of the rows that count steps by another name
        rows, key, others, inner = _step_key(iter(rows), step_keys)
        self._counted_by = plain_key(key or "")
        for row in rows:
            if key is None:
                if other := next((name for name in others if _is_step(_step_of(row.get(name)))), None):
                    self.set_aside[f"they have a step ({visible(other, 60)}), and most rows have none"] += 1
                    continue
                counted += 1
                step: Any = counted
            else:
                step = _step_of(row.pop(key, None))
                if not _is_step(step):
                    another = _other_counter(row, step_keys)
                    if another is None or not written:
                        self.set_aside[_why_no_step(another, key)] += 1
                        continue
                    by_another.setdefault(another, array("q")).append(len(written))
                    step = written[-1]
            label, kind = 0, tuple(row)
            if whole.take(kind, row, len(written)):
                kinds.append(0)
            else:
                known = kind == whole.names or len(of_kind) == _MOST_KINDS
                kinds.append(0 if known else of_kind.setdefault(kind, len(of_kind) + 1))
                label, prefix = _of_row(row, names)
                for name, cell in row.items():
                    number = cell if type(cell) is float else as_number(cell)
                    if number is None:
                        if (
                            isinstance(cell, str)
                            and cell.strip().lower() not in MISSING
                            and len(texts) < _MOST_NAMES
                        ):
                            texts[name] = texts.get(name, (0, ""))[0] + 1, cell
                        continue
                    name = f"{prefix}{name}" if prefix and not name.startswith(prefix) else name
                    if (column := columns.get(name)) is None:
                        if len(name) > MAX_NAME or len(columns) >= _MOST_NAMES:
                            dropped += 1
                            continue
                        column = columns[name] = array("q"), array("d")
                    column[0].append(len(written))
                    column[1].append(number)
            written.append(int(step))
            labels.append(label)
        self.columns = {
            name: (np.array(rows), np.array(numbers)) for name, (rows, numbers) in columns.items()
        }
        for name, taken, numbers in whole.columns():
            if name in self.columns:
                taken, numbers = (
                    np.concatenate(pair) for pair in zip(self.columns[name], (taken, numbers), strict=True)
                )
                order = np.argsort(taken, kind="stable")
                taken, numbers = taken[order], numbers[order]
            self.columns[name] = taken, numbers
        self.steps, self._kinds = np.array(written, np.int64), np.array(kinds, np.int64)
        if len(names) < 3:
            labels, names = self._numbered_runs(labels, names)
        one = len(names) > _MOST_RUNS or len(names) < 3
        self._labels = np.zeros(len(written), np.int64) if one else np.array(labels, np.int64)
        self._label_names = [""] if one else [*names]
        self.notes = [f"{inner or 'no row has a step'}; rows are counted"] if counted else []
        for another, places in by_another.items():
            self._join(np.array(places), another, key or "")
        self._share_axis()
        if dropped:
            self.notes.append(
                f"{dropped} value(s) whose name is longer than {MAX_NAME} characters, or beyond the first "
                f"{_MOST_NAMES} names, were left out"
            )
        if len(names) > _MOST_RUNS:
            self.notes.append(f"the rows name more than {_MOST_RUNS} runs; they were not told apart by it")
        mixed = {name: found for name, found in texts.items() if name in self.columns}
        for name, (count, cell) in itertools.islice(mixed.items(), _SHOWN_TEXTS):
            self.notes.append(
                f"{count} value(s) of {visible(name, 60)} are no numbers, such as {visible(cell, 40)!r}; "
                "they were left out"
            )

    def _join(self, places: Steps, another: str, key: str) -> None:
        """Keep rows that count by `another` name at the steps of the rows before them, if they interleave."""
        if len(distinct(self.steps[places])) >= _PLACES:
            self.notes.append(
                f"{len(places)} row(s) count steps by {visible(another, 60)}; each has the "
                f"{visible(key, 60)} of the row before it"
            )
            return
        self.set_aside[_why_no_step(another, key)] += len(places)
        for name in [*self.columns]:
            self._leave_out(name, places)

    def _leave_out(self, name: str, places: Steps) -> None:
        rows, numbers = self.columns[name]
        kept = ~np.isin(rows, places)
        self.columns[name] = rows[kept], numbers[kept]
        if not kept.any():
            del self.columns[name]

    def _share_axis(self) -> None:
        """Put values whose steps count something else, as episodes, on the axis of the fullest signal."""
        moved = Counter[str]()
        for name in [*self.columns] if len(self._label_names) == 1 else ():
            self._take_one_counter(name)
        for label, reference in enumerate(self._fullest()):
            for name, (rows, _) in self.columns.items():
                mine = rows[self._labels[rows] == label]
                if (steps := self._on_axis(mine, reference)) is not None:
                    self.steps[mine] = steps
                    moved[name] += len(mine)
        if moved:
            more = f" and {len(moved) - _SHOWN_TEXTS} more" if len(moved) > _SHOWN_TEXTS else ""
            names = ", ".join(visible(name, 60) for name in itertools.islice(moved, _SHOWN_TEXTS))
            self.notes.append(
                f"{moved.total()} value(s) count other steps than the rest ({names}{more}); each has the "
                "step of the row before it"
            )

    def _take_one_counter(self, name: str) -> None:
        """Of values that were logged by two counters in turn, take those of the one with more."""
        rows, _ = self.columns[name]
        higher = _higher(self.steps[rows])
        more, fewer = rows[higher], np.delete(rows, higher)
        if len(more) < len(fewer):
            more, fewer = fewer, more
        if (steps := self._on_axis(fewer, more)) is None:
            return
        self.steps[fewer] = steps
        self._leave_out(name, fewer)
        self.notes.append(
            f"{visible(name, 60)} was logged by two counters; {len(fewer)} value(s) of the one with fewer "
            "were left out"
        )

    def _on_axis(self, rows: Steps, reference: Steps) -> Steps | None:
        """The steps of the reference rows before those of a series that counts something else; None for one
        that counts the same, or was not written beside them.

        Rows were written in the order of time. Where two series count the same, the step of a row of the one
        lies between those of the rows of the other around it.
        """
        if np.array_equal(rows, reference):
            return None
        steps, axis = self.steps[rows], self.steps[reference]
        if not (_is_in_order(steps) and _is_in_order(axis)):
            return None
        after = np.searchsorted(reference, rows).clip(max=len(axis) - 1)
        before = (np.searchsorted(reference, rows, side="right") - 1).clip(min=0)
        if len(distinct(before)) < max(_PLACES, len(rows) / _MANY):  # written one after the other
            return None
        slack = _NEAR * max(_distance(axis), _distance(steps))
        low, high = np.sort((axis[before], axis[after]), axis=0)
        apart = (steps < low - slack) | (steps > high + slack)
        return axis[before] if 2 * apart.sum() > len(steps) else None

    def _numbered_runs(self, labels: array[int], names: dict[str, int]) -> tuple[array[int], dict[str, int]]:
        """The runs by a seed or another number that each of their rows has, in place of those given."""
        for name, (rows, numbers) in self.columns.items():
            if plain_key(name) in _NUMBERED_RUNS and len(rows) == len(self.steps):
                found, of, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
                if 1 < len(found) <= _MOST_RUNS and sizes.min() > 2:
                    return array("q", (of + 1).tolist()), {
                        "": 0, **{f"{name} {number:g}": place for place, number in enumerate(found, 1)}
                    }  # fmt: skip
        return labels, names

    @property
    def names_runs(self) -> bool:
        """Whether the rows say which run they are of."""
        return len(self._label_names) > 1

    def runs(self, *, is_one: bool = False) -> list[RunRows]:
        """The runs, in the order of their first rows: those that the rows name, and each that begins anew.

        `is_one` says that the log is known to be of one run, which may have begun anew.
        """
        found: list[tuple[str, Steps]] = []
        fullest = self._fullest()
        for label, name in enumerate(self._label_names):
            rows = np.flatnonzero(self._labels == label)
            beginnings = [] if is_one else self._beginnings(rows, fullest[label])
            parts = np.split(rows, beginnings) if len(rows) else []
            for number, part in enumerate(parts, 1):
                found.append((f"{name}:{number}" if name and len(parts) > 1 else name or str(number), part))
        found.sort(key=lambda one: int(one[1][0]))
        run_of = np.zeros(len(self.steps), np.int64)
        for number, (_, part) in enumerate(found):
            run_of[part] = number
        sizes = np.zeros(len(found), np.int64)
        for taken, _ in self.columns.values():
            numbers, counts = np.unique(run_of[taken], return_counts=True)
            sizes[numbers] = np.maximum(sizes[numbers], counts)
        return [
            RunRows(
                name, part, int(size) or len(part), int(self.steps[part].min()), int(self.steps[part].max())
            )
            for (name, part), size in zip(found, sizes, strict=True)
        ]

    def _fullest(self) -> list[Steps]:
        """The rows of the series with the most values, for each of the runs that the rows name."""
        fullest = [np.zeros(0, np.int64)] * len(self._label_names)
        sizes = np.zeros(len(fullest), np.int64)
        for taken, _ in self.columns.values():
            labels = self._labels[taken]
            counts = np.bincount(labels, minlength=len(fullest))
            for label in np.flatnonzero(counts > sizes).tolist():
                fullest[label] = taken[labels == label] if len(fullest) > 1 else taken
            sizes = np.maximum(sizes, counts)
        return fullest

    def _beginnings(self, rows: Steps, taken: Steps) -> list[int]:
        """The places in the rows of a run where another begins, by those of its fullest series."""
        found = []
        for place, begins_anew in _rewinds(self.steps[taken]):
            if begins_anew:
                # Rows with other names may stand before the first one with this name.
                low, high = np.searchsorted(rows, (taken[place - 1], taken[place]))
                steps = self.steps[rows[low : high + 1]]
                found.append(int(low + 1 + np.flatnonzero(np.diff(steps) < 0)[0]))
        return found

    def aligned(self, run: RunRows) -> Columns:
        """The series of a run by step. Of the values that a resumed run logs again, the later ones count."""
        columns = self.columns
        if len(run.rows) < len(self.steps):
            mine = np.zeros(len(self.steps), bool)
            mine[run.rows] = True
            columns = {
                name: (rows[kept], numbers[kept])
                for name, (rows, numbers) in columns.items()
                if (kept := mine[rows]).any()
            }
        written = self.steps[run.rows]
        steps = distinct(written)
        columns, too_sparse = _dense_enough(columns, len(steps))
        values, recorded = {}, {}
        tally = _Tally(len(steps))
        for name, (rows, numbers) in columns.items():
            numbers = np.where(np.abs(numbers) > OVERFLOWED, np.copysign(np.inf, numbers), numbers)
            known = np.searchsorted(steps, self.steps[rows])
            if len(known) > 1 and (np.diff(known) <= 0).any():
                known, numbers = tally.settled(
                    known, numbers, self._kinds[rows], counts=plain_key(name).rpartition("/")[2] != "epoch"
                )
            values[name], recorded[name] = np.full(len(steps), np.nan), np.zeros(len(steps), bool)
            values[name][known], recorded[name][known] = numbers, True
        empty = tally.aside > 0
        for one in recorded.values():
            empty &= ~one
        if empty.any():
            steps = steps[~empty]
            values = {name: one[~empty] for name, one in values.items()}
            recorded = {name: one[~empty] for name, one in recorded.items()}
        replaced, aside = int(tally.replaced.sum()), int(tally.aside.sum())
        averaged, at = int(tally.several[tally.mixed].sum()), int(tally.mixed.sum())
        equal = int(np.maximum(tally.several[~tally.mixed] - 1, 0).sum())
        others = int(tally.others.sum())
        read = len(steps) + others + replaced + averaged - at + aside + equal
        notes = {
            f"{too_sparse} name(s) with the fewest values were left out: the log has {len(steps)} steps": (
                too_sparse
            ),
            f"{replaced} step(s) were written again; the later row counts, as after a resume": replaced,
            f"{at} step(s) have several rows, {averaged} in all; the mean of each step counts": averaged,
            f"{equal} row(s) repeat the numbers of their step": equal,
            f"{others} row(s) with other names share a step with a usual row, whose numbers count": others,
            f"{aside} row(s) were set aside: the log goes back and does not come as far again": (aside),
            "the steps were not in order and were sorted": bool(np.any(np.diff(written) < 0)),
        }
        left_out = sum(self.set_aside.values())
        reading = Reading(read + left_out, replaced, averaged, aside + others + left_out)
        said = [note for note, applies in notes.items() if applies]
        return Columns(steps, values, recorded, [*self.notes, *said], reading, self._counted_by)


_SHOWN_TEXTS = 4


_PLACES = 3  # steps, from which on rows of two kinds alternate
_NEAR = 3  # usual distances, within which steps are of one axis


def _other_counter(row: Row, keys: Sequence[str]) -> str | None:
    """The best of the names by which a row counts its step."""
    found = [name for name, cell in row.items() if plain_key(name) in keys and _is_step(_step_of(cell))]
    return min(found, key=lambda name: keys.index(plain_key(name)), default=None)


def _why_no_step(another: str | None, key: str) -> str:
    if another is None:
        return "they are without a step"
    return f"they count steps by {visible(another, 60)}, the others by {visible(key, 60)}"


def _higher(steps: Steps) -> Steps:
    """The places of the higher one of two counters that take turns; all places where one counter counts."""
    everything = np.arange(len(steps))
    if len(steps) < _PLACES or _is_in_order(steps):
        return everything
    places, highest, lower = [], math.inf, int(steps[-2:].min())
    for place, step in reversed([*enumerate(steps.tolist())]):  # at the end they lie apart
        if step <= lower:
            lower = step
        elif step <= highest:
            highest = step
            places.append(place)
        else:
            return everything
    return np.array(places[::-1], np.int64)


def _is_in_order(steps: Steps) -> bool:
    """Whether the steps of a series seldom go back."""
    return len(steps) >= _PLACES and 20 * int((np.diff(steps) < 0).sum()) <= len(steps)


def _of_row(row: Row, names: dict[str, int]) -> tuple[int, str]:
    """(the number of the run that the row names, what comes before its names if it is of an evaluation)."""
    label, prefix = 0, ""
    for key, cell in row.items():
        if type(cell) is str:
            plain = plain_key(key)
            if plain in RUN_KEYS and cell and not label and len(names) <= _MOST_RUNS:
                label = names.setdefault(cell[:MAX_NAME], len(names))
            elif plain in _SPLIT_KEYS and evaluated(cell) == "":
                prefix = "eval/"
    return label, prefix


# Where steps go back, rows were logged again if so many of them are among earlier ones, or one is equal.
_MANY = 10
# Steps in such short pieces are in no order: rows of several processes, or a sorted table.
_PIECE, _DISORDER = 4, 3


def _rewinds(steps: Steps) -> Iterator[tuple[int, bool]]:
    """(place, whether the log begins anew) where the steps of a series go back to log anew.

    Steps that go back to where no step stands are late, or rows in another order, and no rewind.
    """
    places = np.flatnonzero(np.diff(steps) < 0) + 1
    if not len(places) or (len(places) > _DISORDER and len(steps) < _PIECE * (len(places) + 1)):
        return
    bounds = [0, *places.tolist(), len(steps)]
    begin = 0
    seen = set(steps[: bounds[1]].tolist())
    low, high = int(steps[0]), int(steps[bounds[1] - 1])
    for start, end in itertools.pairwise(bounds[1:]):
        piece = steps[start:end]
        first, last = int(piece[0]), int(piece[-1])
        inside = distinct(piece[(piece >= low) & (piece <= high)])
        again = len(seen.intersection(inside.tolist()))
        late = len(inside) == 1 and end - start > 1 and last > high  # one row, then on as before
        if (again or len(inside) >= _MANY) and not late:
            of_run = piece if len(piece) > 1 else steps[begin : begin + _PEEKED]
            # Of runs in one file, only some log the policy that they begin with; one that begins late goes on
            # from a checkpoint.
            distance = _distance(of_run)
            anew = first - (first > low == 0) * distance <= low and first <= 2 * distance
            yield start, anew
            if anew:
                begin, seen, low, high = start, set(), first, last
        seen.update(piece.tolist())
        low, high = min(low, first), max(high, last)


def _distance(steps: Steps) -> float:
    """The usual distance of steps; infinite where none is behind another."""
    distances = np.diff(steps)
    distances = distances[distances > 0]
    return median(distances) if len(distances) else math.inf


class _Tally:
    """What became of the rows of each step: the most over all series."""

    def __init__(self, steps: int) -> None:
        self.replaced, self.several, self.aside = (np.zeros(steps, np.int64) for _ in range(3))
        self.others = np.zeros(steps, np.int64)  # rows with other names
        self.mixed = np.zeros(steps, bool)  # several rows, whose numbers differ

    def settled(self, places: Steps, numbers: Floats, kinds: Steps, *, counts: bool) -> tuple[Steps, Floats]:
        """One number for each step of a series: the later one after a rewind, else the mean.

        `kinds` says which rows have the same names: of a step with rows of several kinds, those of the usual
        kind count. `counts` says that the rows are counted, as those of a counter are not.
        """
        passes = np.zeros(len(places), np.int64)
        for place, _ in _rewinds(places):
            passes[place:] += 1
        # A value is superseded if a later pass begins at its step, or before.
        begins = [int(places[passes == one].min()) for one in range(1, int(passes[-1]) + 1)]
        bounds = np.minimum.accumulate([len(self.aside), *reversed(begins)])[::-1]
        superseded = places >= bounds[passes]
        again = superseded & np.isin(places, places[~superseded])
        gone = superseded & ~again
        # A few rows that are logged once more are no other branch.
        if 0 < again.sum() < _BRANCH:
            superseded, gone = again, np.zeros(len(places), bool)
        replaced, aside = places[again], places[gone]
        places, numbers, kinds = places[~superseded], numbers[~superseded], kinds[~superseded]
        usual = np.bincount(kinds).argmax()
        if (kinds != usual).any():
            others = (kinds != usual) & np.isin(places, places[kinds == usual])
            if 2 * others.sum() < (kinds == usual).sum():
                if counts:
                    self._most(self.others, *np.unique(places[others], return_counts=True))
                places, numbers = places[~others], numbers[~others]
        order = np.argsort(places, kind="stable")
        places, numbers = places[order], numbers[order]
        kept, starts, sizes = np.unique(places, return_index=True, return_counts=True)
        several = sizes > 1
        if several.any():
            ends = starts + sizes - 1
            with np.errstate(invalid="ignore", over="ignore"):
                means = np.add.reduceat(numbers, starts) / sizes
            low, high = np.minimum.reduceat(numbers, starts), np.maximum.reduceat(numbers, starts)
            same = several & ((low == high) | np.isnan(low) & np.isnan(np.fmax.reduceat(numbers, starts)))
            # A step here and there that was logged once more, or rows for each step.
            once_more = several & ~same if several.mean() < _MICRO_BATCHES else np.zeros(len(kept), bool)
            numbers = np.where(several & ~same, np.where(once_more, numbers[ends], means), numbers[starts])
            if counts:
                together = several & ~once_more
                self._most(self.several, kept[together], sizes[together])
                self.mixed[kept[together & ~same]] = True
                self._most(self.replaced, kept[once_more], sizes[once_more] - 1)
            places = kept
        if counts:
            self._most(self.replaced, *np.unique(replaced, return_counts=True))
            self._most(self.aside, *np.unique(aside, return_counts=True))
        return places, numbers

    @staticmethod
    def _most(tally: Steps, places: Steps, found: Steps) -> None:
        tally[places] = np.maximum(tally[places], found)


_MICRO_BATCHES = 0.1  # of the steps have several rows
_BRANCH = 3  # values that are logged again


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


class _WholeRows:
    """Rows with the names of the first long one, in its order, and nothing but numbers: as a block."""

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self._rows, self._numbers = array("q"), array("d")

    def take(self, names: tuple[str, ...], row: Row, place: int) -> bool:
        """Whether the row, which has these names, fits and was taken."""
        if not self.names and _LONG <= len(names) < _MOST_NAMES and max(map(len, names)) <= MAX_NAME:
            self.names = names
        if not names or names != self.names:
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
        for index, name in enumerate(self.names if len(rows) else ()):
            yield name, rows, table[:, index]


def _step_key(rows: Iterator[Row], keys: Sequence[str]) -> tuple[Iterator[Row], str | None, list[str], str]:
    """The rows, the name under which the most of the first rows have a step, all names that may be one, and
    why the best of them is none.

    Of several names the first in `keys` is taken under which steps seldom go back: others begin anew in each
    episode or epoch. Where most rows have no step, there is none.
    """
    first = list(itertools.islice(rows, _PEEKED))
    ranks = {key: rank for rank, key in reversed([*enumerate(keys)])}
    different = dict.fromkeys(name for row in first for name in row)
    names = {name: ranks[plain] for name in different if (plain := plain_key(name)) in ranks}
    for row in first:  # what is not whole in some row, as an epoch, is no step
        for name in [*names]:
            step = _step_of(row.get(name))
            if isinstance(step, float) and math.isfinite(step) and not _is_step(step):
                del names[name]
    others = sorted(names, key=names.__getitem__)
    best, chosen = (False, 0, 0, -math.inf), None
    for name in others:
        steps = [step for row in first if _is_step(step := _step_of(row.get(name)))]
        back = sum(now < was for was, now in itertools.pairwise(steps))
        stands = len(steps) > 2 and steps[0] == steps[-1] and len(set(steps)) == 1
        # A length that seldom changes, as of episodes that last to their limit, seldom goes back as well.
        order = (4 * back <= len(steps)) + (20 * back <= len(steps))
        rank = (not stands, len(steps), order, -names[name])
        if 0 < len(first) <= 2 * len(steps) and rank > best:
            best, chosen = rank, name
    inner = ""
    if chosen and (length := _inner_loop(first, chosen)):
        inner = f"{visible(chosen, 60)} begins anew after every {length} rows"
        others, chosen = [], None
    elif chosen:
        chosen = _outer_counter(first, chosen, others) or chosen
    return itertools.chain(first, rows), chosen, others, inner


def _outer_counter(rows: Sequence[Row], key: str, others: Sequence[str]) -> str | None:
    """The counter of the passes of another one that begins anew in each, as steps do in each episode."""
    inner = [step for row in rows if _is_step(step := _step_of(row.get(key)))]
    passes = sum(now < was for was, now in itertools.pairwise(inner))
    if passes < _PLACES:
        return None
    for name in others:
        steps = [step for row in rows if _is_step(step := _step_of(row.get(name)))]
        rises = all(was < now for was, now in itertools.pairwise(steps))
        if name != key and rises and passes / 2 <= len(steps) <= passes + 2:
            return name
    return None


def _inner_loop(rows: Sequence[Row], key: str) -> int:
    """The rows of one pass of a counter that counts within an inner loop, 0 for any other counter.

    Such a counter begins anew more often than it counts, after equally many rows. So do the steps of many
    short runs, but these have a setting that is the same in all rows of a run and tells it from others.
    """
    of_step = [row for row in rows if _is_step(_step_of(row.get(key)))]
    steps = [_step_of(row[key]) for row in of_step]
    starts = [0, *(place for place in range(1, len(steps)) if steps[place] < steps[place - 1])]
    length = starts[1] if len(starts) > 1 else 0
    passes = [of_step[start : start + length] for start in starts[:-1]]  # the last one may be cut off
    name_runs = any(plain_key(name) in RUN_KEYS for name in (of_step[0] if of_step else ()))
    is_regular = not name_runs and starts == [*range(0, len(steps), length or 1)]
    if not is_regular or length < 2 or len(passes) < max(_PASSES, length):
        return 0
    for name in of_step[0]:
        if known_name(name) in (None, "learning_rate"):
            values = [{str(row.get(name)) for row in one} for one in passes]
            if all(len(one) == 1 for one in values) and len(set[str]().union(*values)) > 1:
                return 0
    return length


_PASSES = 4


_OF_ALL = re.compile(r"\s*(\d{1,18})\s*/\s*\d+\s*(?:\[.*)?")


def _step_of(step: Any) -> Any:
    """The number of a text such as "17/124", with a bar's times behind it or not, or of any other text."""
    if not isinstance(step, str) or len(step) > MAX_NAME:
        return step
    found = _OF_ALL.fullmatch(step)
    return int(found[1]) if found else as_number(step)


def _is_step(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= _STEP_LIMIT:
        return False
    return float(value).is_integer()
