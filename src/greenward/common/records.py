"""Records that were made of JSON: does each field have the type that its class declares?

It imports the standard library only: `sandbox.remote` sends it to servers that have nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def check_types(record: Any) -> None:
    """Raises `TypeError` that names the first field of a dataclass whose value is of another type.

    Integers count as floats, booleans as no numbers.
    """
    for name, kind, accepts in _fields(type(record)):  # type: ignore[arg-type]  # a class is hashable
        if not accepts(value := getattr(record, name)):
            raise TypeError(f"{name}: expected {kind}, found {str(value)[:60]!r}")


@cache
def _fields(record: type) -> tuple[tuple[str, Any, Callable[[Any], bool]], ...]:
    """The name and type of each field, and a function that tells whether a value has this type.

    They are made once for a class, because files have many rows.
    """
    return tuple((name, kind, _accepts(kind)) for name, kind in get_type_hints(record).items())


def _accepts(kind: Any) -> Callable[[Any], bool]:
    origin, inner = get_origin(kind), tuple(map(_accepts, get_args(kind)))
    if kind is Any:
        return lambda value: True
    if kind is Ellipsis:
        return lambda value: False
    if origin in (Union, UnionType):
        return lambda value: any(accepts(value) for accepts in inner)
    if origin is tuple:  # tuple[X, ...] is the only form
        return lambda value: isinstance(value, tuple) and all(map(inner[0], value))
    if origin is Mapping:
        return lambda value: (
            isinstance(value, Mapping) and all(map(inner[0], value)) and all(map(inner[1], value.values()))
        )
    if kind in (int, float):
        return lambda value: isinstance(value, (int, kind)) and not isinstance(value, bool)
    return lambda value: isinstance(value, kind)
