"""What the evaluations of a record add up to: before, after, control, and the gain between them.

Over seeds, an estimate is the mean of the seeds' estimates and its interval the mean of their
bounds: the seeds answer the same problems, so this interval speaks of problems; the spread over
seeds is shown beside it. A gain is paired: per problem, the share of passing answers after minus
before, averaged over seeds; its interval is `intervals.paired_difference`, over problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from greenward import intervals
from greenward.intervals import Estimate
from greenward.reports.record import Arm, ReportRecord

PRIMARY = "pass@1"
GREEDY = "greedy_pass@1"
SAME_TIME = 0.05  # relative difference in training time up to which two arms had the same
CONTROL_MARGIN = 0.05  # a control that moves less has stayed where it was


@dataclass(frozen=True)
class MetricResult:
    """One metric: pooled estimates, and the seeds' values behind them in the seeds' order."""

    name: str
    before: Estimate | None
    after: Estimate | None
    control: Estimate | None
    seeds_before: tuple[float, ...]
    seeds_after: tuple[float, ...]
    seeds_control: tuple[float, ...]


@dataclass(frozen=True)
class Results:
    """The held-out results of a record. `gain` is the main arm's, `edge` its lead over the control."""

    metrics: tuple[MetricResult, ...]
    gain: Estimate | None
    control_gain: Estimate | None
    edge: Estimate | None

    @property
    def primary(self) -> MetricResult | None:
        """The metric that the headline speaks of: pass@1, else the first there is."""
        by_name = {metric.name: metric for metric in self.metrics}
        return by_name.get(PRIMARY) or next(iter(self.metrics), None)


def compare(record: ReportRecord) -> Results:
    """Pool the evaluations of all seeds and pair them by problem.

    `after` is None while there is one evaluation only; `control` while it has none after its start.
    """
    before = [arm.evaluations[0] for arm in record.main_arms if arm.evaluations]
    after = [arm.evaluations[-1] for arm in record.main_arms if len(arm.evaluations) > 1]
    control = [last for arm in record.control_arms if (last := final_evaluation(arm))]
    names = dict.fromkeys(name for evaluation in (*before, *after) for name in evaluation["metrics"])
    return Results(
        metrics=tuple(
            MetricResult(
                name,
                pooled(before, name),
                pooled(after, name),
                pooled(control, name),
                _values(before, name),
                _values(after, name),
                _values(control, name),
            )
            for name in sorted(names, key=metric_order)
        ),
        gain=paired_difference(before, after),
        control_gain=paired_difference(before, control),
        edge=paired_difference(control, after),
    )


def final_evaluation(arm: Arm) -> Mapping[str, Any] | None:
    """The newest evaluation after the arm's first step, None without one."""
    return arm.evaluations[-1] if arm.evaluations and arm.evaluations[-1]["step"] > 0 else None


def pooled(evaluations: Sequence[Mapping[str, Any]], name: str) -> Estimate | None:
    """The mean over seeds of one metric and of its bounds."""
    found = [e["metrics"][name] for e in evaluations if name in e["metrics"]]
    if not found:
        return None
    return Estimate(*(fmean(estimate[key] for estimate in found) for key in ("value", "low", "high")))


def paired_difference(
    first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]
) -> Estimate | None:
    """Sampled pass@1 of `second` minus `first` over the problems that both answered, with interval."""
    earlier, later = _pass_shares(first), _pass_shares(second)
    differences = [later[task] - earlier[task] for task in earlier if task in later]
    return intervals.paired_difference(np.array(differences)) if differences else None


def headline(record: ReportRecord, results: Results) -> str:
    """The result in one or two plain sentences."""
    main = record.main_arms[0].label
    metric = results.primary
    if metric is None or metric.before is None:
        return f"No held-out evaluation yet: {_training_so_far(record)}"
    name = metric_label(metric.name)
    if metric.after is None:
        return f"Held-out {name} is {percent(metric.before)} so far; there is no second evaluation yet."
    sentence = f"{main}: held-out {name} {_movement(metric.before, metric.after, results.gain)}"
    if len(metric.seeds_after) > 1:
        sentence += f" (mean of {len(metric.seeds_after)} seeds, {seed_range(metric.seeds_after)})"
    return f"{sentence}. {_control_sentence(metric, results, record)}".strip()


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


def _movement(before: Estimate, after: Estimate, gain: Estimate | None) -> str:
    change = after.value - before.value
    sure = abs(change) > CONTROL_MARGIN if gain is None else gain.low > 0 or gain.high < 0
    verb = ("rose" if change > 0 else "fell") if sure else "did not change measurably: it went"
    return f"{verb} from {percent(before)} to {percent(after)}"


def _control_time(record: ReportRecord) -> str:
    """How long the control trained beside the main arm, as far as the metrics tell."""
    control, main = (
        sum(float(row.get("time/step", 0)) for arm in arms for row in arm.metrics)
        for arms in (record.control_arms, record.main_arms)
    )
    if not control or not main:
        return ""
    share = control / main
    return " for the same time" if abs(share - 1) <= SAME_TIME else f" for {share:.0%} of the time"


def _control_sentence(metric: MetricResult, results: Results, record: ReportRecord) -> str:
    if metric.control is None or metric.before is None or metric.after is None:
        return ""
    moved = metric.control.value - metric.before.value
    gained = metric.after.value - metric.before.value
    shown = percent(metric.control)
    control = f"The control, further supervised training{_control_time(record)},"
    if abs(moved) <= CONTROL_MARGIN:
        return f"{control} stayed at {shown}."
    if moved < 0:
        return f"{control} fell to {shown}."
    if gained > 0 and moved >= gained / 2:
        return f"{control} reached {shown} as well, so the gain is not reinforcement learning's alone."
    return f"{control} reached {shown}."


def _training_so_far(record: ReportRecord) -> str:
    steps = sum(arm.steps for arm in record.main_arms)
    if not steps:
        return "training has not begun."
    rates = [
        row["pass_rate"] for row in record.main_arms[0].metrics if isinstance(row.get("pass_rate"), float)
    ]
    trend = f"; the training pass rate went from {rates[0]:.0%} to {rates[-1]:.0%}" if rates else ""
    return f"{steps} training steps done{trend}."


def _pass_shares(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Task id -> share of passing answers, averaged over the evaluations that have it."""
    shares: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for row in evaluation.get("rows", ()):
            if row.get("samples"):
                shares.setdefault(str(row.get("task_id")), []).append(row["passed"] / row["samples"])
    return {task: fmean(values) for task, values in shares.items()}


def _values(evaluations: Sequence[Mapping[str, Any]], name: str) -> tuple[float, ...]:
    return tuple(e["metrics"][name]["value"] for e in evaluations if name in e["metrics"])


def metric_order(name: str) -> tuple[int, int, str]:
    """Sampled pass@1, greedy pass@1, then pass@k by k, then the rest."""
    if name == PRIMARY:
        return (0, 0, name)
    if name == GREEDY:
        return (1, 0, name)
    k = name.removeprefix("pass@")
    return (2, int(k), name) if k.isdecimal() else (3, 0, name)
