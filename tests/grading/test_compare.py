from __future__ import annotations

import math
import random
from collections import deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.grading import compare, testcases
from greenward.grading.compare import MAX_REPEATED_VALUES, close, count_values, equal, matches
from greenward.grading.testcases import show_value
from greenward.problems.problem import Comparison
from greenward.sandbox.inside.codec import MAX_DEPTH, PlainDict, PlainSet, canonical, decode_untrusted, encode

EXACT = Comparison(tolerance=0.0)
LOOSE = Comparison()

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 2.5])
    | st.sampled_from([1j, complex(1), Decimal("1.0"), Decimal("2.50"), Fraction(5, 2), Fraction(1)])
    | st.sampled_from([date(2024, 1, 1), datetime(2024, 1, 1), time(1), timedelta(1), timedelta(hours=24)])
    | st.sampled_from([datetime(2024, 1, 1, hour, tzinfo=timezone(timedelta(hours=hour))) for hour in (0, 1)])
    | st.sampled_from([range(0), range(2, 2), range(0, 2, 2), range(0, 1), range(0, 3, 2), range(0, 4, 2)])
    | st.text("ab", max_size=2),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.sets(hashable, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(deque)
        | st.dictionaries(hashable, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(actual, expected, comparison=LOOSE):
    return equal(canonical(actual), canonical(expected), comparison)


@pytest.mark.parametrize("examples", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_exact_comparison_is_python_equality(examples):
    @settings(max_examples=examples, deadline=None)
    @given(plain, plain)
    def agrees(a, b):
        assert same(a, b, EXACT) == (a == b)
        assert same(a, a, EXACT)

    agrees()


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (True, 1, True),
        (2, 2.0, True),
        (0.1 + 0.2, 0.3, True),
        (1.0, 1.001, False),
        (10**30, 10**30 + 1, False),
        (10**400, 1.0, False),
        (10**400, math.inf, False),
        (10**400, 1j, False),
        (10**400, Decimal("1e400"), True),
        (10**400, Fraction(10**400), True),
        (Fraction(10**400), 1.5, False),
        (Decimal("0.1"), Decimal("0.1000000001"), False),  # exact numbers are compared exactly
        (Decimal("0.1"), Fraction(1, 10), True),
        (Decimal("NaN"), math.nan, True),
        (Decimal("NaN"), Decimal("NaN"), True),
        (Decimal("Infinity"), math.inf, True),
        (Decimal("1"), "1", False),
        (Fraction(2), 2 + 0j, True),
        ({Decimal("0.5"), 2}, {2, Fraction(1, 2)}, True),
        (date(2024, 1, 1), datetime(2024, 1, 1), False),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone.utc), False),
        ({datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone.utc)}, {1, 2}, False),
        (deque([1, 0.1 + 0.2]), deque([1, 0.3]), True),
        (deque([1, 2]), [1, 2], False),
        (range(3), [0, 1, 2], False),
        (range(0, 3, 2), range(0, 4, 2), True),
        (range(10**30), range(10**30), True),
        ({range(10**30), range(5)}, {range(5), range(10**30)}, True),
        (bytearray(b"a"), b"a", True),
        ({math.nan: 1}, {math.nan: 1}, True),
        (math.nan, math.nan, True),
        ([1, math.nan], [1, math.nan], True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (-0.0, 0.0, True),
        (complex(math.nan, 1), complex(math.nan, 1), True),
        ((1, 2), [1, 2], False),
        ("1", 1, False),
        ("a", b"a", False),
        (None, False, False),
        ([], (), False),
        ([], None, False),
        (set(), {}, False),
        ({1, 2}, frozenset({2, 1}), True),
        ({0.1 + 0.2, 1}, {1, 0.3}, True),
        ({math.nan, 1.0}, {1.0, math.nan}, True),
        ({"a": 0.1 + 0.2, "b": {1}}, {"b": {1}, "a": 0.3}, True),
        ({(1, "x"), None, "y", b"z"}, {b"z", "y", None, (1, "x")}, True),
        ({1, 2}, {1, 2, 3}, False),
        ({1: 2}, {1: 3}, False),
    ],
)
def test_default_comparison(a, b, result):
    assert same(a, b) is result
    assert same(b, a) is result


@pytest.mark.parametrize(
    ("exact", "nearby"),
    [
        (10**30, float(10**30)),
        (3, 3.0000001),
        (Decimal("0.1"), 0.1),
        (Fraction(1, 3), 0.3333333333),
        (1, 1 + 1e-9j),
    ],
)
def test_the_tolerance_is_for_expected_floats_only(exact, nearby):
    """An approximation is no exact number: 20! is not what Stirling's formula gives."""
    assert not same(nearby, exact)
    assert not same([nearby], [exact])
    assert same(exact, nearby)
    assert not same(exact, nearby, EXACT)


def test_a_tuple_stands_for_a_list_only_where_the_suite_says_so():
    lenient = Comparison(tuple_is_list=True)
    assert same([(1, 2)], [[1, 2]], lenient)
    assert not same([(1, 2)], [[1, 2]])
    assert same({(1, (2,))}, {(1, (2,))}, lenient)


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        ([1, 2], [2, 1], True), ([1, 1, 2], (2, 1), True), ({1, 2}, [2, 1, 1], True),
        ([1, 2], [1, 3], False), ([1], [1, 2], False), ([], [], True), ([0.1 + 0.2, 1], [1, 0.3], True),
        ([8e7, 8e7 + 1], [80_000_000, 80_000_001], True), ([[1], [2]], [[2], [1]], True),
        ([[1, 2]], [[2, 1]], False), (deque([1]), [1], True), ({1: 2}, [1], True), ("ab", ["a", "b"], False),
        (None, [], False),
    ],
)  # fmt: skip
def test_same_set_asks_for_the_elements_only(a, b, result):
    comparison = Comparison(rule="same_set")
    assert matches(canonical(a), canonical(b), comparison) is result
    assert matches(canonical(b), canonical(a), comparison) is result


def test_the_relative_tolerance_may_differ_from_the_absolute_one():
    comparison = Comparison(tolerance=1e-6, relative_tolerance=1e-7)
    assert equal(1000000.05, 1000000.0, comparison)
    assert not equal(1000000.5, 1000000.0, comparison)
    assert equal(1.5e-6, 1e-6, comparison)


@pytest.fixture
def calls(monkeypatch):
    """Counts the calls of the functions that do the work."""
    counts = {"_order": 0, "_written": 0}

    def counted(module, name):
        function = getattr(module, name)

        def call(*args):
            counts[name] += 1
            return function(*args)

        monkeypatch.setattr(module, name, call)

    counted(compare, "_order")
    counted(testcases, "_written")
    return counts


def nest(value, wrap, levels):
    for _ in range(levels):
        value = wrap(value)
    return value


HUGE_INT = 1 << 16_000_000
WIDE = [list(range(300_000))]
HOSTILE = {
    "a long list in a set": PlainSet(WIDE),
    "a long set in a set": PlainSet([PlainSet(WIDE[0])]),
    "sets of sets": nest(PlainSet(list(range(3000))), lambda inner: PlainSet([inner]), 90),
    "a tree of sets": nest(1, lambda inner: PlainSet([inner, inner]), 14),
    "a dict of dicts": nest(1, lambda inner: PlainDict([[inner, inner]]), 14),
    "a long dict": PlainDict([[PlainSet(WIDE), 1]]),
}


@settings(deadline=None)
@given(st.floats(width=32), st.floats(width=32) | st.integers(-9, 9), st.sampled_from([0.0, 1e-9, 0.5]))
def test_with_a_relative_tolerance_both_add_up_as_in_numpys_allclose(expected, value, relative):
    comparison = Comparison(tolerance=0.25, relative_tolerance=relative)
    for one in (value, expected + 0.24 + 0.9 * relative * abs(expected)):
        wanted = numpy.allclose(one, expected, rtol=relative, atol=0.25, equal_nan=True)
        assert same(one, expected, comparison) == wanted


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_comparing_costs_by_what_was_expected_and_not_by_what_came(calls, hostile):
    for expected in ({(1, 2)}, {1: 2}, {frozenset({1, 2})}, {frozenset({1}): 1}):
        flat = canonical(expected)
        assert not equal(hostile, flat, LOOSE)
        assert calls["_order"] <= 4 * count_values(flat)
        calls["_order"] = 0
    assert len(show_value(hostile)) <= 120
    assert calls["_written"] <= 1000


def test_elements_that_hash_alike_cost_no_more_than_others(calls):
    elements = [index * (2**61 - 1) for index in range(20_000)]
    shuffled = random.Random(0).sample(elements, len(elements))
    assert equal(PlainSet(shuffled), PlainSet(elements), LOOSE)
    assert calls["_order"] == 2 * len(elements)


def test_as_a_set_more_values_are_looked_at_but_not_without_end(calls):
    comparison = Comparison(rule="same_set")
    assert matches([1] * MAX_REPEATED_VALUES, [1], comparison)
    calls["_order"] = 0
    assert not matches([1] * (MAX_REPEATED_VALUES + 2), [1], comparison)
    assert calls["_order"] == 0


def test_as_a_set_decimals_and_fractions_are_looked_at_by_their_digits(calls):
    comparison = Comparison(rule="same_set")
    assert matches([Decimal("1.5")] * 50_000, [1.5], comparison)
    assert matches([Fraction(1, 3)] * 50_000, [Fraction(1, 3)], comparison)
    calls["_order"] = 0
    assert not matches([Decimal("7E-4290")] * 1_000, [1], comparison)
    assert not matches(canonical([{"a": Fraction(1, 10**4200)}]) * 2_000, [1], comparison)
    assert calls["_order"] == 0


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {"k": v}, lambda v: deque([v])])
def test_the_deepest_values_are_compared_and_shown(wrap):
    deepest = nest(1, wrap, MAX_DEPTH)
    assert same(deepest, deepest)
    assert not same(deepest, nest(2, wrap, MAX_DEPTH))
    assert len(show_value(canonical(deepest))) <= 120


def test_the_deepest_sets_are_compared():
    deepest = nest(frozenset({1}), lambda inner: frozenset({inner}), MAX_DEPTH - 1)
    assert same(deepest, deepest)


@pytest.fixture(scope="module")
def huge_values():
    """Values with an integer that takes minutes to be written in decimal, or is refused by Python."""
    hostile = (HUGE_INT, [HUGE_INT], {HUGE_INT: 1}, {HUGE_INT, 2}, range(HUGE_INT), deque([HUGE_INT]))
    return [decode_untrusted(encode(value)) for value in hostile]


@pytest.mark.parametrize(
    "expected",
    [1, 1.5, 1j, math.inf, math.nan, Decimal("1.5"), Decimal("Infinity"), Fraction(1, 3), "1", [1]],
)
def test_a_huge_integer_is_compared_and_shown_without_writing_it_in_decimal(huge_values, expected):
    for flat in huge_values:
        assert not equal(flat, canonical(expected), LOOSE)
        assert not equal(PlainSet([flat]), PlainSet([canonical(expected)]), LOOSE)
        assert not equal(flat, canonical({HUGE_INT + 1: 1}), LOOSE)
        assert not close(flat, expected, relative=0.1, absolute=0.1)
        assert "bits>" in show_value(flat)


def test_close_is_isclose_for_numbers_and_false_for_the_rest():
    assert close(1.0, 1.0005, relative=1e-3, absolute=0.0)
    assert not close(1.0, 1.002, relative=1e-3, absolute=0.0)
    assert not close(1e9, 1e9 + 1, relative=0.0, absolute=0.5)
    assert not close("1", 1, relative=1.0, absolute=1.0)
    assert not close(10**400, 1.0, relative=0.1, absolute=0.1)


@pytest.mark.parametrize(
    "value", [{1, 2}, frozenset({1}), set(), {"a": [1, {2}]}, [{}, deque([{3: (4,)}])], {(1, "x"): None}]
)
def test_a_value_is_shown_alike_before_and_after_it_was_made_flat(value):
    assert show_value(value) == show_value(canonical(value))
    assert len(show_value({number: set(range(50)) for number in range(50)})) <= 120
