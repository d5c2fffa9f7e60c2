"""Equality of a returned value with an expected one, both in the flat form of `sandbox.codec`.

Python's equality on plain data, with these rules: numbers within a tolerance (integers exactly),
NaN equals NaN, a tuple is not a list unless the suite says so. Sets and dicts are compared by
sorting, never by hashing: an answer may choose elements that all hash alike.
"""

from __future__ import annotations

import math
from typing import Any

from greenward.problems.problem import Comparison
from greenward.sandbox.codec import PlainDict, PlainSet

_NUMBERS = (bool, int, float)


def equal(actual: Any, expected: Any, comparison: Comparison) -> bool:
    """Whether two flat plain values are equal under `comparison`."""
    if type(actual) in _NUMBERS and type(expected) in _NUMBERS:
        return _numbers_equal(actual, expected, comparison.tolerance)
    if type(actual) in (*_NUMBERS, complex) and type(expected) in (*_NUMBERS, complex):
        a, b = complex(actual), complex(expected)
        return _numbers_equal(a.real, b.real, comparison.tolerance) and _numbers_equal(
            a.imag, b.imag, comparison.tolerance
        )
    if _sequence_kind(actual, comparison) != _sequence_kind(expected, comparison):
        return False
    if isinstance(actual, (PlainSet, PlainDict)):
        ours, theirs = actual[0], expected[0]
        # Lengths first: nothing long is sorted unless as much was expected.
        return len(ours) == len(theirs) and _all_equal(
            _sorted(ours, comparison), _sorted(theirs, comparison), comparison
        )
    if isinstance(actual, (list, tuple)):
        return _all_equal(actual, expected, comparison)
    return bool(actual == expected)


def close(actual: Any, expected: Any, *, relative: float, absolute: float) -> bool:
    """Whether two numbers lie within the tolerances, as in `math.isclose`; False for anything else."""
    return (
        type(actual) in _NUMBERS
        and type(expected) in _NUMBERS
        and _is_close(actual, expected, relative, absolute)
    )


def _all_equal(actual: Any, expected: Any, comparison: Comparison) -> bool:
    return len(actual) == len(expected) and all(
        equal(a, b, comparison) for a, b in zip(actual, expected, strict=True)
    )


def _numbers_equal(a: Any, b: Any, tolerance: float) -> bool:
    if a == b:
        return True
    if not (isinstance(a, float) or isinstance(b, float)):
        return False
    if a != a or b != b:
        return a != a and b != b
    return _is_close(a, b, tolerance, tolerance)


def _is_close(a: float, b: float, relative: float, absolute: float) -> bool:
    try:
        return math.isclose(a, b, rel_tol=relative, abs_tol=absolute)
    except OverflowError:  # an int beyond the floats is close to no float
        return False


def _sequence_kind(value: Any, comparison: Comparison) -> type:
    kind = type(value)
    return list if kind is tuple and comparison.tuple_is_list else kind


def _sorted(values: list[Any], comparison: Comparison) -> list[Any]:
    return sorted(values, key=lambda value: _order(value, comparison))


def _order(value: Any, comparison: Comparison) -> tuple[Any, ...]:
    """A sort key under which values that are equal in Python come together."""
    if value is None:
        return (0,)
    if type(value) in _NUMBERS:
        return (1, value == value, value if value == value else 0)  # NaN has no order: all first
    if type(value) is complex:
        if value.imag == 0:
            return _order(value.real, comparison)
        return (2, *_order(value.real, comparison), *_order(value.imag, comparison))
    if type(value) is str:
        return (3, value)
    if type(value) is bytes:
        return (4, value)
    if isinstance(value, PlainSet):
        return (7, *sorted(_order(element, comparison) for element in value.elements))
    if isinstance(value, PlainDict):
        return (8, *sorted(_order(entry, comparison) for entry in value.entries))
    rank = 5 if _sequence_kind(value, comparison) is list else 6
    return (rank, *(_order(element, comparison) for element in value))
