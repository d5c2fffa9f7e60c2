"""The intervals against published closed forms, and by simulation: how often they hold the truth."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from greenward.common.statistics import Z_95, Estimate, paired_difference, pass_at_k, rate

REPEATS = 600
RATES = {
    "uniform": lambda random, shape: random.random(shape),
    "u-shaped": lambda random, shape: random.beta(0.3, 0.3, shape),
    "nearly all solved": lambda random, shape: random.uniform(0.95, 1.0, shape),
    "nearly none solved": lambda random, shape: random.uniform(0.0, 0.05, shape),
    "all alike": lambda random, shape: np.full(shape, 0.5),
    "one in twenty never": lambda random, shape: np.where(random.random(shape) < 0.05, 0.0, 0.99),
}


def covers(estimates: list[Estimate], truth: float) -> float:
    return float(np.mean([one.low <= truth + 1e-12 and truth - 1e-12 <= one.high for one in estimates]))


@pytest.mark.parametrize(("successes", "trials"), [(0, 20), (1, 29), (15, 148), (81, 263), (300, 300)])
def test_one_answer_to_each_problem_gives_agresti_and_coulls_interval(successes, trials):
    count = trials + Z_95**2
    centre = (successes + Z_95**2 / 2) / count
    half_width = Z_95 * math.sqrt(centre * (1 - centre) / count)
    found = rate(np.array([1.0] * successes + [0.0] * (trials - successes)))
    assert found.value == pytest.approx(successes / trials)
    assert found.low == pytest.approx(max(0.0, centre - half_width))
    assert found.high == pytest.approx(min(1.0, centre + half_width))


@pytest.mark.parametrize(("won", "lost", "problems"), [(0, 0, 100), (7, 1, 21), (40, 9, 164), (5, 0, 5)])
def test_one_answer_on_each_side_gives_bonett_and_prices_interval(won, lost, problems):
    gain, loss = (won + 1) / (problems + 2), (lost + 1) / (problems + 2)
    half_width = Z_95 * math.sqrt((gain + loss - (gain - loss) ** 2) / (problems + 2))
    found = paired_difference(np.array([1.0] * won + [-1.0] * lost + [0.0] * (problems - won - lost)))
    assert found.value == pytest.approx((won - lost) / problems)
    assert found.low == pytest.approx(max(-1.0, gain - loss - half_width))
    assert found.high == pytest.approx(min(1.0, gain - loss + half_width))


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize(("samples", "k"), [(1, 1), (8, 1), (8, 4)])
@pytest.mark.parametrize("problems", [10, 30])
def test_a_rate_lies_in_its_interval_about_95_times_in_100(kind, samples, k, problems):
    random = np.random.default_rng(5)
    draw = RATES[kind]
    truth = float((1 - (1 - draw(random, 100_000)) ** k).mean())
    by_count = np.array([pass_at_k(samples, passed, k) for passed in range(samples + 1)])
    passed = random.binomial(samples, draw(random, (REPEATS, problems)))
    # Few problems with one answer have few possible intervals; the Monte-Carlo error is 0.01.
    assert covers([rate(values) for values in by_count[passed]], truth) >= 0.9


@pytest.mark.parametrize("kind", RATES)
@pytest.mark.parametrize("samples", [1, 8])
@pytest.mark.parametrize("problems", [10, 30])
def test_a_paired_difference_lies_in_its_interval_about_95_times_in_100(kind, samples, problems):
    random = np.random.default_rng(6)
    draw = RATES[kind]

    def better(rates):
        return rates + 0.3 * (1 - rates)

    every = draw(random, 100_000)
    truth = float((better(every) - every).mean())
    before = draw(random, (REPEATS, problems))
    first, second = random.binomial(samples, before), random.binomial(samples, better(before))
    found = [paired_difference(differences) for differences in (second - first) / samples]
    assert covers(found, truth) >= 0.92


def test_the_normal_interval_is_reached_with_many_problems():
    values_P = np.random.default_rng(3).uniform(size=20_000)
    half_width = Z_95 * values_P.std() / math.sqrt(len(values_P))
    found = rate(values_P)
    assert (found.low, found.high) == pytest.approx(
        (values_P.mean() - half_width, values_P.mean() + half_width), abs=2e-5
    )
    found = paired_difference(2 * values_P - 1)
    assert (found.low, found.high) == pytest.approx(
        (2 * values_P.mean() - 1 - 2 * half_width, 2 * values_P.mean() - 1 + 2 * half_width), abs=2e-5
    )


@pytest.mark.parametrize("problems", [1, 2, 5, 30, 300])
def test_nothing_and_everything_leave_a_doubt_that_shrinks_with_problems(problems):
    none, all_ = rate(np.zeros(problems)), rate(np.ones(problems))
    assert (none.value, none.low) == (0.0, 0.0)
    assert (all_.value, all_.high) == (1.0, 1.0)
    assert none.high == pytest.approx(1 - all_.low)
    if problems >= 5:  # not below the exact one-sided bound, at which this happens once in 20 times
        assert none.high >= 1 - 0.05 ** (1 / problems)
    assert none.high < rate(np.zeros(max(1, problems // 2))).high + 1e-9
    same = paired_difference(np.zeros(problems))
    assert same.low == -same.high < 0


def test_one_more_success_never_lowers_a_bound():
    for problems, samples in ((5, 8), (30, 4)):
        bounds = []
        for failures in range(samples + 1):
            values_P = np.ones(problems)
            values_P[0] = 1 - failures / samples
            bounds.append(rate(values_P).low)
        assert bounds == sorted(bounds, reverse=True)


def test_a_rate_over_answers_weighs_problems_by_their_answers():
    found = rate(np.array([8.0, 0.0]), np.array([8.0, 2.0]))
    assert found.value == pytest.approx(0.8)
    values_P, alike = np.array([0.2, 0.9, 0.5]), np.array([4.0, 4.0, 4.0])
    weighted, plain = rate(values_P * alike, alike), rate(values_P)
    assert (weighted.value, weighted.low, weighted.high) == pytest.approx(
        (plain.value, plain.low, plain.high)
    )


@given(st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_the_value_lies_in_the_interval_and_the_interval_in_its_range(values):
    found = rate(np.array(values))
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.low < found.high
    found = paired_difference(2 * np.array(values) - 1)
    assert -1 <= found.low <= found.value <= found.high <= 1


def test_what_makes_no_rate_is_refused():
    for numerators, denominators in (([], []), ([1.0], [0.0]), ([2.0], [1.0]), ([-1.0], [1.0])):
        with pytest.raises(ValueError):
            rate(np.array(numerators), np.array(denominators))
    with pytest.raises(ValueError):
        paired_difference(np.array([]))


@pytest.mark.parametrize("samples", range(1, 9))
def test_pass_at_k_equals_the_share_of_k_subsets_that_hold_a_passing_answer(samples: int) -> None:
    for passed in range(samples + 1):
        answers = [True] * passed + [False] * (samples - passed)
        for k in range(1, samples + 1):
            subsets = list(combinations(answers, k))
            share = sum(map(any, subsets)) / len(subsets)
            assert pass_at_k(samples, passed, k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_is_undefined_with_fewer_answers_than_k() -> None:
    assert pass_at_k(4, 4, 5) is None
    assert pass_at_k(0, 0, 1) is None


def test_pass_at_k_does_not_overflow_for_many_answers() -> None:
    assert pass_at_k(100_000, 50_000, 100) == pytest.approx(1.0)
    assert pass_at_k(100_000, 1, 100) == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("passed", "k", "expected"),
    [(10**9, 1, 0.001), (1, 10**9, 0.001), (3, 10**11, 0.271), (10**12, 10**9, 1), (10**11, 10**11, 1)],
)
def test_pass_at_k_of_huge_counts_takes_no_huge_time(passed: int, k: int, expected: float) -> None:
    """Of so many answers, k drawn with replacement are all different."""
    assert pass_at_k(10**12, passed, k) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("arguments", [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_pass_at_k_refuses_counts_that_mean_nothing(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="means nothing"):
        pass_at_k(*arguments)
