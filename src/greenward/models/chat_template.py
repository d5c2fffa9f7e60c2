"""Renders the chat templates of models, which are programs of strangers, with limits of work, time and size.

The messages are made in `environments.prompts`.

Templates run in Jinja's sandbox with bounds of their source, operations and CPU time (5 s), without filters
such as `urlize` and `wordwrap`.

Nothing that a template makes may be larger than a limit, counted as if its parts were not shared. That
bounds the time of any single operation; between operations, work and CPU time are looked at.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial, wraps
from math import prod
from sys import getsizeof
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE = 100_000  # characters of a template
MAX_WORK = 250_000  # rounds of loops, operations, and each thousand bytes made, in rendering once
MAX_SECONDS = 5  # of CPU, in rendering once
MAX_SIZE = 1_000_000  # bytes of any value on the way, and GROWTH times those of the conversation
GROWTH = 4
_ELEMENT = 64  # bytes of an element of a container, besides its own
_FIELDS = {"%": "%", "format": "{"}  # the operator, as which a filter is named `format`, and the method
_NUMBERS = re.compile(r"\d+")
_WIDTH_GIVEN = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")  # by another argument
_SIZED_BY_NUMBER = frozenset({"center", "ljust", "rjust", "zfill", "to_bytes", "batch", "slice", "round"})
_MULTIPLY = frozenset({"replace", "join", "indent", "tojson", "rfind", "rindex", "rsplit", "rpartition"})
_JINJAS_OWN = frozenset({"_loop_vars", "_block_vars"})  # arguments that it adds to calls in loops and blocks
_UNBOUNDED = frozenset(  # in time or size, and in no template that we know
    {"urlize", "striptags", "wordwrap", "pprint", "encode", "decode", "translate", "expandtabs", "format_map"}
)


@dataclass
class _Budget:
    """What is left to one rendering."""

    largest: int = MAX_SIZE
    work: int = MAX_WORK

    def __post_init__(self) -> None:
        self.until = time.thread_time() + MAX_SECONDS


_budget: ContextVar[_Budget] = ContextVar("budget")


def render(source: str, **values: Any) -> str:
    """The text that a template makes of `values`. Raises `TemplateError`, also beyond the limits."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"it has {len(source)} characters; at most {MAX_SOURCE} are read")
    _budget.set(_Budget(largest=MAX_SIZE + GROWTH * _size(values, most=10 * MAX_SIZE)))
    try:
        return _compiled(source).render(**values)
    except TemplateError:
        raise
    except Exception as error:  # whatever a program can raise
        raise TemplateError(f"{type(error).__name__}: {error}") from error


@lru_cache(maxsize=8)
def _compiled(source: str) -> Template:
    """A template with the functions that `transformers` gives it."""

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], finalize=_printed
    )
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    table: Any
    for table in (environment.filters, environment.tests):
        table |= {name: _bounded(name, one) for name, one in table.items()}
    environment.filters |= {_EACH: _each, _JOINED: _joined, _MEASURED: _measured}
    environment.globals |= {
        "namespace": _Namespace,
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    del environment.globals["lipsum"]
    return environment.from_string(source)


class _Namespace(Namespace):
    """Its text does not hold what it holds: it can change, so its size when it is built says nothing."""

    def __repr__(self) -> str:
        return "<Namespace>"


class _Environment(ImmutableSandboxedEnvironment):
    """Counts the rounds of loops and the operations, and measures what they make."""

    intercepted_binops = frozenset({"+", "-", "*", "**", "%", "/", "//"})

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Hooks().visit(super()._parse(source, name, filename))
        template.set_environment(self)
        return template

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """What blocks, macros and the whole template give."""
        return _joined(list(parts))

    def call(self, context: Any, function: Any, /, *given: Any, **kwargs: Any) -> Any:
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps `str.format`
        owner = getattr(method, "__self__", None)
        named = {name: value for name, value in kwargs.items() if name not in _JINJAS_OWN}
        _, *args = _before_call(getattr(method, "__name__", ""), (owner, *given), named)
        _limit(_size((args, named)))  # a macro has them as `varargs` and `kwargs`
        return _measured(super().call(context, function, *args, **kwargs))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _before_call("%", (left, right), {})
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _limit(_int_size(left.bit_length() * abs(right)))
        elif operator == "*" and not (isinstance(left, (int, float)) and isinstance(right, (int, float))):
            _limit(prod(abs(one) if isinstance(one, int) else _size(one) for one in (left, right)))
        return _measured(super().call_binop(context, operator, left, right))


class _Hooks(NodeTransformer):
    """Puts filters of ours where Jinja calls none: around loops, `~`, comparisons, slices and literals."""

    def visit_For(self, loop: nodes.For) -> nodes.For:
        self.generic_visit(loop)
        loop.iter = _filtered(loop.iter, _EACH)
        return loop

    def visit_Concat(self, texts: nodes.Concat) -> nodes.Node:
        self.generic_visit(texts)
        return _filtered(nodes.List(texts.nodes, lineno=texts.lineno), _JOINED)

    def visit_Getitem(self, item: nodes.Getitem) -> nodes.Node:
        self.generic_visit(item)
        return _filtered(item, _MEASURED) if isinstance(item.arg, nodes.Slice) else item

    def visit_Tuple(self, values: nodes.Tuple) -> nodes.Node:
        self.generic_visit(values)
        return _filtered(values, _MEASURED) if values.ctx == "load" else values

    def _visit_measured(self, value: nodes.Expr) -> nodes.Node:
        self.generic_visit(value)
        return _filtered(value, _MEASURED)

    visit_List = visit_Dict = visit_Compare = _visit_measured


_EACH, _JOINED, _MEASURED = "each", "joined", "measured"


def _filtered(value: Any, by: str) -> nodes.Filter:
    return nodes.Filter(value, by, [], [], None, None, lineno=value.lineno)


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter or test `function`, counted and measured."""

    @wraps(function, assigned=())
    def bounded(*args: Any, **kwargs: Any) -> Any:
        args = _before_call("%" if name == "format" else name, args, kwargs)
        made = _measured(function(*args, **kwargs))
        return _each(made) if isinstance(made, Iterator) else made

    return bounded


def _each(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        _limit(_size(value))
        _work(1)
        yield value


def _printed(value: Any) -> Any:
    """`value`, whose text is made next."""
    size = _size(value)
    _limit(size)
    _work(size)
    return value


def _joined(parts: list[Any]) -> str:
    texts = [str(_printed(part)) for part in parts]
    _limit(sum(map(getsizeof, texts)))
    return "".join(texts)


def _before_call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments, with iterators that have to be measured made lists.

    Refuses what a call would need the time or memory for before it could be measured.
    """
    if name in _UNBOUNDED:
        raise TemplateError(f"chat templates cannot use {name}")
    if name == "join":
        args = tuple(list(one) if isinstance(one, Iterator) else one for one in args)
        _limit(_size(args))
    first, *others = (*args, *kwargs.values())
    if name in _SIZED_BY_NUMBER:
        _limit(max((one for one in others if isinstance(one, int)), default=1))
    elif name in _MULTIPLY:
        _limit(_product(name, first, *others))
    elif name in _FIELDS:
        form, fields = str(first), str(first).count(_FIELDS[name])
        widths = sum(map(int, _NUMBERS.findall(form)))
        if _WIDTH_GIVEN.search(form):
            if not all(isinstance(one, (str, int)) for one in others):
                raise TemplateError("a format of text has a width that is not known")
            widths += fields * sum(map(int, _NUMBERS.findall(str(others))))
        _limit(widths + fields * _size(others))
    return args


def _product(name: str, first: Any, *others: Any) -> int:
    """About the characters that a call makes or compares, where these are a product of its arguments."""
    extents = prod(max(1, _extent(one)) for one in others)
    if name == "replace":
        text, parts = str(first), list(map(str, others))
        return sum(text.count(old) * len(new) for old in parts for new in parts)
    if name == "join":
        return prod(len(one) for one in (first, *others) if isinstance(one, Collection))
    if name == "indent":
        return (len(str(first).splitlines()) + 1) * extents
    if name == "tojson":
        return _size(first) * extents
    return len(first) * extents // 100  # a search from the end compares the whole pattern at each place


def _extent(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(map(_extent, value))
    return abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else 1


def _measured(value: Any) -> Any:
    """`value`, which was just made, perhaps of parts that were there."""
    size = _size(value)
    _limit(size)
    is_container = not isinstance(value, (str, bytes, int)) and isinstance(value, Collection)
    _work(_ELEMENT * len(value) if is_container else size)
    return value


def _size(value: Any, most: int | None = None) -> int:
    """The bytes of a value as if none of its parts were shared. Ends soon after `most` or the limit."""
    if isinstance(value, str):
        return getsizeof(value)
    most = _budget.get().largest if most is None else most
    size, rest = 0, [value]
    while rest and size <= most:
        one = rest.pop()
        if isinstance(one, (str, bytes)):
            size += getsizeof(one)
        elif isinstance(one, int):
            size += _int_size(one.bit_length())
        elif isinstance(one, Collection):
            size += _ELEMENT * len(one)
            rest += one
            if isinstance(one, Mapping):
                rest += one.values()
    return size


def _int_size(bits: int) -> int:
    """Division takes the square of the length."""
    return bits * bits // 1000


def _limit(size: int) -> None:
    """Raises `TemplateError` for a larger size than any value may have."""
    if size > (largest := _budget.get().largest):
        raise TemplateError(f"it makes something larger than {largest} bytes")


def _work(size: int) -> None:
    """Counts an operation that makes `size` bytes. Raises `TemplateError` beyond the limits."""
    budget = _budget.get()
    budget.work -= 1 + size // 1000
    if budget.work < 0:
        raise TemplateError(f"it takes more than {MAX_WORK} steps")
    if time.thread_time() > budget.until:
        raise TemplateError(f"it takes more than {MAX_SECONDS} seconds")
