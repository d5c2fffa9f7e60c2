"""Tests of the update: what is clipped, which rate it has, how far the sampler is from the learner, and
whether anything is learned at all.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from greenward.diagnostics.change_points import MIN_POINTS, exactly
from greenward.diagnostics.findings import gap_of
from greenward.diagnostics.signal_tests import (
    Result,
    Thresholds,
    find_signal_change,
    first_frequent,
    late_mean,
    median_of_part,
    moves_to,
    not_made,
    onset_of,
)
from greenward.diagnostics.signals import GREEDY_PASS_RATE, HELD_OUT, PASS_RATE, REWARD, Floats, RunSignals
from greenward.intervals import Z_95

CLIPPED_SHARE, CLIPPED_RATIO = 0.98, 2.0  # of the steps; of the median norm to the limit
_LIMITS = ("training.max_grad_norm", "max_grad_norm", "actor.optim.grad_clip", "optim.max_norm")
VANISHED = 0.05  # of the norm before
SCALE_JUMP = 1.6  # of the spread of the rewards
RATE_JUMP, RATE_FALL = 1.5, 0.5  # from one step to the next, once the warm-up is over
_ONE_FALL = 0.34  # of the peak, from one value to the next
_TROUGH = 0.4  # of the peak; a cycle that turns above it was cut off
_PERIOD_ERROR = 0.05
LEARNED = 0.05  # of a rate, or 15 % of what is missing to 1; or a tenth of the spread of the rewards
_ROOM = 0.15
_SPREAD_LEARNED = 0.1
LEARNING_FROM = 100  # steps; a shorter run may not have begun to learn
_SATURATED = 0.9
_AROUND = 15  # steps on both sides of a jump
_FEW = 5


def vanished(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Norms that are 0 at many steps, or that fell to a small part of what they were and stayed there."""
    steps, norms = run.series(signal)
    zero = norms == 0
    for first in (0, len(norms) // 2):  # a fault of the second half is not outvoted by the first
        if zero[first:].mean() > 0.4:
            text = f"{signal} is 0 at {zero[first:].mean():.0%} of {len(norms) - first} steps."
            return Result(True, {"text": text}, onset=exactly(steps[first_frequent(zero) or zero.argmax()]))
    change = find_signal_change(run, signal)
    if change is None:
        return not_made(gap_of(run, signal))
    earlier = norms[(steps < change.onset.step) & (norms > 0)]
    last = median_of_part(norms[norms > 0], 0.9, 1)
    before = float(np.median(earlier)) if len(earlier) else 0.0
    found = before > 0 and last < VANISHED * before
    text = f"{signal} fell from {before:.3g} to {last:.3g}, {last / before if before else 0:.1%} of it."
    return Result(found, {"text": text}, onset=change.onset, p_value=change.p_value, change=change)


def always_clipped(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Norms far above the limit of clipping at nearly every step, or that are logged as the limit itself."""
    _steps, norms = run.series(signal)
    limit = next((run.settings[key] for key in _LIMITS if run.settings.get(key) is not None), None)
    late = norms[len(norms) // 10 :]
    if isinstance(limit, (int, float)) and 0 < limit < math.inf:
        share, middle = float((late > limit).mean()), float(np.median(late))
        text = (
            f"{signal} is above the limit of {limit:g} at {share:.0%} of the steps, "
            f"{middle / limit:.3g} times it in the median."
        )
        return Result(share >= CLIPPED_SHARE and middle >= CLIPPED_RATIO * limit, {"text": text})
    top = float(late.max())
    share = float(np.isclose(late, top, rtol=1e-3).mean()) if top > 0 else 0.0
    text = (
        f"{signal} is {top:.4g}, its largest value, at {share:.0%} of the steps: it is logged after clipping."
    )
    return Result(share > 0.9, {"text": text})


def rate_jumps(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A learning rate that jumps, or begins anew, after its warm-up, unless its schedule is periodic."""
    steps, rates = run.series(signal)
    if (rates <= 0).all():
        return Result()
    rises = np.flatnonzero(rates[1:] <= rates[:-1] * (1 + 1e-9))
    top = int(rises[0]) if len(rises) else len(rates) - 1  # the end of the warm-up
    since = np.maximum(rates[top:], 1e-300)
    if len(since) < 3:
        return Result()
    with np.errstate(over="ignore"):
        ratios = since[1:] / since[:-1]
    ended = np.arange(1, len(since)) >= 0.97 * len(since)  # schedules end at 0
    fell = np.flatnonzero((ratios < RATE_FALL) & ~ended & (since[:-1] > 0.02 * since[0]))
    lowest = np.minimum.accumulate(since)
    rose = np.flatnonzero((since > RATE_JUMP * lowest) & (since > 0.02 * since[0]))
    places = [int(found[0]) + shift for found, shift in ((fell, 1), (rose, 0)) if len(found)]
    if not places or not len(rose) or is_periodic(rates, top):
        return Result()
    first = min(places)
    while first > 1 and since[first - 1] > since[first - 2] * (1 + 1e-6):
        first -= 1  # the beginning of a rise in small steps
    place = top + first
    after = float(rates[place:].max())
    before, at = float(rates[place - 1]), float(rates[place])
    rise = f" and jumped to {at:.3g}" if at > 0.95 * after else f", then {at:.3g}, and rose to {after:.3g}"
    numbers = {"before": before, "after": after, "rise": rise}
    return Result(True, numbers, onset=exactly(steps[place]))


def is_periodic(rates: Floats, top: int) -> bool:
    """Whether a learning rate rises again by design: in cycles that each fall gradually and return to the
    same or a lower peak (the first may be cut by the warm-up, which ends at `top`), two whole ones at least,
    each as long as the last one or so many times as long. Where a warm-up begins anew, the rate falls at
    once, or from amid its decay, or the first cycle is the only whole one.
    """
    turns, peaks, low, high = [], [float(rates[top])], top, top
    for place in range(top + 1, len(rates)):
        if high <= low and rates[place] < rates[low]:
            low = high = place
        elif rates[place] > rates[high]:
            high = place
        elif high > low and rates[place] < rates[high]:  # behind a peak
            if rates[high] > RATE_JUMP * rates[low]:
                turns.append(low)
                peaks.append(float(rates[high]))
            low = high = place
    if not turns:
        return False
    most, risen = peaks[0], np.array(peaks[1:])
    falls = all(rates[turn - 1] - rates[turn] < _ONE_FALL * most for turn in turns)
    is_low = max(rates[turn] for turn in turns) < _TROUGH * most
    returns = risen[0] < RATE_JUMP * most and (risen[1:] <= (1 + _PERIOD_ERROR) * risen[:-1]).all()
    if not (falls and is_low and returns):
        return False
    lasts: list[list[int]] = [[]]
    if rates[-1] < rates[turns[0]] + _PERIOD_ERROR * most:  # the last cycle may be whole, too
        lasts.append([len(rates) - turns[-1]])
    firsts: list[list[int]] = [[turns[0]], [turns[0] - top], []]  # with its warm-up, without, not whole
    inner = np.diff(turns).tolist()
    return any(_are_regular([*first, *inner, *last]) for first in firsts for last in lasts)


def _are_regular(lengths: list[int]) -> bool:
    """Whether there are two lengths or more, each as long as the last one or so many times as long."""
    factor = max(1, round(lengths[1] / max(lengths[0], 1))) if len(lengths) > 1 else 0
    pairs = zip(lengths[1:], lengths, strict=False)
    return factor > 0 and all(abs(b - factor * a) <= max(2, _PERIOD_ERROR * b) for b, a in pairs)


def scale_jumps(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Rewards whose size changes at once by a factor, while as many answers pass as before."""
    logged_steps, values = run.series(signal)
    steps, logs = (
        logged_steps[values > 0],
        np.log(values[values > 0]),
    )  # rewards that do not vary have no size
    if len(logs) < 2 * _AROUND:
        return Result()
    # All windows of a short series are looked at, about 2,000 of a long one.
    stride = min(max(1, len(logs) // 2000), _AROUND)
    medians = np.median(np.lib.stride_tricks.sliding_window_view(logs, _AROUND)[::stride], axis=1)
    apart = max(_AROUND // stride, 1)
    moves = medians[apart:] - medians[:-apart]
    place = int(np.abs(moves).argmax())
    best, place = float(moves[place]), (place + apart) * stride
    if abs(best) < math.log(SCALE_JUMP) or min(len(logs) - place, place) < _AROUND:
        return Result()
    spread = 1.4826 * float(np.median(np.abs(np.diff(logs)))) or 1e-9
    window = logs[place - _AROUND : place + _AROUND]  # the best fit of two levels to it
    counts, sums = np.arange(1, len(window)), (window - window.mean()).cumsum()[:-1]
    at = place - _AROUND + 1 + int((sums**2 / (counts * counts[::-1])).argmax())
    later, earlier = logs[at:], logs[max(0, at - 4 * _AROUND) : at]
    stays = np.sign(best) * (np.median(later) - np.median(earlier)) > 0.6 * abs(best)
    before, after = _beside(run, PASS_RATE, int(steps[at]))
    shift = abs(float(np.median(after) - np.median(before))) if len(before) and len(after) else 0.0
    sizes = [
        max(float(np.abs(np.mean(one))), 1e-12) for one in _beside(run, REWARD, int(steps[at])) if len(one)
    ]
    # A spread that shrinks because all answers pass leaves the mean as it is.
    grew = math.log(sizes[1] / sizes[0]) if len(sizes) == 2 else best
    stays = stays and np.sign(best) * grew > 0.5 * abs(best)
    fades = (values[logged_steps >= steps[at]] == 0).mean() > 0.1  # what is left of rewards is their end
    found = bool(stays and abs(best) > 6 * spread and shift < 0.1 and not fades)
    numbers = {"signal": signal, "factor": math.exp(best), "passing": shift}
    return Result(found, numbers, onset=exactly(steps[at]))


def _beside(run: RunSignals, name: str, step: int) -> tuple[Floats, Floats]:
    """The values of a signal directly before a step, and from it on."""
    steps, values = run.series(name)
    place = int(np.searchsorted(steps, step))
    return values[max(0, place - _AROUND) : place], values[place : place + _AROUND]


def clip_signals(run: RunSignals) -> list[str]:
    """The share of clipped tokens, or those of both sides where they were logged apart."""
    sides = [name for name in ("clip/high", "clip/low") if len(run.series(name)[1])]
    return sides if sides and not len(run.series("clip/fraction")[1]) else ["clip/fraction"]


def truncated(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that are cut off late in the run, dated by where their share changed."""
    result = late_mean(above=0.2)(run, signal, limits)
    if not result.found:
        return result
    steps, values = run.series(signal)
    began_low = values[: max(5, len(values) // 20)].mean() < 0.2
    onset = onset_of(run, signal) if began_low else None
    return replace(result, onset=onset or exactly(steps[values > 0.2][0]))


def entropy_rises(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Entropy that grows by half or more while the reward does not rise, from where the entropy rises on."""
    result = moves_to(above=1.5)(run, signal, limits)
    since = result.onset.step if result.onset else 0
    return Result() if result.found and rises_from(run, since) else result


def rises_from(run: RunSignals, step: int) -> bool:
    """Whether what is learned surely rises by what counts, from around a step to the last third since."""
    name, unit = _what_is_learned(run)
    steps, values = run.series(name)
    around = values[(steps > step - _AROUND) & (steps <= step + _AROUND // 2)]
    since = values[steps > step]
    if len(around) < _FEW or len(since) < _FEW:
        return False
    rise, error = _rise(around, since[-max(len(since) // 3, _FEW) :])
    return rise > max(Z_95 * error, unit)


def _what_is_learned(run: RunSignals) -> tuple[str, float]:
    """(the signal that tells what was learned, the rise of it that counts)."""
    # Exploration of Q-learning turns to what is unsolved, so that greedy programs tell what was learned.
    name = next((rate for rate in (GREEDY_PASS_RATE, PASS_RATE) if not run.too_short(rate)), REWARD)
    spread = run.series("reward/std")[1]
    scaled = name == REWARD and len(spread)
    return name, _SPREAD_LEARNED * float(np.median(spread)) if scaled else LEARNED


def learned(run: RunSignals) -> tuple[int, float, float, str, float]:
    """(1 rose, 0 neither, -1 fell or unknown; rise; its 95 % bound; signal; what would count as learning).

    The rise is from the mean of the first sixth, or of the first 5 values where these are surely lower by
    what counts, to that of the last third; its error is that of an AR(1).
    """
    name, unit = _what_is_learned(run)
    values = run.series(name)[1]
    if len(values) < MIN_POINTS:
        return -1, 0.0, 0.0, name, 0.0
    first, last = values[: max(len(values) // 6, _FEW)], values[-(len(values) // 3) :]
    rise, error = _rise(first, last)
    at_once, its_error = _rise(first[:_FEW], last)
    if at_once > max(3 * its_error, unit):  # a sixth of a run is enough to learn in
        rise, error = at_once, its_error
    bound = rise + Z_95 * error
    sign = 1 if rise > Z_95 * error else -1 if rise < -Z_95 * error else 0
    return sign, rise, bound, name, unit


def _rise(first: Floats, last: Floats) -> tuple[float, float]:
    """(the rise from the mean of some values to that of others, its error)."""
    rise = float(last.mean() - first.mean())
    residual = np.concatenate((first - first.mean(), last - last.mean()))
    variance = float(residual.var())
    phi = float(np.clip((residual[1:] * residual[:-1]).mean() / variance, 0, 0.95)) if variance else 0.0
    phi += (1 - phi) * 0.1  # the plain estimate is too small
    return rise, math.sqrt(variance * (1 + phi) / (1 - phi) * (1 / len(first) + 1 / len(last)))


def no_learning(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A run of which it is sure that it learned nothing to speak of: what would have been seen is stated."""
    sign, rise, bound, name, unit = learned(run)
    steps, values = run.series(name)
    if len(values) < LEARNING_FROM:
        return Result()
    start = float(values[: max(len(values) // 6, 5)].mean())
    if name != REWARD:
        unit = max(unit, _ROOM * (1 - start))
    saturated = name != REWARD and start > _SATURATED
    held_out = run.series(HELD_OUT)[1]
    rose_elsewhere = len(held_out) >= 2 and held_out[-1] - held_out[0] > LEARNED
    peak = max(float(part.mean()) for part in np.array_split(values, 6))
    numbers = {
        "signal": name,
        "start": start,
        "rise": rise,
        "bound": bound,
        "count": len(values),
        "unit": unit,
    }
    found = sign >= 0 and bound < unit and peak - start < unit and not saturated and not rose_elsewhere
    return Result(found, numbers, onset=exactly(steps[0]))


def group_signal_fades(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Groups that can teach, whose share falls to less than half."""
    change = find_signal_change(run, signal)
    if change is None:
        return not_made(gap_of(run, signal))
    values = run.series(signal)[1]
    last = median_of_part(values, 0.85, 1)
    found = change.is_large and change.after < change.before and last < 0.5 * change.before
    ratio = last / change.before if change.before else 0.0
    numbers = {"before": change.before, "after": last, "ratio": ratio}
    return Result(found, numbers, onset=change.onset, p_value=change.p_value, change=change)
