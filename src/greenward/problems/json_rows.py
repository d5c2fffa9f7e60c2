"""The rows of a JSON or JSON Lines file, each with the place that an error message names."""

from __future__ import annotations

import gzip
import json
import keyword
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from greenward.errors import ProblemError
from greenward.user_text import check_nesting

_STRICT = json.JSONDecoder(parse_constant=lambda name: _refuse_constant(name))
_LENIENT = json.JSONDecoder()
_WHITESPACE = " \t\r\n"


class BadRow(ProblemError):
    """One row of a file that cannot be used, while others may."""


@dataclass(frozen=True)
class Row:
    """One object of a file, and where it stands."""

    file: Path
    number: int
    line: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        return f"row {self.number} (line {self.line})"

    def error(self, field: str, problem: str, *, remedy: str | None = None) -> BadRow:
        """The error that says what is wrong with a field of this row."""
        return BadRow(f"{self.file}, {self.place}: field {field!r} {problem}.", remedy=remedy)

    def text(self, field: str, *, default: str | None = None) -> str:
        value = self.values.get(field, default)
        if not isinstance(value, str):
            raise self.error(field, f"must be text, found {found(self.values, field)}")
        if "\0" in value:
            raise self.error(field, "holds a null character, which Python source cannot")
        return value

    def name(self, field: str) -> str:
        """A text that can name a Python function."""
        value = self.text(field)
        if not value.isidentifier() or keyword.iskeyword(value):
            raise self.error(field, f"must be the name of a Python function, found {value!r}")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        values = self.values.get(field, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.error(field, f"must be a list of texts, found {json.dumps(values)[:60]}")
        return tuple(values)


def found(values: dict[str, Any], field: str) -> str:
    """What a field holds, in words; `nothing` when it is missing."""
    return _type_name(values[field]) if field in values else "nothing"


def refuse(error: ProblemError) -> None:
    """Raises `error`: no row may be bad."""
    raise error from None


def read_rows(
    path: Path, *, example: str, non_finite: bool = False, on_bad: Callable[[BadRow], None] = refuse
) -> Iterator[Row]:
    """The objects of a JSON array, or those that follow one another, as in JSON Lines.

    A file called `*.gz` is decompressed. `non_finite` admits NaN and Infinity, which Python writes
    although JSON has no such numbers. A row that is not an object, or in JSON Lines not JSON, is given to
    `on_bad` and left out if that returns. Raises `ProblemError`, with `example` as the remedy, when the
    file is missing, is not UTF-8, or is an array that is not JSON.
    """
    remedy = f"Expected a list, or one line each, of {example}."
    if not path.is_file():
        raise ProblemError(f"{path}: there is no such file.", remedy=remedy)
    text = read_text(path)
    decoder = _LENIENT if non_finite else _STRICT
    line = 1
    counted_to = 0
    try:
        for number, (position, value) in enumerate(_elements(text, decoder), start=1):
            line += text.count("\n", counted_to, position)
            counted_to = position
            if isinstance(value, dict):
                yield Row(path, number, line, value)
            elif isinstance(value, json.JSONDecodeError):
                place = f"line {value.lineno}, column {value.colno}"
                on_bad(BadRow(f"{path}, {place}: not JSON ({value.msg}).", remedy=remedy))
            else:
                found = f"expected an object, found {_type_name(value)}"
                on_bad(BadRow(f"{path}, row {number} (line {line}): {found}.", remedy=remedy))
    except json.JSONDecodeError as error:
        raise ProblemError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}).", remedy=remedy
        ) from None


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, decompressed if its name ends in `.gz`. Raises `ProblemError`."""
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ProblemError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start}).") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ProblemError(f"{path}: not a whole gzip file ({error}).", remedy="Fetch it again.") from None
    except OSError as error:
        raise ProblemError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _elements(text: str, decoder: json.JSONDecoder) -> Iterator[tuple[int, Any]]:
    """(position, value) of each element; one at a time, because `json.loads` forgets positions.

    Where there is no array, what is not JSON is an element up to the end of its line, with the error for
    a value.
    """
    start = _skip_space(text, 0)
    if not text.startswith("[", start):
        while start < len(text):
            try:
                value, end = _decode(text, start, decoder)
            except json.JSONDecodeError as error:
                value, end = error, text.find("\n", start) + 1 or len(text)
            yield start, value
            start = _skip_space(text, end)
        return
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


def _decode(text: str, start: int, decoder: json.JSONDecoder) -> tuple[Any, int]:
    try:
        value, end = decoder.raw_decode(text, start)
        check_nesting(value, text.count("[", start, end) + text.count("{", start, end))
        return value, end
    except json.JSONDecodeError as error:
        line = text.count("\n", 0, start) + 1
        if error.lineno == line:
            raise
        # A line that was cut short: what is missed is found only in the next one.
        raise json.JSONDecodeError(
            f"{error.msg}, in the row that begins in line {line}", text, error.pos
        ) from None
    except (ValueError, RecursionError) as error:  # NaN, an endless integer, brackets without end
        raise json.JSONDecodeError(str(error), text, start) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _WHITESPACE:
        position += 1
    return position


def _type_name(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
