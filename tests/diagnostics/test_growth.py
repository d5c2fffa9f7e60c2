"""Leaks, explosions and spikes: planted ones are found with their size, healthy look-alikes are not."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.diagnostics.signal_tests import (
    find_explosion,
    find_spikes,
    lower_envelope,
    measure_memory_growth,
    theil_sen,
)

STEPS = np.arange(1, 501)


def memory_curve(factor, seed=0):
    """A base of 700, noise and peaks of long batches, growing to `factor` times the base."""
    rng = np.random.default_rng(seed)
    peaks = 150 * (rng.random(500) < 0.3)
    return 700 * np.linspace(1, factor, 500) + 4 * rng.standard_normal(500) + peaks


def norms(seed=0):
    return np.exp(0.3 * np.random.default_rng(seed).standard_normal(500))


@pytest.mark.parametrize("seed", range(5))
def test_a_planted_leak_is_measured_within_a_tenth(seed):
    found = measure_memory_growth(STEPS, memory_curve(2.1, seed), limit=2000.0)
    assert found.is_leak
    assert found.factor == pytest.approx(2.1, abs=0.1)
    slope = 700 * 1.1 / 499
    assert found.per_step == pytest.approx(slope, rel=0.05)
    assert found.steps_to_limit == pytest.approx((2000 - 700 * 2.1) / slope, rel=0.1)


def test_flat_memory_a_filled_cache_and_one_kept_allocation_are_no_leaks():
    flat = memory_curve(1.0)
    assert not measure_memory_growth(STEPS, flat).is_leak
    assert not measure_memory_growth(STEPS, flat + 900 * (1 - np.exp(-STEPS / 40))).is_leak
    assert not measure_memory_growth(STEPS, flat + 500 * (STEPS > 200)).is_leak


def test_few_steps_cannot_tell():
    assert measure_memory_growth(STEPS[:20], memory_curve(2.1)[:20]) is None


def test_the_envelope_is_the_minimum_of_each_stretch():
    at, low = lower_envelope(np.arange(600), np.arange(600.0) % 10 + np.arange(600) // 10)
    assert low == pytest.approx(np.arange(60.0))
    assert np.diff(at) == pytest.approx(np.full(59, 10.0))


def test_theil_sen_is_exact_on_a_line_and_forgets_outliers():
    x = np.arange(40.0)
    y = 3 * x + 1
    y[7] = 1e6
    assert theil_sen(x, y)[0] == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(5))
def test_an_exponential_explosion_is_found_at_its_onset(seed):
    grown = norms(seed) * np.exp(0.05 * np.maximum(STEPS - 300, 0))
    found = find_explosion(STEPS, grown)
    assert abs(found.onset.step - 300) <= 10
    assert found.log_slope == pytest.approx(0.05, rel=0.1)
    assert found.sustained


def test_a_jump_of_the_norm_is_found_at_its_step():
    found = find_explosion(STEPS, norms() * np.where(STEPS >= 300, 50.0, 1.0))
    assert abs(found.onset.step - 300) <= 1
    assert found.ratio == pytest.approx(50, rel=0.3)
    assert found.sustained


def test_healthy_falling_and_slightly_rising_norms_do_not_explode():
    assert find_explosion(STEPS, norms()) is None
    assert find_explosion(STEPS, norms() * np.where(STEPS >= 300, 0.02, 1.0)) is None
    assert find_explosion(STEPS, norms() * np.linspace(1, 2, 500)) is None
    assert find_explosion(STEPS, np.zeros(500)) is None


def test_a_spike_is_named_with_its_step_and_a_quiet_double_is_none():
    values = norms()
    values[199] = 40.0
    found = find_spikes(STEPS, values)
    assert [spike.step for spike in found] == [200]
    assert found[0].ratio == pytest.approx(40, rel=0.3)
    quiet = 1 + 1e-6 * norms()
    quiet[100] = 2.0
    assert find_spikes(STEPS, quiet) == []


def test_spikes_of_a_long_run_are_all_found():
    values = np.exp(0.1 * np.random.default_rng(0).standard_normal(40_000))
    places = [30, 16_382, 16_383, 16_384, 16_385, 32_768, 39_999]
    values[places] = 60.0
    found = find_spikes(np.arange(40_000), values)
    assert [spike.step for spike in found] == places
    assert found[3].ratio == pytest.approx(60 / np.median(values[16_384 - 25 : 16_384 + 26]))


@pytest.mark.parametrize("seed", range(6))
def test_norms_that_usually_differ_by_factors_have_hardly_any_spikes(seed):
    """Norms of few answers are log-normal: 13 public logs have a deviation of 0.5 to 1.5."""
    values = np.exp(1.0 * np.random.default_rng(seed).standard_normal(500))
    assert len(find_spikes(STEPS, values)) <= 1
    values[299] = 1000.0
    assert 300 in [spike.step for spike in find_spikes(STEPS, values)]


@pytest.mark.filterwarnings("error")
def test_a_spike_over_a_level_that_never_varies_is_found_without_a_warning():
    values = np.ones(len(STEPS))
    values[len(STEPS) // 2] = 1e5
    (found,) = find_spikes(STEPS, values)
    assert (found.step, found.ratio) == (STEPS[len(STEPS) // 2], 1e5)


def test_the_large_gradients_at_the_beginning_are_no_spikes():
    values = norms()
    values[:5] *= (30, 20, 15, 10, 8)
    assert find_spikes(STEPS, values) == []
    values[5] = 40.0
    assert [spike.step for spike in find_spikes(STEPS, values)] == [6]


@pytest.mark.parametrize("finite_steps", [0, 2, 10])
def test_norms_that_end_as_nan_have_exploded(finite_steps):
    values = norms()
    values[300:] = np.nan
    values[300 : 300 + finite_steps] = 500.0 * 3.0 ** np.arange(finite_steps)
    found = find_explosion(STEPS, values)
    assert found.sustained
    assert found.ratio == np.inf
    assert abs(found.onset.step - 301) <= 5


def test_single_norms_that_are_not_finite_are_no_explosion():
    values = norms()
    values[[50, 200, 350]] = np.nan, np.inf, np.nan
    assert find_explosion(STEPS, values) is None
    assert find_explosion(STEPS, np.full(500, np.nan)) is None
