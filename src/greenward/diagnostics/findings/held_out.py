"""Tests the held-out results of a run directory's evaluations, or of a series that the log holds.

Evaluations that list their problems are compared paired; of a series only the spread from one value to the
next says how sure a difference is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from greenward.common.statistics import Z_95, Estimate
from greenward.diagnostics.change_points import exactly, find_change_point
from greenward.diagnostics.finding import WORSE, Finding, Gap, Result, Test, Thresholds, Topic, not_made
from greenward.diagnostics.signal_tests import (
    difference_noise,
    find_signal_change,
    median_of_part,
    rise_since,
)
from greenward.diagnostics.signals import HELD_OUT, PASS_RATE, REWARD, Floats, RunSignals
from greenward.reports import document
from greenward.reports.document import (
    NOTHING,
    PRIMARY,
    Chart,
    Fact,
    Onset,
    Series,
    Table,
    metric_label,
    metric_order,
    percent,
)
from greenward.reports.pooled import paired_difference, pooled
from greenward.runs.reading import read_evaluations, sound_evaluation

Record = Mapping[str, Any]
CRITICAL_LOSS = 0.05  # of pass@1, beyond its interval; a smaller sure loss is a warning
LEVEL = 0.01  # of the test for a fall from the best: it is critical
FALL = 0.02  # the least fall that counts, as a share
GAP = 0.15  # training pass rate over held-out pass@1
GAP_GROWTH = 0.1
CONTAMINATED = 0.15  # held-out above training, beyond the interval
_FEWEST = 5  # values of a series, to know its noise
_SINCE = 5  # steps of training that are averaged around an evaluation


@dataclass(frozen=True)
class Point:
    """An evaluation: its step, the held-out score, and the error of it; the record where there is one."""

    step: int
    value: float
    error: float
    record: Record | None = None


def sound_evaluations(run: RunSignals, suite: str | None) -> list[Record]:
    """The evaluations with a step and metrics on a suite, or on what the run holds out, oldest first.

    Raises:
        RunError: an evaluation cannot be read.
    """
    records = read_evaluations(run.path, suite) if run.path.is_dir() else []
    return list(filter(None, map(sound_evaluation, records)))


def held_out_points(run: RunSignals) -> list[Point]:
    """The held-out results of a run over its steps; empty where there are fewer than two."""
    records = sound_evaluations(run, None)
    found = [(record, estimate) for record in records if (estimate := pooled([record], PRIMARY))]
    if len(found) > 1:
        return [Point(r["step"], e.value, (e.high - e.low) / (2 * Z_95), r) for r, e in found]
    steps, values = run.series(HELD_OUT)
    if len(values) < _FEWEST:
        return []
    differences = np.diff(values)
    noise = difference_noise(values)
    alike = np.count_nonzero(differences) <= len(differences) / 2  # few episodes, most of which end alike
    if alike or run.family.kind == "agent":  # a few episodes are far better by luck
        noise = max(noise, float(differences.std()) / math.sqrt(2))
    noise = max(noise, 1e-3 * _scale(values))
    return [Point(int(step), float(value), noise) for step, value in zip(steps, values, strict=True)]


def _scale(values: Floats) -> float:
    """What counts as the whole of a score: 1 for a share, else the largest of its values."""
    return max(1.0, float(np.abs(values).max()))


def fall(points: list[Point]) -> tuple[Point, Estimate] | None:
    """The best evaluation and the loss from it to the end, where there are two and the loss is surely one.

    The best of several is the best by chance in part, so the level of the test is divided by their number.
    The end is the mean of the last two values of a series.
    """
    if len(points) < 2:
        return None
    *earlier, last = points
    best = max(earlier, key=lambda point: point.value)
    change = _change(best, points[-2:] if last.record is None and len(points) > _FEWEST else [last])
    if change is None:
        return None
    z = NormalDist().inv_cdf(1 - LEVEL / 2 / len(earlier))
    least = FALL * _scale(np.array([point.value for point in points]))
    return (best, change) if change.value < -max(z * _error(change), least) else None


def _error(change: Estimate) -> float:
    return max((change.high - change.low) / (2 * Z_95), 1e-9)


def _change(best: Point, later: list[Point]) -> Estimate | None:
    """From an evaluation to the mean of later ones; paired where both sides list problems, None in common."""
    last = later[-1]
    if best.record is not None and last.record is not None:
        return paired_difference([best.record], [last.record])
    difference = float(np.mean([point.value for point in later])) - best.value
    half = Z_95 * last.error * math.sqrt(1 + 1 / len(later))
    return Estimate(difference, difference - half, difference + half)


def _begin(run: RunSignals, points: list[Point], best: Point) -> Onset:
    """Where the held-out results begin to fall: from the last evaluation that is near the best, to the first
    from which on all are surely below it by a third of the fall. Where training results change in between,
    at that step; else midway to the evaluation after the last that is near.
    """
    since = points[points.index(best) :]
    changes = [_change(best, [point]) for point in since]
    losses = [0.0 if change is None else -change.value / _error(change) for change in changes]
    little = best.value - (best.value - points[-1].value) / 3  # the best of several is so in part by chance
    near = [loss <= Z_95 or point.value > little for loss, point in zip(losses, since, strict=True)]
    first = len(near) - near[::-1].index(True)
    # One that is below by its error may be the first of the fall.
    last = max(place for place, loss in enumerate(losses[:first]) if loss <= 1)
    low, high = since[last].step, since[min(first, len(since) - 1)].step
    for name in (PASS_RATE, REWARD):
        trained, rates = run.series(name)
        inside = (trained > low - (high - low)) & (trained <= high + (high - low))
        change = find_change_point(rates[inside])
        if change is not None and change.p_value < 0.01:
            at = int(trained[inside][change.onset.step])
            if low <= at <= high:
                return Onset(at, low, high)
    return Onset((low + since[min(last + 1, len(since) - 1)].step) // 2, low, high)


def reward_hacking(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Training results that go on rising while held-out ones fall from their best."""
    points = held_out_points(run)
    if (found := fall(points)) is None:
        return Result(made=len(points) > 1)
    best, change = found
    onset = _begin(run, points, best)
    since = max(onset.low, best.step)  # what both gained before is no hacking
    rises = {name: rise_since(run, name, since) for name in (PASS_RATE, REWARD)}
    name, rise = next(((name, rise) for name, rise in rises.items() if rise is not None), ("", None))
    if rise is None:
        return Result()
    document = {"first": rise[0], "last": rise[1], "best": best.value, "end": best.value + change.value}
    return Result(True, {"signal": name, "step": best.step, **document}, onset=onset)


REWARD_HACKING = Finding(
    "reward-hacking",
    "Training results rise while held-out results fall: the reward is hacked",
    reward_hacking,
    severity="critical",
    measured=(
        "{signal} went from {first:.3g} to {last:.3g} since step {step}, while the held-out score fell from"
        " {best:.3g} to {end:.3g}."
    ),
    brief="Training rose to {last:.3g} while held-out fell from {best:.3g} to {end:.3g}",
    actions=(
        "Use the checkpoint of the best evaluation.",
        "Read the answers with the highest reward after the onset: what do they have that good ones have "
        "not? greenward audit tries the known tricks on the grader.",
        "Close the gap in the reward, or add a penalty for leaving the reference: algorithm.kl.coefficient.",
    ),
    confirm="Answers from after the onset that earn the full reward fail tests that they have not seen.",
    selection="step={onset}-&sort=-reward",
    limit=(
        "training results rise from the best held-out evaluation on, while held-out results fall from it "
        "(level 1 %, divided by the number of evaluations)"
    ),
    explains=(
        *WORSE,
        *("train-held-out-gap", "length-growth", "kl-runaway", "diversity-loss", "entropy-collapse"),
        *("length-bias", "poor-calibration", "cheating", "group-signal-fades", "truncated-answers"),
        "calibration-no-discrimination",
    ),
    views=("reward",),
)


def regression_on(suite: str | None) -> Test:
    """pass@1 of the last evaluation less that of the first, on a suite or on what the run holds out."""
    subject = "held-out results" if suite is None else f"results on {suite}"

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        records = sound_evaluations(run, suite)
        if suite is None and not records and held_out_points(run):
            return regression_from_best(run, signal, limits)
        if not records:
            enable = "Set evaluation.enabled." if suite is None else f"Name {suite} in evaluation.suites."
            return not_made(Gap(subject, "the run was not evaluated on it", enable))
        shown: dict[str, Any] = {"tables": (_table(records),), "charts": _charts(records, suite)}
        if len(records) < 2:
            enable = "Set evaluation.at_start, or evaluation.eval_interval_steps."
            reason = "there is one evaluation only, so nothing can be compared"
            return not_made(Gap(subject, reason, enable), **shown)
        gain = paired_difference(records[:1], records[-1:])
        evaluations = [{"step": record["step"], "metrics": dict(record["metrics"])} for record in records]
        shown["data"] = {"evaluations": evaluations, "paired_change": None if gain is None else asdict(gain)}
        if gain is None:
            reason = "the evaluations list no problems in common, so they cannot be paired"
            return not_made(Gap(subject, reason, "Evaluate the same problems each time."), **shown)
        shown["facts"] = (Fact("paired change of pass@1", f"{document.points(gain)} points"),)
        fallen = regression_from_best(run, signal, limits) if suite is None else Result()
        if not gain.high < 0 and fallen.found:
            return replace(fallen, **shown)
        first, last = records[0]["step"], records[-1]["step"]
        return Result(
            gain.high < 0,
            _paired(document.points(gain), first, last),
            "critical" if gain.value <= -CRITICAL_LOSS else "warning",
            fallen.onset or Onset(last, first, last),
            **shown,
        )

    return test


def _paired(points: str, first: int, last: int) -> dict[str, Any]:
    """What is measured of evaluations that list their problems."""
    score = "pass@1 (paired by problem)"
    return {"score": score, "change": f"{points} points", "first": first, "last": last}


def regression_from_best(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Held-out results of a series that fell from their best."""
    points = held_out_points(run)
    if (found := fall(points)) is None:
        return Result(made=len(points) > 1)
    best, change = found
    if run.family.kind == "agent" and not _fell(run, limits):
        return Result()
    scale = _scale(np.array([point.value for point in points]))
    last = points[-1].step
    if best.record is None:
        change_of_series = f"{change.value:+.3g} (from {best.value:.3g} to {best.value + change.value:.3g})"
        score = run.logged_as(HELD_OUT)
        numbers = {"score": score, "change": change_of_series, "first": best.step, "last": last}
    else:
        numbers = _paired(document.points(change), best.step, last)
    severity = "critical" if change.value <= -CRITICAL_LOSS * scale else "warning"
    return Result(True, numbers, severity, _begin(run, points, best))  # type: ignore[arg-type]


def _fell(run: RunSignals, limits: Thresholds) -> bool:
    """Whether an agent's evaluations fell by a test of change, where they are enough for one: by luck, a few
    episodes are far better than all others.
    """
    change = find_signal_change(run, HELD_OUT)
    if change is None:
        return True
    return change.after < change.before and change.p_value <= limits.alpha and change.is_large


def _table(records: Sequence[Record]) -> Table:
    metrics = _metrics(records)
    rows = tuple(
        (
            str(record["step"]),
            str(record.get("problems", NOTHING)),
            *(percent(pooled([record], metric)) for metric in metrics),
        )
        for record in records
    )
    columns = ("Step", "Problems", *map(metric_label, metrics))
    return Table("Evaluations", columns, rows, "95 % intervals over problems.")


def _charts(records: Sequence[Record], suite: str | None) -> tuple[Chart, ...]:
    """The first metric over the steps, where it was measured at least twice."""
    for metric in _metrics(records)[:1]:
        known = [(float(r["step"]), found) for r in records if (found := pooled([r], metric))]
        if len(known) > 1:
            points = tuple((step, estimate.value) for step, estimate in known)
            band = tuple((step, estimate.low, estimate.high) for step, estimate in known)
            hints = tuple(f"step {step:.0f}: {percent(estimate)}" for step, estimate in known)
            title = "Held-out problems" if suite is None else f"Suite {suite}"
            series = Series("", "main", points, band=band, hints=hints)
            return (Chart(f"{title}: {metric_label(metric)}", "step", (series,), "share"),)
    return ()


def _metrics(records: Sequence[Record]) -> list[str]:
    return sorted({str(name) for record in records for name in record["metrics"]}, key=metric_order)


HELD_OUT_REGRESSION = Finding(
    "held-out-regression",
    "Training made held-out results worse",
    regression_on(None),
    measured="{score} changed by {change} from step {first} to step {last}.",
    actions=(
        "Use the checkpoint of the best evaluation.",
        "Go on from it with a lower training.learning_rate or a larger algorithm.kl.coefficient.",
        "Compare training and held-out problems: greenward audit.",
    ),
    confirm="greenward compare of both checkpoints on the same suite says the same.",
    limit=(
        "pass@1 of the last evaluation below the first, paired by problem, beyond its 95 % interval; or "
        "surely below the best (level 1 %, divided by the number of evaluations). It begins between the "
        "last evaluation that is near the best and the first from which on all are surely below it by a "
        "third of the fall"
    ),
    weight="critical from 5 points, or 5 % of the largest score, else warning",
    explains=("train-held-out-gap", "quality-drop"),
    views=("drift",),
)


def train_held_out_gap(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """The pass rate in training, where it rose, against held-out pass@1 that did not follow."""
    records = sound_evaluations(run, None)
    if len(records) < 2:
        return Result(made=False)
    before, after = (pooled([records[place]], PRIMARY) for place in (0, -1))
    rates = run.series(PASS_RATE)[1]
    change = find_signal_change(run, PASS_RATE)
    if before is None or after is None or change is None:
        return Result()
    first, last = median_of_part(rates, 0, 0.1), median_of_part(rates, 0.9, 1)
    gap = last - after.high  # beyond the interval of the held-out rate
    rose = change.p_value <= limits.alpha and change.is_large and last > first
    found = rose and gap >= GAP and (last - after.value) - (first - before.value) >= GAP_GROWTH
    numbers = {"first": first, "last": last, "before": percent(before), "after": percent(after)}
    return Result(found, numbers, onset=change.onset)


TRAIN_HELD_OUT_GAP = Finding(
    "train-held-out-gap",
    "Training problems improve, held-out ones do not follow",
    train_held_out_gap,
    measured=(
        "The pass rate in training rose from {first:.0%} to {last:.0%}; held-out pass@1 went from {before} "
        "to {after}."
    ),
    actions=(
        "Train on more, or more varied, problems (problems.train, problems.families.limit).",
        "Stop at the step from which held-out results are flat.",
        "Search the answers for those that fit the tests only.",
    ),
    confirm="An evaluation on training problems is as good as their pass rate says.",
    limit=(
        "pass rate in training rises to 15 points above the interval of held-out pass@1, and the gap grew "
        "by 10"
    ),
)


def contaminated(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Held-out results that are above those in training from the first evaluation on."""
    points = held_out_points(run)
    steps, rates = run.series(PASS_RATE)
    if not points or not len(rates):
        reason = "it needs evaluations on held-out problems and pass_rate in training"
        return not_made(Gap("contamination of the evaluation", reason, "Log both; greenward train does."))
    gaps = []
    for point in points:
        near = rates[(steps >= point.step - 2 * _SINCE) & (steps <= point.step + 2 * _SINCE)]
        if len(near):
            gaps.append((point, float(near.mean()), point.value - Z_95 * point.error - float(near.mean())))
    if len(gaps) < 2:
        return Result()
    # Skill does not explain results that are better where nothing was trained; later, training catches up.
    found = all(gap > CONTAMINATED for _, _, gap in gaps[:2])
    point, rate, _ = gaps[0]
    return Result(
        found, {"held_out": point.value, "training": rate, "step": point.step}, onset=exactly(steps[0])
    )


EVALUATION_CONTAMINATED = Finding(
    "evaluation-contaminated",
    "Held-out results are better than those in training from the beginning",
    contaminated,
    measured=(
        "Held-out pass@1 is {held_out:.0%} where the pass rate in training is {training:.0%} (step {step}),"
        " and stays above it."
    ),
    brief="Held-out pass@1 {held_out:.0%} against {training:.0%} in training",
    actions=(
        "Search the training data, the corpus of the warm start and the base model's for the held-out "
        "problems: greenward audit --contamination.",
        "See whether both are sampled and graded alike: temperature, token limit, prompts.",
    ),
    confirm="On problems made after the data was collected the difference is gone.",
    limit=(
        "held-out pass@1 15 points above the pass rate in training, beyond its interval, at the first two "
        "evaluations"
    ),
    explains=("train-held-out-gap",),
)


def evaluation_topic(suite: str | None) -> Topic:
    """The evaluations on a suite, or on what the run holds out."""
    if suite is not None:
        regression = replace(HELD_OUT_REGRESSION, test=regression_on(suite))
        return Topic(f"suite_{suite}", f"Suite {suite}", (regression,))
    findings = (REWARD_HACKING, HELD_OUT_REGRESSION, TRAIN_HELD_OUT_GAP, EVALUATION_CONTAMINATED)
    return Topic("held_out", "Held-out problems", findings)
