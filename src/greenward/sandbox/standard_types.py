"""The value types of the standard library that count as plain data, taken apart and put together.

They are what problems are posed in besides the built-in types: dates and times, exact numbers,
deque, range and bytearray. Each is taken apart by what its base class offers, bound when this module
is loaded, so that no method that an answer defines or replaces takes part: an answer's own subclass
counts as what it derives from.

Numbers are bounded (`MAX_DIGITS`), so that comparing and showing them stays cheap. Time zones are
fixed offsets only; `fold`, which says nothing without a zone's rules, is dropped.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

MAX_DIGITS = 4300  # as many as Python itself converts between int and str
_MAX_BITS = int(MAX_DIGITS * 3.32)


class NotStandard(Exception):
    """A value that is none of these types, or out of bounds."""


def take_apart(value: Any, kind: type) -> tuple[str, Any]:
    """(tag, parts) of a value of type `kind`; parts hold plain data. Raises `NotStandard`."""
    for base, (tag, parts) in _PARTS.items():
        if kind is base or (type(base) is type and issubclass(kind, base)):
            return tag, parts(value)
    raise NotStandard(f"{type.__repr__(kind)[:200]} is not plain data")


def put_together(tag: str, parts: Any) -> Any:
    """The value with these parts, which may be hostile.

    Raises `NotStandard`, `TypeError`, `ValueError`, `LookupError` or `ArithmeticError` for parts
    that `take_apart` does not give.
    """
    if tag == "deque":
        return deque(parts)
    if tag == "bytearray":
        return bytearray.fromhex(parts)
    if tag == "Decimal":
        return _decimal(parts)
    if any(type(part) is not int for part in parts if part is not None):
        raise NotStandard(tag)
    if tag == "Fraction":
        return Fraction(*_bounded_ratio(*parts))
    if tag in ("datetime", "time"):
        offset = parts[-1]
        zone = None if offset is None else timezone(timedelta(microseconds=offset))
        parts = [*parts[:-1], zone]
    return _CONSTRUCTORS[tag](*parts)


_CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind for kind in (date, datetime, time, timedelta, range)
}


def _getters(kind: type, *names: str) -> Callable[[Any], list[Any]]:
    """Reads fields by the descriptors of `kind` itself."""
    getters = tuple(kind.__dict__[name].__get__ for name in names)
    return lambda value: [getter(value) for getter in getters]


_date_fields = _getters(date, "year", "month", "day")
_datetime_clock = _getters(datetime, "hour", "minute", "second", "microsecond")
_datetime_zone = _getters(datetime, "tzinfo")
_time_clock = _getters(time, "hour", "minute", "second", "microsecond")
_time_zone = _getters(time, "tzinfo")
_timedelta_fields = _getters(timedelta, "days", "seconds", "microseconds")
_range_fields = _getters(range, "start", "stop", "step")
_ratio_fields = _getters(Fraction, "_numerator", "_denominator")
_decimal_text, _offset_of, _iterate, _slice = (
    Decimal.__str__,
    timezone.utcoffset,
    deque.__iter__,
    bytearray.__getitem__,
)


def _offset(zone: Any) -> int | None:
    """Microseconds east of Greenwich, None without a zone."""
    if zone is None:
        return None
    if type(zone) is not timezone:
        raise NotStandard("a time zone that is not a fixed offset is not plain data")
    days, seconds, microseconds = _timedelta_fields(_offset_of(zone, None))
    return int((days * 86400 + seconds) * 1_000_000 + microseconds)


def _fraction_parts(value: Any) -> list[int]:
    try:
        numerator, denominator = _ratio_fields(value)
    except AttributeError:
        raise NotStandard("a Fraction without a value is not plain data") from None
    return list(_bounded_ratio(numerator, denominator))


def _bounded_ratio(numerator: Any, denominator: Any) -> tuple[int, int]:
    if type(numerator) is not int or type(denominator) is not int or denominator < 1:
        raise NotStandard("a Fraction of anything but integers is not plain data")
    if max(numerator.bit_length(), denominator.bit_length()) > _MAX_BITS:
        raise NotStandard(f"a Fraction of more than {MAX_DIGITS} digits is not plain data")
    return numerator, denominator


def _decimal_parts(value: Any) -> str:
    text = _decimal_text(value)
    _decimal(text)
    return text


def _decimal(text: Any) -> Decimal:
    if type(text) is not str or len(text) > MAX_DIGITS + 30:
        raise NotStandard(f"a Decimal of more than {MAX_DIGITS} digits is not plain data")
    value = Decimal(text)
    if value.is_nan():
        return Decimal("NaN")  # a signalling one raises at every comparison
    if value.is_finite():
        _, digits, exponent = value.as_tuple()
        if len(digits) > MAX_DIGITS or abs(int(exponent)) > MAX_DIGITS:
            raise NotStandard(f"a Decimal of more than {MAX_DIGITS} digits is not plain data")
    return value


# A subclass before its base: a datetime is a date.
_PARTS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    datetime: (
        "datetime",
        lambda value: [*_date_fields(value), *_datetime_clock(value), _offset(*_datetime_zone(value))],
    ),
    date: ("date", _date_fields),
    time: ("time", lambda value: [*_time_clock(value), _offset(*_time_zone(value))]),
    timedelta: ("timedelta", _timedelta_fields),
    Decimal: ("Decimal", _decimal_parts),
    Fraction: ("Fraction", _fraction_parts),
    deque: ("deque", lambda value: list(_iterate(value))),
    range: ("range", _range_fields),
    bytearray: ("bytearray", lambda value: bytes(_slice(value, slice(None))).hex()),
}
TAGS = frozenset(tag for tag, _ in _PARTS.values())
