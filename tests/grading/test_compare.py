from __future__ import annotations

import math
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from greenward.grading.compare import close, equal
from greenward.problems.problem import Comparison
from greenward.sandbox.codec import PlainSet, canonical

EXACT = Comparison(tolerance=0.0)
LOOSE = Comparison()

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.0, -0.0, 1.0, 2.5])
    | st.text("ab", max_size=2),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
plain = st.recursive(
    hashable | st.sets(hashable, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hashable, inner, max_size=3),
    max_leaves=8,
)


def same(actual, expected, comparison=LOOSE):
    return equal(canonical(actual), canonical(expected), comparison)


@settings(max_examples=300, deadline=None)
@given(plain, plain)
def test_exact_comparison_is_python_equality(a, b):
    assert same(a, b, EXACT) == (a == b)
    assert same(a, a, EXACT)


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (True, 1, True),
        (2, 2.0, True),
        (0.1 + 0.2, 0.3, True),
        (1.0, 1.001, False),
        (10**30, 10**30 + 1, False),
        (float(10**30), 10**30, True),
        (10**400, 1.0, False),
        (10**400, math.inf, False),
        (math.nan, math.nan, True),
        ([1, math.nan], [1, math.nan], True),
        (math.nan, 1.0, False),
        (math.inf, math.inf, True),
        (math.inf, -math.inf, False),
        (-0.0, 0.0, True),
        (1 + 1e-9j, 1, True),
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


def test_a_tuple_stands_for_a_list_only_where_the_suite_says_so():
    lenient = Comparison(tuple_is_list=True)
    assert same([(1, 2)], [[1, 2]], lenient)
    assert not same([(1, 2)], [[1, 2]])
    assert same({(1, (2,))}, {(1, (2,))}, lenient)


def test_elements_that_hash_alike_cost_no_time():
    elements = [index * (2**61 - 1) for index in range(20_000)]
    shuffled = random.Random(0).sample(elements, len(elements))
    started = time.process_time()
    assert equal(PlainSet(shuffled), PlainSet(elements), LOOSE)
    assert time.process_time() - started < 5.0  # a rebuilt set takes minutes


def test_close_is_isclose_for_numbers_and_false_for_the_rest():
    assert close(1.0, 1.0005, relative=1e-3, absolute=0.0)
    assert not close(1.0, 1.002, relative=1e-3, absolute=0.0)
    assert not close(1e9, 1e9 + 1, relative=0.0, absolute=0.5)
    assert not close("1", 1, relative=1.0, absolute=1.0)
    assert not close(10**400, 1.0, relative=0.1, absolute=0.1)
