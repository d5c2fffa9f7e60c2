"""Columns of the answers that a run kept: what they are filtered, counted and sorted by, without their texts.

Rows are read once, in the order of the steps, and found again by their place in the file. A value that a row
lacks is NaN in a column of numbers, and "" in a column of names. N is the number of answers.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from pydantic_core import from_json

from greenward.common.errors import RunError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, lines, open_file
from greenward.common.parsing import parse_json_text
from greenward.runs.files import from_json_number, reading
from greenward.runs.reading import ROLLOUTS, step_name, steps_in

NAMES = ("status", "task", "stop", "error", "group")
NUMBERS = ("reward", "advantage", "tokens", "length", "passed")
TERM, ROLE = "term.", "reward."
"""What comes before the name of a term of the reward, or of a role, in the name of its column."""
MAX_OWN_COLUMNS = 64  # of terms and roles, whose names an answer's file gives
_NAME_CHARS = 200
_MAX_BLOCK = 8 << 20
_TEXTS = ("answer", "first_failure", "error_message", "prompt")

Row = Mapping[str, Any]


class Codes:
    """Names by number; the number of a new name is the next one."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(self.names)}

    def number(self, name: str) -> int:
        found = self._numbers.get(name)
        if found is None:
            found = self._numbers[name] = len(self.names)
            self.names.append(name)
        return found

    def get(self, name: str) -> int | None:
        return self._numbers.get(name)


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

    def extend(self, found: Sequence[tuple[int, int, int, int, Row]]) -> None:
        """Add (step, row, offset, size, content) of answers, in this order."""
        if not found:
            return
        count = len(found)
        missing = [math.nan] * count
        numbers = {name: list(missing) for name in self.numbers}
        names: dict[str, list[int]] = {name: [] for name in NAMES}
        same: list[int] = []
        for place, (_, _, _, _, row) in enumerate(found):
            for name, text in _names_of(row):
                names[name].append(self.codes[name].number(text))
            answer = str(row.get("answer", ""))
            same.append(text_hash(answer))
            for name, value in _numbers_of(row, answer):
                column = numbers.get(name)
                if column is None:
                    if len(numbers) >= len(NUMBERS) + MAX_OWN_COLUMNS:
                        continue
                    column = numbers[name] = list(missing)
                column[place] = value
        before = len(self)
        for name, column in numbers.items():
            earlier = self.numbers.get(name)
            if earlier is None:
                earlier = np.full(before, np.nan, np.float32)
            with np.errstate(over="ignore"):  # beyond single precision is infinite
                self.numbers[name] = np.concatenate([earlier, np.array(column).astype(np.float32)])
        for name in NAMES:
            self.names[name] = np.concatenate([self.names[name], np.array(names[name], np.int32)])
        steps, rows, offsets, sizes = (np.array([one[i] for one in found]) for i in range(4))
        self.steps = np.concatenate([self.steps, steps.astype(np.int64)])
        self.rows = np.concatenate([self.rows, rows.astype(np.int32)])
        self.offsets = np.concatenate([self.offsets, offsets.astype(np.int64)])
        self.sizes = np.concatenate([self.sizes, sizes.astype(np.int32)])
        self.same = np.concatenate([self.same, np.array(same, np.uint64)])


def text_hash(text: str) -> int:
    """A number of 64 bits that equal texts share."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def _names_of(row: Row) -> Iterator[tuple[str, str]]:
    yield "status", _name(row.get("status", "unknown"))
    yield "task", _name(row.get("task_id", row.get("problem", "")))
    yield "stop", _name(row.get("stop"))
    yield "error", _name(row.get("error_class"))
    yield "group", _name(row.get("group"))


def _name(value: Any) -> str:
    return "" if value is None else str(value)[:_NAME_CHARS]


def _numbers_of(row: Row, answer: str) -> Iterator[tuple[str, float]]:
    rewards = numbers_in(row, "rewards")
    if rewards:
        yield "reward", max(rewards.values())
    for role, value in rewards.items():
        yield f"{ROLE}{role}", value
    for term, value in numbers_in(row, "terms").items():
        yield f"{TERM}{term}", value
    if is_number(value := from_json_number(row.get("advantage"))):
        yield "advantage", float(value)
    tokens = from_json_number(row.get("tokens"))
    counted = float(tokens) if is_number(tokens) else 0.0
    if is_number(tokens):
        yield "tokens", counted
    yield "length", counted or float(len(answer))
    yield "passed", float(row.get("status") == "passed")


def numbers_in(row: Row, key: str) -> dict[str, float]:
    """The finite and infinite numbers of a mapping in a row, by name; empty for anything else there."""
    found = row.get(key)
    items = found.items() if isinstance(found, dict) else ()
    read = ((str(name)[:_NAME_CHARS], from_json_number(value)) for name, value in items)
    return {name: float(value) for name, value in read if is_number(value)}


def is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold."""
    return isinstance(value, float) or (type(value) is int and abs(value) < 1 << 64)


def rows_of_file(path: Path, step: int, within: Path) -> Iterator[tuple[int, int, int, int, Row] | None]:
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
        row = from_json(line)
    except ValueError:  # half a character or a huge number, which the slower parser takes, or no JSON
        try:
            row = parse_json_text(line)
        except (ValueError, RecursionError):
            return None
    return row if isinstance(row, dict) else None


def read_answer_columns(path: Path) -> AnswerColumns:
    """The columns of all answers that the run at `path` kept. Raises `RunError` for a broken file."""
    columns = AnswerColumns()
    for step, file in steps_in(path / ROLLOUTS):
        found = list(rows_of_file(file, step, path))
        if None in found[:-1]:
            raise RunError(f"{file}, line {found.index(None) + 1}: expected a JSON object")
        columns.extend([one for one in found if one is not None])
    return columns


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
    wanted = [json.dumps(text)[1:-1].lower().encode() for text in texts if text.isascii()]
    chosen = np.asarray(places, np.int64)
    steps, offsets, sizes = (
        column[chosen].tolist() for column in (columns.steps, columns.offsets, columns.sizes)
    )
    for step, group in groupby(range(len(chosen)), key=steps.__getitem__):
        file = path / ROLLOUTS / f"{step_name(step)}.jsonl"
        members = list(group)
        with reading(file), open_file(file, MAX_LOG_BYTES, within=within or path) as opened:
            for number, line in zip(members, _lines_at(opened, offsets, sizes, members), strict=True):
                if (
                    wanted and b"\\u" not in line and b"\\/" not in line
                ):  # which may stand for a letter or a slash
                    lower = line.lower()
                    if not all(text in lower for text in wanted):
                        continue
                row = parsed_row(line)
                if row is not None:
                    yield int(chosen[number]), row


def _lines_at(
    opened: BinaryIO, offsets: Sequence[int], sizes: Sequence[int], members: Sequence[int]
) -> Iterator[bytes]:
    """The lines at some offsets; those that lie close to each other are read at once."""
    begin = min(offsets[one] for one in members)
    end = max(offsets[one] + sizes[one] for one in members)
    if end - begin <= min(_MAX_BLOCK, 4 * sum(sizes[one] for one in members)):
        opened.seek(begin)
        block = opened.read(end - begin)
        for one in members:
            yield block[offsets[one] - begin : offsets[one] - begin + sizes[one]]
        return
    for one in members:
        opened.seek(offsets[one])
        yield opened.read(min(sizes[one], MAX_LINE_BYTES))


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
