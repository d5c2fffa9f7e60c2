"""The rows of JSON and parquet files and of shipped text files, each with its place."""

from __future__ import annotations

import ast
import gzip
import io
import json
import keyword
import math
import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from greenward.common.errors import ProblemError
from greenward.common.files import UNEXPECTED, read_file
from greenward.common.parsing import check_nesting, check_values
from greenward.common.text import visible
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.python_source import parse

T = TypeVar("T")

MAX_BYTES = 4 << 30  # of a file of problems
MAX_UNPACKED_BYTES = 64 << 20  # of a compressed file, whatever its size
MAX_UNPACKED_RATIO = 100  # unpacked bytes for each byte of a larger one
MAX_BAD_ROWS = 10_000  # that are skipped
MAX_PROBLEM_CHARS = 500  # of what is wrong with a row
_MAX_REREAD = 16  # times its length that a file is parsed in vain, by rows that end many lines later


class BadRow(ProblemError):
    """One row of a file that cannot be used, while others may."""


@dataclass(frozen=True)
class Row:
    """One object of a file, and its place there; `line` is 0 where the file has no lines."""

    file: Path
    number: int
    line: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        return f"row {self.number} (line {self.line})" if self.line else f"row {self.number}"

    def error(self, field: str, problem: str, *, remedy: str | None = None) -> BadRow:
        """The error for a field of this row; `problem` continues the sentence "field 'x' …".

        What it quotes of the row may be of any length, and hold any character.
        """
        problem = visible(" ".join(problem.split()), MAX_PROBLEM_CHARS)
        return BadRow(f"{self.file}, {self.place}: field {field!r} {problem}.", remedy=remedy)

    def typed(
        self, field: str, kind: type[T], what: str, *, default: Any = None, remedy: str | None = None
    ) -> T:
        """The value of a field, which must have this type; `what` names the type in the error."""
        value = self.values.get(field, default)
        if isinstance(value, kind):
            return value
        if field not in self.values:
            raise self.missing(field, remedy=remedy)
        raise self.error(field, f"must be {what}, found {_type_name(value)}", remedy=remedy)

    def missing(self, field: str, *, remedy: str | None = None) -> BadRow:
        """The error for a field that this row has not."""
        has = f"this row has: {', '.join(self.values)[:200]}" if self.values else "this row is empty"
        return BadRow(f"{self.file}, {self.place}: field {field!r} is missing; {has}.", remedy=remedy)

    def text(self, field: str, *, default: str | None = None) -> str:
        value = self.typed(field, str, "text", default=default)
        if "\0" in value:
            raise self.error(field, "holds a null character, which Python source cannot")
        return value

    def first_text(self, *fields: str) -> str:
        """The first of these fields that holds anything; an empty text if none does."""
        present = (field for field in fields if self.values.get(field) not in (None, ""))
        return next((self.text(field) for field in present), "")

    def name(self, field: str) -> str:
        """A text that can name a Python function."""
        value = self.text(field)
        if not value.isidentifier() or keyword.iskeyword(value):
            raise self.error(field, f"must be the name of a Python function, found {value!r:.80}")
        return value

    def python(
        self,
        field: str,
        source: str | None = None,
        *,
        problem: str = "is not Python",
        parser: Callable[[str], ast.Module] = parse,
    ) -> ast.Module:
        """The syntax tree of a field, or of `source`, which was made of it."""
        try:
            return parser(self.text(field) if source is None else source)
        except (SyntaxError, ValueError) as error:
            raise self.error(field, f"{problem}: {error}") from None

    def texts(self, field: str) -> tuple[str, ...]:
        values = self.values.get(field, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(field, f"must be a list of texts, found {json.dumps(values)[:60]}")
        return tuple(values)


Pair = Callable[[tuple[Row, Problem], tuple[Row, Problem]], tuple[Problem, Problem] | None]


@dataclass(frozen=True)
class Format:
    """A format of files of problems, recognised by the `fields` that its rows have (`a|b`: one of the two).

    Rows that hold a `foreign` field have another format, whose rows have these fields, too. `key` names the
    format where a user chooses it (`KEY:FILE`). `problem` makes a problem, or several, of a row, `example`
    shows a row in error messages. `non_finite` admits NaN and Infinity. `pair` makes the final problems of
    those of two neighbouring rows, or gives None unless they are two versions of one function; a row without
    its other version is a bad row.
    """

    key: str
    name: str
    fields: tuple[str, ...]
    example: str
    problem: Callable[[Row], Problem | tuple[Problem, ...]]
    non_finite: bool = False
    pair: Pair | None = None
    foreign: tuple[str, ...] = ()

    @property
    def fields_text(self) -> str:
        return ", ".join(self.fields).replace("|", " or ")

    def missing(self, row: Row, *, filled: bool = False) -> list[str]:
        """The fields by which the format is recognised and which the row does not have, or not `filled`."""
        has = {name for name, value in row.values.items() if not filled or value is not None}
        return [field for field in self.fields if has.isdisjoint(field.split("|"))]

    def fits(self, row: Row) -> bool:
        """Whether a row has this format. A foreign field that is null is one that the row does not use."""
        return not self.missing(row) and all(row.values.get(field) is None for field in self.foreign)


def refuse(error: ProblemError) -> None:
    """Raises `error`. For callers that do not skip bad rows."""
    raise error from None


def read_rows(
    path: Path, example: str, *, non_finite: bool = False, on_bad: Callable[[BadRow], None] = refuse
) -> Iterator[Row]:
    """The objects of a JSON array, or of a sequence of objects, as in JSON Lines; the rows of `*.parquet`.

    A file named `*.gz` is decompressed. `non_finite` admits NaN and Infinity, which Python writes
    although JSON has no such numbers. `on_bad` gets the error for a row that is not an object, or not JSON
    outside an array; the row is left out if `on_bad` returns. Raises `ProblemError`, with `example` as the
    remedy, when the file is missing, is not UTF-8, or is an array that is not JSON.
    """
    remedy = f"Expected a list, or one line each, of {example}."
    if not path.is_file():
        raise ProblemError(f"{path}: there is no such file.", remedy=remedy)
    if path.suffix == ".parquet":
        from greenward.common.parquet import read_parquet

        for number, values in enumerate(read_parquet(ProblemError, path), start=1):
            yield Row(path, number, 0, values)
        return
    text = read_text(path)
    decoder = json.JSONDecoder(
        parse_constant=None if non_finite else _refuse_constant,
        parse_float=None if non_finite else _finite,
        object_pairs_hook=_with_different_keys,
    )
    line, counted_to = 1, 0
    try:
        for number, (position, value) in enumerate(_elements(text, decoder), start=1):
            line += text.count("\n", counted_to, position)
            counted_to = position
            if isinstance(value, dict):
                yield Row(path, number, line, value)
            elif isinstance(value, json.JSONDecodeError):
                on_bad(BadRow(_not_json(path, value), remedy=remedy))
            else:
                found = f"expected an object, found {_type_name(value)}"
                on_bad(BadRow(f"{path}, row {number} (line {line}): {found}.", remedy=remedy))
    except json.JSONDecodeError as error:
        raise ProblemError(_not_json(path, error), remedy=remedy) from None


def read_problems(
    path: Path, format: Format, *, rows: Iterable[Row] | None = None, skip_bad_rows: bool = False
) -> ProblemSet:
    """The problems in a file of this format (or of `rows`), as a set with the name of the file.

    With `skip_bad_rows`, rows that cannot be used are left out, and `ProblemSet.skipped` says what is wrong
    with each. Otherwise such a row raises `BadRow`, as does an id that occurs twice. Raises `ProblemError`
    for a file without a problem, or with more than `MAX_BAD_ROWS` rows to skip.
    """
    skipped: list[str] = []

    def on_bad(error: BadRow) -> None:
        if not skip_bad_rows:
            raise error from None
        if len(skipped) == MAX_BAD_ROWS:
            raise ProblemError(
                f"{path}: more than {MAX_BAD_ROWS} rows cannot be used. The first: {skipped[0]}",
                remedy=f"Expected rows of {format.example}.",
            )
        skipped.append(error.message)

    by_id: dict[str, tuple[Row, Problem]] = {}
    for row in rows or read_rows(path, format.example, non_finite=format.non_finite, on_bad=on_bad):
        try:
            made = format.problem(row)
            for problem in (made,) if isinstance(made, Problem) else made:
                if problem.task_id in by_id:
                    first = by_id[problem.task_id][0].place
                    raise row.error(
                        "task_id" if "task_id" in row.values else "function_name",
                        f"gives the id {problem.task_id!r}, which {first} has already",
                        remedy="Give one of them a task_id of its own.",
                    )
                by_id[problem.task_id] = row, problem
        except BadRow as error:
            on_bad(error)
        except UNEXPECTED as error:
            what = f"{type(error).__name__}: {error}"
            on_bad(BadRow(f"{row.file}, {row.place}: not of the expected form ({what})."))
    if format.pair is not None:
        _join_pairs(by_id, format.pair, on_bad)
    if not by_id:
        raise ProblemError(
            skipped[0] if skipped else f"{path}: there is no problem in the file.",
            remedy=f"Expected rows of {format.example}.",
        )
    return ProblemSet(
        (problem for _, problem in by_id.values()),
        name=path.name.removesuffix(".gz").rpartition(".")[0] or path.name,
        skipped=tuple(skipped),
    )


def _join_pairs(by_id: dict[str, tuple[Row, Problem]], pair: Pair, on_bad: Callable[[BadRow], None]) -> None:
    """Replaces the problems of neighbouring rows by the pair that they make; drops those that make none."""
    waiting = deque(by_id.items())
    by_id.clear()
    while waiting:
        task_id, (row, problem) = waiting.popleft()
        other_id, (other_row, other) = waiting[0] if waiting else (task_id, (row, problem))
        made = pair((row, problem), (other_row, other)) if other_row.number == row.number + 1 else None
        if made is not None:
            waiting.popleft()
        if made is None or problem.prompt == other.prompt:
            why = "missing" if made is None else "the same"
            on_bad(BadRow(f"{row.file}, {row.place}: the other version of this function is {why}."))
        else:
            by_id |= {task_id: (row, made[0]), other_id: (other_row, made[1])}


def read_text(path: Path, *, within: Path | None = None) -> str:
    """The text of a UTF-8 file, decompressed if its name ends in `.gz`.

    Raises `ProblemError`, also for a file that unpacks to more than `MAX_UNPACKED_BYTES` and more than
    `MAX_UNPACKED_RATIO` times its size, and for a link that leads out of the folder `within`.
    """
    try:
        content = read_file(path, MAX_BYTES, within=within)
        if path.suffix == ".gz":
            most = max(MAX_UNPACKED_BYTES, MAX_UNPACKED_RATIO * len(content))
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = packed.read(most + 1)
            if len(content) > most:
                raise ProblemError(
                    f"{path}: unpacks to more than {most >> 20} MiB, which is suspicious for its size. "
                    "If you trust it, unpack it yourself (gunzip) and give the unpacked file."
                )
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ProblemError(f"{path}: not a whole gzip file ({error}).", remedy="Fetch it again.") from None
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _elements(text: str, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    """(position, value) of each element; one at a time, because `json.loads` forgets positions.

    Outside an array, a line that is not JSON is an element whose value is the error.
    """
    start = _skip_space(text, 0)
    if not text.startswith("[", start):
        yield from _elements_in_lines(text, start, decoder)
        return
    check_values(text, start)
    start = _skip_space(text, start + 1)
    closed = text.startswith("]", start)
    while not closed:
        value, end = _decode(text, start, decoder)
        yield start, value
        start = _skip_space(text, end)
        closed = text.startswith("]", start)
        if not closed:
            if not text.startswith(",", start):
                raise json.JSONDecodeError("expected ',' or ']' after a row", text, start)
            start = _skip_space(text, start + 1)
    end = _skip_space(text, start + 1)
    if end < len(text):
        raise json.JSONDecodeError("text after the closing bracket", text, end)


def _elements_in_lines(text: str, start: int, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    """(position, value) of each element of a sequence, which are parsed in a window of the text.

    The window is the line in which an element begins, and is doubled while the element does not end in it: an
    error takes time to count the lines of all that is parsed.
    """
    first = first_end = 0  # of the line
    number, reread = 1, 0
    window = checked = ""
    while start < len(text):
        if start >= first_end:
            line = text.rfind("\n", first_end, start) + 1 or first_end
            number += text.count("\n", first, line)
            first, first_end = line, _line_end(text, start)
            window = text[first:first_end]
        try:
            if window is not checked:
                check_values(window, start - first, number)
                checked = window
            value, end = _decode(window, start - first, decoder, number)
        except json.JSONDecodeError as error:
            if error.pos >= len(window.rstrip()) and first + len(window) < len(text):
                window = text[first : _line_end(text, first + 2 * len(window))]
                continue
            reread += len(window) - (first_end - first)
            if reread > _MAX_REREAD * len(text):
                raise
            yield start, error
            start = _skip_space(text, first_end)
        else:
            yield start, value
            start = _skip_space(text, first + end)


def _line_end(text: str, position: int) -> int:
    return text.find("\n", position) + 1 or len(text)


def _decode(text: str, start: int, decoder: json.JSONDecoder, first_line: int = 1) -> tuple[Any, int]:
    """(value, its end) at a position of a text whose first line has this number in the file."""
    try:
        value, end = decoder.raw_decode(text, start)
        check_nesting(value, text.count("[", start, end) + text.count("{", start, end))
        return value, end
    except (ValueError, RecursionError) as error:  # also NaN, an endless integer, brackets without end
        if not isinstance(error, json.JSONDecodeError):
            error = json.JSONDecodeError(str(error), text, start)
        error.lineno += first_line - 1
        line = text.count("\n", 0, start) + first_line
        if error.lineno > line:  # the line was cut short, and the parser noticed it only in the next one
            error.msg += f", in the row that begins in line {line}"
        raise error from None


def _not_json(path: Path, error: json.JSONDecodeError) -> str:
    return f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})."


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large for a number")
    return value


def _with_different_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {twice!r} occurs twice, so that one of the two values would be lost")
    return found


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


DATA = Path(__file__).with_name("data")


def read_sections(name: str) -> dict[str, list[str]]:
    """The lines of each section of a text file, which a line `## HEADING` begins."""
    parts = re.split(r"^## (.+)\n", (DATA / name).read_text(encoding="utf-8"), flags=re.MULTILINE)
    sections = zip(parts[1::2], parts[2::2], strict=True)
    return {heading: content.strip("\n").split("\n") for heading, content in sections}


def read_table(name: str) -> dict[str, list[list[str]]]:
    """As `read_sections`, with each line as its cells, between which ` | ` stands."""
    return {heading: [line.split(" | ") for line in lines] for heading, lines in read_sections(name).items()}


def read_programs(name: str) -> dict[str, str]:
    """The program of each section, an empty line before it; `## NAME: REMARK` is the heading of NAME."""
    sections = read_sections(name).items()
    return {heading.partition(": ")[0]: "\n".join(["", *lines, ""]) for heading, lines in sections}
