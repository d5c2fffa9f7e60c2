"""Parses JSON of users into plain data of bounded depth and size, or raises an error of the format.

A text can be valid and still exhaust its reader: unclosed brackets fill the stack of a parser.
"""

from __future__ import annotations

import json
import re
import sys
from itertools import chain
from typing import Any

MAX_NESTING = 100
MAX_JSON_VALUES = 1 << 22  # an empty list has 3 bytes in JSON, and 64 in memory
MAX_DIGITS = 50_000  # of an integer in decimal, as in LiveCodeBench's judge

# Suites and answers hold longer integers than Python converts by default (4,300 digits). The time grows with
# the square of the digits: an integer of this length takes 10 ms, like other source code of its length.
if 0 < getattr(sys, "get_int_max_str_digits", lambda: 0)() < MAX_DIGITS:
    sys.set_int_max_str_digits(MAX_DIGITS)

TOO_DEEP = f"nested more than {MAX_NESTING} levels deep"


def parse_json_text(text: str | bytes) -> Any:
    """The value of a JSON text, as `json.loads` gives it.

    Raises `ValueError`: `json.JSONDecodeError` for what is not JSON, is nested more than `MAX_NESTING`
    levels deep, has more than `MAX_JSON_VALUES` values or holds an integer of more than `MAX_DIGITS` digits;
    `UnicodeDecodeError`.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    check_values(text, 0)
    try:
        value = json.loads(text)
        check_nesting(value, text.count("[") + text.count("{"))
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError(TOO_DEEP, text, 0) from None
    except ValueError as error:
        raise json.JSONDecodeError(str(error), text, 0) from None
    return value


def check_values(text: str, start: int, first_line: int = 1) -> None:
    """Raises `json.JSONDecodeError` for more than `MAX_JSON_VALUES` commas and brackets outside of strings.

    `start` is where the JSON begins, in a text whose first line has the number `first_line` in its file.
    """
    if sum(map(text.count, ",[{")) > MAX_JSON_VALUES:
        bare = re.sub(r'"[^"]*"', "", text.replace("\\\\", "").replace('\\"', ""))
        if sum(map(bare.count, ",[{")) > MAX_JSON_VALUES:
            said = f"more than {MAX_JSON_VALUES} values in one document; JSON Lines may have more in all"
            error = json.JSONDecodeError(said, text, start)
            error.lineno += first_line - 1
            raise error


def check_nesting(value: Any, containers: int) -> None:
    """Raises `ValueError` for lists and objects of JSON nested too deep. There are at most `containers`."""
    level, depth = [value], 0
    while containers > MAX_NESTING and (level := [one for one in level if isinstance(one, (list, dict))]):
        if (depth := depth + 1) > MAX_NESTING:
            raise ValueError(TOO_DEEP)
        level = list(chain.from_iterable(one.values() if isinstance(one, dict) else one for one in level))
