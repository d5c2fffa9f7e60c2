"""Writes plain data as text and reads it back: values leave an answer's process in no other form.

Exact types only: None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict, and the
standard library's date, datetime, time, timedelta, Decimal, Fraction, deque, range and bytearray. A subclass
(Counter, namedtuple, IntEnum …) is reduced to its base. Where numpy is loaded, its scalars and arrays count
as the plain values and nested lists that they hold. Methods of the base classes do all of this, and they are
bound when this module is loaded: no method that an answer defines or replaces is called. Never pickle, never
eval. JSON carries None, bool, short int, finite float, str and list as themselves; everything else is an
object with one key, its tag. Between an answer and its test programs pass, too, functions, iterators, views
of dicts and classes of plain values, and from the tests alone more than that (`exchange_functions`).
`decode` rebuilds real values and is for trusted text (the inputs of a job). `decode_untrusted` keeps sets
and dicts as `PlainSet` and `PlainDict`: rebuilding them would let an answer choose elements that all hash
alike and cost the reader seconds. Values in this flat form are at most `MAX_DEPTH` deep, so they can be
walked by recursion. Frames cut the three streams of the sandbox into messages:
- The socket between a pool and its worker: length, JSON header, newline, bytes; a frame may carry one open
  descriptor along. Its bytes exist once in memory, so that a worker can erase them.
- The pipe from an answer to its worker: the nonce of the run, length, JSON list (`harness`).
- The socket between an answer and its test programs: length, JSON list (`harness.RemoteFunction`).
"""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import socket
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from importlib import import_module
from keyword import iskeyword
from types import GeneratorType
from typing import Any, NamedTuple, Protocol

MAX_DEPTH = 100
MAX_CHARS = 4 << 20
# Digits of a Decimal or Fraction, so that comparing and showing it stays cheap: as Python's own limit.
MAX_DIGITS = 4300
_MAX_BITS = int(MAX_DIGITS * 3.32)
# JSON readers elsewhere lose precision above 2**53, and long decimal text takes quadratic time.
_SHORT_INT = 1 << 53
_SHORT_INT_CHARS = 20
# Only a text that matches this (perhaps inside a string) can hold an int that is too long.
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
    text = dumps(_to_json(value, MAX_DEPTH))
    if len(text) > max_chars:
        raise PlainDataError(f"the value takes {len(text)} characters; at most {max_chars} are allowed")
    return text


def decode_untrusted(text: str) -> Any:
    """The value of a hostile text, sets and dicts kept as lists. Raises `PlainDataError`."""
    try:
        value = (_decode_checking_ints if _LONG_NUMBER.search(text) else _decode_hostile)(text)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise PlainDataError(f"not the text of a plain value: {type(error).__name__}") from None
    if text.count("[") > MAX_DEPTH and _is_deeper(value, MAX_DEPTH):
        raise PlainDataError(f"the value is nested more than {MAX_DEPTH} levels deep")
    return value


def canonical(value: Any) -> Any:
    """A trusted plain value in the form that `decode_untrusted` gives. Raises `PlainDataError`."""
    accept_numpy()
    return decode_untrusted(encode(value))


def parts_of(value: Any) -> Any:
    """What a flat value directly holds: an iterable of flat values, of known length."""
    if type(value) is PlainDict:
        return [part for entry in value.entries for part in entry]
    if type(value) is PlainSet:
        return value.elements
    return value if isinstance(value, _CONTAINERS) else ()


_CONTAINERS = (list, tuple, deque)


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether a flat value holds more than so many levels of containers."""
    inner = [value]
    for _ in range(levels + 1):
        inner = [part for one in inner for part in parts_of(one) if isinstance(part, _CONTAINERS)]
    return bool(inner)


# From values to text.

dumps = json.JSONEncoder(
    ensure_ascii=True, allow_nan=False, check_circular=False, separators=(",", ":")
).encode
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
    if _exchange is not None and _exchange.of_tests and (parts := _parts_of_subclass(value, kind)):
        return {parts[0]: _all_to_json(parts[1:], depth)}
    if issubclass(kind, dict):
        return {"dict": [_all_to_json(entry, depth) for entry in _items(value)]}
    if kind is tuple or kind is set or kind is frozenset:
        return {kind.__name__: _all_to_json(value, depth)}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is complex:
        return {"complex": [_to_json(value.real, depth), _to_json(value.imag, depth)]}
    if kind is PlainSet or kind is PlainDict:
        # A set may lie inside a set.
        return {"frozenset" if kind is PlainSet else "dict": _all_to_json(value[0], depth)}
    for base, reduce in _REDUCTIONS:
        if issubclass(kind, base):
            return _to_json(reduce(value), depth)
    for tag, (base, take_apart) in _STANDARD_TYPES.items():
        if kind is base or (type(base) is type and issubclass(kind, base)):
            parts = take_apart(value)
            return {tag: _all_to_json(parts, depth) if type(parts) is list else parts}
    if _exchange is not None:
        if (name := _CLASS_NAMES.get(id(value))) is not None:
            return {"class": name}
        if (view := _VIEWS.get(kind)) is not None:
            return {view: _all_to_json(list(value), depth)}
        if kind is GeneratorType:
            return {"generator": [_exchange.keep(value.send)]}
        if hasattr(kind, "__next__"):
            return {"iterator": [_exchange.keep_iterator(value)]}
        if _exchange.of_tests and isinstance(value, type) and issubclass(value, Exception):
            base = next(one for one in value.__bases__ if issubclass(one, Exception))
            return {"exception": [_exchange.keep_class(value), value.__module__, _to_json(base, depth)]}
        if callable(value):
            tag, parts = _exchange.refer(value)
            return {tag: _all_to_json(parts, depth)}
    raise PlainDataError(f"{type.__repr__(kind)[:200]} is not plain data")


def _all_to_json(values: Any, depth: int) -> list[Any]:
    """Each value by `_to_json`, without a call for the most frequent kinds."""
    return [
        value
        if (kind := type(value)) is str or (kind is int and -_SHORT_INT <= value <= _SHORT_INT)
        else _to_json(value, depth)
        for value in values
    ]


_real, _imag = complex.real.__get__, complex.imag.__get__
_items, _iterate_set, _iterate_frozenset = dict.items, set.__iter__, frozenset.__iter__

# How an instance of a subclass becomes one of its built-in base. Those of dicts and sets do not: made anew,
# they would ask what they hold for its hash, by a method that the answer may have defined.
_REDUCTIONS: list[tuple[type, Callable[[Any], Any]]] = [
    (int, int.__index__),
    (float, float.__float__),
    (str, str.__str__),
    (list, lambda value: list(list.__iter__(value))),
    (tuple, lambda value: tuple(tuple.__iter__(value))),
    (bytes, lambda value: bytes.__getitem__(value, slice(None))),
    (complex, lambda value: complex(_real(value), _imag(value))),
]
_BUILT_IN = len(_REDUCTIONS)


def has_exact_types(value: Any) -> bool:
    """Whether `encode` keeps a value as it is: that of a subclass, or of numpy, becomes its base."""
    kind = type(value)
    if kind is dict:
        return all(map(has_exact_types, (*value.keys(), *value.values())))
    if kind in (list, tuple, set, frozenset, deque):
        return all(map(has_exact_types, value))
    return kind in _SINGLE_TYPES


def accept_numpy() -> None:
    """Has numpy's scalars and arrays accepted from now on, if this process has loaded numpy."""
    numpy: Any = sys.modules.get("numpy")
    if not hasattr(numpy, "ndarray") or len(_REDUCTIONS) > _BUILT_IN:
        return
    size_of, to_list = numpy.ndarray.size.__get__, numpy.ndarray.tolist

    def array_to_list(value: Any) -> Any:
        if (size := size_of(value)) > MAX_CHARS:
            raise PlainDataError(f"the array has {size} elements; at most {MAX_CHARS} are allowed")
        return to_list(value)

    _REDUCTIONS.extend(
        (
            (numpy.ndarray, array_to_list),
            # `item` returns these unchanged, because Python has no such types.
            (numpy.longdouble, numpy.longdouble.__float__),
            (numpy.clongdouble, numpy.clongdouble.__complex__),
            (numpy.generic, numpy.generic.item),
        )
    )


_CLASSES = {kind.__name__: kind for kind in vars(builtins).values() if isinstance(kind, type)}
_CLASS_NAMES = {id(kind): name for name, kind in _CLASSES.items()}
_VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class Exchange(Protocol):
    """The functions that this process and another one call in each other, by their numbers."""

    @property
    def of_tests(self) -> bool:
        """Whether tests run in this process, else an answer."""

    def keep(self, function: Callable[..., Any]) -> int:
        """The number by which the other process can call a function of this one."""

    def refer(self, function: Callable[..., Any]) -> tuple[str, list[Any]]:
        """How to send a function: as `function` what `stand_in` takes, or as `own` what `own` takes."""

    def keep_iterator(self, iterator: Any) -> int:
        """The number of what gives the next element."""

    def keep_class(self, kind: type[Exception]) -> str:
        """The name of a class of exceptions."""

    def stand_in(self, number: int, name: str, text: str | None, parameters: Any) -> Callable[..., Any]: ...

    def own(self, number: int) -> Callable[..., Any]: ...

    def iterator(self, number: int) -> Any: ...

    def generator(self, number: int) -> Any: ...

    def exception_class(self, name: str, module: str, base: Any) -> type[Exception]: ...


_exchange: Exchange | None = None


def exchange_functions(exchange: Exchange) -> None:
    """Has `encode` and `decode` take more than plain data from now on, in this process.

    This is functions, iterators, views of dicts and the classes of plain values. Tests also send classes of
    exceptions, and Counter, OrderedDict, defaultdict, named tuples and what numpy has as what they are: of an
    answer, these could act in a test (by a field that is a function, or an empty array that equals all).
    A function becomes a stand-in in the other process, and a stand-in that comes back the function itself. Of
    an iterator, what gives the next element is kept; of a generator, what sends it a value.
    """
    global _exchange
    _exchange = exchange
    _REBUILT["class"] = _CLASSES.__getitem__
    _REBUILT["keys"] = lambda elements: dict.fromkeys(elements).keys()
    _REBUILT["values"] = lambda elements: dict(enumerate(elements)).values()
    _REBUILT["items"] = lambda elements: dict(elements).items()
    _REBUILT["function"] = lambda parts: exchange.stand_in(_ints(parts[:1])[0], *parts[1:])
    _REBUILT["own"] = lambda parts: exchange.own(*_ints(parts))
    _REBUILT["iterator"] = lambda parts: exchange.iterator(*_ints(parts))
    _REBUILT["generator"] = lambda parts: exchange.generator(*_ints(parts))
    if exchange.of_tests:
        return
    _REBUILT["exception"] = lambda parts: exchange.exception_class(*parts)
    _REBUILT["Counter"] = lambda parts: Counter(*parts)
    _REBUILT["OrderedDict"] = lambda parts: OrderedDict(*parts)
    _REBUILT["defaultdict"] = lambda parts: defaultdict(*parts)
    _REBUILT["namedtuple"] = lambda parts: _named_tuple(parts[0], tuple(parts[1]))(*parts[2])
    _REBUILT["numpy"] = lambda parts: _array(*parts)


def _parts_of_subclass(value: Any, kind: type) -> list[Any]:
    """The tag and the parts of what tests send as it is; nothing for others."""
    if kind is Counter or kind is OrderedDict:
        return [kind.__name__, dict(value)]
    if kind is defaultdict:
        return ["defaultdict", value.default_factory, dict(value)]
    fields = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    if type(fields) is tuple and len(fields) == len(value) and all(map(_may_be_field, fields)):
        return ["namedtuple", kind.__name__, list(fields), list(value)]
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "ndarray") and (kind is numpy.ndarray or issubclass(kind, numpy.generic)):
        array = numpy.asarray(value)
        if array.dtype.kind in _NUMBERS_OF_NUMPY and array.nbytes <= MAX_CHARS // 2 - 4096:
            return ["numpy", array.dtype.str, list(array.shape), array.tobytes()]
    return []


def _may_be_field(name: Any) -> bool:
    return type(name) is str and name.isidentifier() and name[:1] != "_" and not iskeyword(name)


_NUMBERS_OF_NUMPY = "biufcmMSU"  # and dates and texts: no objects


@lru_cache(256)
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def _array(number_type: str, shape: list[int], content: bytes) -> Any:
    numpy: Any = import_module("numpy")  # which this process may not have needed yet
    kind = numpy.dtype(number_type)
    found = numpy.frombuffer(content, kind).copy() if content else numpy.zeros(0, kind)
    return found.reshape(shape)[()]  # of no dimension, the number


def _getters(kind: type, *names: str) -> Callable[[Any], list[Any]]:
    """Reads fields by the descriptors of `kind` itself."""
    getters = tuple(getattr(kind, name).__get__ for name in names)
    return lambda value: [getter(value) for getter in getters]


_ratio_fields = _getters(Fraction, "_numerator", "_denominator")
_decimal_text = Decimal.__str__
_iterate_deque, _slice_bytearray = deque.__iter__, bytearray.__getitem__


def _iso_text(kind: Any) -> Callable[[Any], str]:
    """The text of a point in time. Only a zone of a fixed offset is certain to call no code of an answer."""
    zone_of, to_text = kind.tzinfo.__get__, kind.isoformat

    def take_apart(value: Any) -> str:
        zone = zone_of(value)
        if zone is not None and type(zone) is not timezone:
            raise PlainDataError("a time zone that is not a fixed offset is not plain data")
        text: str = to_text(value)
        return text

    return take_apart


def _fraction_parts(value: Any) -> list[int]:
    try:
        numerator, denominator = _ratio_fields(value)
    except AttributeError:
        raise PlainDataError("a Fraction without a value is not plain data") from None
    return _bounded_ratio(numerator, denominator)


def _bounded_ratio(numerator: Any, denominator: Any) -> list[int]:
    if type(numerator) is not int or type(denominator) is not int or denominator < 1:
        raise PlainDataError("a Fraction of anything but integers is not plain data")
    if max(numerator.bit_length(), denominator.bit_length()) > _MAX_BITS:
        raise PlainDataError(f"a Fraction of more than {MAX_DIGITS} digits is not plain data")
    return [numerator, denominator]


def _decimal_parts(value: Any) -> str:
    text = _decimal_text(value)
    _bounded_decimal(text)
    return text


def _bounded_decimal(text: str) -> Decimal:
    if len(text) <= MAX_DIGITS + 30:
        value = Decimal(text)
        if value.is_nan():
            return Decimal("NaN")  # a signalling one raises at every comparison
        _, digits, exponent = value.as_tuple()
        if not value.is_finite() or max(len(digits), abs(int(exponent))) <= MAX_DIGITS:
            return value
    raise PlainDataError(f"a Decimal of more than {MAX_DIGITS} digits is not plain data")


# How subclasses of sets and values of the standard library are taken apart. A subclass before its base: a
# datetime is a date.
_STANDARD_TYPES: dict[str, tuple[type, Callable[[Any], Any]]] = {
    "set": (set, lambda value: list(_iterate_set(value))),
    "frozenset": (frozenset, lambda value: list(_iterate_frozenset(value))),
    "datetime": (datetime, _iso_text(datetime)),
    "date": (date, date.isoformat),
    "time": (time, _iso_text(time)),
    "timedelta": (timedelta, _getters(timedelta, "days", "seconds", "microseconds")),
    "Decimal": (Decimal, _decimal_parts),
    "Fraction": (Fraction, _fraction_parts),
    "deque": (deque, lambda value: list(_iterate_deque(value))),
    "range": (range, _getters(range, "start", "stop", "step")),
    "bytearray": (bytearray, lambda value: bytes(_slice_bytearray(value, slice(None))).hex()),
}

for _kind, _ in _STANDARD_TYPES.values():
    _CLASSES[_kind.__name__] = _kind
    _CLASS_NAMES[id(_kind)] = _kind.__name__

_SINGLE_TYPES = {
    type(None), bool, int, float, complex, str, bytes, *(kind for kind, _ in _STANDARD_TYPES.values())
}  # fmt: skip

# From text to values. Payloads may be hostile: they raise what `decode_untrusted` catches.


def _ints(parts: list[Any]) -> list[int]:
    if any(type(part) is not int for part in parts):
        raise TypeError("integers are expected")
    return parts


def _flat_dict(entries: list[Any]) -> PlainDict:
    if any(type(entry) is not list or len(entry) != 2 for entry in entries):
        raise ValueError("dict")
    return PlainDict(entries)


_REBUILT: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "int": lambda text: int(text, 16),
    "float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__,
    "bytes": bytes.fromhex,
    "complex": lambda parts: complex(*parts),
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda parts: timedelta(*_ints(parts)),
    "Decimal": _bounded_decimal,
    "Fraction": lambda parts: Fraction(*_bounded_ratio(*parts)),
    "deque": deque,
    "range": lambda parts: range(*_ints(parts)),
    "bytearray": bytearray.fromhex,
}
_FLAT: dict[str, Callable[[Any], Any]] = {
    **_REBUILT,
    "set": PlainSet,
    "frozenset": PlainSet,
    "dict": _flat_dict,
}
_TEXT_TAGS = frozenset(("int", "float", "bytes", "bytearray", "Decimal", "datetime", "date", "time"))


def _rebuild(pairs: list[tuple[str, Any]]) -> Any:
    ((tag, payload),) = pairs
    return _REBUILT[tag](payload)


def _keep_flat(pairs: list[tuple[str, Any]]) -> Any:
    ((tag, payload),) = pairs
    if type(payload) is not (str if tag in _TEXT_TAGS else list):
        raise ValueError(tag)
    return _FLAT[tag](payload)


def _short_int(digits: str) -> int:
    return int(digits) if len(digits) <= _SHORT_INT_CHARS else _refuse(digits)


def _refuse(text: str) -> Any:
    raise ValueError(text[:20])


# Decoders are made once: `json.loads` makes one for every call with hooks. `decode` gives the value of a
# trusted text, with real sets and dicts.
decode: Callable[[str], Any] = json.JSONDecoder(object_pairs_hook=_rebuild).decode
_decode_hostile = json.JSONDecoder(object_pairs_hook=_keep_flat, parse_constant=_refuse).decode
_decode_checking_ints = json.JSONDecoder(
    object_pairs_hook=_keep_flat, parse_int=_short_int, parse_constant=_refuse
).decode


LENGTH = struct.Struct("!I")
NONCE_CHARS = 32

# Bound once: an answer's code can swap the names in `os`, not these.
_write, _readv = os.write, os.readv


def send_frame(
    channel: socket.socket, header: dict[str, Any], *blobs: bytes | memoryview, descriptor: int | None = None
) -> None:
    """Sends one frame to the other side of a pool and its worker. Raises `OSError`."""
    first = json.dumps(header).encode("ascii") + b"\n"
    parts = [LENGTH.pack(len(first) + sum(map(len, blobs))) + first, *filter(len, blobs)]
    sent = socket.send_fds(channel, parts, [] if descriptor is None else [descriptor])
    for part in parts:
        if sent < len(part):
            channel.sendall(memoryview(part)[sent:])
        sent = max(0, sent - len(part))


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame's header and bytes; None when the other side has closed."""
    header, blob, _ = receive_frame_with_descriptor(channel)
    return None if header is None else (header, bytes(blob))


def receive_frame_with_descriptor(
    channel: socket.socket,
) -> tuple[dict[str, Any] | None, memoryview, int | None]:
    """The next frame and the descriptor that came with it; header None when the other side has closed."""
    start, descriptors, _, _ = socket.recv_fds(channel, LENGTH.size, 1)
    descriptor = descriptors[0] if descriptors else None
    prefix = start and start + _read_exactly(channel.recv_into, LENGTH.size - len(start))
    body = _read_exactly(channel.recv_into, LENGTH.unpack(prefix)[0]) if len(prefix) == LENGTH.size else b""
    if not body:
        return None, memoryview(b""), descriptor
    end = body.index(b"\n")
    return json.loads(body[:end]), memoryview(body)[end + 1 :], descriptor


def result_frame_end(data: bytes | memoryview, start: int) -> int | None:
    """Where the frame ends that an answer began at `start`; None if it is not complete."""
    body = start + NONCE_CHARS + LENGTH.size
    if len(data) < body:
        return None
    end = body + int(LENGTH.unpack_from(data, body - LENGTH.size)[0])
    return end if end <= len(data) else None


def write_frame(descriptor: int, payload: bytes, *, nonce: bytes = b"") -> None:
    """Writes one frame to a descriptor of an answer or of test programs. Raises `OSError`."""
    frame = memoryview(nonce + LENGTH.pack(len(payload)) + payload)
    while frame:
        frame = frame[_write(descriptor, frame) :]


def read_frame(descriptor: int, most_bytes: int) -> bytes | None:
    """The payload of the next frame; None when the other side has closed or announces more than allowed."""

    def read_into(rest: memoryview) -> int:
        return _readv(descriptor, [rest])

    prefix = _read_exactly(read_into, LENGTH.size)
    length = LENGTH.unpack(prefix)[0] if prefix else 0
    return bytes(_read_exactly(read_into, length)) or None if length <= most_bytes else None


def _read_exactly(read_into: Callable[[memoryview], int], count: int) -> bytearray:
    """`count` bytes, or none if the other side closes before."""
    received = bytearray(count)
    rest = memoryview(received)
    while rest:
        got = read_into(rest)
        if not got:
            return bytearray()
        rest = rest[got:]
    return received
