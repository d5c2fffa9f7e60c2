from __future__ import annotations

import math

import numpy as np
import pytest

from greenward.evaluation.intervals import Z_95, bootstrap_mean, bootstrap_ratio, wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [  # Newcombe 1998, Statistics in Medicine 17, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_equals_the_published_intervals(successes: int, trials: int, low: float, high: float) -> None:
    estimate = wilson(successes, trials)
    assert (estimate.low, estimate.high) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("successes", "trials"), [(1, 10), (7, 9), (150, 300)])
def test_wilson_bounds_solve_the_score_equation(successes: int, trials: int) -> None:
    estimate = wilson(successes, trials)
    for bound in (estimate.low, estimate.high):
        score = (estimate.value - bound) / math.sqrt(bound * (1 - bound) / trials)
        assert abs(score) == pytest.approx(Z_95)


def test_wilson_is_certain_of_nothing_when_all_pass() -> None:
    estimate = wilson(5, 5)
    assert estimate.value == estimate.high == 1.0
    assert estimate.low == pytest.approx(5 / (5 + Z_95**2))


def test_no_trial_makes_no_rate() -> None:
    with pytest.raises(ValueError):
        wilson(0, 0)
    with pytest.raises(ValueError):
        bootstrap_mean(np.array([]), seed=0)


def test_bootstrap_covers_the_true_rate_about_95_times_in_100() -> None:
    random = np.random.default_rng(7)
    trials, problems, samples = 300, 60, 4
    covered = 0
    for trial in range(trials):
        skill_P = random.beta(2.0, 3.0, problems)  # problems differ: true mean 0.4
        values_P = random.binomial(samples, skill_P) / samples
        estimate = bootstrap_mean(values_P, seed=trial)
        covered += estimate.low <= 0.4 <= estimate.high
    assert 0.90 <= covered / trials <= 0.98


def test_bootstrap_of_one_outcome_per_problem_agrees_with_the_binomial_error() -> None:
    values_P = np.repeat([1.0, 0.0], [120, 280])
    estimate = bootstrap_mean(values_P, seed=0)
    assert estimate.value == pytest.approx(0.3)
    standard_error = math.sqrt(0.3 * 0.7 / 400)
    assert estimate.high - estimate.low == pytest.approx(2 * Z_95 * standard_error, rel=0.06)


def test_ratio_weighs_problems_by_their_answers() -> None:
    estimate = bootstrap_ratio(np.array([8, 0]), np.array([8, 2]), seed=0)
    assert estimate.value == pytest.approx(0.8)
    assert 0.0 <= estimate.low <= estimate.value <= estimate.high <= 1.0


def test_unanimous_problems_still_leave_doubt() -> None:
    estimate = bootstrap_mean(np.ones(20), seed=0)
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(wilson(20, 20).low)


def test_same_seed_gives_the_same_interval() -> None:
    values_P = np.linspace(0, 1, 30)
    assert bootstrap_mean(values_P, seed=3) == bootstrap_mean(values_P, seed=3)
    assert bootstrap_mean(values_P, seed=3) != bootstrap_mean(values_P, seed=4)
