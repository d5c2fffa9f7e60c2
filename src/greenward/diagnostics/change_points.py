"""Tests series for a trend or a level shift, with a false alarm rate that autocorrelation does not raise.

Steps of training resemble their neighbours, so tests made for independent values see changes everywhere.
Here the variance that a kinked line (a trend) or a step (a shift) explains over the variance that it leaves,
the largest over all places, is compared with the same of simulated first-order autoregressions (AR(1)) in
which nothing changes.
Each ratio is multiplied by (1 − φ) / (1 + φ) with the lag-one autocorrelation φ of the residuals of its own
fit, which makes it nearly independent of the true autocorrelation. The simulations have the smallest
autocorrelation on a grid of which the measured one is at least the 10 % quantile, an upper confidence limit
by inversion (Andrews 1993, Econometrica 61: the plain estimate is too small). A random walk is on the grid.
A finding of the diagnosis needs an adjusted p ≤ 0.05 (Holm, over signals) and a difference of at least 1
standard deviation of the residuals. Limits of size (length, distinct answers, throughput, ways to fail) need
no p-value if the first and the last tenth lie apart by more than 8 standard deviations of the noise between
neighbours. Beyond 512 values the onset is exact to a block of averaged values.
Array suffixes: N series, P points, K the two kinds of change in the order of `KINDS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from greenward.common.statistics import median, medians
from greenward.reports.document import Onset

Floats = npt.NDArray[np.float64]
Steps = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Kind = Literal["trend", "shift"]

KINDS: tuple[Kind, Kind] = ("trend", "shift")
MIN_POINTS = 30
MAX_POINTS = 512  # longer series are averaged in blocks
MIN_EFFECT_SD = 1.0
SIMULATIONS = 40_000  # of each null in the table; smaller p-values than 1 in 10,000 are extrapolated
_SCANNED_AT_ONCE = 128  # series, so that what is computed of them stays in the cache of the processor
_LOCATION_SIMULATIONS = 200
_LOCATED_FROM = 0.1  # larger p-values: the interval of the onset is the whole series
AUTOCORRELATIONS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.98, 1.0)
_EDGE = 0.05  # of the series on both sides, where no shift is sought
_WINSOR_SIGMAS = 4.0
_MEDIAN_REACH = 5
_MAX_EFFECT = 1e6  # standard deviations; a series without noise would give infinitely many
_ESTIMATE_QUANTILE = 0.1
_SEED = 20_240_611
_SIMULATED_AT_ONCE = 4000
_SMALLEST_LOG = math.log(1e-12)
_TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True)
class ChangePoint:
    """The likeliest change of a series.

    `p_value` is that of the series alone; adjust it when several are tested. `before` and `after` are
    the medians around a shift, or the ends of the fitted kinked line. `effect_sd` is their difference in
    standard deviations of the residuals. `onset` is the place of the shift; for a trend, that of the kink
    from which a flat line rises or falls. It is an index into the series that was tested.
    """

    kind: Kind
    p_value: float
    before: float
    after: float
    effect_sd: float
    onset: Onset

    @property
    def is_large(self) -> bool:
        """At least one standard deviation of the noise."""
        return abs(self.effect_sd) >= MIN_EFFECT_SD

    def is_notable(self, alpha: float) -> bool:
        """Significant and large enough to matter."""
        return self.p_value <= alpha and self.is_large


def exactly(place: int | np.integer[Any]) -> Onset:
    """An onset that is known exactly."""
    return Onset(int(place), int(place), int(place))


def onset_at(steps: Steps, onset: Onset) -> Onset:
    """The steps of an onset that is given by indices into `steps`."""
    return Onset(int(steps[onset.step]), int(steps[onset.low]), int(steps[onset.high]))


def find_change_point(values: Floats) -> ChangePoint | None:
    """Test a series of finite values for a trend or a level shift. None: fewer than MIN_POINTS.

    The series may have any length; beyond MAX_POINTS the onset is exact to a block of
    ceil(n / MAX_POINTS) values.
    """
    n = len(values)
    if n < MIN_POINTS:
        return None
    width = -(-n // MAX_POINTS)
    blocks = _block_means(values, width)
    centred = _without_spikes(blocks)
    centred = centred - centred.mean()
    if not np.any(np.abs(centred) > 1e-12 * float(np.abs(blocks).max())):
        level = float(values[0])
        return ChangePoint("shift", 1.0, level, level, 0.0, Onset(0, 0, n - 1))
    scan = _scan(centred[None])
    null = _null_for(len(blocks), float(scan.autocorrelation_N[0]))
    p_value = null.p_value(scan.statistics_KN[:, 0])
    which = int(scan.statistics_KN[1, 0] >= scan.statistics_KN[0, 0])
    place = int(scan.places_KN[which, 0])
    low, high = 0, len(blocks) - 1
    if p_value <= _LOCATED_FROM:
        low, high = _interval_of_place(KINDS[which], centred, place, null.autocorrelation)
    template = _bank(len(blocks), KINDS[which]).templates[place]
    if KINDS[which] == "shift":
        before, after = median(blocks[:place]), median(blocks[place:])
    else:
        before, after = (blocks.mean() + (template @ blocks) * template[[0, -1]]).tolist()
    sd = float((centred - template * (template @ centred)).std()) or _TINY
    return ChangePoint(
        KINDS[which],
        p_value,
        before,
        after,
        max(-_MAX_EFFECT, min((after - before) / sd, _MAX_EFFECT)),
        Onset(place * width, low * width, min(high * width + width - 1, n - 1)),
    )


def find_offset(values: Floats) -> tuple[float, float] | None:
    """(p-value, mean in standard deviations) of the hypothesis that `values` are about 0 throughout.

    A t-test with as many values as an AR(1) holds independent ones, its autocorrelation corrected as in
    `find_change_point`; a random walk is about 0 by definition. Student's distribution is brought to the
    normal one by Wallace (1959, Annals of Mathematical Statistics 30). None: fewer than MIN_POINTS.
    """
    n = len(values)
    if n < MIN_POINTS:
        return None
    blocks = _without_spikes(_block_means(values, -(-n // MAX_POINTS)))
    sd, mean = float(blocks.std()), float(blocks.mean())
    if sd <= 1e-12 * abs(mean) or sd == 0:
        return (0.0, math.copysign(_MAX_EFFECT, mean)) if mean else (1.0, 0.0)
    measured = _scan((blocks - mean)[None]).autocorrelation_N[0]
    phi = _null_for(len(blocks), float(measured)).autocorrelation
    free = len(blocks) * (1 - phi) / (1 + phi) - 1
    if free < 1:
        return 1.0, max(-_MAX_EFFECT, min(mean / sd, _MAX_EFFECT))
    z = (8 * free + 1) / (8 * free + 3) * math.sqrt(free * math.log1p((mean / sd) ** 2))
    return math.erfc(z / math.sqrt(2)), max(-_MAX_EFFECT, min(mean / sd, _MAX_EFFECT))


def find_bend(x: npt.ArrayLike, y: npt.ArrayLike) -> int:
    """The place at which two lines that meet there fit best."""
    places, values = np.asarray(x, float), np.asarray(y, float)
    best, chosen = math.inf, 0
    for place in range(0, len(values) - 1, max(1, len(values) // MAX_POINTS)):
        columns = [np.ones(len(places)), np.maximum(places - places[place], 0.0)]
        if place > 1:
            columns.append(np.minimum(places, places[place]))
        design = np.stack(columns, 1)
        found = np.linalg.lstsq(design, values, rcond=None)[0]
        left = float(((design @ found - values) ** 2).sum()) * (1 + len(columns) / len(values))
        if left < best:
            best, chosen = left, place
    return chosen


def flat(onset: Onset | None) -> dict[str, int | None]:
    """The onset and its 95 % interval as fields of a JSON record."""
    step, low, high = (None, None, None) if onset is None else (onset.step, onset.low, onset.high)
    return {"onset": step, "onset_low": low, "onset_high": high}


def effect_text(effect: float) -> str:
    """An effect in standard deviations, as text."""
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


class _Scan(NamedTuple):
    """The best fit of each kind to each series, and the autocorrelation that the better kind leaves."""

    places_KN: Indices
    statistics_KN: Floats
    autocorrelation_N: Floats


@dataclass(frozen=True)
class _Null:
    """Upper tails of the statistics of series in which nothing changes, from a table of simulations.

    `statistics_KL` are the statistics whose p-value is `levels_L`, falling; `smaller_L` is the chance that
    the smaller p-value of both kinds is at most the level.
    """

    autocorrelation: float
    low_estimate: float
    levels_L: Floats
    statistics_KL: Floats
    smaller_L: Floats

    def p_value(self, statistics_K: Floats) -> float:
        pairs = zip(self.statistics_KL, statistics_K, strict=True)
        smallest = min(_log_interpolated(float(x), known, self.levels_L) for known, x in pairs)
        rising = slice(None, None, -1)
        return min(1.0, _log_interpolated(smallest, self.levels_L[rising], self.smaller_L[rising]))


def _log_interpolated(x: float, known: Floats, values: Floats) -> float:
    """`values` at `x` on a doubly logarithmic scale; beyond the rising `known` along the outermost slope."""
    places, logs, at = np.log(known), np.log(values), math.log(max(x, _TINY))
    if at <= places[0]:
        slope = (logs[1] - logs[0]) / (places[1] - places[0])
        return math.exp(min(logs[0] + slope * (at - places[0]), 0.0))
    if at >= places[-1]:
        slope = (logs[-1] - logs[-3]) / (places[-1] - places[-3])
        return math.exp(max(logs[-1] + slope * (at - places[-1]), _SMALLEST_LOG))
    return math.exp(float(np.interp(at, places, logs)))


def _null_for(points: int, measured: float) -> _Null:
    for place in range(len(AUTOCORRELATIONS)):
        null = _null(points, place)
        if null.low_estimate >= measured:
            break
    return null


@lru_cache(maxsize=1)
def _table() -> npt.NDArray[np.void]:
    """The simulated nulls, which benchmarks/change_point_nulls.py writes: a record with a field for each of
    the statistics, which it has for each length (N) of series, autocorrelation (A), kind and level.
    """
    return np.asarray(np.load(Path(__file__).with_suffix(".npy")))


@lru_cache(maxsize=256)
def _null(points: int, place: int) -> _Null:
    """The null of a length between two of the table, by interpolation over the logarithm of the length."""
    table = _table()
    lengths = table["points_N"]
    after = int(np.clip(np.searchsorted(lengths, points), 1, len(lengths) - 1))
    low, high = np.log(lengths[after - 1 : after + 1])
    weight = float(np.clip((math.log(points) - low) / (high - low), 0, 1))

    def between(name: str) -> Floats:
        pair = table[name][after - 1 : after + 1, place]
        return np.asarray((1 - weight) * pair[0] + weight * pair[1], float)

    statistics_KL = np.exp(between("log_statistics_NAKL"))
    estimate, smaller_L = float(between("low_estimate_NA")), between("smaller_NAL")
    return _Null(AUTOCORRELATIONS[place], estimate, table["levels_L"], statistics_KL, smaller_L)


def simulated_null(points: int, autocorrelation: float, levels_L: Floats, count: int) -> dict[str, Floats]:
    """What the table holds of one length and autocorrelation, from `count` simulations."""
    statistics, estimates = [], []
    rng = np.random.default_rng((_SEED, points, round(1000 * autocorrelation)))
    for _ in range(-(-count // _SIMULATED_AT_ONCE)):
        series = simulate_autoregression(rng, _SIMULATED_AT_ONCE, points, autocorrelation)
        scan = _scan(series - series.mean(axis=1, keepdims=True))
        statistics.append(scan.statistics_KN)
        estimates.append(scan.autocorrelation_N)
    statistics_KN = np.concatenate(statistics, axis=1)
    total = statistics_KN.shape[1]
    ordered_KN = np.sort(statistics_KN, axis=1)
    at_KL = np.quantile(ordered_KN, 1 - levels_L, axis=1).T
    below = np.stack([np.searchsorted(o, s) for o, s in zip(ordered_KN, statistics_KN, strict=True)])
    smaller = np.sort(((1 + total - below) / (1 + total)).min(axis=0))
    return {
        "log_statistics_NAKL": np.log(np.maximum(at_KL, _TINY)),
        "smaller_NAL": np.searchsorted(smaller, levels_L, side="right") / total,
        "low_estimate_NA": np.asarray(np.quantile(np.concatenate(estimates), _ESTIMATE_QUANTILE)),
    }


def _scan(centred_NP: Floats) -> _Scan:
    """Fit every ramp and every step to every series; each has mean 0."""
    points = centred_NP.shape[1]
    blocks = []
    for first in range(0, len(centred_NP), _SCANNED_AT_ONCE):
        block = centred_NP[first : first + _SCANNED_AT_ONCE]
        step_products = np.cumsum(block[:, ::-1], axis=1)[:, ::-1]
        ramp_products = np.zeros_like(block)
        ramp_products[:, :-1] = np.cumsum(step_products[:, :0:-1], axis=1)[:, ::-1]
        ramps = _best_fit(block, _bank(points, "trend"), ramp_products)
        steps = _best_fit(block, _bank(points, "shift"), step_products)
        places, statistics, left = map(np.stack, zip(ramps, steps, strict=True))
        blocks.append((places, statistics, np.where(statistics[1] >= statistics[0], left[1], left[0])))
    return _Scan(*(np.concatenate(parts, axis=-1) for parts in zip(*blocks, strict=True)))


@dataclass(frozen=True)
class _Bank:
    """Templates of mean 0 and length 1, one for each place; `scale` is 1 / the length before that.

    Where a place is too near the edge, template and scale are 0.
    """

    templates: Floats
    scale: Floats


def _best_fit(centred_NP: Floats, bank: _Bank, products_NP: Floats) -> tuple[Indices, Floats, Floats]:
    """(place, statistic, residual autocorrelation) of the best template of a bank, of each series.

    `products_NP` are the products of the series with the unscaled templates of all places.
    """
    along = products_NP * bank.scale
    place = (along**2).argmax(axis=1)
    best = along[np.arange(len(centred_NP)), place]
    share = np.minimum(best**2 / np.maximum((centred_NP**2).sum(axis=1), _TINY), 1 - 1e-12)
    residual = centred_NP - best[:, None] * bank.templates[place]
    power = np.maximum((residual**2).sum(axis=1), _TINY)
    # Thresholds that keep the division below finite.
    phi = np.clip((residual[:, 1:] * residual[:, :-1]).sum(axis=1) / power, -0.9, 0.999)
    return place, share / (1 - share) * (1 - phi) / (1 + phi), phi


def _shift_places(points: int) -> tuple[int, int]:
    edge = max(3, int(_EDGE * points))
    return edge, points - edge + 1


@lru_cache(maxsize=8)
def _bank(points: int, kind: Kind) -> _Bank:
    """Steps, or ramps: flat until the kink, then a line; a kink at 0 is a plain trend."""
    first, last = _shift_places(points)
    first = 0 if kind == "trend" else first
    templates, scale = np.zeros((points, points)), np.zeros(points)
    inner = templates[first:last]  # in place: for new arrays the system would have to make pages each time
    np.subtract(np.arange(points, dtype=float), np.arange(first, last)[:, None], out=inner)
    if kind == "trend":
        np.maximum(inner, 0, out=inner)
    else:
        np.greater_equal(inner, 0, out=inner)
    inner -= inner.mean(axis=1, keepdims=True)
    scale[first:last] = 1 / np.sqrt((inner * inner).sum(axis=1))
    inner *= scale[first:last, None]
    return _Bank(templates, scale)


def _interval_of_place(kind: Kind, centred: Floats, place: int, autocorrelation: float) -> tuple[int, int]:
    """The 95 % interval of the place: where fits to simulations of the fitted series find it."""
    templates = _bank(len(centred), kind).templates
    fit = templates[place] * (templates[place] @ centred)
    noise = _noise_along_templates(len(centred), kind, autocorrelation)
    found = ((templates @ fit + noise * (centred - fit).std()) ** 2).argmax(axis=1)
    low, high = np.quantile(found, (0.025, 0.975), method="inverted_cdf")
    return min(int(low), place), max(int(high), place)


@lru_cache(maxsize=16)  # the signals of a run have one length and few autocorrelations
def _noise_along_templates(points: int, kind: Kind, autocorrelation: float) -> Floats:
    """The products of `_LOCATION_SIMULATIONS` simulated series with the templates of all places."""
    rng = np.random.default_rng((_SEED, 0))
    noise = simulate_autoregression(rng, _LOCATION_SIMULATIONS, points, min(autocorrelation, 0.99))
    return np.asarray(noise @ _bank(points, kind).templates.T, float)


def _block_means(values: Floats, width: int) -> Floats:
    if width == 1:
        return np.asarray(values, float)
    starts = np.arange(0, len(values), width)
    return np.asarray(np.add.reduceat(values, starts) / np.diff(np.append(starts, len(values))), float)


def median_deviation(deviations: Floats) -> float:
    """The standard deviation of normal `deviations` from 0, by the median of their sizes."""
    return 1.4826 * median(np.abs(deviations))


def _without_spikes(values: Floats) -> Floats:
    """`values`, no farther from their running median than 4 robust standard deviations of the distance."""
    padded = np.pad(values, _MEDIAN_REACH, mode="reflect")
    centre = medians(np.lib.stride_tricks.sliding_window_view(padded, 2 * _MEDIAN_REACH + 1))
    reach = _WINSOR_SIGMAS * median_deviation(values - centre)
    return values if reach == 0 else np.asarray(np.clip(values, centre - reach, centre + reach), float)
