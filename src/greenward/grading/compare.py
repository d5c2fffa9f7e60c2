"""Compares returned values with expected ones, both in the flat form of the codec, and printed output.

Printed output has a rule of its own: `same_output`. What follows is of values.

Equality is Python's on plain data, with these rules: where a float is expected, a number within a tolerance
will do (integers, fractions and decimals are expected exactly); NaN equals NaN; a tuple is not a list unless
the suite says so. Sets and dicts are compared by sorting, never by hashing: an answer may choose elements
that all hash alike. They are sorted by exact value, so elements within the tolerance of one another may
still count as different.
What an answer returned is hostile. The time of a comparison depends on the size of the *expected* value: the
comparison ends before it walks through a value that is longer, deeper or wider.
"""

from __future__ import annotations

import math
import re
from collections import deque
from dataclasses import replace
from datetime import datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from greenward.problems.problem import Comparison
from greenward.sandbox.inside.codec import PlainDict, PlainSet, parts_of

_NUMBERS = (bool, int, float, Decimal, Fraction)
_ALL_NUMBERS = (*_NUMBERS, complex)
_SEQUENCES = (list, tuple, deque)
COLLECTIONS = (*_SEQUENCES, PlainSet, PlainDict)
_RANKS: dict[type, int] = {list: 5, tuple: 6, deque: 9}  # in the sort order of `_order`
_EXACT = (int, str, bool, type(None))  # two of the same of these types are equal as in Python
# Of a collection that is compared as a set, so many values more than were expected are looked at.
MAX_REPEATED_VALUES = 100_000
MAX_REPEATED_DIGITS = 4_000_000  # of decimals and fractions, which take a second to sort


def matches(actual: Any, expected: Any, comparison: Comparison) -> bool:
    """Whether a returned value is right under the rule of `comparison`."""
    if comparison.rule == "same_set":
        return _same_set(actual, expected, comparison)
    if comparison.rule == "not_none":
        return is_something(actual) == is_something(expected)
    if type(actual) is tuple and comparison.tuple_is_list:
        actual = list(actual)
    if comparison.rule == "equal_or_in_list" and equal(actual, [expected], comparison):
        return True
    return equal(actual, expected, comparison)


def is_something(value: Any) -> bool:
    """What the rule `not_none` looks at."""
    return value is not None and value is not False


def equal(actual: Any, expected: Any, comparison: Comparison) -> bool:
    """Whether two flat plain values are equal under the tolerance and tuple rule of `comparison`."""
    if type(actual) in _ALL_NUMBERS and type(expected) in _ALL_NUMBERS:
        return _numbers_equal(actual.real, expected.real, comparison) and _numbers_equal(
            actual.imag, expected.imag, comparison
        )
    if _kind(actual, comparison) is not _kind(expected, comparison):
        return False
    if isinstance(actual, (PlainSet, PlainDict)):
        ours, theirs = actual[0], expected[0]
        if len(ours) != len(theirs):
            return False
        size = count_values(expected)  # equal values consist of equally many
        return count_values(actual, at_most=size) == size and _all_equal(
            _sorted(ours, comparison), _sorted(theirs, comparison), comparison
        )
    if isinstance(actual, _SEQUENCES):
        return _all_equal(actual, expected, comparison)
    return bool(actual == expected)


def same_output(printed: str, expected: str) -> bool:
    """Whether a program printed what it should, by the rule of LiveCodeBench's judge (arXiv:2403.07974).

    Spaces at both ends of the output and of each line do not count. There must be as many lines as
    expected, and each must be the expected one or consist of the same numbers, compared as exact
    decimals: `1.50` is `1.5`, and `2.0000000001` is not `2.00000000`. Stricter than that judge, which takes
    all that `Decimal` reads for a number, a number is a decimal literal in ASCII without leading zeros, so
    that `007`, `1_000` and `Infinity` are texts: where such a text is expected, a number is a wrong answer.
    """
    ours, theirs = printed.strip().split("\n"), expected.strip().split("\n")
    return len(ours) == len(theirs) and all(
        line.strip() == wanted.strip() or _same_numbers(line.split(), wanted.split())
        for line, wanted in zip(ours, theirs, strict=True)
    )


_is_number = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?").fullmatch


def _same_numbers(words: list[str], wanted: list[str]) -> bool:
    try:
        return len(words) == len(wanted) and all(
            _is_number(word) and _is_number(other) and Decimal(word) == Decimal(other)
            for word, other in zip(words, wanted, strict=True)
        )
    except InvalidOperation:  # an exponent of more digits than a decimal can have
        return False


def close(actual: Any, expected: Any, *, relative: float, absolute: float) -> bool:
    """Whether two numbers lie within the tolerances, as in `math.isclose`; False for anything else."""
    are_numbers = type(actual) in _NUMBERS and type(expected) in _NUMBERS
    return are_numbers and _is_close(_exact(actual), _exact(expected), relative, absolute)


def count_values(value: Any, *, at_most: float = math.inf) -> int:
    """How many values a flat value consists of, itself included; counting ends above `at_most`."""
    count, waiting = 0, [value]
    while waiting:
        inner = parts_of(waiting.pop())
        count += 1
        if count + len(waiting) + len(inner) > at_most:
            return count + len(waiting) + len(inner)
        waiting.extend(inner)
    return count


def elements_of(collection: Any) -> Any:
    """The elements of a flat collection; the keys of a dict."""
    match collection:
        case PlainDict(entries):
            return [key for key, _ in entries]
        case PlainSet(elements):
            return elements
    return collection


def _same_set(actual: Any, expected: Any, comparison: Comparison) -> bool:
    if not (isinstance(actual, COLLECTIONS) and isinstance(expected, COLLECTIONS)):
        return False
    most = count_values(expected) + MAX_REPEATED_VALUES
    if count_values(actual, at_most=most) > most:
        return False
    if _fraction_digits(actual) > _fraction_digits(expected) + MAX_REPEATED_DIGITS:
        return False
    exact = replace(comparison, tolerance=0.0, relative_tolerance=None)  # neighbours are two elements
    return _all_equal(_distinct(actual, exact), _distinct(expected, exact), comparison)


def _fraction_digits(value: Any) -> int:
    """How many digits the decimals and fractions of a flat value have as fractions."""
    digits, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if type(one) is Decimal and one.is_finite():
            _, figures, exponent = one.as_tuple()
            digits += len(figures) + abs(int(exponent))
        elif type(one) is Fraction:
            digits += (one.numerator.bit_length() + one.denominator.bit_length()) // 3
        waiting.extend(parts_of(one))
    return digits


def _distinct(values: Any, comparison: Comparison) -> list[Any]:
    """The elements of a collection, sorted, each once."""
    distinct: list[Any] = []
    for element in _sorted(elements_of(values), comparison):
        if not distinct or not equal(distinct[-1], element, comparison):
            distinct.append(element)
    return distinct


def _all_equal(actual: Any, expected: Any, comparison: Comparison) -> bool:
    return len(actual) == len(expected) and all(
        a == b if type(a) is (kind := type(b)) and kind in _EXACT else equal(a, b, comparison)
        for a, b in zip(actual, expected, strict=True)
    )


def _numbers_equal(actual: Any, expected: Any, comparison: Comparison) -> bool:
    a, b = _exact(actual), _exact(expected)
    if a == b:
        return True
    if not isinstance(b, float):  # 20! is 20!, and no float near it
        return False
    if a != a or b != b:
        return bool(a != a and b != b)
    absolute, given = comparison.tolerance, comparison.relative_tolerance
    relative = absolute if given is None else given
    if not (relative or absolute):  # rounded to floats, 10**30 would still be taken for 1e30
        return False
    return _is_close(a, b, relative, absolute, add_up=given is not None)


def _exact(number: Any) -> Any:
    """A Decimal as a Fraction (or float, if it is none), which compares quickly with any number."""
    if type(number) is not Decimal:
        return number
    return Fraction(number) if number.is_finite() else float(number)


def _is_close(a: float, b: float, relative: float, absolute: float, *, add_up: bool = False) -> bool:
    """As `math.isclose`. With `add_up` as numpy's `allclose`: both tolerances together, relative to `b`."""
    try:
        if not add_up:
            return math.isclose(a, b, rel_tol=relative, abs_tol=absolute)
        a = float(a)
    except OverflowError:  # a number beyond the floats is close to no float
        return False
    return math.isfinite(a) and math.isfinite(b) and abs(a - b) <= absolute + relative * abs(b)


def _kind(value: Any, comparison: Comparison) -> type:
    kind = type(value)
    if kind is tuple and comparison.tuple_is_list is True:
        return list
    return bytes if kind is bytearray else kind


def _sorted(values: Any, comparison: Comparison) -> list[Any]:
    return sorted(values, key=lambda value: _order(value, comparison))


def _order(value: Any, comparison: Comparison) -> tuple[Any, ...]:
    """A sort key under which values that are equal in Python come together."""
    if value is None:
        return (0,)
    if type(value) in _NUMBERS:
        number = _exact(value)
        return (1, number == number, number if number == number else 0)  # NaN has no order: all first
    if type(value) is complex:
        if value.imag == 0:
            return _order(value.real, comparison)
        return (2, *_order(value.real, comparison), *_order(value.imag, comparison))
    if type(value) is str:
        return (3, value)
    if type(value) in (bytes, bytearray):
        return (4, bytes(value))
    if isinstance(value, PlainSet):
        return (7, *sorted(_order(element, comparison) for element in value.elements))
    if isinstance(value, PlainDict):
        return (8, *sorted(_order(entry, comparison) for entry in value.entries))
    if isinstance(value, _SEQUENCES):
        return (_RANKS[_kind(value, comparison)], *(_order(element, comparison) for element in value))
    if type(value) is range:
        return (10, *value[:2], *value[-1:])  # equal ranges run through the same numbers
    if isinstance(value, (datetime, time)):
        aware = value.utcoffset() is not None  # those with and without a zone have no order
        return (12 if type(value) is datetime else 13, aware, value)
    return (11 if type(value) is timedelta else 14, value)
