"""Columns of the answers that a run kept: what they are filtered, counted and sorted by, without their texts.

Rows are read once, in the order of the steps, and found again by their place in the file. A value that a row
lacks is NaN in a column of numbers, and "" in a column of names. N is the number of answers.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import from_json

from greenward.common.errors import RunError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, lines, open_file
from greenward.runs.files import from_json_number, json_object, reading
from greenward.runs.reading import ROLLOUTS, step_name, steps_in

NAMES = ("status", "task", "stop", "error", "group")
NUMBERS = ("reward", "advantage", "tokens", "length", "passed")
TERM, ROLE = "term.", "reward."
"""What comes before the name of a term of the reward, or of a role, in the name of its column."""
MAX_OWN_COLUMNS = 64  # of terms and roles, whose names an answer's file gives
_NAME_CHARS = 200
_MAX_BLOCK = 8 << 20
_ESCAPE = re.compile(rb"\\[u/]")
_TEXTS = ("answer", "first_failure", "error_message", "prompt")

Row = Mapping[str, Any]
Found = tuple[int, int, int, int, Row]
"""Step, row, offset and size of an answer, and its content."""


class Codes(dict[str, int]):
    """The number of each name, from 0; a new name that is looked up by its key gets the next one."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__((name, number) for number, name in enumerate(names))
        self.names = list(names)

    def __missing__(self, name: str) -> int:
        self.names.append(name)
        self[name] = len(self)
        return self[name]


@dataclass
class AnswerColumns:
    """The columns, each of shape [N].

    `steps` and `rows` (from 0, in the file of the step) name an answer; `offsets` and `sizes`, in bytes, say
    where its row lies in that file. `same` is a hash of the answer's text. `numbers` holds `NUMBERS` and a
    column for each term and role that occurs (`term.tests`, `reward.programmer`); an answer's `reward` is the
    largest of its roles, its `length` is in tokens, or in characters where none were counted. `names` holds
    numbers of `codes`. `broken` counts lines that are no row.
    """

    steps: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    same: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    numbers: dict[str, np.ndarray] = field(
        default_factory=lambda: {name: np.zeros(0, np.float32) for name in NUMBERS}
    )
    names: dict[str, np.ndarray] = field(
        default_factory=lambda: {name: np.zeros(0, np.int32) for name in NAMES}
    )
    codes: dict[str, Codes] = field(default_factory=lambda: {name: Codes() for name in NAMES})
    broken: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def terms(self) -> list[str]:
        """The columns of reward terms."""
        return sorted(name for name in self.numbers if name.startswith(TERM))

    @property
    def roles(self) -> list[str]:
        """The columns of the rewards by role."""
        return sorted(name for name in self.numbers if name.startswith(ROLE))

    def texts(self, name: str) -> np.ndarray:
        """The names of a column as an array of objects."""
        return np.array([*self.codes[name].names, ""], object)[self.names[name]]

    def keep(self, mask: np.ndarray) -> None:
        """Keep the answers of a boolean mask [N] only."""
        for name in ("steps", "rows", "offsets", "sizes", "same"):
            setattr(self, name, getattr(self, name)[mask])
        self.numbers = {name: values[mask] for name, values in self.numbers.items()}
        self.names = {name: values[mask] for name, values in self.names.items()}

    def extend(self, batches: Iterable[Sequence[Found]]) -> None:
        """Add answers, in this order; the contents of one batch are held at a time."""
        places: list[int] = []
        same: list[int] = []
        names: dict[str, list[int]] = {name: [] for name in NAMES}
        numbers: dict[str, list[float]] = {name: [] for name in self.numbers}
        for batch in batches:
            begin, rows = len(same), [found[4] for found in batch]
            for found in batch:
                places += found[:4]
            for name, column in zip(NAMES, zip(*map(_names_of, rows), strict=True), strict=False):
                texts = ["" if value is None else str(value)[:_NAME_CHARS] for value in column]
                names[name] += map(self.codes[name].__getitem__, texts)
            answers = [str(row.get("answer", "")) for row in rows]
            same += map(text_hash, answers)
            tokens = [_number(row.get("tokens")) for row in rows]
            numbers["tokens"] += [math.nan if value is None else value for value in tokens]
            numbers["length"] += [value or len(text) for value, text in zip(tokens, answers, strict=True)]
            numbers["passed"] += [row.get("status") == "passed" for row in rows]
            advantages = [_number(row.get("advantage")) for row in rows]
            numbers["advantage"] += [math.nan if value is None else value for value in advantages]
            rewards = [numbers_in(row, "rewards") for row in rows]
            numbers["reward"] += [max(found.values(), default=math.nan) for found in rewards]
            terms = [numbers_in(row, "terms") for row in rows]
            for prefix, mappings in ((ROLE, rewards), (TERM, terms)):
                for place, mapping in enumerate(mappings, begin):
                    for name, value in mapping.items():
                        own = numbers.get(prefix + name)
                        if own is None:
                            if len(numbers) >= len(NUMBERS) + MAX_OWN_COLUMNS:
                                continue
                            own = numbers[prefix + name] = []
                        if len(own) < place:
                            own += [math.nan] * (place - len(own))
                        own.append(value)
        before, count = len(self), len(same)
        for name, given in numbers.items():
            values = np.full(before + count, np.nan, np.float32)
            values[:before] = self.numbers.get(name, np.nan)
            with np.errstate(over="ignore"):  # beyond single precision is infinite
                values[before : before + len(given)] = given
            self.numbers[name] = values
        for name in NAMES:
            self.names[name] = np.append(self.names[name], np.array(names[name], np.int32))
        where = np.array(places, np.int64).reshape(-1, 4)
        self.steps = np.append(self.steps, where[:, 0])
        self.rows = np.append(self.rows, where[:, 1].astype(np.int32))
        self.offsets = np.append(self.offsets, where[:, 2])
        self.sizes = np.append(self.sizes, where[:, 3].astype(np.int32))
        self.same = np.append(self.same, np.array(same, np.uint64))


def text_hash(text: str) -> int:
    """A number of 64 bits that equal texts share."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _names_of(row: Row) -> tuple[Any, ...]:
    """What a row says of each of `NAMES`."""
    get = row.get
    task = get("task_id", get("problem", ""))
    return get("status", "unknown"), task, get("stop"), get("error_class"), get("group")


def numbers_in(row: Row, key: str) -> dict[str, float]:
    """The finite and infinite numbers of a mapping in a row, by name; empty for anything else there."""
    found = row.get(key)
    if not isinstance(found, dict):
        return {}
    return {
        name[:_NAME_CHARS]: number for name, value in found.items() if (number := _number(value)) is not None
    }


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    value = from_json_number(value)
    return float(value) if is_number(value) else None


def is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 64)


def rows_of_file(path: Path, step: int, within: Path) -> Iterator[Found | None]:
    """(step, row, offset, size, content) of each answer in a file; None for a line that is no row.

    A last line without an end is left out. Raises `RunError` for a file that cannot be read.
    """
    offset = number = 0
    with reading(path), open_file(path, MAX_LOG_BYTES, within=within) as file:
        for line in lines(file, MAX_LINE_BYTES):
            start, offset = offset, file.tell()
            if not line.strip():
                continue
            if line.endswith(b"\n"):
                row = parsed_row(line)
                yield None if row is None else (step, number, start, offset - start, row)
                number += row is not None
            elif len(line) == MAX_LINE_BYTES:
                yield None


def parsed_row(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for anything else."""
    try:
        row = from_json(line, cache_strings="keys")  # each text is looked up in the cache with "all"
    except ValueError:  # half a character or a huge number, which the slower parser takes, or no JSON
        return json_object(line)
    return row if isinstance(row, dict) else None


def read_answer_columns(path: Path) -> AnswerColumns:
    """The columns of all answers that the run at `path` kept. Raises `RunError` for a broken file."""
    columns = AnswerColumns()
    columns.extend(_sound_rows(file, step, path) for step, file in steps_in(path / ROLLOUTS))
    return columns


def _sound_rows(file: Path, step: int, within: Path) -> list[Found]:
    found = list(rows_of_file(file, step, within))
    if None in found[:-1]:
        raise RunError(f"{file}, line {found.index(None) + 1}: expected a JSON object")
    return [one for one in found if one is not None]


def read_rows_at(
    path: Path,
    columns: AnswerColumns,
    places: Sequence[int] | np.ndarray,
    within: Path | None = None,
    texts: Sequence[str] = (),
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, row) of the answers at these places of the columns, read from the run at `path`.

    Each file is opened once if the places are sorted. No link may lead out of `within`, which is the run
    unless it is given. A row that is no longer where it was is left out, and so is one that cannot hold all
    `texts` in any case: most of those are told from their bytes (`holds_text` decides).
    """
    wanted = [json.dumps(text.casefold())[1:-1].encode() for text in texts]
    chosen = np.asarray(places, np.int64)
    for members in np.split(chosen, np.flatnonzero(np.diff(columns.steps[chosen])) + 1):
        if not len(members):
            continue
        file = path / ROLLOUTS / f"{step_name(int(columns.steps[members[0]]))}.jsonl"
        with reading(file), open_file(file, MAX_LOG_BYTES, within=within or path) as opened:
            for place, line in _lines_at(opened, columns, members, wanted):
                row = parsed_row(line) if _may_hold(line, wanted) else None
                if row is not None:
                    yield place, row


def _lines_at(
    opened: BinaryIO, columns: AnswerColumns, members: np.ndarray, wanted: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """(place, line) of answers in one file; lines that lie close to each other are read at once.

    None of these where they cannot hold what is `wanted`.
    """
    begins, sizes = columns.offsets[members], columns.sizes[members].astype(np.int64)
    first, last = int(begins.min()), int((begins + sizes).max())
    if last - first <= min(_MAX_BLOCK, 4 * int(sizes.sum())):
        opened.seek(first)
        block = opened.read(last - first)
        if _may_hold(block, wanted):
            within_block = zip(members.tolist(), (begins - first).tolist(), sizes.tolist(), strict=True)
            for place, begin, size in within_block:
                yield place, block[begin : begin + size]
        return
    for place, begin, size in zip(members.tolist(), begins.tolist(), sizes.tolist(), strict=True):
        opened.seek(begin)
        yield place, opened.read(min(size, MAX_LINE_BYTES))


def _may_hold(text: bytes, wanted: Sequence[bytes]) -> bool:
    """Whether rows of JSON may hold all that is wanted, which is written as JSON in ASCII without capitals.

    An escape may stand for any letter or a slash, and a letter beyond ASCII for those that it folds to.
    """
    if not wanted or not text.isascii():
        return True
    lower = text.lower()
    return all(one in lower for one in wanted) or _ESCAPE.search(text) is not None


def holds_text(row: Row, text: str) -> bool:
    """Whether the answer, its failure, its prompt or a turn of its transcript holds `text` in any case."""
    wanted = text.casefold()
    turns = row.get("transcript")
    said = [turn.get("text") for turn in turns if isinstance(turn, dict)] if isinstance(turns, list) else []
    return any(wanted in str(part).casefold() for part in (*map(row.get, _TEXTS), *said) if part)


def modified(path: Path) -> float:
    """When `path` changed last, in seconds since 1970; 0 where there is nothing."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime
    except OSError:
        return 0.0
