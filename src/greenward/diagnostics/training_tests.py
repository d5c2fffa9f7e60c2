"""Tests of the training itself: gradients, KL, memory and the duration of steps."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from greenward.diagnostics.change_points import (
    MIN_POINTS,
    exactly,
    find_bend,
    find_change_point,
    flat,
    onset_at,
)
from greenward.diagnostics.checks import lines_of
from greenward.diagnostics.findings import Gap, gap_of
from greenward.diagnostics.growth import find_burst, find_explosion, find_spikes, measure_memory_growth
from greenward.diagnostics.signal_tests import (
    Result,
    Thresholds,
    departure,
    lasting_change,
    median_of_part,
    most_likely_start,
    not_made,
    rise_since,
    table_of,
)
from greenward.diagnostics.signals import (
    DEVICE_MEMORY,
    DURATION,
    OWN_SPEED,
    PASS_RATE,
    REWARD,
    RSS,
    RunSignals,
    own_speed,
)
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Series, Severity
from greenward.reports.figures import duration, memory

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
