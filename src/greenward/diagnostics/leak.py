"""Memory leaks: the lower envelope of a memory curve that grows and goes on growing.

The smallest value of each stretch of steps forgets the peaks of long batches and keeps what is never
given back. The slope is that of Theil (1950) and Sen (1968), the median of the slopes of all pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change import MIN_POINTS, find_change

Floats = npt.NDArray[np.float64]

MIN_GROWTH_FACTOR = 1.1
MEMORY_RATIO = 1.25  # between two runs; the same run repeated varies by a few percent
_LASTING = 0.05  # of the steps, for which the memory of two runs must differ up to the end
_WARM_UP = 0.1  # of the run: allocators and caches fill up
_ENVELOPE_POINTS = 60
_LATE_SHARE = 0.25  # the second half must grow at least this fast, compared with the whole


@dataclass(frozen=True)
class MemoryGrowth:
    """The growth of memory over a run.

    `factor` is the fitted memory at the last step over that at the first one (`at_start`), with its 95 %
    interval; warm-up is not in the fit. `per_step` is the slope in the unit of the series. `steps_to_limit`
    counts from the last step until the line meets the limit, None without one, or without growth.
    """

    at_start: float
    factor: float
    factor_low: float
    factor_high: float
    per_step: float
    p_value: float
    steps_to_limit: float | None
    is_leak: bool


def measure_memory_growth(
    steps: npt.NDArray[np.int64], memory: Floats, *, limit: float | None = None, alpha: float = 0.05
) -> MemoryGrowth | None:
    """Fit a line to the lower envelope of `memory`. None: too few values after the warm-up.

    A leak is significant (AR(1) bootstrap), grows by a tenth or more over the run, and still grows in its
    second half: a cache that fills up and stays, or one allocation that is kept, is none.
    """
    skipped = int(_WARM_UP * len(memory))
    at, low = lower_envelope(steps[skipped:], memory[skipped:])
    change = find_change(low)
    if change is None:
        return None
    slope, slope_low, slope_high = theil_sen(at, low)
    centre, middle = float(np.median(at)), float(np.median(low - slope * (at - np.median(at))))
    first, last = float(steps[0]) - centre, float(steps[-1]) - centre

    def factor(rate: float) -> float:
        start = middle + rate * first
        return (middle + rate * last) / start if start > 0 else np.inf

    half = len(low) // 2
    halves = [theil_sen(at[part], low[part])[0] for part in (slice(None, half), slice(half, None))]
    goes_on = min(halves) >= _LATE_SHARE * slope
    remaining = None if limit is None or slope <= 0 else max(0.0, (limit - middle - slope * last) / slope)
    return MemoryGrowth(
        middle + slope * first,
        factor(slope),
        factor(slope_low),
        factor(slope_high),
        slope,
        change.p_value,
        remaining,
        bool(slope > 0 and change.p_value <= alpha and factor(slope) >= MIN_GROWTH_FACTOR and goes_on),
    )


def memory_parts(a: Floats, b: Floats) -> int | None:
    """The index from which the memory of two runs differs by MEMORY_RATIO up to the end; None: nowhere."""
    known = np.flatnonzero((a > 0) & (b > 0) & np.isfinite(a) & np.isfinite(b))
    if not len(known):
        return None
    close = np.abs(np.log(b[known] / a[known])) < np.log(MEMORY_RATIO)
    first = int(np.flatnonzero(close)[-1]) + 1 if close.any() else 0
    lasts = len(known) - first >= max(1, _LASTING * len(known))
    return int(known[first]) if lasts else None


def lower_envelope(steps: npt.NDArray[np.int64], values: Floats) -> tuple[Floats, Floats]:
    """(middle step, smallest value) of about 60 stretches, fewer for short series but at least 30."""
    width = max(1, len(values) // _ENVELOPE_POINTS)
    if len(values) < MIN_POINTS:
        return steps.astype(float), values
    count = len(values) // width
    cut = slice(len(values) - count * width, None)
    blocks, places = values[cut].reshape(count, width), steps[cut].astype(float).reshape(count, width)
    return places.mean(axis=1), blocks.min(axis=1)


def theil_sen(x: Floats, y: Floats) -> tuple[float, float, float]:
    """The median of all pairwise slopes with Sen's 95 % interval, which supposes independent errors."""
    i, j = np.triu_indices(len(x), 1)
    slopes = np.sort((y[j] - y[i]) / (x[j] - x[i]))
    n = len(x)
    reach = 1.959964 * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low = int(np.clip((len(slopes) - reach) / 2, 0, len(slopes) - 1))
    high = int(np.clip((len(slopes) + reach) / 2, 0, len(slopes) - 1))
    return float(np.median(slopes)), float(slopes[low]), float(slopes[high])
