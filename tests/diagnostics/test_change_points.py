"""The change test against closed forms, brute force and planted truths."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.diagnostics import change_points
from greenward.diagnostics.change_points import find_change_point, find_offset, holm, simulate_autoregression


def noise(count, points, autocorrelation, seed=3):
    return simulate_autoregression(np.random.default_rng(seed), count, points, autocorrelation)


def test_simulated_autoregressions_have_the_variance_and_correlation_of_theory():
    series = noise(4000, 60, 0.8)
    assert series.var(axis=0) == pytest.approx(np.ones(60), abs=0.1)
    assert (series[:, 20] * series[:, 25]).mean() == pytest.approx(0.8**5, abs=0.05)


def test_the_scan_agrees_with_least_squares_at_every_place():
    values = noise(1, 40, 0.5)[0]
    centred = values - values.mean()

    def best(shape_at, places):
        shares = []
        for k in places:
            design = np.column_stack([np.ones(40), shape_at(k)])
            rest = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
            shares.append((1 - (rest**2).sum() / (centred**2).sum(), k, rest))
        share, k, rest = max(shares, key=lambda s: s[0])
        phi = (rest[1:] * rest[:-1]).sum() / (rest**2).sum()
        return k, share / (1 - share) * (1 - phi) / (1 + phi)

    first, last = change_points._shift_places(40)
    scan = change_points._scan(centred[None])
    t = np.arange(40)
    assert (scan.places_KN[1, 0], pytest.approx(scan.statistics_KN[1, 0])) == best(
        lambda k: t >= k, range(first, last)
    )
    assert (scan.places_KN[0, 0], pytest.approx(scan.statistics_KN[0, 0])) == best(
        lambda k: np.maximum(t - k, 0), range(last)
    )


@pytest.mark.parametrize(("points", "autocorrelation"), [(85, 0.0), (120, 0.8), (240, 1.0)])
def test_the_tabulated_nulls_are_those_of_simulations(points, autocorrelation):
    """Of lengths between those of the table, and of tails that 8,000 simulations tell well."""
    null = change_points._null(points, change_points.AUTOCORRELATIONS.index(autocorrelation))
    count, levels = 8_000, null.levels_L[null.levels_L >= 0.01]
    fresh = change_points.simulated_null(points, autocorrelation, levels, count)
    error = 5 * np.sqrt(levels * (1 - levels) / count) + 0.05 * levels
    for kind in range(2):
        tabulated, simulated = null.statistics_KL[kind, : len(levels)], fresh["log_statistics_NAKL"][kind]
        found = np.exp(np.interp(np.log(tabulated), simulated, np.log(levels)))
        assert (np.abs(found - levels) < error).all()
    assert (np.abs(null.smaller_L[: len(levels)] - fresh["smaller_NAL"]) < error).all()
    assert null.low_estimate == pytest.approx(fresh["low_estimate_NA"], abs=0.02)


@pytest.mark.parametrize("autocorrelation", [0.0, 0.8, 0.95])
def test_healthy_series_are_called_changed_at_most_as_often_as_promised(autocorrelation):
    p = [find_change_point(series).p_value for series in noise(200, 200, autocorrelation, seed=11)]
    assert np.mean(np.array(p) <= 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 200)


def test_a_level_shift_is_found_at_its_step():
    found = find_change_point(noise(1, 300, 0.5)[0] + 4.0 * (np.arange(300) >= 180))
    assert found.kind == "shift"
    assert found.p_value < 0.01
    assert found.onset.low <= 180 <= found.onset.high
    assert abs(found.onset.step - 180) <= 2
    assert found.after - found.before == pytest.approx(4.0, abs=1.0)


def test_a_trend_is_found_with_its_size():
    found = find_change_point(noise(1, 300, 0.5)[0] + np.linspace(0, 6, 300))
    assert (found.kind, found.p_value < 0.01) == ("trend", True)
    assert found.after - found.before == pytest.approx(6.0, abs=1.2)


def test_a_late_ramp_begins_at_its_kink():
    found = find_change_point(0.3 * noise(1, 400, 0.3)[0] + np.maximum(np.arange(400) - 300, 0) * 0.05)
    assert found.kind == "trend"
    assert abs(found.onset.step - 300) <= 8
    assert found.onset.low <= 300 <= found.onset.high


def test_scale_and_level_do_not_matter():
    series = noise(1, 120, 0.6)[0]
    one, other = find_change_point(series), find_change_point(1e6 + 1e-3 * series)
    assert other.p_value == pytest.approx(one.p_value, rel=1e-5)
    assert other.effect_sd == pytest.approx(one.effect_sd, rel=1e-4)


def test_one_wild_value_is_not_a_change():
    series = noise(1, 200, 0.2, seed=5)[0]
    series[150] += 1000
    assert find_change_point(series).p_value > 0.05


def test_a_constant_has_not_changed_and_few_values_cannot_tell():
    assert find_change_point(np.full(100, 3.0)).p_value == 1.0
    assert find_change_point(np.arange(29.0)) is None
    assert find_offset(np.ones(29)) is None


def test_a_noiseless_step_is_found():
    found = find_change_point((np.arange(100) >= 60).astype(float))
    assert (found.onset.step, found.is_notable(0.01)) == (60, True)


def test_long_series_keep_their_onset_to_a_block():
    values = noise(1, 100_000, 0.9)[0] + 3.0 * (np.arange(100_000) >= 70_000)
    found = find_change_point(values)
    assert abs(found.onset.step - 70_000) <= 2 * -(-100_000 // change_points.MAX_POINTS)


def test_an_offset_is_told_from_zero():
    series = noise(1, 300, 0.5)[0]
    assert find_offset(series + 2)[0] < 1e-6
    assert find_offset(series - series.mean())[0] == pytest.approx(1.0)
    assert find_offset(np.zeros(50)) == (1.0, 0.0)


def test_holm_adjusts_as_in_the_definition():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
