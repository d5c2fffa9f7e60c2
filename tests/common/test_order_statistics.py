"""Medians and different values, against the standard library."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenward.common.statistics import distinct, median, medians

NUMBERS = st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=30)


@given(NUMBERS)
def test_the_median_is_that_of_the_standard_library(values: list[float]) -> None:
    assert median(values) == statistics.median(values)


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30))
def test_the_median_of_whole_numbers_lies_between_them(values: list[int]) -> None:
    assert median(values) == statistics.median(values)


@pytest.mark.parametrize("count", [1, 2, 7, 8])
def test_medians_are_those_of_each_row_and_leave_the_values_as_they_were(count: int) -> None:
    values = np.random.default_rng(count).standard_normal((5, count))
    kept = values.copy()
    assert medians(values).tolist() == [statistics.median(row.tolist()) for row in values]
    assert (values == kept).all()


@given(NUMBERS, st.integers(0, 30))
def test_one_nan_makes_a_median_nan(values: list[float], place: int) -> None:
    assert math.isnan(median([*values[:place], math.nan, *values[place:]]))


@given(NUMBERS, st.sampled_from([math.inf, -math.inf]))
def test_infinities_are_the_largest_numbers(values: list[float], infinity: float) -> None:
    assert median([*values, infinity]) == statistics.median([*values, infinity])


def test_there_is_no_median_of_nothing() -> None:
    assert math.isnan(median([]))
    assert np.isnan(medians(np.zeros((3, 0)))).tolist() == [True] * 3


@given(st.lists(st.integers(-20, 20)))
def test_distinct_values_rise(values: list[int]) -> None:
    assert distinct(values).tolist() == sorted(set(values))
