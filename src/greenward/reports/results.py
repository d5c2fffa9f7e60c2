"""What the evaluations of a study add up to: before, after, the arms beside, and the paired differences.

Over seeds, an estimate is the mean of the seeds' estimates and its interval the mean of their
bounds: the seeds answer the same problems, so this interval speaks of problems; the spread over
seeds is shown beside it. A difference is paired: per problem, the share of passing answers of one
evaluation minus that of the other, averaged over seeds; its interval is `intervals.paired_difference`,
over problems. What is said of a difference follows from that interval alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeVar

import numpy as np

from greenward import intervals
from greenward.intervals import Estimate
from greenward.reports.figures import GREEDY, PRIMARY, metric_label, metric_order, percent, points, seed_range
from greenward.reports.study import CONTROL, Evaluation, Study, finite_values, in_a_sentence
from greenward.runs.reading import RecordedRun

SAME_TIME = 0.05  # relative difference in training time up to which two arms had the same

T = TypeVar("T")
Evaluations = Sequence[Evaluation | None]  # one entry for each seed; None where there is no evaluation


@dataclass(frozen=True)
class ArmResult:
    """How an arm ended, by metric: pooled estimates, the seeds' values, and the paired change from the start.

    `lead` is the main arm's paired lead over this one on pass@1, None for the main arm itself.
    """

    label: str
    after: Mapping[str, Estimate]
    seeds_after: Mapping[str, tuple[float, ...]]
    change: Mapping[str, Estimate]
    lead: Estimate | None


@dataclass(frozen=True)
class Results:
    """The held-out results of a study; `arms` begin with the main one. Metrics are in their order."""

    metrics: tuple[str, ...]
    before: Mapping[str, Estimate]
    seeds_before: Mapping[str, tuple[float, ...]]
    arms: tuple[ArmResult, ...]

    @property
    def primary(self) -> str | None:
        """The metric that the headline speaks of: pass@1, else the first there is."""
        return next(iter(self.metrics), None)

    @property
    def main(self) -> ArmResult:
        return self.arms[0]


def evaluations_at(study: Study, place: int) -> list[Evaluation | None]:
    """The first (0) or the newest (-1) evaluation of the main arm, of each seed."""
    return [run.evaluations[place] if run.evaluations else None for run in study.main_runs]


def final_evaluations(study: Study, label: str) -> list[Evaluation | None]:
    """The newest evaluation of an arm, of each seed.

    An arm beside shares its start with the main arm, which was evaluated there, so its newest counts once it
    is after step 0; the main arm needs two.
    """
    if label == study.main:
        return [run.evaluations[-1] if len(run.evaluations) > 1 else None for run in study.main_runs]
    return [final_evaluation(run) if run is not None else None for run in study.arms[label]]


def final_evaluation(run: RecordedRun) -> Evaluation | None:
    """The newest evaluation after the first step of a run, None without one."""
    return run.evaluations[-1] if run.evaluations and run.evaluations[-1]["step"] > 0 else None


def stages(study: Study) -> dict[str, list[Evaluation | None]]:
    """The evaluations before and after, and of the arms beside, by the name of the row that shows them."""
    found = {"Before": evaluations_at(study, 0)}
    for label in study.arms:
        name = f"After {label}" if label == study.main else label
        if any(evaluations := final_evaluations(study, label)):
            found[name] = evaluations
    return found


def compare(study: Study) -> Results:
    """Pool the evaluations of all seeds and pair them by problem.

    Only seeds that have both evaluations enter a difference.
    """
    before = evaluations_at(study, 0)
    after = {label: final_evaluations(study, label) for label in study.arms}
    both = (*before, *after[study.main])
    metrics = sorted({name for one in both if one for name in one["metrics"]}, key=metric_order)

    def of_each(figure: Callable[..., T | None], *evaluations: Evaluations) -> dict[str, T]:
        """A figure of each metric that has it."""
        found = ((name, figure(*evaluations, name)) for name in metrics)
        return {name: one for name, one in found if one is not None}

    arms = (
        ArmResult(
            label,
            of_each(pooled, evaluations),
            of_each(seed_values, evaluations),
            of_each(paired_difference, before, evaluations),
            paired_difference(evaluations, after[study.main]) if label != study.main else None,
        )
        for label, evaluations in after.items()
    )
    return Results(tuple(metrics), of_each(pooled, before), of_each(seed_values, before), tuple(arms))


def pooled(evaluations: Evaluations, name: str, of: str = "metrics") -> Estimate | None:
    """The mean over seeds of one metric (or rate: `of`) and of its bounds."""
    found = [e[of][name] for e in evaluations if e and name in e[of]]
    if not found:
        return None
    return Estimate(*(fmean(estimate[key] for estimate in found) for key in ("value", "low", "high")))


def seed_values(evaluations: Evaluations, name: str) -> tuple[float, ...]:
    """A metric of each seed that has it."""
    return tuple(e["metrics"][name]["value"] for e in evaluations if e and name in e["metrics"])


def paired_difference(first: Evaluations, second: Evaluations, name: str = PRIMARY) -> Estimate | None:
    """A metric in `second` minus `first` over the problems that both answered, with interval."""
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a is not None and b is not None]
    earlier, later = (_shares([pair[side] for pair in pairs], name) for side in (0, 1))
    differences = [later[task] - earlier[task] for task in earlier if task in later]
    return intervals.paired_difference(np.array(differences)) if differences else None


def _shares(evaluations: Sequence[Evaluation], name: str) -> dict[str, float]:
    """Task id -> the metric on this problem alone, averaged over the evaluations that have it."""
    shares: dict[str, list[float]] = {}
    for evaluation in evaluations:
        for row in evaluation.get("rows", ()):
            if (share := _share(row, name)) is not None:
                shares.setdefault(str(row.get("task_id")), []).append(share)
    return {task: fmean(values) for task, values in shares.items()}


def _share(row: Evaluation, name: str) -> float | None:
    """A metric on one problem, None where it was not measured."""
    if name == GREEDY:
        passed = row.get("greedy_passed")
        return None if passed is None else float(passed)
    k, samples = name.removeprefix("pass@"), row["samples"]
    return intervals.pass_at_k(samples, row["passed"], int(k)) if samples and k.isdecimal() else None


def headline(study: Study, results: Results) -> str:
    """The result in plain sentences, one for each arm."""
    metric = results.primary
    if metric is None or metric not in results.before:
        steps = sum(run.steps for run in study.main_runs)
        rates = finite_values(study.main_runs[0].metrics, "pass_rate")
        trend = f"; the training pass rate went from {rates[0]:.0%} to {rates[-1]:.0%}" if rates else ""
        so_far = f"{steps} training steps done{trend}." if steps else "training has not begun."
        return f"No {study.measured} evaluation yet: {so_far}"
    name, before, main = metric_label(metric), results.before[metric], results.main
    if metric not in main.after:
        what = f"{study.measured.capitalize()} {name}"
        return f"{what} is {percent(before)} so far; there is no second evaluation yet."
    verb = "went"  # without a paired interval nothing is claimed
    if metric in main.change:
        verb = {1: "rose", -1: "fell", 0: "did not change measurably: it went"}[main.change[metric].sign]
    measured = f"{main.label}: {study.measured} {name}"
    sentence = f"{measured} {verb} from {percent(before)} to {percent(main.after[metric])}"
    values = main.seeds_after[metric]
    if len(values) > 1:
        sentence += f" (mean of {len(values)} seeds, {seed_range(values)})"
    beside = (_arm_sentence(arm, metric, study) for arm in results.arms[1:] if metric in arm.after)
    return " ".join((f"{sentence}.", *beside))


def _arm_sentence(arm: ArmResult, metric: str, study: Study) -> str:
    """How an arm beside changed, and whether the main arm can be told apart from it."""
    shown, change = percent(arm.after[metric]), arm.change.get(PRIMARY)
    subject, name = f"{arm.label}, trained", in_a_sentence(arm.label)
    if arm.label == CONTROL:
        subject, name = "The control, further supervised training", "the control"
    subject += f"{_time_beside(study, arm.label)},"
    if change is None or arm.lead is None:
        return f"{subject} ended at {shown}."
    verb = {1: "rose to", -1: "fell to", 0: "did not change measurably and ended at"}[change.sign]
    relation = {1: "is ahead of", -1: "is behind", 0: "is not distinguishable from"}[arm.lead.sign]
    sentence = f"{subject} {verb} {shown}; {study.main} {relation} {name} ({points(arm.lead)} points)"
    if arm.label == CONTROL and change.sign > 0:
        sentence += f", so the gain of {study.main} is not reinforcement learning's alone"
    return f"{sentence}."


def _time_beside(study: Study, label: str) -> str:
    """How long an arm trained beside the main one, as far as the metrics tell."""
    arm, main = (
        sum(sum(finite_values(run.metrics, "time/step")) for run in study.runs(one))
        for one in (label, study.main)
    )
    if not arm or not main:
        return ""
    share = arm / main
    return " for the same time" if abs(share - 1) <= SAME_TIME else f" for {share:.0%} of the time"
