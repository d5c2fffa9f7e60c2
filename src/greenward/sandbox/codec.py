"""Plain data as text and back: the only language in which an answer's process may speak.

Exact types only: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, and
the standard library's value types of `standard_types`. Where numpy is loaded, its scalars and arrays
count as the plain values and lists that they hold (`numpy_values`). A subclass (Counter, namedtuple,
IntEnum …) is reduced to its base by the base's own methods, so that no method of the object takes part.
Never pickle, never eval. JSON carries None, bool, short int, finite float, str and list as themselves;
everything else is an object with one key, its tag.

`decode` rebuilds real values and is for trusted text (the inputs of a job). `decode_untrusted`
keeps sets and dicts as `PlainSet` and `PlainDict`: rebuilding them would let an answer choose
elements that all hash alike and cost the reader seconds. Values in this flat form are at most
`MAX_DEPTH` deep, so they can be walked by recursion.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from typing import Any, NamedTuple

from greenward.sandbox import numpy_values, standard_types

MAX_DEPTH = 100
MAX_CHARS = 4 << 20
# JSON readers elsewhere lose precision above 2**53, and long decimal text takes quadratic time.
_SHORT_INT = 1 << 53
_SHORT_INT_CHARS = 20
# Only a text with this somewhere, if only in a string, can hold an int that is too long.
_LONG_NUMBER = re.compile(f"[0-9]{{{_SHORT_INT_CHARS}}}")


class PlainDataError(Exception):
    """A value that is not plain data, or too deep, or too long."""


class PlainSet(NamedTuple):
    """A set or frozenset that was not rebuilt. Its elements may repeat."""

    elements: list[Any]


class PlainDict(NamedTuple):
    """A dict that was not rebuilt. Its keys may repeat."""

    entries: list[list[Any]]


def encode(value: Any, *, max_chars: int = MAX_CHARS) -> str:
    """The text of a plain value, flat or not. Raises `PlainDataError`."""
    text = _dumps(_to_json(value, MAX_DEPTH))
    if len(text) > max_chars:
        raise PlainDataError(f"the value takes {len(text)} characters; at most {max_chars} are allowed")
    return text


def decode(text: str) -> Any:
    """The value of a trusted text, with real sets and dicts."""
    return _decode_trusted(text)


def decode_untrusted(text: str) -> Any:
    """The value of a hostile text, sets and dicts kept as lists. Raises `PlainDataError`."""
    try:
        value = (_decode_checking_ints if _LONG_NUMBER.search(text) else _decode_hostile)(text)
    except (
        ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError,
        standard_types.NotStandard,
    ) as error:  # fmt: skip
        raise PlainDataError(f"not the text of a plain value: {type(error).__name__}") from None
    if text.count("[") > MAX_DEPTH and _is_too_deep(value):
        raise PlainDataError(f"the value is nested more than {MAX_DEPTH} levels deep")
    return value


def canonical(value: Any) -> Any:
    """A trusted plain value in the form that `decode_untrusted` gives. Raises `PlainDataError`."""
    numpy_values.know_numpy()
    return decode_untrusted(encode(value))


# Bound once: code that runs later in the same process cannot swap them.
_dumps = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
_real, _imag = complex.real.__get__, complex.imag.__get__
_is_finite = math.isfinite


def _to_json(value: Any, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        return value if -_SHORT_INT <= value <= _SHORT_INT else {"int": hex(value)}
    if kind is float:
        return value if _is_finite(value) else {"float": float.__repr__(value)}
    if depth == 0:
        raise PlainDataError(f"the value is nested more than {MAX_DEPTH} levels deep")
    depth -= 1
    if kind is list:
        return _all_to_json(value, depth)
    if kind is tuple:
        return {"tuple": _all_to_json(value, depth)}
    if kind is dict:
        return {"dict": [_all_to_json(entry, depth) for entry in value.items()]}
    if kind is set:
        return {"set": _all_to_json(value, depth)}
    if kind is frozenset:
        return {"frozenset": _all_to_json(value, depth)}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [_to_json(value.real, depth), _to_json(value.imag, depth)]}
    if kind is PlainSet or kind is PlainDict:
        return {"set" if kind is PlainSet else "dict": _all_to_json(value[0], depth)}
    base = _reduce(value, kind)
    if base is not None:
        return _to_json(base, depth)
    try:
        if numpy_values.is_of_numpy(kind):
            return _to_json(numpy_values.plain(value, kind, MAX_CHARS), depth)
        tag, parts = standard_types.take_apart(value, kind)
    except standard_types.NotStandard as error:
        raise PlainDataError(str(error)) from None
    return {tag: _all_to_json(parts, depth) if type(parts) is list else parts}


def _all_to_json(values: Any, depth: int) -> list[Any]:
    """Each value by `_to_json`, without a call for the most frequent kinds."""
    return [
        value
        if (kind := type(value)) is str or (kind is int and -_SHORT_INT <= value <= _SHORT_INT)
        else _to_json(value, depth)
        for value in values
    ]


def _reduce(value: Any, kind: type) -> Any:
    """An instance of a subclass as an instance of the built-in type it derives from; None if of none."""
    if issubclass(kind, int):
        return int.__index__(value)
    if issubclass(kind, float):
        return float.__float__(value)
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, list):
        return list(list.__iter__(value))
    if issubclass(kind, tuple):
        return tuple(tuple.__iter__(value))
    if issubclass(kind, dict):
        return dict(dict.items(value))
    if issubclass(kind, set):
        return set(set.__iter__(value))
    if issubclass(kind, frozenset):
        return frozenset(frozenset.__iter__(value))
    if issubclass(kind, bytes):
        return bytes.__getitem__(value, slice(None))
    if issubclass(kind, complex):
        return complex(_real(value), _imag(value))
    return None


_ATOMS: dict[str, Any] = {
    "tuple": tuple,
    "int": lambda text: int(text, 16),
    "float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__,
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
}
_REBUILT = {**_ATOMS, "set": set, "frozenset": frozenset, "dict": dict}
_OF_TEXT = frozenset({"int", "float", "bytes", "bytearray", "Decimal"})


def _rebuild(pairs: list[tuple[str, Any]]) -> Any:
    ((tag, payload),) = pairs
    if tag in standard_types.TAGS:
        return standard_types.put_together(tag, payload)
    return _REBUILT[tag](payload)


def _keep_flat(pairs: list[tuple[str, Any]]) -> Any:
    ((tag, payload),) = pairs
    wanted: Any = str if tag in _OF_TEXT else list
    if type(payload) is not wanted:
        raise ValueError(tag)
    if tag in ("set", "frozenset"):
        return PlainSet(payload)
    if tag == "dict":
        if any(type(entry) is not list or len(entry) != 2 for entry in payload):
            raise ValueError(tag)
        return PlainDict(payload)
    if tag in standard_types.TAGS:
        return standard_types.put_together(tag, payload)
    return _ATOMS[tag](payload)


def _short_int(digits: str) -> int:
    return int(digits) if len(digits) <= _SHORT_INT_CHARS else _refuse(digits)


def _refuse(text: str) -> Any:
    raise ValueError(text[:20])


def _is_too_deep(value: Any) -> bool:
    """Whether a flat value (in its frame) has more than `MAX_DEPTH` levels of containers; no recursion."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for outer in level for inner in parts_of(outer) if isinstance(inner, _CONTAINERS)]
        if not level:
            return False
    return True


_CONTAINERS = (list, tuple, deque)


def parts_of(value: Any) -> Any:
    """What a flat value directly holds: an iterable of flat values, of known length."""
    if type(value) is PlainDict:
        return [part for entry in value.entries for part in entry]
    if type(value) is PlainSet:
        return value.elements
    return value if isinstance(value, _CONTAINERS) else ()


# Made once: `json.loads` makes a decoder for every call with hooks.
_decode_trusted = json.JSONDecoder(object_pairs_hook=_rebuild).decode
_decode_hostile = json.JSONDecoder(object_pairs_hook=_keep_flat, parse_constant=_refuse).decode
_decode_checking_ints = json.JSONDecoder(
    object_pairs_hook=_keep_flat, parse_int=_short_int, parse_constant=_refuse
).decode
