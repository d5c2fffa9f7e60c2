"""Has a series changed? A test of trend and level shift that autocorrelation does not fool.

Steps of training resemble their neighbours, so tests made for independent values see changes
everywhere. Here the statistics are compared with what first-order autoregressions (AR(1)) of the
series' own autocorrelation show when nothing changes, simulated with a fixed seed:

- trend: the variance that a line explains over the variance that it leaves, the largest over all places
  of a kink before which the line is flat;
- level shift: the same of a step, over all its places;
- both together: the smaller of their two p-values, compared with the same of the simulations.

Each ratio is multiplied by (1 − φ) / (1 + φ) with the lag-one autocorrelation φ of what its own fit
leaves over, in the series and in the simulations alike: that makes it nearly independent of the true
autocorrelation. The simulations have the smallest autocorrelation on a grid of which the measured one
is at least the 10 % quantile, an upper confidence limit by inversion (Andrews 1993, Econometrica 61:
the plain estimate is too small). A random walk is on the grid, so a wandering series needs much more
to be called changed than a steady one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.intp]

MIN_POINTS = 30
MAX_POINTS = 512  # longer series are averaged in blocks
MIN_EFFECT_SD = 1.0
SIMULATIONS = 3999  # p ≥ 1/4000, so that up to 100 signals can be told apart after Holm and two tests
_LOCATION_SIMULATIONS = 200
_LOCATED_FROM = 0.1  # larger p-values: the interval of the onset is the whole series
_AUTOCORRELATIONS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
_EDGE = 0.05  # of the series on both sides, where no level shift is sought
_WINSOR_SIGMAS = 4.0
_MEDIAN_REACH = 5
_MAX_EFFECT = 1e6  # standard deviations; a series without noise would give infinitely many
_ESTIMATE_QUANTILE = 0.1
_SEED = 20_240_611

Kind = Literal["trend", "shift"]


@dataclass(frozen=True)
class Change:
    """What the test found. Positions are indices into the series that was tested.

    `p_value` is that of the series alone; adjust it when several are tested. `before` and `after` are
    the medians around a shift, or the ends of the fitted kinked line. `effect_sd` is their difference in
    standard deviations of the residuals. `onset` and its 95 % interval are the place of the shift;
    for a trend, that of the kink from which a flat line rises or falls.
    """

    kind: Kind
    p_value: float
    before: float
    after: float
    effect_sd: float
    onset: int
    onset_low: int
    onset_high: int
    autocorrelation: float
    points: int

    @property
    def difference(self) -> float:
        """After minus before."""
        return self.after - self.before

    def is_notable(self, alpha: float, p_value: float | None = None) -> bool:
        """Significant (by the adjusted p-value, if given) and large enough to matter."""
        p = self.p_value if p_value is None else p_value
        return p <= alpha and abs(self.effect_sd) >= MIN_EFFECT_SD


def find_change(values: Floats, *, seed: int = 0) -> Change | None:
    """Test a series of finite values for a trend or a level shift. None: fewer than MIN_POINTS.

    The series may have any length; beyond MAX_POINTS the onset is exact to a block of
    ceil(n / MAX_POINTS) values. `seed` moves the interval of the onset only.
    """
    n = len(values)
    if n < MIN_POINTS:
        return None
    width = -(-n // MAX_POINTS)
    blocks = _blocks(values, width)
    centred = _without_spikes(blocks)
    centred = centred - centred.mean()
    if not np.any(np.abs(centred) > 1e-12 * float(np.abs(blocks).max())):
        level = float(values[0])
        return Change("shift", 1.0, level, level, 0.0, 0, 0, n - 1, 0.0, n)
    scan = _scan(centred[None])
    null = _null_for(len(blocks), float(scan.residual_autocorrelation[0]))
    p_trend, p_shift = null.p_trend(scan.trend)[0], null.p_shift(scan.shift)[0]
    p_value = float(null.p_smaller(np.minimum(p_trend, p_shift)))
    kind: Kind = "shift" if scan.shift[0] >= scan.trend[0] else "trend"
    bank, place = (
        (_steps(len(blocks)), int(scan.step[0]))
        if kind == "shift"
        else (_ramps(len(blocks)), int(scan.kink[0]))
    )
    low, high = 0, len(blocks) - 1
    if p_value <= _LOCATED_FROM:
        low, high = _interval(bank, centred, place, null.autocorrelation, seed)
    template = bank.templates[place]
    before, after = _levels(blocks, kind, template, place)
    residual = centred - template * (template @ centred)
    sd = float(residual.std()) or float(np.finfo(float).tiny)
    return Change(
        kind,
        p_value,
        before,
        after,
        max(-_MAX_EFFECT, min((after - before) / sd, _MAX_EFFECT)),
        place * width,
        low * width,
        min(high * width + width - 1, n - 1),
        null.autocorrelation,
        n,
    )


def find_offset(values: Floats) -> tuple[float, float] | None:
    """(p-value, mean in standard deviations) of the hypothesis that `values` are about 0 throughout.

    A z-test with the variance of an AR(1)'s mean, its autocorrelation corrected as in `find_change`; a
    random walk is about 0 by definition. None: fewer than MIN_POINTS.
    """
    n = len(values)
    if n < MIN_POINTS:
        return None
    blocks = _without_spikes(_blocks(values, -(-n // MAX_POINTS)))
    sd, mean = float(blocks.std()), float(blocks.mean())
    if sd <= 1e-12 * abs(mean) or sd == 0:
        return (0.0, math.copysign(_MAX_EFFECT, mean)) if mean else (1.0, 0.0)
    measured = _scan((blocks - mean)[None]).residual_autocorrelation[0]
    phi = _null_for(len(blocks), float(measured)).autocorrelation
    z = mean / sd * math.sqrt(len(blocks) * (1 - phi) / (1 + phi))
    return math.erfc(abs(z) / math.sqrt(2)), max(-_MAX_EFFECT, min(mean / sd, _MAX_EFFECT))


def effect_text(effect: float) -> str:
    """An effect in standard deviations, as people say it."""
    return f"{effect:+.1f} sd" if abs(effect) < 100 else f"{'over +' if effect > 0 else 'below −'}100 sd"


def holm(p_values: list[float]) -> list[float]:
    """Adjusted p-values by Holm's step-down method (1979), in the given order.

    They bound the chance of even one false finding in a run, whatever the dependence between signals;
    Benjamini and Hochberg's bound the share of false ones, which says little about one healthy run.
    """
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


@dataclass(frozen=True)
class _Scan:
    """The statistics of many series at once, one entry a series."""

    trend: Floats
    shift: Floats
    kink: Indices
    step: Indices
    residual_autocorrelation: Floats


@dataclass(frozen=True)
class _Null:
    """Sorted statistics of series in which nothing changes."""

    autocorrelation: float
    low_estimate: float
    trend: Floats
    shift: Floats
    smaller: Floats

    def p_trend(self, statistic: Floats) -> Floats:
        return _upper_tail(self.trend, statistic)

    def p_shift(self, statistic: Floats) -> Floats:
        return _upper_tail(self.shift, statistic)

    def p_smaller(self, p_value: np.float64) -> float:
        return float((1 + np.searchsorted(self.smaller, p_value, side="right")) / (1 + len(self.smaller)))


def _upper_tail(sorted_null: Floats, statistic: Floats) -> Floats:
    above = len(sorted_null) - np.searchsorted(sorted_null, statistic, side="left")
    return np.asarray((1 + above) / (1 + len(sorted_null)), float)


def _null_for(points: int, measured: float) -> _Null:
    nulls = (_null(points, phi) for phi in _AUTOCORRELATIONS)
    return next((null for null in nulls if null.low_estimate >= measured), _null(points, 1.0))


@lru_cache(maxsize=64)
def _null(points: int, autocorrelation: float) -> _Null:
    rng = np.random.default_rng((_SEED, points, round(1000 * autocorrelation)))
    series = simulate_autoregression(rng, SIMULATIONS, points, autocorrelation)
    scan = _scan(series - series.mean(axis=1, keepdims=True))
    trend, shift = np.sort(scan.trend), np.sort(scan.shift)
    smaller = np.minimum(_upper_tail(trend, scan.trend), _upper_tail(shift, scan.shift))
    estimate = float(np.quantile(scan.residual_autocorrelation, _ESTIMATE_QUANTILE))
    return _Null(autocorrelation, estimate, trend, shift, np.sort(smaller))


def simulate_autoregression(
    rng: np.random.Generator, count: int, points: int, autocorrelation: float
) -> Floats:
    """`count` series of an AR(1) with variance 1 (a random walk from 0 for an autocorrelation of 1)."""
    series = rng.standard_normal((points, count))
    if autocorrelation < 1:
        series[1:] *= np.sqrt(1 - autocorrelation**2)
    for t in range(1, points):
        series[t] += autocorrelation * series[t - 1]
    return np.ascontiguousarray(series.T)


def _scan(centred: Floats) -> _Scan:
    """`centred` has a series in each row, of mean 0."""
    points = centred.shape[1]
    total = np.maximum((centred**2).sum(axis=1), np.finfo(float).tiny)
    from_each = np.cumsum(centred[:, ::-1], axis=1)[:, ::-1]  # the product with each step
    ramp_products = np.zeros_like(centred)
    ramp_products[:, :-1] = np.cumsum(from_each[:, :0:-1], axis=1)[:, ::-1]
    banks = ((_ramps(points), ramp_products), (_steps(points), from_each))
    places, scores, estimates = zip(*(_score(centred, total, *bank) for bank in banks), strict=True)
    measured = np.where(scores[1] >= scores[0], estimates[1], estimates[0])
    return _Scan(scores[0], scores[1], places[0], places[1], measured)


def _score(centred: Floats, total: Floats, bank: _Bank, products: Floats) -> tuple[Indices, Floats, Floats]:
    """(place, statistic, residual autocorrelation) of the best template of a bank, of each series."""
    along = products * bank.scale
    place = (along**2).argmax(axis=1)
    best = along[np.arange(len(centred)), place]
    share = np.minimum(best**2 / total, 1 - 1e-12)
    phi = _lag_one(centred - best[:, None] * bank.templates[place])
    return place, share / (1 - share) * (1 - phi) / (1 + phi), phi


def _lag_one(residual: Floats) -> Floats:
    """The lag-one autocorrelation of each row, within [-0.9, 0.999] so that it can divide."""
    power = np.maximum((residual**2).sum(axis=1), np.finfo(float).tiny)
    lagged = (residual[:, 1:] * residual[:, :-1]).sum(axis=1) / power
    return np.asarray(np.clip(lagged, -0.9, 0.999), float)


def _shift_places(points: int) -> tuple[int, int]:
    edge = max(3, int(_EDGE * points))
    return edge, points - edge + 1


@dataclass(frozen=True)
class _Bank:
    """Templates of mean 0 and length 1, one for each place; `scale` is 1 / the length before that.

    Where a place is too near the edge, template and scale are 0.
    """

    templates: Floats
    scale: Floats


@lru_cache(maxsize=4)
def _steps(points: int) -> _Bank:
    first, last = _shift_places(points)
    return _bank((np.arange(points) >= np.arange(points)[:, None]).astype(float), first, last)


@lru_cache(maxsize=4)
def _ramps(points: int) -> _Bank:
    """Flat until the kink, then a line; a kink at 0 is a plain trend."""
    ramps = np.maximum(np.arange(points) - np.arange(points)[:, None], 0).astype(float)
    return _bank(ramps, 0, _shift_places(points)[1])


def _bank(shapes: Floats, first: int, last: int) -> _Bank:
    templates, scale = np.zeros_like(shapes), np.zeros(len(shapes))
    centred = shapes[first:last] - shapes[first:last].mean(axis=1, keepdims=True)
    scale[first:last] = 1 / np.linalg.norm(centred, axis=1)
    templates[first:last] = centred * scale[first:last, None]
    return _Bank(templates, scale)


def _interval(bank: _Bank, centred: Floats, place: int, autocorrelation: float, seed: int) -> tuple[int, int]:
    """The 95 % interval of the place when the fit is the truth: where simulations of it find it again."""
    points = len(centred)
    fit = bank.templates[place] * (bank.templates[place] @ centred)
    noise = simulate_autoregression(
        np.random.default_rng((_SEED, seed)), _LOCATION_SIMULATIONS, points, min(autocorrelation, 0.99)
    )
    again = (((fit + noise * (centred - fit).std()) @ bank.templates.T) ** 2).argmax(axis=1)
    low, high = np.quantile(again, (0.025, 0.975), method="inverted_cdf")
    return min(int(low), place), max(int(high), place)


def _levels(blocks: Floats, kind: Kind, template: Floats, place: int) -> tuple[float, float]:
    if kind == "shift":
        return float(np.median(blocks[:place])), float(np.median(blocks[place:]))
    ends = blocks.mean() + (template @ blocks) * template[[0, -1]]
    return float(ends[0]), float(ends[1])


def _blocks(values: Floats, width: int) -> Floats:
    if width == 1:
        return np.asarray(values, float)
    starts = np.arange(0, len(values), width)
    sizes = np.diff(np.append(starts, len(values)))
    return np.asarray(np.add.reduceat(values, starts) / sizes, float)


def _without_spikes(values: Floats) -> Floats:
    """`values`, no farther from their running median than 4 robust standard deviations of the distance."""
    padded = np.pad(values, _MEDIAN_REACH, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _MEDIAN_REACH + 1)
    centre = np.median(windows, axis=1)
    sigma = 1.4826 * np.median(np.abs(values - centre))
    if sigma == 0:
        return values
    reach = _WINSOR_SIGMAS * sigma
    return np.asarray(np.clip(values, centre - reach, centre + reach), float)
