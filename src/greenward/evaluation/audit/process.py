"""The process that runs a function under audit: one answer at a time, its score or what it raised."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from greenward.grading.function_server import Handler, Header, as_number, serve
from greenward.grading.plain_answers import answers_from_plain


def main() -> None:
    """Serves until the audit closes its end."""
    serve(_present)


def _present(function: Callable[..., Any], header: Header) -> tuple[Header, Handler]:
    function = functools.partial(function, **header["options"])
    parameters = inspect.signature(function).parameters.values()
    named = [one for one in parameters if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    described = {
        "parameters": [one.name for one in named],
        "required": [one.name for one in named if one.default is one.empty],
        "takes_any": any(one.kind is one.VAR_KEYWORD for one in parameters),
    }

    def handle(plain: Any) -> Header:
        arguments, answers = plain
        try:
            if answers is not None:
                return _one_score(function(answers_from_plain(answers)))
            return _one_score(function(**arguments))
        except Exception as error:
            return {"raised": " ".join(f"{type(error).__name__}: {error}"[:200].split())}

    return described, handle


def _one_score(given: Any) -> Header:
    """The score in a number, a list of one, or verl's dict; None where the function says nothing."""
    if isinstance(given, Mapping):
        given = given.get("score")
    elif isinstance(given, (list, tuple)) and given:
        given = given[0]
    number = None if given is None else as_number(given)
    return {"raised": f"it gave {number}, not a number"} if isinstance(number, str) else {"score": number}
