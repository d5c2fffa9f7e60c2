"""The encoding of the tests' inputs and outputs, against numpy and counts by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from greenward.problems.catalog import load_suite
from greenward.problems.problem import Case, Problem
from greenward.tasks.token_mdp.relations import OF_NUMBER, OF_TRUTH, SIZE, VIEWS, relations


def problem(function, inputs) -> Problem:
    cases = tuple(Case(tuple(one), function(*one)) for one in inputs)
    names = ", ".join("abc"[: len(inputs[0])])
    return Problem("mine", "Do it.", "f", cases, starter_code=f"def f({names}):\n")


def table(one: Problem) -> np.ndarray:
    return relations(one).reshape(len(VIEWS), len(OF_NUMBER))


def at(one: Problem, view: str, relation: str) -> float:
    names = OF_TRUTH if relation in OF_TRUTH else OF_NUMBER
    return float(table(one)[VIEWS.index(view), names.index(relation)])


NUMBERS = [tuple(row) for row in np.random.default_rng(0).integers(-30, 30, (20, 2)).tolist()]
LISTS = [(row,) for row in np.random.default_rng(1).integers(-30, 30, (20, 4)).tolist()]


def test_a_view_that_is_the_output_is_equal_everywhere_and_no_other_one() -> None:
    product = problem(lambda a, b: a * b, NUMBERS)
    equal = {view for view in VIEWS if at(product, view, "equal") == 1.0}
    assert equal == {"a0 * a1"}
    smallest = problem(min, LISTS)
    assert {view for view in VIEWS if at(smallest, view, "equal") == 1.0} == {"list min(a0)"}


def test_differences_ratios_and_correlation_are_those_of_numpy() -> None:
    one = problem(lambda a, b: a + b + 3, NUMBERS)
    assert at(one, "a0 + a1", "constant difference") == 1.0
    assert at(one, "a0 + a1", "difference") == pytest.approx(0.3)
    assert at(one, "a0 - a1", "constant difference") == 0.0
    first, outputs = zip(*((a, a + b + 3) for a, b in NUMBERS), strict=True)
    assert at(one, "a0", "correlation") == pytest.approx(np.corrcoef(first, outputs)[0, 1], abs=1e-5)
    above = sum((y > a) - (y < a) for a, y in zip(first, outputs, strict=True)) / len(first)
    assert at(one, "a0", "above") == pytest.approx(above)
    tripled = problem(lambda xs: 3 * sum(xs), LISTS)
    assert at(tripled, "list sum(a0)", "constant ratio") == 1.0
    assert at(tripled, "list sum(a0)", "divided") == pytest.approx(np.mean([sum(xs) != 0 for (xs,) in LISTS]))


def test_of_truth_values_the_shares_with_and_without_a_property_are_compared() -> None:
    numbers = [(n,) for n in range(-6, 14)]
    even = problem(lambda n: n % 2 == 0, numbers)
    assert at(even, "a0", "% 2 == 0") == 1.0
    above = problem(lambda n: n > 3, numbers)
    with_, without = (
        [n > 3 for (n,) in numbers if (n > 0) is held] for held in (True, False)
    )  # counted one by one
    assert at(above, "a0", "> 0") == pytest.approx(np.mean(with_) - np.mean(without))


def test_the_order_of_the_tests_and_hidden_tests_change_nothing() -> None:
    for one in load_suite("classic_training"):
        found = relations(one)
        assert found.shape == (SIZE,)
        assert np.isfinite(found).all()
        assert np.abs(found).max() <= 1.0 + 1e-6
        turned = replace(one, tests=one.tests[::-1], hidden_cases=())
        np.testing.assert_allclose(relations(turned), found, atol=1e-6)


def test_problems_of_other_types_have_no_views_and_no_warnings() -> None:
    assert not relations(problem(lambda a, b: a, [(["x"], ["y"])])).any()
    assert not relations(replace(problem(lambda a: a, [(1,)]), tests=())).any()
