"""The statistics against published values, closed forms, enumeration and simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from greenward.common import statistics
from greenward.common.statistics import (
    detectable_mean_difference,
    detectable_rate_difference,
    mcnemar_exact,
    mcnemar_mid_p,
    mcnemar_power,
    sign_flip_p_value,
)

Z_95, Z_POWER = 1.959963984540054, 0.8416212335729143  # quantiles of the standard normal


@pytest.mark.parametrize(
    ("won", "lost", "exact", "mid_p"),
    [
        (1, 7, 0.0703, 0.0391),  # Fagerland et al. 2013, table 5: airway hyper-responsiveness
        (6, 16, 0.0525, 0.0347),  # the same: complete response before and after consolidation
    ],
)
def test_mcnemar_gives_the_published_p_values(won, lost, exact, mid_p):
    assert mcnemar_exact(won, lost) == pytest.approx(exact, abs=5e-5)
    assert mcnemar_mid_p(won, lost) == pytest.approx(mid_p, abs=5e-5)


def test_mcnemar_is_the_share_of_coin_sequences_at_least_as_uneven():
    for discordant in range(11):
        sequences = list(itertools.product((0, 1), repeat=discordant))
        for won in range(discordant + 1):
            uneven = abs(2 * won - discordant)
            share = sum(abs(2 * sum(s) - discordant) >= uneven for s in sequences) / len(sequences)
            assert mcnemar_exact(won, discordant - won) == pytest.approx(share)


def test_mcnemar_needs_six_discordant_problems_for_five_percent():
    assert mcnemar_exact(5, 0) == pytest.approx(2 / 32)
    assert mcnemar_exact(6, 0) == pytest.approx(2 / 64)
    assert mcnemar_exact(0, 0) == 1.0


def test_mcnemar_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    for won, lost in itertools.product((0, 3, 17, 120), (1, 8, 40, 300)):
        expected = stats.binomtest(won, won + lost, 0.5).pvalue
        assert mcnemar_exact(won, lost) == pytest.approx(expected, rel=1e-9)


def test_the_randomisation_test_on_single_answers_is_mcnemars():
    for won, lost in ((3, 0), (9, 2), (5, 5), (10, 4)):
        differences = np.array([1.0] * won + [-1.0] * lost + [0.0] * 7)
        assert sign_flip_p_value(differences, seed=0) == pytest.approx(mcnemar_exact(won, lost))


def test_the_randomisation_test_with_drawn_signs_comes_near_the_exact_value():
    differences = np.array([1.0] * 30 + [-1.0] * 15)
    exact = mcnemar_exact(30, 15)
    assert sign_flip_p_value(differences, seed=0) == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))


def test_signs_that_are_drawn_in_parts_are_those_that_are_drawn_at_once(monkeypatch):
    differences = np.random.default_rng(1).normal(0.02, 0.3, 371)
    at_once = sign_flip_p_value(differences, seed=3)
    assert 0.01 < at_once < 0.99
    for most in (1, 371 * 7, 371 * 300):
        monkeypatch.setattr(statistics, "_SIGNS_AT_ONCE", most)
        assert sign_flip_p_value(differences, seed=3) == at_once


def test_mid_p_of_many_problems_is_that_of_the_normal_distribution():
    z = 1000 / math.sqrt(120_000)
    assert mcnemar_mid_p(60_500, 59_500) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-3)


def test_nothing_but_equal_answers_gives_a_p_value_of_one():
    assert sign_flip_p_value(np.zeros(10), seed=0) == 1.0


def test_power_is_the_share_of_simulated_studies_that_find_the_difference():
    rng = np.random.default_rng(2)
    rate, difference, problems = 0.3, 0.12, 164
    chances = ((rate + difference) / 2, (rate - difference) / 2, 1 - rate)
    studies = rng.multinomial(problems, chances, size=4000)
    found = np.mean([mcnemar_exact(int(won), int(lost)) <= 0.05 for won, lost, _ in studies])
    assert mcnemar_power(problems, rate, difference) == pytest.approx(found, abs=0.02)


def test_power_without_a_difference_is_at_most_alpha():
    for problems, rate in ((20, 0.5), (164, 0.1), (500, 0.3)):
        assert mcnemar_power(problems, rate, 0.0) <= 0.05


@pytest.mark.parametrize(("problems", "rate"), [(4000, 0.2), (20_000, 0.1), (60_000, 0.6)])
def test_the_detectable_difference_nears_connors_formula_for_large_suites(problems, rate):
    difference = detectable_rate_difference(problems, rate)
    # Connor 1987: the number of pairs needed, normal approximation.
    needed = (Z_95 * math.sqrt(rate) + Z_POWER * math.sqrt(rate - difference**2)) ** 2 / difference**2
    assert needed == pytest.approx(problems, rel=0.05)


def test_the_detectable_difference_is_found_with_the_stated_power():
    difference = detectable_rate_difference(164, 0.2)
    assert mcnemar_power(164, 0.2, difference) == pytest.approx(0.8, abs=0.01)


def test_five_problems_can_show_no_difference_and_six_only_a_huge_one():
    assert detectable_rate_difference(5, 0.6) is None
    # All six must be won: (d)^6 >= 0.8.
    assert detectable_rate_difference(6, 0.5) == pytest.approx(0.8 ** (1 / 6), abs=1e-3)


def test_the_detectable_mean_difference_nears_millers_formula_for_large_suites():
    differences = np.random.default_rng(5).normal(0, 0.3, size=20_000)
    millers = (Z_95 + Z_POWER) * differences.std(ddof=1) / math.sqrt(20_000)
    assert detectable_mean_difference(differences) == pytest.approx(millers, rel=0.03)


@pytest.mark.parametrize("few", [0, 1, 3])
def test_the_detectable_mean_difference_of_few_differences_is_one_that_can_be_found(few):
    """A sign-flip test needs six differences of one sign to reject."""
    differences = np.zeros(30)
    differences[:few] = 0.5
    found = detectable_mean_difference(differences)
    size = 0.5 if few else 1.0
    assert found == pytest.approx(size * detectable_rate_difference(30, few / 30))
    assert found >= size * 6 / 30
    assert detectable_mean_difference(np.zeros(5)) is None
