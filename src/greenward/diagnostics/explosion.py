"""Gradient explosions and spikes: norms that leave their scale, for good or for a moment."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change import find_change
from greenward.diagnostics.signals import large_where

Floats = npt.NDArray[np.float64]

EXPLOSION_RATIO = 3.0  # to the median before
SPIKE_RATIO = 3.0  # to the median around
SPIKE_SIGMAS = 8.0
_SPIKE_REACH = 25  # steps on both sides
_SUSTAINED_SHARE = 0.5


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
    whether most steps since then are above three times the median before. `onset` and its 95 % interval
    are steps.
    """

    onset: int
    onset_low: int
    onset_high: int
    ratio: float
    log_slope: float
    sustained: bool
    p_value: float


def find_spikes(steps: npt.NDArray[np.int64], values: Floats) -> list[Spike]:
    """Values above 3 times the median of the 25 steps on both sides, and 8 robust sigmas over it.

    The ratio holds back where the surroundings hardly vary: 2 times a quiet median is no spike.
    """
    if len(values) < 2 * _SPIKE_REACH + 1:
        return []
    padded = np.pad(values, _SPIKE_REACH, mode="reflect")
    around = np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * _SPIKE_REACH + 1), axis=1)
    excess = values - around
    sigma = max(1.4826 * float(np.median(np.abs(excess))), float(np.finfo(float).tiny))
    found = (around > 0) & (values > SPIKE_RATIO * around) & (excess > SPIKE_SIGMAS * sigma)
    return [
        Spike(int(steps[i]), float(values[i]), float(values[i] / around[i]), float(excess[i] / sigma))
        for i in np.flatnonzero(found)
    ]


def first_out_of_scale(log_norms: Floats, onset: int) -> int:
    """The index at which norms left their scale for the change that was found at `onset`.

    A test finds the largest step up. Norms directly before it that are above 3 times the median of all
    before are the beginning of the explosion.
    """
    limit = float(np.median(log_norms[:onset])) + np.log(EXPLOSION_RATIO) if onset else np.inf
    while onset > 0 and log_norms[onset - 1] > limit:
        onset -= 1
    return onset


def find_explosion(steps: npt.NDArray[np.int64], norms: Floats, *, alpha: float = 0.05) -> Explosion | None:
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
    change = find_change(logs)
    if change is None or not change.is_notable(alpha) or change.effect_sd < 0 or change.onset == 0:
        return None
    before = float(np.median(logs[: change.onset]))
    tenth = slice(-max(1, len(logs) // 10), None)
    last = float(np.median(logs[tenth]))
    if last - before < np.log(EXPLOSION_RATIO):
        return None
    out_of_scale = logs > before + np.log(EXPLOSION_RATIO)
    onset = first_out_of_scale(logs, change.onset)
    since = logs[onset:]
    slope = float(np.polyfit(steps[onset:], since, 1)[0]) if len(since) > 1 else 0.0
    return Explosion(
        int(steps[onset]),
        int(steps[min(onset, change.onset_low)]),
        int(steps[change.onset_high]),
        float(np.exp(last - before)) if finite[tenth].mean() > 0.5 else math.inf,
        slope,
        bool(out_of_scale[onset:].mean() >= _SUSTAINED_SHARE),
        change.p_value,
    )
