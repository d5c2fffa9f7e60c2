"""Quantities that must not grow: explosions and spikes of gradient norms, and memory that is never freed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change_points import (
    MIN_POINTS,
    Floats,
    Steps,
    exactly,
    find_change_point,
    onset_at,
)
from greenward.intervals import Z_95
from greenward.reports.document import Onset

EXPLOSION_RATIO = 3.0  # to the median before
SPIKE_RATIO = 3.0  # to the median around
SPIKE_SIGMAS = 8.0
MIN_GROWTH_FACTOR = 1.1
MEMORY_RATIO = 1.25  # between two runs; the same run repeated varies by a few percent
_NOT_FINITE_RATIO = 10.0  # how many times the largest finite norm a norm that is not finite counts as
_SPIKE_REACH = 25  # steps on both sides
_BEGINNING = 5  # steps
_SUSTAINED_SHARE = 0.5
_LASTING = 0.05  # of the steps, for which the memory of two runs must differ up to the end
_WARM_UP = 0.1  # of the run: allocators and caches fill up
_ENVELOPE_POINTS = 60
_QUARTER_SHARE = 0.12  # of the growth, which each quarter after the onset must add to the one before
_MIDWAY = 0.15  # of the run; what begins to grow earlier grows from the start
_BURST_RATIO = 4.0  # to the median of the run
_BURST_STEPS = 5


@dataclass(frozen=True)
class Spike:
    """One value far above its surroundings: how many times their median, how many robust sigmas."""

    step: int
    value: float
    ratio: float
    sigmas: float


@dataclass(frozen=True)
class Explosion:
    """A norm that grew. `ratio` is the median of the last tenth to that before the onset, which may be inf.

    `log_slope` is the growth of the natural logarithm per step from the onset on. `sustained` says
    whether most steps since then are above three times the median before.
    """

    onset: Onset
    ratio: float
    log_slope: float
    sustained: bool
    p_value: float


@dataclass(frozen=True)
class MemoryGrowth:
    """The growth of memory over a run.

    `factor` is the fitted memory at the last step over that at the first one (`at_start`), with its 95 %
    interval; warm-up is not in the fit. `per_step` is the slope in the unit of the series. `steps_to_limit`
    counts from the last step until the line meets the limit, None without one, or without growth. `onset` is
    the first step that grows.
    """

    at_start: float
    factor: float
    factor_low: float
    factor_high: float
    per_step: float
    p_value: float
    steps_to_limit: float | None
    is_leak: bool
    onset: Onset


def large_where(not_finite: npt.NDArray[np.bool_], norms: Floats) -> Floats:
    """`norms` with ten times the largest finite norm where `not_finite`.

    A norm that is NaN or infinite has exploded. If it were left out, too few norms after an explosion
    would remain to date it.
    """
    finite = norms[np.isfinite(norms)]
    return np.where(not_finite, _NOT_FINITE_RATIO * finite.max(), norms) if len(finite) else norms


def find_spikes(steps: Steps, values: Floats) -> list[Spike]:
    """Values above 3 times the median of the 25 steps on both sides, and 8 robust sigmas over it.

    The ratio keeps small deviations from surroundings that hardly vary out of the list. The first 5 values
    are no spikes, however high: a run begins with large gradients, and the median around is of later ones.
    """
    if len(values) < 2 * _SPIKE_REACH + 1:
        return []
    padded = np.pad(values, _SPIKE_REACH, mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * _SPIKE_REACH + 1), axis=1)
    excess = values - around
    sigma = max(1.4826 * float(np.median(np.abs(excess))), float(np.finfo(float).tiny))
    found = (around > 0) & (values > SPIKE_RATIO * around) & (excess > SPIKE_SIGMAS * sigma)
    found[:_BEGINNING] = False
    return [
        Spike(int(steps[i]), float(values[i]), float(values[i] / around[i]), float(excess[i] / sigma))
        for i in np.flatnonzero(found)
    ]


def first_out_of_scale(log_norms: Floats, onset: Onset) -> Onset:
    """The place at which norms left their scale for the change that was found at `onset`.

    A test finds the largest step up. Norms directly before it that are above 3 times the median of all
    before are the beginning of the explosion.
    """
    first = onset.step
    limit = float(np.median(log_norms[:first])) + np.log(EXPLOSION_RATIO) if first else np.inf
    while first > 0 and log_norms[first - 1] > limit:
        first -= 1
    return Onset(first, min(first, onset.low), onset.high)


def find_explosion(steps: Steps, norms: Floats, *, alpha: float = 0.05) -> Explosion | None:
    """Test the logarithms of `norms` for a rise to at least 3 times the median before it.

    Norms of 0 (steps without a gradient) say nothing about growth and are left out. One that is not a
    finite number is larger than all that are: it counts as ten times the largest of them. None: no
    explosion, or fewer than MIN_POINTS norms of both kinds.
    """
    finite = np.isfinite(norms)
    counted = ~finite | (norms > 0)
    steps, norms, finite = steps[counted], norms[counted], finite[counted]
    if not finite.any():
        return None
    logs = np.log(large_where(~finite, norms))
    change = find_change_point(logs)
    if change is None or not change.is_notable(alpha) or change.effect_sd < 0 or change.onset.step == 0:
        return None
    before = float(np.median(logs[: change.onset.step]))
    tenth = slice(-max(1, len(logs) // 10), None)
    last = float(np.median(logs[tenth]))
    if last - before < np.log(EXPLOSION_RATIO):
        return None
    out_of_scale = logs > before + np.log(EXPLOSION_RATIO)
    onset = first_out_of_scale(logs, change.onset)
    since = slice(onset.step, None)
    slope = float(np.polyfit(steps[since], logs[since], 1)[0]) if len(logs[since]) > 1 else 0.0
    return Explosion(
        onset_at(steps, onset),
        float(np.exp(last - before)) if finite[tenth].mean() > 0.5 else math.inf,
        slope,
        bool(out_of_scale[since].mean() >= _SUSTAINED_SHARE),
        change.p_value,
    )


def measure_memory_growth(
    steps: Steps, memory: Floats, *, limit: float | None = None, alpha: float = 0.05
) -> MemoryGrowth | None:
    """Fit a line to the lower envelope of `memory` from where it begins to grow. None: too few values.

    The smallest value of each stretch of steps forgets the peaks of long batches and keeps what is never
    freed. A leak is significant (AR(1) null), grows by a tenth or more, and goes on in each quarter of what
    follows its onset, evenly or in steps: a cache that fills up, or single allocations that are kept, are
    none.
    """
    skipped = int(_WARM_UP * len(memory))
    at, low = lower_envelope(steps[skipped:], memory[skipped:])
    change = find_change_point(low)
    if change is None:
        return None
    since = change.onset.step if change.onset.step > _MIDWAY * len(low) else 0
    if _goes_on(low):
        since = 0 if not since or _goes_on(low[:since]) else since
    at, low, before = at[since:], low[since:], low[:since]
    slope, slope_low, slope_high = theil_sen(at, low)
    middle = float(np.median(low - slope * (at - np.median(at))))
    centre = float(np.median(at))
    first, last = float(at[0] if since else steps[0]) - centre, float(steps[-1]) - centre
    level = float(np.median(before)) if since else middle + slope * first

    def factor(rate: float) -> float:
        start = level if since else middle + rate * first
        return (middle + rate * last) / start if start > 0 else np.inf

    remaining = None if limit is None or slope <= 0 else max(0.0, (limit - middle - slope * last) / slope)
    grows = slope > 0 and factor(slope) >= MIN_GROWTH_FACTOR and _goes_on(low)
    dated = exactly(steps[0])
    if since:
        every = (int(steps[-1]) - int(steps[skipped])) / max(since + len(at) - 1, 1)
        places = (since, min(since, change.onset.low), max(since, change.onset.high))
        dated = Onset(*(int(steps[skipped] + every * place) for place in places))
    return MemoryGrowth(
        level,
        factor(slope),
        factor(slope_low),
        factor(slope_high),
        slope,
        change.p_value,
        remaining,
        bool(grows and change.p_value <= alpha),
        dated,
    )


def _goes_on(low: Floats) -> bool:
    """Whether each quarter adds to the growth."""
    if len(low) < 8:
        return False
    medians = np.array([np.median(part) for part in np.array_split(low, 4)])
    return bool(
        medians[-1] > medians[0] and (np.diff(medians) >= _QUARTER_SHARE * (medians[-1] - medians[0])).all()
    )


@dataclass(frozen=True)
class Burst:
    """Norms that left their scale for a stretch of steps and came back."""

    onset: Onset
    last: int
    ratio: float
    steps: int


def find_burst(steps: Steps, norms: Floats) -> Burst | None:
    """The longest stretch of norms above 4 times the median of the run: 5 steps or more, under a half."""
    positive = norms > 0
    steps, norms = steps[positive], norms[positive]
    if len(norms) < MIN_POINTS:
        return None
    middle = float(np.median(norms))
    # One norm in between may be usual.
    high = np.convolve(norms > _BURST_RATIO * middle, np.ones(3) / 3, "same") > 0.5
    stretches = np.flatnonzero(np.diff(high.astype(int), prepend=0, append=0)).reshape(-1, 2)
    if not len(stretches):
        return None
    first, end = max(stretches.tolist(), key=lambda one: one[1] - one[0])
    before, after = norms[:first], norms[end:]
    if not _BURST_STEPS <= end - first < len(norms) / 2 or min(len(before), len(after)) < _BURST_STEPS:
        return None
    if not 1 / _BURST_RATIO < np.median(after) / np.median(before) < _BURST_RATIO:
        return None  # it did not come back
    onset = Onset(int(steps[first]), int(steps[max(first - 1, 0)]), int(steps[min(first + 1, end - 1)]))
    return Burst(onset, int(steps[end - 1]), float(np.median(norms[first:end]) / middle), end - first)


def first_memory_difference(a: Floats, b: Floats) -> int | None:
    """The index from which the memory of two runs differs by MEMORY_RATIO up to the end; None: nowhere."""
    known = np.flatnonzero((a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b))
    if not len(known):
        return None
    close = np.abs(np.log(b[known] / a[known])) < np.log(MEMORY_RATIO)
    first = int(np.flatnonzero(close)[-1]) + 1 if close.any() else 0
    lasts = len(known) - first >= max(1, _LASTING * len(known))
    return int(known[first]) if lasts else None


def lower_envelope(steps: Steps, values: Floats) -> tuple[Floats, Floats]:
    """(middle step, smallest value) of about 60 stretches, fewer for short series but at least 30."""
    if len(values) < MIN_POINTS:
        return steps.astype(float), values
    width = max(1, len(values) // _ENVELOPE_POINTS)
    count = len(values) // width
    newest = slice(len(values) - count * width, None)
    stretches = steps[newest].astype(float).reshape(count, width)
    return stretches.mean(axis=1), values[newest].reshape(count, width).min(axis=1)


def theil_sen(x: Floats, y: Floats) -> tuple[float, float, float]:
    """The median of all pairwise slopes (Theil 1950) with Sen's 95 % interval for independent errors."""
    i, j = np.triu_indices(len(x), 1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    n = len(x)
    reach = Z_95 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = (int(np.clip((len(slopes) + side * reach) / 2, 0, len(slopes) - 1)) for side in (-1, 1))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
