"""Findings of updates: gradients, learning rate, KL, entropy, clipping, values, memory and throughput."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from greenward.common.statistics import median, medians
from greenward.diagnostics.change_points import (
    MIN_POINTS,
    exactly,
    find_bend,
    find_change_point,
    flat,
    median_deviation,
    onset_at,
)
from greenward.diagnostics.families import COUNTS_OF_EPISODES
from greenward.diagnostics.finding import (
    DAMAGE,
    UPDATES,
    WORSE,
    Finding,
    Gap,
    Result,
    SignalChart,
    Thresholds,
    Topic,
    Watched,
    gap_of,
    not_made,
)
from greenward.diagnostics.findings.rewards import FEW_FACTS, learned, rise_between, rises_from
from greenward.diagnostics.readers.rows import evaluated
from greenward.diagnostics.signal_tests import (
    MEMORY_POINTS,
    SPIKE_LOG_SIGMAS,
    beyond,
    departure,
    difference_noise,
    find_burst,
    find_explosion,
    find_impossible,
    find_signal_change,
    find_spikes,
    first_frequent,
    lasting_change,
    late_mean,
    lines_of,
    measure_memory_growth,
    median_of_part,
    most_likely_start,
    onset_of,
    rise_since,
    surely_above,
    table_of,
)
from greenward.diagnostics.signals import (
    CPU_SPEED,
    DEVICE_MEMORY,
    DURATION,
    GRADIENT,
    LENGTH,
    OWN_SPEED,
    PASS_RATE,
    REWARD,
    RSS,
    THROUGHPUT,
    TRUNCATED,
    WITHOUT_SIGNAL,
    Bools,
    Floats,
    RunSignals,
    own_speed,
)
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Series, Severity, duration, memory

_NO_MEMORY_LIMIT = Gap(
    "time to out-of-memory", "the memory of the machine is not known", "Give --memory-limit-mb."
)
REWARDS = (REWARD, "reward/code_score", "reward/correctness", "reward/readability", "reward/tests", PASS_RATE)
SKIPPED = "updates/non_finite"
MANY_SPIKES, FEWEST_SPIKES = 0.02, 3  # of the steps of the second half
HUGE_SPIKE = 100.0  # times the median around: such an update may undo all that was learned
WARM = 0.9  # of the highest learning rate
SLOWED = 0.8  # of the tokens per second before
_SLOWED_AGENT = 0.6  # of an agent's frames per second
_SPEED_PARTS = 60  # of a run
_TOKENS = "num_tokens"  # TRL's counter
_OF_UPDATES = ("loss", "value/loss", "approx_kl")
_STRETCHED = 0.65  # of the process's own speed: other programs stretch CPU time itself by up to 1.5 times
_WAITED = 1.1  # times as much is left of the process's own speed as of that by the clock
WARM_UP = 0.1  # of the steps; a drift that begins in it is a warning
HARMFUL_RATIO = 10.0  # times a gradient norm; less is critical where a reward falls after it
OFTEN_NOT_FINITE = 0.01  # of the steps, or the last one
CRITICAL_GROWTH = 1.5  # of the memory over the run; a smaller leak that meets the limit soon is critical, too
KL_GROWTH = 3.0  # of its last tenth over its first half
KL_FLOOR = 0.02  # nats: a smaller KL, or rise of it, is noise
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
CLIPPED_SHARE, CLIPPED_RATIO = 0.98, 2.0  # of the steps; of the median norm to the limit
_LIMITS = ("training.max_grad_norm", "max_grad_norm", "actor.optim.grad_clip", "optim.max_norm")
VANISHED = 0.05  # of the norm before
RATE_JUMP, RATE_FALL = 1.5, 0.5  # from one step to the next, once the warm-up is over
_ONE_FALL = 0.34  # of the peak, from one value to the next
_TROUGH = 0.4  # of the peak; a cycle that turns above it was cut off
_PERIOD_ERROR = 0.05
_REPEATED = 3  # rows in a warm-up, by rounding
_OF_EPISODES = re.compile(r".*ep(?:isod\w*)?_?(?:rew|len|ret).*")

COLLAPSED = 0.1  # of the entropy of the first rows
LOST = 0.2  # of the range of the reward
_FEW_ROWS, _MOST_ROWS = 3, 5
_FEWEST_ENTROPIES = 8
_LEVELS = 20  # parts of a run at most, whose medians are its levels
KL_LIMIT = 1.0  # nats a token: more than an answer's tokens usually have to lose
_KL_FACTOR = 10.0  # times that of the first rows
_EXPLAINED = "explained_variance"
_VANISHED_ERROR = 0.01  # of the largest level of a value loss
MANY_CUT = 0.2  # of the answers
DIVERGED = 3.0  # times the largest return is the root of the squared error of values
_GREW_ERRORS = 3  # standard errors by which the logarithm of this error must grow


def not_finite(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Any signal that was logged as NaN or infinite, and updates that were skipped for it."""
    wrong = {name: run.not_finite(name) for name in run.values}
    if run.family.kind == "agent":  # a mean over no episode is NaN: none has ended yet
        if _EXPLAINED in wrong:  # and so is a share of a variance of 0
            wrong[_EXPLAINED] = wrong[_EXPLAINED] & ~np.isnan(run.values[_EXPLAINED])
        for name in filter(_OF_EPISODES.fullmatch, map(str, wrong)):
            wrong[name] = wrong[name] & ~np.isnan(run.values[name])
        if REWARD in wrong and _OF_EPISODES.fullmatch(run.logged_as(REWARD).lower()):
            wrong[REWARD] = wrong[REWARD] & ~np.isnan(run.values[REWARD])
        elif REWARD in wrong and len(known := np.flatnonzero(np.isfinite(run.values[REWARD]))):
            wrong[REWARD] = wrong[REWARD] & (np.arange(len(run.steps)) >= known[0])
    if SKIPPED in run.values and (skipped := run.values[SKIPPED] > 0).any():
        wrong[SKIPPED] = skipped
    wrong = {name: places for name, places in wrong.items() if places.any() and not _is_of_nothing(run, name)}
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
    severity: Severity = "critical" if anywhere.mean() >= OFTEN_NOT_FINITE or anywhere[-1] else "warning"
    if len(run.steps) >= MIN_POINTS and not anywhere[anywhere.sum() :].any() and anywhere.sum() <= _FEW_ROWS:
        severity = "info"  # what has no value yet, and loss scales that are being found
    numbers = {"signals": ", ".join(parts) + more, "steps": len(run.steps)}
    return Result(True, numbers, severity, exactly(run.steps[anywhere][0]))


# Words in the names of what an optimizer computes, and of what it is given.
_COMPUTED = re.compile(
    r"loss|grad|norm|rew|return|score|kl|entropy|value|adv|ratio|log_?p|logit|weight|\blr\b|learning_rate|variance",
    re.IGNORECASE,
)


# What an evaluation judges by. The other means of it change no weight.
_JUDGED = re.compile(r"loss|rew|return|score|acc", re.IGNORECASE)


def _is_of_nothing(run: RunSignals, name: str) -> bool:
    """Whether a signal that by its name is none of the optimizer's never had a number, or has no name at all:
    a mean over nothing is NaN.
    """
    theirs = run.logged_as(name)
    if name == SKIPPED or (_COMPUTED if evaluated(theirs) is None else _JUDGED).search(theirs):
        return False
    return bool(_UNNAMED.fullmatch(name)) or bool(np.isnan(run.values[name]).all())


_UNNAMED = re.compile(r"column \d+")


NON_FINITE = Finding(
    "non-finite",
    "NaN or infinite numbers",
    not_finite,
    measured="Not finite, or skipped for it: {signals}; {steps} steps in all.",
    actions=(
        "Go on from the last checkpoint before the onset with a lower training.learning_rate.",
        "With bfloat16 or float16 (model.dtype), repeat in float32.",
        "If a reward is not finite, correct the reward term: it may return finite numbers only.",
    ),
    confirm="The signal that is not finite first names the part; the same step, repeated, shows it again.",
    limit=(
        "any value that is NaN or infinite, or an update skipped for it; not where a signal of the "
        "environment, or of an evaluation but its loss and scores, is NaN in every row"
    ),
    weight="critical from 1 % of the steps or at the last, info at the first 3 rows alone, else warning",
    explains=("gradient-explosion", "gradient-spikes", *DAMAGE),
)


def impossible(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Values outside of the range that a signal can have."""
    possible = run.possible_ranges[signal]
    steps, values = run.series(signal)
    found = find_impossible(values, possible)
    if found is None:
        return Result()
    step, total, far = steps[found.first], len(values), f"{found.farthest:.3g}"
    side = "not whole"
    if not possible.low <= found.farthest <= possible.high:
        side = f"below {possible.low:g}" if found.farthest < possible.low else f"above {possible.high:g}"
    elif possible.above and found.farthest == possible.low:
        side = "0"
    if found.sigmas is None:
        text = f"{side} at {found.count} of {total} steps from step {step} on, {far} at the farthest"
    else:
        text = (
            f"{side} from about step {step} on: a part of the run has a mean of {far}, {found.sigmas:.0f} "
            "standard errors beyond"
        )
    numbers = {
        "signal": run.logged_as(signal),
        "side": side,
        "text": text,
        "far": far,
        "possible": str(possible),
        "reason": possible.reason,
        "causes": possible.causes,
    }
    often = found.count >= OFTEN_NOT_FINITE * total
    severity: Severity = "critical" if signal == "kl" and often else "warning"
    return Result(True, numbers, severity, exactly(step))


IMPOSSIBLE_VALUE = Finding(
    "impossible-value",
    "A signal has values that it cannot have",
    impossible,
    lambda run: tuple(run.possible_ranges),
    fewest=1,
    optional=True,
    measured="{signal} is {text}. It can be {possible}: {reason}. Possible causes: {causes}.",
    brief="Impossible value: {signal} is {side} ({far})",
    actions=(
        "Look where the number is made: its sign, its unit, what it is averaged over, and what padding adds.",
        "Believe no curve and no finding of this signal until it is mended.",
        "For a KL below 0: score the same answers by the policy that sampled them and by its reference, with "
        "the same temperature, dtype and mask. As a penalty it pays for leaving the reference meanwhile.",
    ),
    confirm="The same number, computed by hand from one batch, is inside the range.",
    limit=(
        "any value outside of the range of its signal ([table](impossible-value.md#possible-values)); an "
        "estimate that crosses its bound by noise, as k1 of a KL does, only where the mean of the run, of a "
        "half, a quarter or an eighth of it is beyond by a visible amount and by more than its error "
        "explains (level 1 %)"
    ),
    weight="critical for a KL to the reference at 1 % of its values, else warning",
    source="Schulman, joschu.net/blog/kl-approx.html",
    views=("drift", "reward", "length-bias", "kl-drift"),
)


def _telling(run: RunSignals, signal: str) -> Bools:
    """The steps whose norm says something of the scale: those after the warm-up of the learning rate, at
    which a group had a signal. All that were logged where these are too few.

    A small share of steps with a signal is enough: those without one have the gradient of a KL penalty at
    most, and beside them each of the others would be a spike.
    """
    kept = run.recorded[signal].copy()  # as finite numbers or not
    for name, without in ((WITHOUT_SIGNAL, 1.0), ("reward/std", 0.0)):
        if name in run.values:
            with_signal = kept & (run.values[name] != without)
            kept = with_signal if with_signal.sum() >= MIN_POINTS else kept
    rates = run.values.get("learning_rate")
    if rates is None or np.isfinite(rates).sum() < MIN_POINTS:
        return kept
    peak = int(np.nanargmax(rates))
    warm = kept.copy()
    warm[:peak] &= ~(rates[:peak] < WARM * rates[peak])
    return warm if warm.sum() >= max(MIN_POINTS, kept.sum() / 3) else kept


def explosion(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Norms that left their scale for good, and what the rewards did after that."""
    kept = _telling(run, signal)
    logged_steps, all_norms = run.steps[kept], run.values[signal][kept]
    finite = np.isfinite(all_norms)
    steps, norms = logged_steps[finite], all_norms[finite]
    if len(norms) < MIN_POINTS:
        return not_made(gap_of(run, signal))
    found = find_explosion(logged_steps, all_norms, alpha=limits.alpha)
    facts = (
        Fact("median norm", f"{median(norms):.3g}"),
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
    if diverged := [reward for reward in divergence if reward["onset"] is not None]:
        reward = min(diverged, key=lambda reward: reward["onset"].step)
        verb = "fell" if reward["after"] < reward["before"] else "rose"
        text += " Then {signal} {} from {before:.3g} to {after:.3g} at step {onset}.".format(verb, **reward)
    # Norms that grow from the start on are common where training goes well: nothing was left behind. A
    # growth by a few times that no reward pays for is harmless: clipping bounds the steps.
    had_a_scale = onset.step >= logged_steps[int(WARM_UP * len(logged_steps))]
    fell = any(reward["after"] < reward["before"] for reward in diverged)
    # Where the reward was flat before and after, nothing was lost.
    large = found.ratio >= HARMFUL_RATIO and (learned(run).sign != 0 or not math.isfinite(found.ratio))
    # By few answers norms differ by factors from step to step: such a growth is then no other scale.
    before = np.log(norms[(steps < onset.step) & (norms > 0)])
    scatter = median_deviation(before - median(before)) if len(before) else 0.0
    large = large and math.log(found.ratio) > SPIKE_LOG_SIGMAS * scatter
    harmful = found.sustained and had_a_scale and (fell or large)
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
        before, after = median(values[start:place]), median(values[place:])
        row = {"signal": name, "before": before, "after": after, "p_value": change.p_value}
        found.append({**row, "onset": own if lasting else None})
    return found


GRADIENT_EXPLOSION = Finding(
    "gradient-explosion",
    "The gradient norm left its scale and stayed away",
    explosion,
    (GRADIENT,),
    critical=True,
    measured="{text}",
    brief="Gradient norm ×{ratio:.3g}{recovered}",
    actions=(
        "Go on from the last checkpoint before the onset with training.learning_rate 3 to 10 times lower.",
        "Set training.max_grad_norm (1.0), which bounds what a step may do.",
        "Check training.schedule and warmup_steps for a jump of learning_rate at the onset.",
        "With bfloat16 (model.dtype), repeat in float32.",
    ),
    confirm=(
        "With a lower learning rate the norm stays where it was; learning_rate jumps at the onset if the "
        "schedule is to blame."
    ),
    limit=(
        "last tenth at least 3 × the median before; or 5 steps and more at 4 × the median of the run, which"
        " come back. Steps of the warm-up and those without a group that has a signal do not count"
    ),
    weight=(
        "critical if sustained, not from the first tenth on, and followed by a reward that falls, or by 10 "
        "times (and 4 standard deviations of the logarithms before) where the reward was not flat, else "
        "warning"
    ),
    source="change test of the logarithm",
    explains=("gradient-spikes", "non-finite", "value-loss-diverges", *DAMAGE),
    live=(Watched(GRADIENT, "ratio", 3.0, "critical"),),
    suspects=("training.learning_rate", "training.max_grad_norm", "training.warmup_steps", "algorithm"),
    views=("drift",),
)


def spikes(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Single norms far above their surroundings."""
    kept = _telling(run, signal) & np.isfinite(run.values[signal])
    steps, norms = run.steps[kept], run.values[signal][kept]
    # As the norms fall, what was usual before may come back for a step.
    found = [one for one in find_spikes(steps, norms) if one.value > median(norms)]
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
    if largest[0].ratio >= HUGE_SPIKE:
        onset = exactly(largest[0].step)
        return Result(True, numbers, "warning", onset, facts=facts, tables=(table,), data=data)
    if late <= MANY_SPIKES * (len(norms) - half) or late < FEWEST_SPIKES:
        return Result(True, numbers, "info", exactly(found[0].step), facts=facts, tables=(table,), data=data)
    onset = exactly(steps[most_likely_start(np.isin(steps, [spike.step for spike in found]))])
    return Result(True, numbers, "warning", onset, facts=facts, tables=(table,), data=data)


GRADIENT_SPIKES = Finding(
    "gradient-spikes",
    "Single gradient norms stand far above their surroundings",
    spikes,
    (GRADIENT,),
    measured=(
        "{spikes} of {count} steps, {late} in the second half, are above 3 times the median around them; "
        "the largest at step {step}, {ratio:.1f} times."
    ),
    brief="Gradient norm ×{ratio:.0f} in one step",
    actions=(
        "Set training.max_grad_norm a little above the usual norm.",
        "Look at the answers of these steps: very long or degenerate answers, or one group alone in the "
        "batch.",
        "More prompts per step (training.prompts_per_step) average them out.",
    ),
    confirm="The same steps spike again when the run is repeated with its seed.",
    limit=(
        "> 3 × the median of the 25 steps on both sides, > 8 robust standard deviations, and > 4 of the "
        "logarithms; not the first 5 steps"
    ),
    weight="info, warning from 2 % of the steps of the second half (at least 3), or by 100 times",
    explains=("reward-drop", "quality-drop"),
    suspects=("training.learning_rate", "training.max_grad_norm", "training.warmup_steps", "algorithm"),
    views=("drift",),
)


def vanished(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Norms that are 0 at many steps, or that fell to a small part of what they were and stayed there."""
    steps, norms = run.series(signal)
    zero = norms == 0
    if zero.all():
        text = f"{signal} is exactly 0 at each of {len(norms)} logged steps: no weight moves."
        return Result(True, {"text": text}, "critical", exactly(steps[0]))
    if len(norms) < MIN_POINTS:
        return not_made(gap_of(run, signal))
    for first in (0, len(norms) // 2):  # a fault of the second half is not outvoted by the first
        if zero[first:].mean() > 0.4:
            text = f"{signal} is 0 at {zero[first:].mean():.0%} of {len(norms) - first} steps."
            return Result(True, {"text": text}, onset=exactly(steps[first_frequent(zero) or zero.argmax()]))
    if (change := find_signal_change(run, signal)) is None:
        return not_made(gap_of(run, signal))
    earlier = norms[(steps < change.onset.step) & (norms > 0)]
    last = median_of_part(norms[norms > 0], 0.9, 1)
    before = median(earlier) if len(earlier) else 0.0
    found = before > 0 and last < VANISHED * before
    text = f"{signal} fell from {before:.3g} to {last:.3g}, {last / before if before else 0:.1%} of it."
    # Where given texts are learned, what is known by heart leaves no gradient.
    is_done = run.family.kind in ("preferences", "supervised") and learned(run).matters
    severity: Severity | None = "info" if is_done else None
    return Result(found, {"text": text}, severity, change.onset, change.p_value, change=change)


GRADIENT_VANISHED = Finding(
    "gradient-vanished",
    "There is hardly a gradient left, or none at many steps",
    vanished,
    (GRADIENT,),
    fewest=FEW_FACTS,
    measured="{text}",
    actions=(
        "Groups whose answers all pass or all fail teach nothing: set algorithm.dynamic_sampling, or choose "
        "problems of middle difficulty.",
        "Raise training.num_generations or sampling.temperature, so that answers differ.",
        "If it is 0 throughout: see which parameters require a gradient (a frozen adapter, an optimizer of "
        "other parameters), and whether the loss depends on them.",
    ),
    confirm="No group has a signal at the same steps.",
    limit=(
        "exactly 0 at every step, from the third on; gradient norm 0 at over 40 % of the steps (or of the "
        "second half), or last tenth below 5 % of what"
        " it was before"
    ),
    weight=(
        "critical where it is exactly 0 throughout, else warning; info where pairs of answers are learned by "
        "heart"
    ),
    source="public GRPO logs",
    explains=("no-learning",),
    by_success=True,
    live=(Watched(GRADIENT, "ratio", 0.05),),
    suspects=("training.learning_rate", "training.max_grad_norm", "training.warmup_steps", "algorithm"),
    views=("drift",),
)


def always_clipped(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Norms far above the limit of clipping at nearly every step, or that are logged as the limit itself."""
    _steps, norms = run.series(signal)
    limit = next((run.settings[key] for key in _LIMITS if run.settings.get(key) is not None), None)
    late = norms[len(norms) // 10 :]
    if isinstance(limit, (int, float)) and 0 < limit < math.inf:
        share, middle = float((late > limit).mean()), median(late)
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


GRADIENT_ALWAYS_CLIPPED = Finding(
    "gradient-always-clipped",
    "Clipping decides the size of every update",
    always_clipped,
    (GRADIENT,),
    measured="{text}",
    actions=(
        "The direction is kept, the size is not: an update is as large as the learning rate says, whatever "
        "the gradient. Set training.max_grad_norm a little above the usual norm.",
        "Or lower training.learning_rate and look for what makes norms large: sums in place of means in the "
        "loss, very long answers, unscaled rewards.",
    ),
    confirm="With the limit above the usual norm, the share of clipped steps falls below a tenth.",
    limit=(
        "norm above `max_grad_norm` at 98 % of the steps and twice it in the median; or logged as one and "
        "the same value at 90 %"
    ),
    explains=("no-learning", "gradient-spikes"),
    suspects=("training.learning_rate", "training.max_grad_norm", "training.warmup_steps", "algorithm"),
    views=("drift",),
)


VALUES = Topic("values_card", "Possible values", (IMPOSSIBLE_VALUE,))
GRADIENTS = Topic(
    "gradient_drift_card",
    "Gradient drift",
    (NON_FINITE, GRADIENT_EXPLOSION, GRADIENT_SPIKES, GRADIENT_VANISHED, GRADIENT_ALWAYS_CLIPPED),
    (
        SignalChart("Gradient norm, logarithmic", (GRADIENT,), log=True, marks="gradient-explosion"),
        SignalChart("Learning rate", ("learning_rate",), marks="gradient-explosion"),
    ),
)


def entropy_collapses(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Entropy that falls to a tenth of that of the first rows and stays there. An agent that has become
    sure of the best that it found may be.
    """
    steps, values = run.series(signal)
    first = values[: min(max(_FEW_ROWS, len(values) // 100), _MOST_ROWS)]
    start, end = median(first), median_of_part(values, 0.9, 1)
    if start <= 0 or values.min() < 0 or end > COLLAPSED * start:
        return Result()
    smooth = medians(np.lib.stride_tricks.sliding_window_view(np.pad(values, 1, "edge"), 3))
    above = np.flatnonzero(smooth > COLLAPSED * start)
    onset = onset_of(run, signal) if len(values) >= MIN_POINTS else None
    place = int(above[above < len(values) * 0.9][-1]) + 1 if len(above) else 0
    frequent = first_frequent(smooth <= COLLAPSED * start)
    place = place if frequent is None else frequent
    if onset is None or onset.low > steps[place]:
        onset = exactly(steps[place])
    if run.family.kind == "agent" and not _fell_after(run, int(steps[place])):
        return Result()
    return Result(True, {"before": start, "after": end, "ratio": end / start}, onset=onset)


def _fell_after(run: RunSignals, step: int) -> bool:
    """Whether the reward is lower at some later time than at its best, by a fifth of what it rose."""
    steps, values = run.series(REWARD)
    if len(values) < _FEWEST_ENTROPIES:
        return True
    parts = min(_LEVELS, len(values) // 2)
    levels = np.array([median(part) for part in np.array_split(values, parts)])
    since = [part[-1] > step for part in np.array_split(steps, parts)]
    best = int(levels.argmax())
    later = levels[np.arange(parts) >= max(best, int(np.argmax(since)))]
    return bool(later.min() < levels.max() - LOST * (levels.max() - levels.min()))


ENTROPY_COLLAPSE = Finding(
    "entropy-collapse",
    "The policy has nearly stopped exploring",
    entropy_collapses,
    ("entropy",),
    fewest=_FEWEST_ENTROPIES,
    severity="critical",
    measured="Entropy fell from {before:.3g} to {after:.3g} nats a token, {ratio:.0%} of its start.",
    brief="Entropy fell to {ratio:.0%} of its start",
    actions=(
        "Raise algorithm.clip_high (0.28, DAPO's clip-higher).",
        "Raise sampling.temperature.",
        "Raise algorithm.entropy_coefficient.",
        "Add a penalty for leaving the reference: algorithm.kl.coefficient.",
        "Lower training.learning_rate.",
    ),
    confirm="completion/unique falls with it: the answers to a problem become copies.",
    limit=(
        "last tenth below 10 % of the first rows (3 to 5 of them); no absolute limit. Of an agent, only "
        "where the reward later falls from its best by a fifth of its range"
    ),
    source="Cui et al. (2505.22617)",
    explains=(*WORSE, "diversity-loss", "dominant-answer", "length-collapse", "poor-calibration"),
    by_success=True,
    live=(Watched("entropy", "ratio", 0.25, "critical"),),
    suspects=("algorithm.entropy", "sampling.temperature", "training.learning_rate"),
    views=("drift",),
)


def entropy_rises(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Entropy that grows by half or more while the reward does not rise, from where the entropy rises on."""
    values = run.series(signal)[1]
    start, end = median_of_part(values, 0, 0.1), median_of_part(values, 0.9, 1)
    if start <= 0 or end <= 1.5 * start:
        return Result()
    # Entropies have little noise and look like random walks to a test of change, which only dates the rise.
    onset = onset_of(run, signal)
    if rises_from(run, onset.step if onset else 0):
        return Result()
    return Result(True, {"before": start, "after": end, "ratio": end / start}, onset=onset)


ENTROPY_RISE = Finding(
    "entropy-rise",
    "The policy becomes incoherent: entropy grows and the reward does not",
    entropy_rises,
    ("entropy",),
    measured="Entropy rose from {before:.3g} to {after:.3g} nats a token, {ratio:.1f} times its start.",
    brief="Entropy ×{ratio:.1f} without more reward",
    actions=(
        "Lower algorithm.entropy_coefficient, or set it to 0.",
        "Lower training.learning_rate, or sampling.temperature where it is above 1.",
    ),
    confirm="The newest answers are less readable than the first ones.",
    limit=(
        "last tenth above 1.5 × the first, and what is learned does not rise by 5 points (a tenth of the "
        "spread of the rewards) from where the entropy rises on"
    ),
    explains=(*WORSE, "failing-answers-rise", "length-growth", "truncated-answers", "kl-runaway"),
    live=(Watched("entropy", "ratio", 1.8),),
    suspects=("algorithm.entropy", "sampling.temperature", "training.learning_rate"),
    views=("drift",),
)


def kl_runaway(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """KL that accelerates, unless the reward that is earned since then, in the second half, pays for it."""
    steps, values = run.series(signal)
    half = len(values) // 2
    slopes = [float(np.polyfit(steps[part], values[part], 1)[0]) for part in (slice(half), slice(half, None))]
    start, end = median_of_part(values, 0, 0.5), median_of_part(values, 0.9, 1)
    noise = difference_noise(values)  # k1 of a small KL is little else
    runs_away = slopes[1] > KL_ACCELERATION * max(slopes[0], 0.0) and end > KL_GROWTH * (start + noise)
    runs_away = runs_away and start > 0 and end - start > KL_FLOOR
    if not runs_away:
        return _left_early(run, signal)
    text = (
        f"KL rose from {start:.3g} (first half) to {end:.3g} (last tenth), {slopes[1]:.2g} a step in the "
        f"second half and {slopes[0]:.2g} in the first, while the reward did not rise."
    )
    numbers = {"before": start, "after": end, "text": text}
    logarithms = np.log(np.maximum(values, 0.0) + KL_FLOOR)
    change = find_change_point(logarithms)
    jumped = change is not None and change.kind == "shift"  # two lines that meet do not locate a jump
    place = change.onset if change and jumped else exactly(find_bend(steps, logarithms))
    onset = onset_at(steps, departure(values, place))
    earned = rise_since(run, REWARD, max(onset.step, int(steps[half])))
    pays = earned is not None and earned[1] - earned[0] >= _rise_that_pays(run, end)
    return Result(not pays, numbers, onset=onset)


def _rise_that_pays(run: RunSignals, kl: float) -> float:
    """The least rise of the reward that pays for a KL: that which matters, times its root above `KL_LIMIT`.

    A policy at a KL of d from its reference can gain σ√(2d) at most, where the rewards of the reference have
    the spread σ and no heavier tails than a normal distribution (Donsker & Varadhan), and the best of n
    answers nearly does. A tenth of the spread is 7 % of that at one nat.
    """
    return learned(run).enough * math.sqrt(max(1.0, kl / KL_LIMIT))


def _left_early(run: RunSignals, signal: str) -> Result:
    """KL that leaves its first values at once for more than a nat a token, and earns nothing by it."""
    steps, values = run.series(signal)
    start, end = median(values[:_FEW_ROWS]), median_of_part(values, 0.5, 1)
    far = values > max(KL_LIMIT, _KL_FACTOR * start)
    place = first_frequent(far)
    if end <= max(KL_LIMIT, _KL_FACTOR * start) or place is None:
        return Result()
    found = learned(run)
    if found.sign == 1 and found.rise >= _rise_that_pays(run, end):
        return Result()
    text = (
        f"KL rose from {start:.3g} (first {_FEW_ROWS} rows) to {end:.3g} (second half) and was above "
        f"{KL_LIMIT:g} nats a token from step {steps[place]} on, while the reward did not rise by what pays "
        "for it."
    )
    return Result(True, {"before": start, "after": end, "text": text}, onset=exactly(steps[place]))


KL_RUNAWAY = Finding(
    "kl-runaway",
    "The policy leaves its reference faster and faster without earning more",
    kl_runaway,
    ("kl",),
    measured="{text}",
    brief="KL to the reference from {before:.3g} to {after:.3g}",
    actions=(
        "Raise algorithm.kl.coefficient, or set algorithm.kl.target for an adaptive one.",
        "Use the checkpoint of the highest reward.",
        "Read the newest answers: reward hacking looks like this.",
    ),
    confirm="The held-out pass rate is flat or falls while kl rises.",
    limit=(
        "rises twice as fast in the second half, to 3 × the first half and by 0.02 nats, while the reward "
        "does not rise by 8 % and by what [matters](no-learning.md) since then; or is above 1 nat a token, "
        "and 10 × the first rows, in the second half, while no rise of the reward that matters, "
        "times √KL where KL is above 1, is shown: what can be gained grows as √(2 KL)"
    ),
    source="Gao et al. (2210.10760)",
    explains=(
        *(name for name in WORSE if name != "no-learning"),
        *("entropy-collapse", "entropy-rise", "diversity-loss", "length-growth"),
    ),
    live=(Watched("kl", "ratio", 5.0, least=0.1),),
    suspects=("algorithm.kl", "training.learning_rate"),
    views=("drift", "kl-drift"),
)


def large_steps(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Updates that move the policy far; of an agent that learned by them they are no warning."""
    result = beyond(above=0.03)(run, signal, limits)
    harmless = run.family.kind == "agent" and learned(run).matters and not _fell_after(run, int(run.steps[0]))
    return replace(result, severity="info" if harmless else None)


LARGE_POLICY_STEPS = Finding(
    "large-policy-steps",
    "Single updates move the policy far",
    large_steps,
    ("approx_kl",),
    measured="approx_kl is above 0.03 in {share:.0%} of the steps (median {median:.3g}).",
    actions=(
        "Lower training.learning_rate, algorithm.updates_per_batch or minibatches.",
        "Set algorithm.max_step_kl, which ends the updates of a batch early.",
    ),
    confirm="approx_kl and clip/fraction fall together.",
    limit="`approx_kl` above 0.03 in over 20 % of the steps, or nearly all of the last 20",
    weight="warning, info of an agent that learned by them and kept it",
    source="twice what Spinning Up's PPO stops at (0.015)",
    explains=(*DAMAGE, "gradient-spikes"),
    live=(Watched("approx_kl", "level", 0.03),),
    views=("drift", "kl-drift"),
)


def clip_signals(run: RunSignals) -> list[str]:
    """The share of clipped tokens, or those of both sides where they were logged apart."""
    sides = [name for name in ("clip/high", "clip/low") if len(run.series(name)[1])]
    return sides if sides and not len(run.series("clip/fraction")[1]) else ["clip/fraction"]


CLIP_FRACTION_HIGH = Finding(
    "clip-fraction-high",
    "A large part of the tokens is clipped, so that much of the batch is not learned from",
    beyond(above=0.3),
    clip_signals,
    measured="{signal} is above 0.3 in {share:.0%} of the steps ({median:.2f} in the median of those).",
    brief="{median:.0%} of the tokens clipped",
    actions=(
        "Lower training.learning_rate, algorithm.updates_per_batch or minibatches.",
        "Sample anew more often: clipped tokens are those of an old policy.",
    ),
    confirm="approx_kl falls with it.",
    limit="above 0.3 in over 20 % of the steps, or nearly all of the last 20",
    source="PPO, DAPO",
    explains=(*WORSE, "large-policy-steps", "kl-runaway"),
    live=(Watched("clip/fraction", "level", 0.3),),
    views=("drift",),
)


def truncated(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that are cut off late in the run, dated by where their share rose."""
    steps, values = run.series(signal)
    if (values >= 1).all():
        return Result(True, {"late": 1.0}, onset=exactly(steps[0]))
    if len(values) < MIN_POINTS and not surely_above(values, MANY_CUT):
        return not_made(gap_of(run, signal))
    result = late_mean(above=MANY_CUT)(run, signal, limits)
    onset = onset_of(run, signal)
    if onset is None or values[: max(int(np.searchsorted(steps, onset.step)), 1)].mean() > MANY_CUT:
        onset = exactly(steps[first_frequent(values > MANY_CUT) or 0])
    return replace(result, onset=onset)


TRUNCATED_ANSWERS = Finding(
    "truncated-answers",
    "Many answers are cut off at the limit",
    truncated,
    (TRUNCATED,),
    fewest=FEW_FACTS,
    measured="In the last quarter of the run {late:.0%} of the answers are cut off at the limit.",
    brief="{late:.0%} of the answers cut off",
    actions=(
        "Raise sampling.max_tokens, or shorten answers by algorithm.overlong.penalty.",
        "Leave cut answers out of the loss: algorithm.overlong.mask_truncated.",
        "If nearly all are cut from the start, the policy never learned to end: look whether the loss of its"
        " supervised training masks the end token, as it does where the padding is the same token.",
    ),
    confirm="The cut answers would have been whole with twice the limit.",
    selection="step={onset}-&stop=length",
    limit=(
        "over 20 % in the last quarter; from the third step on all of them, from the eighth on a mean above "
        "20 % by more than chance explains (99 %)"
    ),
    source="Dr. GRPO (2503.20783), DAPO",
    explains=(*WORSE, "failing-answers-rise", "constant-reward"),
    live=(Watched(TRUNCATED, "difference", 0.2),),
    suspects=("sampling.max_tokens", "algorithm.overlong"),
)


def useless_values(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Values that explain nothing late in the run, unless their errors have all but vanished: returns that
    are all the same have no variance to explain.
    """
    values, errors = (run.series(name)[1] for name in (signal, "value/loss"))
    late = values[len(values) // 2 :]
    share, vanished = float((late < 0.01).mean()), False
    if len(errors):
        largest = max(median(part) for part in np.array_split(errors, min(_LEVELS, len(errors))))
        vanished = median(errors[len(errors) // 2 :]) < _VANISHED_ERROR * largest
    return Result(share > 0.75 and not vanished, {"share": share, "median": median(late)})


VALUE_FUNCTION_USELESS = Finding(
    "value-function-useless",
    "The value function predicts no better than the mean return would",
    useless_values,
    (_EXPLAINED,),
    measured="explained_variance is below 0.01 in {share:.0%} of the second half (median {median:.2f}).",
    actions=(
        "Raise algorithm.critic.learning_rate or algorithm.critic.loss_weight, or give it a trunk of its own "
        "(algorithm.critic.trunk).",
        "Train it a while with the policy frozen.",
        "Or do without: algorithm.advantage rloo or grpo needs none.",
    ),
    confirm="explained_variance rises above 0 within fifty steps of the change.",
    limit=(
        "explained variance below 0.01 in 75 % of the second half; not where the value loss there is below 1 "
        "% of its largest level"
    ),
    suspects=("algorithm.critic",),
)


def value_loss(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Errors of values that grow, while their root is far beyond every return: what is predicted is nothing
    that can be earned. Where the reward rises, values follow.
    """
    steps, losses = run.series(signal)
    returns = run.series(REWARD)[1]
    if not len(returns) or learned(run).matters:
        return Result()
    largest = float(np.abs(returns).max())
    far = np.sqrt(np.maximum(losses, 0.0)) > DIVERGED * max(largest, 1e-9)
    first, last = (median_of_part(losses, *part) for part in ((0, 1 / 3), (2 / 3, 1)))
    place = first_frequent(far)
    numbers = {"signal": signal, "before": first, "after": last, "largest": largest}
    sizes = np.log(np.maximum(losses, 1e-300))
    grew, error = rise_between(sizes[: len(sizes) // 3], sizes[-(len(sizes) // 3) :])
    found = bool(far[len(far) // 2 :].mean() > 0.5 and last > first and grew > _GREW_ERRORS * error)
    return Result(found, numbers, onset=exactly(steps[place or int(far.argmax())]))


def value_losses(run: RunSignals) -> tuple[str, ...]:
    """The squared errors of values: of Q-learning agents the loss itself."""
    if "value/loss" in run.values:
        return ("value/loss",)
    return ("loss",) if run.family.kind == "agent" else ()


VALUE_LOSS_DIVERGES = Finding(
    "value-loss-diverges",
    "The values that are learned have left what can be earned",
    value_loss,
    value_losses,
    severity="critical",
    optional=True,
    fewest=_FEWEST_ENTROPIES,
    measured=(
        "{signal} went from {before:.3g} to {after:.3g}; its root is far above the largest return "
        "({largest:.3g}), and the reward did not rise."
    ),
    brief="{signal} from {before:.3g} to {after:.3g}",
    actions=(
        "Lower training.learning_rate, and set training.max_grad_norm.",
        "Update the target network more slowly or less often.",
        "Scale rewards to about 1, or take the Huber loss in place of the squared one.",
    ),
    confirm="The mean of the predicted values is above the largest return that an episode could have.",
    limit=(
        "the root of the loss above 3 × the largest return in the second half, and the loss surely growing "
        "(by over 3 standard errors of an AR(1))"
    ),
    source="Fujimoto et al. (1802.09477)",
    explains=("reward-drop", "no-learning", "gradient-explosion", "gradient-spikes"),
)


def rate_jumps(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A learning rate that jumps, or begins anew, after its warm-up, unless its schedule is periodic."""
    steps, rates = run.series(signal)
    if (rates <= 0).all():
        return Result()
    top = _end_of_warm_up(rates)
    since = np.maximum(rates[top:], 1e-300)
    if len(since) < 3:
        return Result()
    with np.errstate(over="ignore"):
        ratios = since[1:] / since[:-1]
    ended = np.arange(1, len(since)) >= 0.97 * len(since)  # schedules end at 0
    fell = np.flatnonzero((ratios < RATE_FALL) & ~ended & (since[:-1] > 0.02 * since[0]))
    rose = np.flatnonzero((since > RATE_JUMP * np.minimum.accumulate(since)) & (since > 0.02 * since[0]))
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
    return Result(True, {"before": before, "after": after, "rise": rise}, onset=exactly(steps[place]))


def _end_of_warm_up(rates: Floats) -> int:
    """The place up to which the rate rises. Printed with few digits, it repeats itself on the way."""
    place = same = 0
    for at in range(1, len(rates)):
        if rates[at] > rates[at - 1] * (1 + 1e-9):
            place, same = at, 0
        elif rates[at] < rates[at - 1] or same == _REPEATED:
            break
        else:
            same += 1
    return place


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


LEARNING_RATE_JUMP = Finding(
    "learning-rate-jump",
    "The learning rate jumped, or its warm-up began anew, in the middle of the run",
    rate_jumps,
    ("learning_rate",),
    optional=True,
    measured="The learning rate was {before:.3g}{rise}.",
    brief="Learning rate from {before:.3g} to {after:.3g}",
    actions=(
        "A resumed run that makes its scheduler anew begins the warm-up again: restore the scheduler's "
        "state, or set training.warmup_steps to 0 for the rest.",
        "Go on from the last checkpoint before the onset with the schedule as it was.",
    ),
    confirm="The step at which the process was started again is the onset.",
    limit=(
        "after the warm-up it rises by half over its lowest value so far, except in a periodic schedule: "
        "two whole cycles at least of equal lengths (or each so many times as long as the last) that fall "
        "gradually and return to the same or a lower peak"
    ),
    explains=(*UPDATES, *DAMAGE),
    live=(Watched("learning_rate", "ratio", 5.0, "critical"),),
    suspects=("training.learning_rate", "training.schedule", "training.warmup_steps"),
)


STALE_POLICY = Finding(
    "stale-policy",
    "Answers are sampled by a policy that is several updates old",
    beyond(above=2.0),
    ("rollouts/staleness",),
    optional=True,
    measured="{signal} is {median:.3g} in the median of the {share:.0%} of the steps at which it is above 2.",
    brief="Sampler {median:.3g} updates behind",
    actions=(
        "See whether the engine gets the new weights: the sync after each update, and what it returns.",
        "Sample less far ahead: a smaller queue of batches, or no overlap.",
        "Correct for it by importance weights, if it cannot be avoided.",
    ),
    confirm="importance/difference falls when the sampler is synchronised by hand.",
    limit="`rollouts/staleness` above 2 in over 20 % of the steps, or nearly all of the last 20",
    explains=(*UPDATES, *DAMAGE),
    live=(Watched("rollouts/staleness", "level", 2.0),),
    suspects=("rollouts", "algorithm.updates_per_batch"),
)


_MISMATCHES = {
    "importance/difference": beyond(above=0.05),
    "importance/kl": beyond(above=0.02),
    "importance/mean": beyond(above=0.15, off=1.0),
    "ratio/mean": beyond(above=0.15, off=1.0),
}


def mismatch(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Sampler and learner that are farther apart than the limit of the signal."""
    return _MISMATCHES[signal](run, signal, limits)


SAMPLER_MISMATCH = Finding(
    "sampler-mismatch",
    "Sampler and learner give the same tokens different probabilities",
    mismatch,
    tuple(_MISMATCHES),
    optional=True,
    measured=(
        "{signal} is beyond its limit ({limit}) in {share:.0%} of the steps, {median:.3g} in the median of "
        "those."
    ),
    brief="{signal} {median:.3g} between sampler and learner",
    actions=(
        "Compare temperature, top-p and dtype of both: sampling.temperature must be the one that the learner"
        " divides by.",
        "See whether the sampler has the newest weights (rollouts/staleness).",
        "Compute the log-probabilities of the old policy by the learner, or cap importance weights at 2.",
    ),
    confirm=(
        "The log-probabilities of one answer by both, with equal weights, differ by more than 0.01 a token."
    ),
    limit=(
        "mean |Δ log p| above 0.05, KL above 0.02, or a mean ratio farther than 0.15 from 1, in over 20 % "
        "of the steps, or nearly all of the last 20"
    ),
    source="verl `rollout_corr`, Tinker cookbook",
    explains=("gradient-explosion", "gradient-spikes", *DAMAGE),
    live=(Watched("importance/difference", "level", 0.05),),
    suspects=("sampling", "rollouts", "algorithm.importance"),
    views=("kl-drift",),
)


POLICY = Topic(
    "policy_card",
    "Policy",
    (
        ENTROPY_COLLAPSE,
        ENTROPY_RISE,
        KL_RUNAWAY,
        LARGE_POLICY_STEPS,
        CLIP_FRACTION_HIGH,
        TRUNCATED_ANSWERS,
        VALUE_FUNCTION_USELESS,
        VALUE_LOSS_DIVERGES,
        LEARNING_RATE_JUMP,
        STALE_POLICY,
        SAMPLER_MISMATCH,
    ),
    (
        SignalChart("Entropy (nats per token)", ("entropy",)),
        SignalChart("KL to the reference", ("kl",)),
        SignalChart("Answers cut off at the limit", (TRUNCATED,), "share"),
        SignalChart("Explained variance of the value function", (_EXPLAINED,)),
        SignalChart("Sampler against learner: |Δ log p|", ("importance/difference",)),
        SignalChart("Share of clipped tokens", clip_signals, "share"),
    ),
)


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
        return not_made(gap_of(run, signal, MEMORY_POINTS))
    durations = run.series(DURATION)[1]
    seconds, full_in = None, NOTHING
    if growth.steps_to_limit is not None:
        full_in = f"{growth.steps_to_limit:,.0f} steps"
        if len(durations):
            seconds = growth.steps_to_limit * median(durations)
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


MEMORY_LEAK = Finding(
    "memory-leak",
    "Memory grows at every step and is never freed",
    memory_leak,
    logged_memories,
    critical=True,
    measured=(
        "{memory} grew to {factor:.2f} times [{factor_low:.2f}, {factor_high:.2f}] over the run, "
        "{per_step:.3g} MiB a step{ends}."
    ),
    brief="{memory} ×{factor:.2f}",
    actions=(
        "Look for tensors or episodes kept beyond their step: lists of losses without .item(), caches "
        "without a bound, logged tensors.",
        "Until it is found: save checkpoints (training.checkpoint_interval_steps), and resume from one "
        "before the memory ends.",
    ),
    confirm=(
        "Run 50 steps more and look whether the smallest memory of each ten steps still rises; compare "
        "tracemalloc (or torch.cuda.memory_snapshot) of two steps."
    ),
    limit=(
        "significant growth of at least 1.1 × that goes on in each quarter after its onset, evenly or in "
        "steps, by a line (Theil–Sen) through the lower envelope after the first tenth"
    ),
    weight="critical from 1.5 × or if memory ends within as many steps again, else warning",
    source="Theil 1950, Sen 1968",
    explains=("throughput-drop",),
)


def speed_signals(run: RunSignals) -> list[str]:
    """The signal that tells how fast a run is: tokens per second, else the time of a step or that since the
    start. Of an agent that logs none of them, nothing is missed.
    """
    known = (name for name in (THROUGHPUT, DURATION, _clock(run)) if name and len(run.series(name)[1]))
    return [*itertools.islice(known, 1)] or ([] if run.family.kind == "agent" else [THROUGHPUT])


_FRAMES = re.compile(r"(?:.*/)?(?:total_?timesteps|global_step)")
_FRAMES_PER_SECOND = re.compile(r"(?:time/)?fps|(?:charts/)?sps", re.IGNORECASE)
_CLOCK = re.compile(r"(?:time/)?time_elapsed")
_LENGTH_OF_EPISODE = re.compile(r"(?:.*/)?(?:episode|episodic)_length")


def _clock(run: RunSignals) -> str:
    """The time since the start, or the mean speed since then; empty where neither was logged."""
    found = (name for kind in (_CLOCK, _FRAMES_PER_SECOND) for name in run.values if kind.fullmatch(name))
    return next(found, "")


def _frames(run: RunSignals) -> Floats:
    """The steps of the environment until each row; NaN where rows are episodes of unknown lengths."""
    if (name := next(filter(_FRAMES.fullmatch, run.values), None)) is not None:
        return run.values[name]
    length = next(filter(_LENGTH_OF_EPISODE.fullmatch, run.values), None)
    if length is not None and run.counted_by in ("", *COUNTS_OF_EPISODES):
        return np.cumsum(np.nan_to_num(run.values[length]) * np.diff(run.steps, prepend=run.steps[:1] - 1))
    return np.full(len(run.steps), np.nan if run.counted_by in COUNTS_OF_EPISODES else 1.0) * run.steps


def _speed(run: RunSignals, signal: str) -> tuple[Floats, str]:
    """(the speed at each step, NaN where it is not known, its unit), from the signal that tells it.

    Tokens are those of the counter, else those of a mean answer, since longer answers take longer. What is
    since the start is made a speed by differences, over a sixtieth of the run at least: seconds are rounded.
    """
    if signal != DURATION:
        told, frames = run.values[signal], _frames(run)
        if _FRAMES_PER_SECOND.fullmatch(signal):
            rates = told
            told = np.divide(frames, rates, out=np.full(len(rates), np.nan), where=rates > 0)
            if _goes_back(told, told / rates):
                return rates, "frames"
        reach = max(1, len(frames) // _SPEED_PARTS)
        done, took = (np.full(len(frames), np.nan) for _ in range(2))
        done[reach:], took[reach:] = frames[reach:] - frames[:-reach], told[reach:] - told[:-reach]
        learns = [np.isfinite(run.values[one]) for one in _OF_UPDATES if one in run.values]
        # Sampling alone is faster. Where no update is logged, it may be all of the beginning.
        begun = int(np.any(learns, axis=0).argmax() if learns else WARM_UP * len(frames))
        if learns or run.family.kind == "agent":
            took[: begun + reach + 1] = np.nan
        return np.divide(done, took, out=np.full(len(took), np.nan), where=took > 0), "frames"
    seconds = run.values[signal]
    tokens, unit = np.ones(len(seconds)), "steps"
    if _TOKENS in run.values:
        tokens, unit = np.diff(run.values[_TOKENS], prepend=np.nan), "tokens"
    elif LENGTH in run.values:
        tokens, unit = run.values[LENGTH], "tokens of a mean answer"
    return np.divide(tokens, seconds, out=np.full(len(seconds), np.nan), where=seconds > 0), unit


def _goes_back(seconds: Floats, rounding: Floats) -> bool:
    """Whether times since the start go back again and again by more than their rounding, so that the speeds
    from which they follow are of the moment, and no means since the start.
    """
    known = np.isfinite(seconds)
    back = np.diff(seconds[known]) < -(rounding[known][1:] + rounding[known][:-1]) / 2
    return bool(20 * back.sum() > len(back))


def throughput_drop(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A speed that falls and does not recover. It is information where other work on the machine explains it:
    the process waited for its turn, or the machine computed more slowly.
    """
    if signal != THROUGHPUT:
        return _slower(run, signal, limits)
    result = lasting_change(below=SLOWED)(run, signal, limits)
    waited = ""
    here = run.settings.get("rollouts.engine") in (None, "native")  # else it always waits
    if result.found and result.onset and here and run.values.keys() >= set(OWN_SPEED):
        rates = own_speed(run.values)
        known = np.isfinite(rates)
        since = run.steps[known] >= result.onset.step
        if since.any() and not since.all():
            own = float(medians(rates[known][since]) / medians(rates[known][~since]))
            if own >= max(_STRETCHED, _WAITED * (1 + result.numbers["relative"])):
                waited = (
                    f" Beside the machine's speed it is {own:.2f} times that before: other work ran there."
                )
    severity: Severity | None = "info" if waited else None
    return replace(result, severity=severity, numbers={**result.numbers, "waited": waited, "unit": "tokens"})


def _slower(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """A speed that follows from times, which falls while steps take longer. Agents' vary more: environments
    and evaluations between rows take time.
    """
    speed, unit = _speed(run, signal)
    of_speed = replace(
        run, values={**run.values, THROUGHPUT: speed}, recorded={**run.recorded, THROUGHPUT: speed == speed}
    )
    if of_speed.too_short(THROUGHPUT):
        return Result(made=False)
    below = SLOWED if signal == DURATION else _SLOWED_AGENT
    result = lasting_change(below=below)(of_speed, THROUGHPUT, limits)
    if result.found and result.onset and signal != DURATION:  # one pause is in as many differences
        reach = max(1, len(speed) // _SPEED_PARTS)
        lasted = int((of_speed.series(THROUGHPUT)[0] >= result.onset.step).sum())
        result = replace(result, found=lasted > 2 * reach)
    if result.found and result.onset and signal == DURATION:
        steps, seconds = run.series(signal)
        parts = seconds[steps < result.onset.step], seconds[steps >= result.onset.step]
        took = [median(part) for part in parts if len(part)]
        result = replace(result, found=len(took) == 2 and took[1] * SLOWED > took[0])
    return replace(result, numbers={**result.numbers, "waited": "", "unit": unit})


THROUGHPUT_DROP = Finding(
    "throughput-drop",
    "Slower than before",
    throughput_drop,
    speed_signals,
    measured="{before:,.3g} {unit} per second fell to {after:,.3g} ({relative:+.0%}).{waited}",
    brief="Throughput {relative:+.0%}",
    actions=(
        "See which part became slower: time/sampling, time/grading or time/update.",
        "If answers became longer, they are the reason; see completion/mean_length.",
        "If not: another load on the machine, swapping (see the memory), or too few sandbox.workers.",
    ),
    confirm="A few of these steps, repeated on an idle machine, are as fast as those before.",
    limit=(
        "tokens per second fall by 20 % and do not recover. Where they are not logged, they follow from "
        "`num_tokens` (or the length of answers) and the time of a step, which must grow by 25 %; an agent's "
        "frames per second, from those since the start, must fall by 40 %, after updates have begun (where "
        "rows are episodes, their lengths tell the frames; after the first tenth where no update is logged). "
        "With `perf/cpu_seconds` and `perf/probe_seconds` (our trainer logs them) information where tokens "
        "in the CPU time of a fixed computation hold 65 % and 1.1 times as much as those by the clock: then "
        "other work on the machine explains the fall"
    ),
    weight="warning, info where other work slows the machine",
    source="change test",
    live=(Watched(THROUGHPUT, "ratio", 0.65), Watched(CPU_SPEED, "ratio", 0.65)),
)


def step_durations(run: RunSignals) -> tuple[Fact, ...]:
    """The duration of the median step and of all."""
    seconds = run.series(DURATION)[1]
    if len(seconds) < MIN_POINTS:
        return ()
    total = duration(float(seconds.sum()))
    return Fact("median step", duration(median(seconds))), Fact("all steps", total)


COMPUTE = Topic(
    "compute_profile",
    "Compute profile",
    (MEMORY_LEAK, THROUGHPUT_DROP),
    (SignalChart("Tokens per second", (THROUGHPUT,)),),
    step_durations,
)
