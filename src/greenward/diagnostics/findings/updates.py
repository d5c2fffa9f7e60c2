"""Findings of updates: gradients, learning rate, KL, entropy, clipping, memory and throughput.

Tests of the training itself: gradients, KL, memory and the duration of steps.

Tests of the update: what is clipped, which rate it has, how far the sampler is from the learner, and
whether anything is learned at all.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from greenward.common.statistics import Z_95
from greenward.diagnostics.change_points import (
    MIN_POINTS,
    exactly,
    find_bend,
    find_change_point,
    flat,
    onset_at,
)
from greenward.diagnostics.finding import Gap, gap_of
from greenward.diagnostics.signal_tests import (
    Result,
    Thresholds,
    departure,
    find_burst,
    find_explosion,
    find_signal_change,
    find_spikes,
    first_frequent,
    lasting_change,
    late_mean,
    lines_of,
    measure_memory_growth,
    median_of_part,
    most_likely_start,
    moves_to,
    not_made,
    onset_of,
    rise_since,
    table_of,
)
from greenward.diagnostics.signals import (
    DEVICE_MEMORY,
    DURATION,
    GREEDY_PASS_RATE,
    HELD_OUT,
    OWN_SPEED,
    PASS_RATE,
    REWARD,
    RSS,
    Floats,
    RunSignals,
    own_speed,
)
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Series, Severity, duration, memory

_NO_MEMORY_LIMIT = Gap(
    "time to out-of-memory",
    "the memory of the machine is not known",
    "Give --memory-limit-mb, or run with a greenward that records it in provenance.json.",
)
REWARDS = (REWARD, "reward/code_score", "reward/correctness", "reward/readability", "reward/tests", PASS_RATE)
SKIPPED = "updates/non_finite"
MANY_SPIKES, FEWEST_SPIKES = 0.02, 3  # of the steps of the second half
SLOWED = 0.8  # of the tokens per second before
_STRETCHED = 0.65  # of the process's own speed: other programs stretch CPU time itself by up to 1.5 times
_WAITED = 1.1  # times as much is left of the process's own speed as of that by the clock
WARM_UP = 0.1  # of the steps; a drift that begins in it is a warning
HARMFUL_RATIO = 10.0  # times a gradient norm; less is critical where a reward falls after it
OFTEN_NOT_FINITE = 0.01  # of the steps, or the last one
CRITICAL_GROWTH = 1.5  # of the memory over the run; a smaller leak that meets the limit soon is critical, too
KL_GROWTH = 3.0  # of its last tenth over its first half
KL_FLOOR = 0.02  # added before the logarithm: smaller KL is noise
KL_ACCELERATION = 2.0  # growth of KL in the second half over that in the first
_SHOWN_SPIKES = 8
_SPIKES_IN_JSON = 100
_SHOWN_SIGNALS = 4
_MEMORY_COLUMNS = "Memory|First → last|Peak|Growth|A step|p|Limit|Full in"
_MEMORY_CELLS = (
    "{memory}|{first} → {last}|{peak}|{factor:.2f} × [{factor_low:.2f}, {factor_high:.2f}]|"
    "{per_step:+.3g} MiB|{p_value:.2g}|{limit}|{full_in}"
)
_MEMORY_CAPTION = (
    "Growth: the fitted line through the smallest values (Theil–Sen) at the last step over that at the "
    "first, after a warm-up of a tenth, with its 95 % interval. p: of the trend, of this test alone."
)
_MEMORIES = {RSS: "Resident memory", DEVICE_MEMORY: "Device memory"}


def not_finite(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Any signal that was logged as NaN or infinite, and updates that were skipped for it."""
    wrong = {name: run.not_finite(name) for name in run.values}
    if SKIPPED in run.values and (skipped := run.values[SKIPPED] > 0).any():
        wrong[SKIPPED] = skipped
    wrong = {name: places for name, places in wrong.items() if places.any()}
    if not wrong:
        return Result()
    anywhere = np.any(list(wrong.values()), axis=0)
    earliest = sorted(wrong, key=lambda name: (int(wrong[name].argmax()), name))
    parts = [
        f"{name} at {int(wrong[name].sum())} steps from {run.steps[wrong[name]][0]} on"
        for name in earliest[:_SHOWN_SIGNALS]
    ]
    others = len(earliest) - len(parts)
    more = f" and {others} other signals" if others else ""
    severe = anywhere.mean() >= OFTEN_NOT_FINITE or anywhere[-1]
    numbers = {"signals": ", ".join(parts) + more, "steps": len(run.steps)}
    return Result(True, numbers, "critical" if severe else "warning", exactly(run.steps[anywhere][0]))


def explosion(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Norms that left their scale for good, and what the rewards did after that."""
    steps, norms = run.series(signal)
    logged = run.recorded[signal]  # as finite numbers or not
    logged_steps = run.steps[logged]
    found = find_explosion(logged_steps, run.values[signal][logged], alpha=limits.alpha)
    facts = (
        Fact("median norm", f"{np.median(norms):.3g}"),
        Fact("largest", f"{norms.max():.3g} at step {steps[norms.argmax()]}"),
    )
    if found is None:
        burst = find_burst(steps, norms)
        data: dict[str, Any] = {"explosion": None, "divergence": []}
        if burst is None:
            return Result(p_value=1.0, facts=facts, data=data)
        text = (
            f"The norm was {burst.ratio:.3g} times the median of the run in {burst.steps} steps, from step "
            f"{burst.onset.step} to {burst.last}, and came back."
        )
        numbers = {"text": text, "ratio": burst.ratio, "recovered": " for a while"}
        return Result(True, numbers, "warning", burst.onset, facts=facts, data=data)
    onset = found.onset
    if np.isfinite(found.ratio):
        growing = found.log_slope * (int(logged_steps[-1]) - onset.step) >= np.log(2)
        growth = f", growing by {np.expm1(found.log_slope):.2%} a step since" if growing else ""
        stay = "sustained" if found.sustained else "in part of the steps since"
        text = f"The norm is {found.ratio:.3g} times what it was before step {onset}, {stay}{growth}."
    else:
        text = f"The norm left its scale at step {onset} and is not a finite number any more."
    divergence = _divergence(run, onset, limits.alpha)
    diverged = [reward for reward in divergence if reward["onset"] is not None]
    if diverged:
        reward = min(diverged, key=lambda reward: reward["onset"].step)
        verb = "fell" if reward["after"] < reward["before"] else "rose"
        text += " Then {signal} {} from {before:.3g} to {after:.3g} at step {onset}.".format(verb, **reward)
    # Norms that grow from the start on are common where training goes well: nothing was left behind. A
    # growth by a few times that no reward pays for is harmless: clipping bounds the steps.
    had_a_scale = onset.step >= logged_steps[int(WARM_UP * len(logged_steps))]
    fell = any(reward["after"] < reward["before"] for reward in diverged)
    harmful = found.sustained and had_a_scale and (fell or found.ratio >= HARMFUL_RATIO)
    severity: Severity = "critical" if harmful else "warning"
    records = [{**row, "onset": row["onset"] and asdict(row["onset"])} for row in divergence]
    table = table_of(
        "Rewards after the onset",
        "Reward|Before the onset|After|Diverges from step|p",
        "{signal}|{before:.3g}|{after:.3g}|{onset}|{p_value:.2g}",
        ({**row, "onset": row["onset"] or NOTHING} for row in divergence),
        "Medians. p: of a change there, of this test alone.",
    )
    return Result(
        True,
        {"text": text, "ratio": found.ratio, "recovered": ""},
        severity,
        onset,
        found.p_value,
        facts=facts,
        tables=(table,) if divergence else (),
        data={"explosion": {**flat(onset), **vars(found), "onset": onset.step}, "divergence": records},
    )


def _divergence(run: RunSignals, onset: Onset, alpha: float) -> list[dict[str, Any]]:
    """The rewards around the onset: medians before and after, and the onset of their own change, if lasting.

    Each is tested from as long before the onset as there are steps after it.
    """
    found = []
    for name in REWARDS:
        steps, values = run.series(name)
        place = int(np.searchsorted(steps, onset.step))
        start = max(0, 2 * place - len(values))
        change = find_change_point(values[start:])
        if change is None or place in (0, len(values)):
            continue
        own = onset_at(steps[start:], change.onset)
        lasting = change.is_notable(alpha) and own.high >= onset.low
        before, after = float(np.median(values[start:place])), float(np.median(values[place:]))
        row = {"signal": name, "before": before, "after": after, "p_value": change.p_value}
        found.append({**row, "onset": own if lasting else None})
    return found


def spikes(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Single norms far above their surroundings."""
    steps, norms = run.series(signal)
    found = find_spikes(steps, norms)
    facts = (Fact("spikes", str(len(found))),)
    data = {"spikes": [asdict(spike) for spike in found[:_SPIKES_IN_JSON]], "spike_count": len(found)}
    if not found:
        return Result(facts=facts, data=data)
    largest = sorted(found, key=lambda spike: -spike.ratio)
    table = table_of(
        f"Largest of {len(found)} spikes",
        "Step|Norm|To the median around|Robust sd",
        "{step}|{value:.3g}|{ratio:.1f} ×|{sigmas:.0f}",
        map(asdict, largest[:_SHOWN_SPIKES]),
    )
    half = len(norms) // 2  # spikes that have ceased did no lasting harm
    late = sum(spike.step >= steps[half] for spike in found)
    numbers = asdict(largest[0]) | {"spikes": len(found), "count": len(norms), "late": late}
    often = late > MANY_SPIKES * (len(norms) - half) and late >= FEWEST_SPIKES
    if not often:
        return Result(True, numbers, "info", exactly(found[0].step), facts=facts, tables=(table,), data=data)
    onset = exactly(steps[most_likely_start(np.isin(steps, [spike.step for spike in found]))])
    return Result(True, numbers, "warning", onset, facts=facts, tables=(table,), data=data)


def kl_runaway(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """KL that accelerates, unless the reward that is earned since then, in the second half, pays for it."""
    steps, values = run.series(signal)
    half = len(values) // 2
    slopes = [float(np.polyfit(steps[part], values[part], 1)[0]) for part in (slice(half), slice(half, None))]
    start, end = median_of_part(values, 0, 0.5), median_of_part(values, 0.9, 1)
    runs_away = slopes[1] > KL_ACCELERATION * max(slopes[0], 0.0) and start > 0 and end > KL_GROWTH * start
    if not runs_away:
        return Result()
    numbers = {"before": start, "after": end, "slope": slopes[1], "slope_before": slopes[0]}
    logarithms = np.log(np.maximum(values, 0.0) + KL_FLOOR)
    change = find_change_point(logarithms)
    jumped = change is not None and change.kind == "shift"  # two lines that meet do not locate a jump
    place = change.onset if change and jumped else exactly(find_bend(steps, logarithms))
    onset = onset_at(steps, departure(values, place))
    since = max(onset.step, int(steps[half]))
    return Result(rise_since(run, REWARD, since) is None, numbers, onset=onset)


def memory_leak(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Memory that is never freed.

    The limit that was set is that of the device where its memory was logged, else of the host. Without one,
    resident memory is measured against the machine's (provenance.json).
    """
    limit = limits.memory_mb if signal == logged_memories(run)[0] else None
    if limit is None and signal == RSS:
        limit = run.machine_memory_mb
    steps, values = run.series(signal)
    growth = measure_memory_growth(steps, values, limit=limit, alpha=limits.alpha)
    if growth is None:
        return not_made(gap_of(run, signal))
    durations = run.series(DURATION)[1]
    seconds, full_in = None, NOTHING
    if growth.steps_to_limit is not None:
        full_in = f"{growth.steps_to_limit:,.0f} steps"
        if len(durations):
            seconds = growth.steps_to_limit * float(np.median(durations))
            full_in += f", about {duration(seconds)}"
    title = _MEMORIES[signal]
    numbers = {
        "memory": title,
        "first": memory(values[0]),
        "last": memory(values[-1]),
        "peak": memory(float(values.max())),
        "limit": NOTHING if limit is None else memory(limit),
        "full_in": full_in if growth.is_leak else NOTHING,
        "ends": "" if growth.steps_to_limit is None else f"; it ends in {full_in}",
        **asdict(growth),
    }
    first, last = float(growth.onset.step), float(steps[-1])
    fitted = ((first, growth.at_start), (last, growth.at_start + growth.per_step * (last - first)))
    lines = (*lines_of("", "main", steps, values), Series("fitted", "control", fitted, "dashed"))
    caption = f"Fitted: {growth.factor:.2f} times over the run."
    soon = growth.steps_to_limit is not None and growth.steps_to_limit <= len(run.steps)
    known = limits.memory_mb is not None or run.machine_memory_mb is not None
    return Result(
        growth.is_leak,
        numbers,
        "critical" if growth.factor >= CRITICAL_GROWTH or soon else "warning",
        growth.onset,
        growth.p_value,
        gaps=() if known else (_NO_MEMORY_LIMIT,),
        tables=(table_of("", _MEMORY_COLUMNS, _MEMORY_CELLS, [numbers], _MEMORY_CAPTION),),
        charts=(Chart(f"{title} (MiB)", "step", lines, caption=caption),),
        data={
            signal: {**asdict(growth), **flat(growth.onset), "limit_mb": limit, "seconds_to_limit": seconds}
        },
    )


def logged_memories(run: RunSignals) -> list[str]:
    """The memories that were logged, that of the device first; resident memory where none was."""
    return [name for name in (DEVICE_MEMORY, RSS) if len(run.series(name)[1])] or [RSS]


def throughput_drop(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Tokens per second that fall and do not recover. It is information where other work on the machine
    explains it: the process waited for its turn, or the machine computed more slowly.
    """
    result = lasting_change(below=SLOWED)(run, signal, limits)
    waited = ""
    here = run.settings.get("rollouts.engine") in (None, "native")  # else it always waits
    if result.found and result.onset and here and run.values.keys() >= set(OWN_SPEED):
        rates = own_speed(run.values)
        known = np.isfinite(rates)
        since = run.steps[known] >= result.onset.step
        if since.any() and not since.all():
            own = float(np.median(rates[known][since]) / np.median(rates[known][~since]))
            if own >= max(_STRETCHED, _WAITED * (1 + result.numbers["relative"])):
                waited = (
                    f" Beside the machine's speed it is {own:.2f} times that before: other work ran there."
                )
    severity: Severity | None = "info" if waited else None
    return replace(result, severity=severity, numbers={**result.numbers, "waited": waited})


def step_durations(run: RunSignals) -> tuple[Fact, ...]:
    """The duration of the median step and of all."""
    seconds = run.series(DURATION)[1]
    if len(seconds) < MIN_POINTS:
        return ()
    median, total = duration(float(np.median(seconds))), duration(float(seconds.sum()))
    return Fact("median step", median), Fact("all steps", total)


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
