"""Calibration measures against closed forms and simulated forecasts of known quality."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics import calibration
from greenward.diagnostics.calibration import (
    WARNING_SCORE,
    calibration_score,
    measure_calibration,
    score_p_value,
)


def forecasts(count, scale, seed=0):
    """Outcomes of logits N(0, 1.5); predictions whose logits are `scale` times as large."""
    rng = np.random.default_rng(seed)
    logit = 1.5 * rng.standard_normal(count)
    return 1 / (1 + np.exp(-scale * logit)), rng.random(count) < 1 / (1 + np.exp(-logit))


def test_a_hand_computed_example():
    found = measure_calibration([0.2] * 50 + [0.8] * 50, [1] * 20 + [0] * 30 + [1] * 40 + [0] * 10)
    assert found.ece == pytest.approx(0.5 * 0.2)
    assert found.murphy.reliability == pytest.approx(0.5 * 0.2**2)
    assert found.murphy.resolution == pytest.approx(0.2**2)
    assert found.murphy.uncertainty == pytest.approx(0.24)
    assert found.murphy.within_bin == pytest.approx(0.0, abs=1e-12)
    unbiased = 0.5 * 0.2**2 - 0.5 * (0.24 / 49 + 0.16 / 49)
    assert found.score == pytest.approx(1 - np.sqrt(unbiased / 0.24))


def test_the_parts_of_the_brier_score_add_up():
    found = measure_calibration(*forecasts(500, 2.0)).murphy
    assert found.brier == pytest.approx(
        found.reliability - found.resolution + found.uncertainty + found.within_bin
    )


def test_calibrated_forecasts_score_high_whatever_their_number():
    scores = [
        np.mean([measure_calibration(*forecasts(n, 1.0, s)).score for s in range(20)]) for n in (200, 2000)
    ]
    assert min(scores) > 0.9


def test_calibrated_forecasts_rarely_exceed_the_null():
    p = np.array([measure_calibration(*forecasts(300, 1.0, seed)).ece_p_value for seed in range(100)])
    assert (p <= 0.05).mean() <= 0.12


def test_the_null_median_of_ece_is_the_published_size():
    found = measure_calibration(
        np.random.default_rng(0).random(1000), np.random.default_rng(1).random(1000) < 0.5
    )
    assert found.ece_null_median == pytest.approx(0.035, abs=0.006)


@pytest.mark.parametrize("count", [1, 5, 64, 777])
def test_the_chances_of_counts_are_those_of_adding_one_trial_after_the_other(count):
    chances = np.random.default_rng(count).random(count) ** 2
    expected = np.ones(1)
    for chance in chances:
        expected = np.convolve(expected, [1 - chance, chance])
    found = calibration._chances_of_counts(chances)
    assert found[: count + 1] == pytest.approx(expected, abs=1e-13)
    assert found[count + 1 :] == pytest.approx(np.zeros(len(found) - count - 1), abs=1e-13)


def test_the_null_of_ece_is_that_of_outcomes_drawn_one_by_one():
    predicted = np.sort(np.random.default_rng(0).random(400))
    found = measure_calibration(predicted, np.arange(400) % 2)
    drawn = np.random.default_rng(1).random((4000, 400)) < predicted
    gaps = np.abs((drawn - predicted).reshape(4000, 10, 40).mean(axis=2))
    null = gaps.mean(axis=1)
    # Both are simulated: five standard errors of the quantiles of the 1,000 that are drawn.
    density = (np.quantile(null, 0.55) - np.quantile(null, 0.45)) / 0.1
    assert found.ece_null_median == pytest.approx(np.median(null), abs=5 * density * np.sqrt(0.25 / 1000))
    density = (np.quantile(null, 0.97) - np.quantile(null, 0.93)) / 0.04
    assert found.ece_null_95 == pytest.approx(
        np.quantile(null, 0.95), abs=5 * density * np.sqrt(0.95 * 0.05 / 1000)
    )


def test_overconfidence_is_found_and_its_slope_is_the_inverse_of_the_scale():
    found = measure_calibration(*forecasts(5000, 4.0))
    assert found.slope.low <= 0.25 <= found.slope.high
    assert found.score < WARNING_SCORE
    assert found.ece_p_value < 0.01
    assert measure_calibration(*forecasts(5000, 1.0)).score > WARNING_SCORE


def test_perfect_separation_has_no_slope():
    assert measure_calibration([0.1] * 50 + [0.9] * 50, [0] * 50 + [1] * 50).slope is None


@pytest.mark.parametrize(
    ("probabilities", "outcomes", "message"),
    [
        ([0.5] * 10, [1] * 10, "at least 50"),
        ([0.5] * 60, [1] * 60, "all 60 outcomes are 1"),
        ([1.5] * 60, [0, 1] * 30, "between 0 and 1"),
        ([float("nan")] * 60, [0, 1] * 30, "between 0 and 1"),
        ([0.5] * 60, [0, 2] * 30, "0 or 1"),
        ([0.5] * 60, [0, 1], "shapes"),
    ],
)
def test_what_cannot_be_measured_is_said(probabilities, outcomes, message):
    with pytest.raises(DiagnosticsError, match=message):
        measure_calibration(probabilities, outcomes)


@pytest.mark.parametrize("count", [60, 200])
def test_chance_alone_hardly_takes_a_calibrated_score_below_the_threshold(count):
    low, surely = 0, 0
    for seed in range(200):
        pairs = forecasts(count, 1.0, seed)
        low += calibration_score(*pairs) < 0.7
        surely += score_p_value(*pairs, 0.7) <= 0.05
    assert surely <= 0.05 * 200
    assert low > 0 or count > 60  # the score alone is no evidence for so few predictions


def test_a_score_far_below_the_threshold_is_told_from_chance():
    rng = np.random.default_rng(0)
    predicted = rng.choice([0.05, 0.95], 400)
    p = score_p_value(predicted, rng.random(400) < 0.4 + 0.2 * (predicted > 0.5), 0.7)
    assert p <= 0.01
    assert score_p_value(*forecasts(400, 1.0), 0.7) == 1.0


@pytest.mark.slow
def test_the_p_value_of_a_score_is_uniform_at_the_threshold():
    """Predictions of 0.2 and 0.8 whose true rates are 0.4 and 0.6 score 1 - 0.2 / 0.5 = 0.6."""
    p = []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        predicted = np.repeat([0.2, 0.8], 200)
        p.append(score_p_value(predicted, rng.random(400) < np.repeat([0.4, 0.6], 200), 0.6, seed=seed))
    assert 0.0 < np.mean(np.array(p) <= 0.1) < 0.2
