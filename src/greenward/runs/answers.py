"""Columns of the answers that a run kept: what they are filtered, counted and sorted by, without their texts.

Rows are read once, in the order of the steps, and found again by their place in the file. A value that a row
lacks is NaN in a column of numbers, and "" in a column of names. N is the number of answers.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from secrets import randbits
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from pydantic_core import from_json

from greenward.common.errors import RunError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, lines, open_file
from greenward.common.garbage import collection_paused
from greenward.runs.files import from_json_number, json_object, reading
from greenward.runs.reading import ROLLOUTS, step_name, steps_in

NAMES = ("status", "task", "stop", "error", "group")
NUMBERS = ("reward", "advantage", "tokens", "length", "passed")
TERM, ROLE = "term.", "reward."
"""What comes before the name of a term of the reward, or of a role, in the name of its column."""
MAX_OWN_COLUMNS = 64  # of terms and roles, whose names an answer's file gives
_NAME_CHARS = 200
_MAX_NUMBER = 1 << 64  # of whole numbers
_MAX_AT_ONCE = 32 << 20  # bytes of a file that is parsed as one
_BETWEEN = randbits(50)  # stands between lines that are parsed as one: no file knows it
_MAX_BLOCK = 8 << 20
_PROMPT_ID = re.compile(r"[0-9a-f]{16}")  # as greenward writes it
_ESCAPE = re.compile(rb"\\[u/]")
_TEXTS = ("answer", "first_failure", "error_message", "prompt")

Row = Mapping[str, Any]


class FileRows(NamedTuple):
    """The answers of a step in the order of its file, which has so many `lines` that are not empty.

    `offsets` and `sizes` [N] say in bytes where the row of each lies; `broken` are the lines, from 1, that
    are no row.
    """

    step: int
    offsets: np.ndarray
    sizes: np.ndarray
    rows: Sequence[Row]
    broken: Sequence[int]
    lines: int


class Codes(dict[str, int]):
    """The number of each name, from 0; a new name that is looked up by its key gets the next one."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        super().__init__((name, number) for number, name in enumerate(names))
        self.names = list(names)

    def __missing__(self, name: str) -> int:
        self.names.append(name)
        self[name] = len(self)
        return self[name]

    def numbers_of(self, values: Sequence[Any]) -> np.ndarray:
        """The numbers of the names that some values of JSON are, "" of None, as int32."""
        if set(map(type, values)) - {type(None)} in ({str}, {int}, set()):  # equal values have the same name
            known = {value: self[_name(value)] for value in dict.fromkeys(values)}
            return np.fromiter(map(known.__getitem__, values), np.int32, len(values))
        return np.array([self[_name(value)] for value in values], np.int32)


def _name(value: Any) -> str:
    return "" if value is None else str(value)[:_NAME_CHARS]


@dataclass
class AnswerColumns:
    """The columns, each of shape [N].

    `steps` and `rows` (from 0, in the file of the step) name an answer; `offsets` and `sizes`, in bytes, say
    where its row lies in that file. `same` is a hash of the answer's text, `prompts` the
    number of the prompt that the row names (`prompt_number`). `numbers` holds `NUMBERS` and a
    column for each term and role that occurs (`term.tests`, `reward.programmer`); an answer's `reward` is the
    largest of its roles, its `length` is in tokens, or in characters where none were counted. `names` holds
    numbers of `codes`. `broken` counts lines that are no row.
    """

    steps: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    sizes: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    same: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    prompts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
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
        for name in ("steps", "rows", "offsets", "sizes", "same", "prompts"):
            setattr(self, name, getattr(self, name)[mask])
        self.numbers = {name: values[mask] for name, values in self.numbers.items()}
        self.names = {name: values[mask] for name, values in self.names.items()}

    def extend(self, batches: Iterable[FileRows]) -> None:
        """Add answers, in this order; the contents of one batch are held at a time."""
        with collection_paused():
            self._extend(batches)

    def _extend(self, batches: Iterable[FileRows]) -> None:
        steps: list[np.ndarray] = []
        rows_of: list[np.ndarray] = []
        offsets: list[np.ndarray] = []
        sizes: list[np.ndarray] = []
        same: list[np.ndarray] = []
        prompts: list[np.ndarray] = []
        names: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
        numbers: dict[str, list[tuple[int, np.ndarray]]] = {name: [] for name in self.numbers}
        begin = before = len(self)
        for batch in batches:
            count = len(batch.rows)
            if not count:
                continue
            steps.append(np.full(count, batch.step, np.int64))
            rows_of.append(np.arange(count, dtype=np.int32))
            offsets.append(batch.offsets)
            sizes.append(batch.sizes.astype(np.int32))
            gets = [row.get for row in batch.rows]
            for name, column in _names_of(gets).items():
                names[name].append(self.codes[name].numbers_of(column))
            answers = [get("answer", "") for get in gets]
            if set(map(type, answers)) != {str}:
                answers = list(map(str, answers))
            same.append(_hashes(answers))
            prompts.append(_prompt_numbers([get("prompt_id") for get in gets]))
            tokens = _as_numbers([get("tokens") for get in gets])
            lengths = np.fromiter(map(len, answers), np.float64, count)
            rewards, terms = ([get(name) for get in gets] for name in ("rewards", "terms"))
            of_roles = _by_name(rewards)
            passed = self.codes["status"].get("passed", -1)
            for name, values in {
                "tokens": tokens,
                "length": np.where(tokens > 0, tokens, lengths),
                "passed": names["status"][-1] == passed,
                "advantage": _as_numbers([get("advantage") for get in gets]),
                "reward": np.fmax.reduce([*of_roles.values(), np.full(count, np.nan)]),
            }.items():
                numbers[name].append((begin, values))
            for prefix, columns in ((ROLE, of_roles), (TERM, _by_name(terms))):
                for name, values in columns.items():
                    own = numbers.get(prefix + name)
                    if own is None:
                        if len(numbers) >= len(NUMBERS) + MAX_OWN_COLUMNS:
                            continue
                        own = numbers[prefix + name] = []
                    own.append((begin, values))
            begin += count
        if begin == before:
            return
        for name, parts in numbers.items():
            every = np.full(begin, np.nan, np.float32)
            every[:before] = self.numbers.get(name, np.nan)
            with np.errstate(over="ignore"):  # beyond single precision is infinite
                for at, values in parts:
                    every[at : at + len(values)] = values
            self.numbers[name] = every
        for name in NAMES:
            self.names[name] = np.concatenate([self.names[name], *names[name]])
        self.steps = np.concatenate([self.steps, *steps])
        self.rows = np.concatenate([self.rows, *rows_of])
        self.offsets = np.concatenate([self.offsets, *offsets])
        self.sizes = np.concatenate([self.sizes, *sizes])
        self.same = np.concatenate([self.same, *same])
        self.prompts = np.concatenate([self.prompts, *prompts])


def _hashes(texts: Sequence[str]) -> np.ndarray:
    """`text_hash` of each text."""
    try:
        digests = [blake2b(text.encode(), digest_size=8).digest() for text in texts]
    except UnicodeEncodeError:  # half a character
        return np.array([text_hash(text) for text in texts], np.uint64)
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def text_hash(text: str) -> int:
    """A number of 64 bits that equal texts share."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def prompt_number(key: object) -> int:
    """What stands for the `prompt_id` of a row; 0 for what is no text."""
    if not isinstance(key, str):
        return 0
    return int(key, 16) if _PROMPT_ID.fullmatch(key) else text_hash(key)


def _prompt_numbers(keys: Sequence[Any]) -> np.ndarray:
    if set(map(type, keys)) <= {str, type(None)}:
        known = {key: prompt_number(key) for key in dict.fromkeys(keys)}
        return np.array([known[key] for key in keys], np.uint64)
    return np.array([prompt_number(key) for key in keys], np.uint64)


def _names_of(gets: Sequence[Callable[..., Any]]) -> dict[str, list[Any]]:
    """What rows say of each of `NAMES`."""
    return {
        "status": [get("status", "unknown") for get in gets],
        "task": [get("task_id", get("problem", "")) for get in gets],
        "stop": [get("stop") for get in gets],
        "error": [get("error_class") for get in gets],
        "group": [get("group") for get in gets],
    }


def _as_numbers(values: Sequence[Any]) -> np.ndarray:
    """The numbers among some values in double precision; NaN for anything else."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values)
    if kinds <= {float, int, type(None)}:
        with suppress(OverflowError):  # an integer that no float can hold
            found = np.array([math.nan if value is None else value for value in values], np.float64)
            if not (np.abs(found) >= _MAX_NUMBER).any():
                return found
    numbers = map(_number, values)
    return np.array([math.nan if number is None else number for number in numbers], np.float64)


def _by_name(mappings: Sequence[Any]) -> dict[str, np.ndarray]:
    """The numbers of mappings in rows by name, NaN where one has none; by `numbers_in`, which says which."""
    if set(map(type, mappings)) == {dict} and len(set(map(tuple, mappings))) == 1:
        columns = dict(zip(mappings[0], zip(*[one.values() for one in mappings], strict=True), strict=True))
        if all(
            len(name) <= _NAME_CHARS and set(map(type, column)) <= {float, int}
            for name, column in columns.items()
        ):
            return {name: _as_numbers(column) for name, column in columns.items()}
    found: dict[str, np.ndarray] = {}
    for place, one in enumerate(mappings):
        for name, number in _numbers(one).items():
            if name not in found and len(found) < MAX_OWN_COLUMNS:
                found[name] = np.full(len(mappings), np.nan)
            if name in found:
                found[name][place] = number
    return found


def numbers_in(row: Row, key: str) -> dict[str, float]:
    """The finite and infinite numbers of a mapping in a row, by name; empty for anything else there."""
    return _numbers(row.get(key))


def _numbers(found: Any) -> dict[str, float]:
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
    return isinstance(value, float) or (type(value) is int and abs(value) < _MAX_NUMBER)


def rows_of_file(path: Path, step: int, within: Path) -> FileRows:
    """The answers in a file. A last line without an end is left out.

    Raises `RunError` for a file that cannot be read.
    """
    with reading(path), open_file(path, MAX_LOG_BYTES, within=within) as file:
        if os.fstat(file.fileno()).st_size <= _MAX_AT_ONCE:
            found = _parsed_at_once(file.read(_MAX_AT_ONCE), step)
            if found is not None:
                return found
            file.seek(0)
        offset = number = 0
        rows: list[Row] = []
        places: list[tuple[int, int]] = []
        broken: list[int] = []
        for line in lines(file, MAX_LINE_BYTES):
            start, offset = offset, file.tell()
            if not line.strip() or (not line.endswith(b"\n") and len(line) < MAX_LINE_BYTES):
                continue
            number += 1
            row = parsed_row(line) if line.endswith(b"\n") else None
            if row is None:
                broken.append(number)
            else:
                rows.append(row)
                places.append((start, offset - start))
        where = np.array(places, np.int64).reshape(-1, 2)
        return FileRows(step, where[:, 0], where[:, 1], rows, broken, number)


def _parsed_at_once(content: bytes, step: int) -> FileRows | None:
    """The answers of a file whose lines are objects of JSON; None where it has others, or an empty line.

    One call of the parser takes less time than one for each line.
    """
    parts = content.split(b"\n")
    parts.pop()  # behind the last end of a line
    if not parts:
        return None
    sizes = np.fromiter(map(len, parts), np.int64, len(parts)) + 1
    try:
        every = from_json(b"[" + f",{_BETWEEN},".encode().join(parts) + b"]", cache_strings="keys")
    except ValueError:
        return None
    rows, between = every[::2], every[1::2]
    is_whole = len(every) == 2 * len(parts) - 1 and between.count(_BETWEEN) == len(between)
    if not is_whole or set(map(type, rows)) != {dict} or sizes.max() > MAX_LINE_BYTES:
        return None
    return FileRows(step, np.cumsum(sizes) - sizes, sizes, rows, [], len(parts))


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


def _sound_rows(file: Path, step: int, within: Path) -> FileRows:
    found = rows_of_file(file, step, within)
    if found.broken and found.broken[0] < found.lines:
        raise RunError(f"{file}, line {found.broken[0]}: expected a JSON object")
    return found


def read_rows_at(
    path: Path,
    columns: AnswerColumns,
    places: Sequence[int] | np.ndarray,
    within: Path | None = None,
    texts: Sequence[str] = (),
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(place, row) of the answers at these places of the columns, read from the run at `path`.

    Each file is opened once if the places are sorted. No link may lead out of `within`, which is the run
    unless it is given. A row that is no longer where it was is left out, also where its file is gone, and so
    is one that cannot hold all `texts` in any case: most of those are told from their bytes (`holds_text`
    decides).
    """
    wanted = wanted_bytes(texts)
    chosen = np.asarray(places, np.int64)
    for members in np.split(chosen, np.flatnonzero(np.diff(columns.steps[chosen])) + 1):
        if not len(members):
            continue
        file = path / ROLLOUTS / f"{step_name(int(columns.steps[members[0]]))}.jsonl"
        with (
            reading(file),
            suppress(FileNotFoundError),
            open_file(file, MAX_LOG_BYTES, within=within or path) as opened,
        ):
            for place, line in lines_at(
                opened, members, columns.offsets[members], columns.sizes[members], wanted
            ):
                row = parsed_row(line) if may_hold(line, wanted) else None
                if row is not None:
                    yield place, row


def wanted_bytes(texts: Sequence[str]) -> list[bytes]:
    """Texts as `may_hold` looks for them."""
    return [json.dumps(text.casefold())[1:-1].encode() for text in texts]


def lines_at(
    opened: BinaryIO, members: np.ndarray, begins: np.ndarray, sizes: np.ndarray, wanted: Sequence[bytes]
) -> Iterator[tuple[int, bytes]]:
    """(member, line) of lines in one file, each with its place and size; those that lie close to each other
    are read at once.

    None of these where they cannot hold what is `wanted`.
    """
    sizes = sizes.astype(np.int64)
    first, last = int(begins.min()), int((begins + sizes).max())
    if last - first <= min(_MAX_BLOCK, 4 * int(sizes.sum())):
        opened.seek(first)
        block = opened.read(last - first)
        if may_hold(block, wanted):
            within_block = zip(members.tolist(), (begins - first).tolist(), sizes.tolist(), strict=True)
            for place, begin, size in within_block:
                yield place, block[begin : begin + size]
        return
    for place, begin, size in zip(members.tolist(), begins.tolist(), sizes.tolist(), strict=True):
        opened.seek(begin)
        yield place, opened.read(min(size, MAX_LINE_BYTES))


def may_hold(text: bytes, wanted: Sequence[bytes]) -> bool:
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
