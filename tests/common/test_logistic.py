"""Logistic recalibration against known coefficients and degenerate data."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.common.statistics import fit_recalibration


@pytest.mark.parametrize("prior_weight", [0.0, 4.0])
def test_the_fit_finds_the_slope_and_the_intercept_of_many_outcomes(prior_weight):
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, 200_000)
    outcomes = (rng.random(len(logits)) < 1 / (1 + np.exp(-(0.4 * logits - 0.7)))).astype(float)
    fit = fit_recalibration(logits, outcomes, prior_weight=prior_weight)
    assert (fit.slope, fit.intercept) == pytest.approx((0.4, -0.7), abs=0.02)
    assert fit.slope_error < 0.01


def test_the_standard_error_is_the_spread_of_the_slope_over_samples():
    rng = np.random.default_rng(1)
    fits = []
    for _ in range(300):
        logits = rng.normal(0, 1.5, 500)
        fits.append(fit_recalibration(logits, (rng.random(500) < 1 / (1 + np.exp(-logits))).astype(float)))
    assert np.mean([fit.slope_error for fit in fits]) == pytest.approx(
        np.std([fit.slope for fit in fits]), rel=0.15
    )


def test_a_prior_keeps_the_fit_finite_and_modest_on_little_or_separable_data():
    nothing = fit_recalibration(np.empty(0), np.empty(0), prior_weight=4.0)
    assert (nothing.slope, nothing.intercept) == (1.0, 0.0)
    little = fit_recalibration(np.array([3.0]), np.array([0.0]), prior_weight=4.0)
    assert 0 < little.slope < 1 and -1 < little.intercept < 0
    logits = np.array([-800.0, -1.0, 1.0, 800.0])
    separable = fit_recalibration(logits, (logits > 0).astype(float), prior_weight=4.0)
    assert np.isfinite([separable.slope, separable.intercept]).all()
    assert fit_recalibration(logits, (logits > 0).astype(float)) is None
