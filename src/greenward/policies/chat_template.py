"""Renders the chat templates of models, which are programs of strangers, with a limit of work and of text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, partial, wraps
from math import prod
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from greenward.user_files import UNEXPECTED

MAX_WORK = 250_000  # rounds of loops, calls, and each thousand characters made, in rendering once
MAX_SIZE = 10_000_000  # of the conversation, and of any text, list or number (in bits) on the way
_WIDTH = re.compile(r"\d{7,}|%[^a-zA-Z%]*\*")  # in a format of text
_MULTIPLIES = frozenset({"replace", "join"})  # the lengths of their arguments

_work: ContextVar[int] = ContextVar("work", default=0)


def render(source: str, **values: Any) -> str:
    """The text that a template makes of `values`. Raises `TemplateError`, also beyond the limits."""
    _work.set(0)
    try:
        return _compiled(source).render(**values)
    except UNEXPECTED as error:
        raise TemplateError(f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """A template with the functions that `transformers` gives it."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.filters = {name: _bounded(name, one) for name, one in environment.filters.items()}
    environment.filters |= {_EACH: _each, _JOINED: _joined}
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


class _Environment(ImmutableSandboxedEnvironment):
    """Counts the rounds of loops and the calls, and measures what operators, calls and blocks make."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)

        def filtered(value: Any, by: str) -> nodes.Filter:
            return nodes.Filter(value, by, [], [], None, None, lineno=value.lineno)

        for loop in list(template.find_all(nodes.For)):
            loop.iter = filtered(loop.iter, _EACH)
        for texts in list(template.find_all(nodes.Concat)):
            texts.nodes = [filtered(nodes.List(texts.nodes, lineno=texts.lineno), _JOINED)]
        template.set_environment(self)
        return template

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What blocks, macros and the whole template give."""
        return _joined(list(parts))

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `str.format`
        _before_call(getattr(method, "__name__", ""), getattr(method, "__self__", None), *args)
        return _measured(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _before_call("format", left)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _measure(left.bit_length() * abs(right))
        elif operator == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            _measure(prod(abs(one) if isinstance(one, int) else _size(one) for one in (left, right)))
        return _measured(super().call_binop(context, operator, left, right))


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `function`, counted and measured."""

    @wraps(function, assigned=())
    def bounded(*args: Any, **kwargs: Any) -> Any:
        _before_call(name, *args, *kwargs.values())
        return _measured(function(*args, **kwargs))

    return bounded


_EACH, _JOINED = "each", "joined"  # filters of ours that a loop and `~` get


def _each(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _measure(1)
        yield value


def _joined(parts: list[Any]) -> str:
    texts = list(map(str, parts))
    _measure(sum(map(len, texts)))
    return "".join(texts)


def _before_call(name: str, *args: Any) -> None:
    """Refuses what a call would need the memory for before it could be measured."""
    _measure(max((one for one in args if isinstance(one, int)), default=1))
    if name in _MULTIPLIES:
        _measure(prod(max(1, len(one)) for one in args if isinstance(one, (str, list, tuple))))
    elif name.startswith("format") and any(_WIDTH.search(one) for one in args if isinstance(one, str)):
        raise TemplateError("a format of text has too large a width")


def _measured(value: Any) -> Any:
    _measure(_size(value))
    return value


def _size(value: Any) -> int:
    """Of a text, a list, or of an integer in bits."""
    if isinstance(value, int):
        return value.bit_length()
    return len(value) if isinstance(value, (str, list, tuple)) else 1


def _measure(size: int) -> None:
    """Counts what is made or done. Raises `TemplateError` beyond the limits."""
    _work.set(_work.get() + 1 + max(size, 0) // 1000)
    if size > MAX_SIZE or _work.get() > MAX_WORK:
        raise TemplateError(f"it takes more than {MAX_WORK} steps, or makes something larger than {MAX_SIZE}")
