"""Records that were made of JSON: does each field have the type that its class declares?

It imports the standard library only: `sandbox.remote` sends it to servers that have nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def check_types(record: Any) -> None:
    """Raises `TypeError` that names the first field of a dataclass whose value is of another type.

    Integers count as floats, booleans as no numbers.
    """
    for name, kind in _kinds(type(record)).items():  # type: ignore[arg-type]  # a class is hashable
        if not _is(value := getattr(record, name), kind):
            raise TypeError(f"{name}: expected {kind}, found {str(value)[:60]!r}")


@cache
def _kinds(record: type) -> dict[str, Any]:
    return get_type_hints(record)


def _is(value: Any, kind: Any) -> bool:
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, UnionType):
        return any(_is(value, one) for one in inner)
    if origin is tuple:  # tuple[X, ...] is the only form
        return isinstance(value, tuple) and all(_is(one, inner[0]) for one in value)
    if origin is Mapping:
        return isinstance(value, Mapping) and all(
            _is(key, inner[0]) and _is(one, inner[1]) for key, one in value.items()
        )
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)
