"""What the evaluations of a record add up to: before, after, the arms beside, and the paired differences.

Over seeds, an estimate is the mean of the seeds' estimates and its interval the mean of their
bounds: the seeds answer the same problems, so this interval speaks of problems; the spread over
seeds is shown beside it. A difference is paired: per problem, the share of passing answers of one
evaluation minus that of the other, averaged over seeds; its interval is `intervals.paired_difference`,
over problems. What is said of a difference follows from that interval alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from greenward import intervals
from greenward.intervals import Estimate
from greenward.reports.record import CONTROL, Arm, ReportRecord, in_a_sentence

PRIMARY = "pass@1"
GREEDY = "greedy_pass@1"
SAME_TIME = 0.05  # relative difference in training time up to which two arms had the same

Evaluation = Mapping[str, Any]


@dataclass(frozen=True)
class MetricResult:
    """One metric: pooled estimates, and the seeds' values behind them in the seeds' order.

    `beside` has the final estimates of the arms beside, by label. `gain` is after minus before, paired.
    """

    name: str
    before: Estimate | None
    after: Estimate | None
    beside: Mapping[str, Estimate]
    gain: Estimate | None
    seeds_before: tuple[float, ...]
    seeds_after: tuple[float, ...]
    seeds_beside: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class ArmResult:
    """An arm beside: its paired change of pass@1 from the start, and the main arm's lead over it."""

    label: str
    change: Estimate | None
    lead: Estimate | None


@dataclass(frozen=True)
class Results:
    """The held-out results of a record. `gain` is the main arm's on pass@1."""

    metrics: tuple[MetricResult, ...]
    gain: Estimate | None
    arms: tuple[ArmResult, ...]

    @property
    def primary(self) -> MetricResult | None:
        """The metric that the headline speaks of: pass@1, else the first there is."""
        by_name = {metric.name: metric for metric in self.metrics}
        return by_name.get(PRIMARY) or next(iter(self.metrics), None)


def compare(record: ReportRecord) -> Results:
    """Pool the evaluations of all seeds and pair them by problem.

    `after` is None while there is one evaluation only; an arm beside is missing while it has none after
    its start. Only seeds that have both evaluations enter a difference.
    """
    before = [arm.evaluations[0] if arm.evaluations else None for arm in record.main_arms]
    after = [arm.evaluations[-1] if len(arm.evaluations) > 1 else None for arm in record.main_arms]
    beside = {
        label: [
            final_evaluation(seed.beside[label]) if label in seed.beside else None for seed in record.seeds
        ]
        for label in record.labels_beside
    }
    names = dict.fromkeys(
        name for evaluation in (*before, *after) if evaluation for name in evaluation["metrics"]
    )
    return Results(
        metrics=tuple(
            MetricResult(
                name,
                pooled(before, name),
                pooled(after, name),
                {label: found for label, arms in beside.items() if (found := pooled(arms, name))},
                paired_difference(before, after, name),
                _values(before, name),
                _values(after, name),
                {label: _values(arms, name) for label, arms in beside.items()},
            )
            for name in sorted(names, key=metric_order)
        ),
        gain=paired_difference(before, after),
        arms=tuple(
            ArmResult(label, paired_difference(before, arms), paired_difference(arms, after))
            for label, arms in beside.items()
        ),
    )


def final_evaluation(arm: Arm) -> Mapping[str, Any] | None:
    """The newest evaluation after the arm's first step, None without one."""
    return arm.evaluations[-1] if arm.evaluations and arm.evaluations[-1]["step"] > 0 else None


def pooled(evaluations: Sequence[Evaluation | None], name: str) -> Estimate | None:
    """The mean over seeds of one metric and of its bounds."""
    found = [e["metrics"][name] for e in evaluations if e and name in e["metrics"]]
    if not found:
        return None
    return Estimate(*(fmean(estimate[key] for estimate in found) for key in ("value", "low", "high")))


def paired_difference(
    first: Sequence[Evaluation | None], second: Sequence[Evaluation | None], name: str = PRIMARY
) -> Estimate | None:
    """A metric in `second` minus `first` over the problems that both answered, with interval.

    Both have one entry for each seed; None where there is no evaluation.
    """
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    earlier, later = (_shares([pair[side] for pair in pairs], name) for side in (0, 1))
    differences = [later[task] - earlier[task] for task in earlier if task in later]
    return intervals.paired_difference(np.array(differences)) if differences else None


def headline(record: ReportRecord, results: Results) -> str:
    """The result in plain sentences, one for each arm."""
    main = record.main_arms[0].label
    metric = results.primary
    if metric is None or metric.before is None:
        return f"No held-out evaluation yet: {_training_so_far(record)}"
    name = metric_label(metric.name)
    if metric.after is None:
        return f"Held-out {name} is {percent(metric.before)} so far; there is no second evaluation yet."
    sentence = f"{main}: held-out {name} {_movement(metric.before, metric.after, metric.gain)}"
    if len(metric.seeds_after) > 1:
        sentence += f" (mean of {len(metric.seeds_after)} seeds, {seed_range(metric.seeds_after)})"
    beside = (_arm_sentence(arm, metric, record) for arm in results.arms if arm.label in metric.beside)
    return " ".join((f"{sentence}.", *beside))


def metric_label(name: str) -> str:
    """The reader's name of a metric."""
    return {PRIMARY: "sampled pass@1", GREEDY: "greedy pass@1"}.get(name, name)


def percent(estimate: Estimate) -> str:
    """A rate with its interval, in percent."""
    return f"{100 * estimate.value:.1f} % [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def points(estimate: Estimate) -> str:
    """A difference with its interval, in percentage points."""
    text = f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"
    return text.replace("-", "−")


def seed_range(values: Sequence[float]) -> str:
    """The spread over seeds, in percent."""
    return f"{100 * min(values):.1f} to {100 * max(values):.1f} %"


def _movement(before: Estimate, after: Estimate, change: Estimate | None) -> str:
    """What the paired interval `change` allows to say; no claim without one."""
    verb = "went"
    if change is not None:
        verb = {1: "rose", -1: "fell", 0: "did not change measurably: it went"}[change.sign]
    return f"{verb} from {percent(before)} to {percent(after)}"


def _arm_sentence(arm: ArmResult, metric: MetricResult, record: ReportRecord) -> str:
    """How an arm beside changed, and whether the main arm can be told apart from it."""
    main, shown = record.main_arms[0].label, percent(metric.beside[arm.label])
    subject, name = f"{arm.label}, trained", in_a_sentence(arm.label)
    if arm.label == CONTROL:
        subject, name = "The control, further supervised training", "the control"
    subject += f"{_time_beside(record, arm.label)},"
    if arm.change is None or arm.lead is None:
        return f"{subject} ended at {shown}."
    verb = {1: "rose to", -1: "fell to", 0: "did not change measurably and ended at"}[arm.change.sign]
    relation = {1: "is ahead of", -1: "is behind", 0: "is not distinguishable from"}[arm.lead.sign]
    sentence = f"{subject} {verb} {shown}; {main} {relation} {name} ({points(arm.lead)} points)"
    if arm.label == CONTROL and arm.change.sign > 0:
        sentence += f", so the gain of {main} is not reinforcement learning's alone"
    return f"{sentence}."


def _time_beside(record: ReportRecord, label: str) -> str:
    """How long an arm trained beside the main one, as far as the metrics tell."""
    arm, main = (
        sum(float(row.get("time/step", 0)) for one in arms for row in one.metrics)
        for arms in (record.arms_beside(label), record.main_arms)
    )
    if not arm or not main:
        return ""
    share = arm / main
    return " for the same time" if abs(share - 1) <= SAME_TIME else f" for {share:.0%} of the time"


def _training_so_far(record: ReportRecord) -> str:
    steps = sum(arm.steps for arm in record.main_arms)
    if not steps:
        return "training has not begun."
    rates = [
        row["pass_rate"] for row in record.main_arms[0].metrics if isinstance(row.get("pass_rate"), float)
    ]
    trend = f"; the training pass rate went from {rates[0]:.0%} to {rates[-1]:.0%}" if rates else ""
    return f"{steps} training steps done{trend}."


def _shares(evaluations: Sequence[Evaluation], name: str) -> dict[str, float]:
    """Task id -> the metric on this problem alone, averaged over the evaluations that have it."""
    shares: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for row in evaluation.get("rows", ()):
            share = _share(row, name)
            if share is not None:
                shares.setdefault(str(row.get("task_id")), []).append(share)
    return {task: fmean(values) for task, values in shares.items()}


def _share(row: Mapping[str, Any], name: str) -> float | None:
    """A metric on one problem: pass@k by the unbiased estimator (Chen et al. 2021, arXiv 2107.03374)."""
    if name == GREEDY:
        passed = row.get("greedy_passed")
        return None if passed is None else float(passed)
    k, samples = name.removeprefix("pass@"), row.get("samples")
    if not k.isdecimal() or not samples or samples < int(k):
        return None
    return 1 - math.comb(samples - row["passed"], int(k)) / math.comb(samples, int(k))


def _values(evaluations: Sequence[Evaluation | None], name: str) -> tuple[float, ...]:
    return tuple(e["metrics"][name]["value"] for e in evaluations if e and name in e["metrics"])


def metric_order(name: str) -> tuple[int, int, str]:
    """Sampled pass@1, greedy pass@1, then pass@k by k, then the rest."""
    if name == PRIMARY:
        return (0, 0, name)
    if name == GREEDY:
        return (1, 0, name)
    k = name.removeprefix("pass@")
    return (2, int(k), name) if k.isdecimal() else (3, 0, name)
