"""Reads the runs of a report, pools and compares their results, and draws their charts.

Arms of a run are runs inside it: `warm_start/` (supervised training before) and those of `ARMS_BESIDE`,
which trained from the same start for the time that the main arm took. A folder of several seeds holds one
such run for each: `seed_0/`, `seed_1/` …
Over seeds, an estimate is the mean of the seeds' estimates and its interval the mean of their bounds: the
seeds answer the same problems, so this interval speaks of problems; the spread over seeds is shown beside
it. A difference is paired: per problem, the share of passing answers of one evaluation minus that of the
other, averaged over seeds; its interval is `statistics.paired_difference`, over problems. What is said of a
difference follows from that interval alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np

from greenward.common import statistics
from greenward.common.errors import RunError
from greenward.common.statistics import Estimate
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.reports.document import (
    GREEDY,
    PRIMARY,
    Chart,
    Role,
    Series,
    Unit,
    metric_label,
    metric_order,
    percent,
    points,
    seed_range,
    value_text,
)
from greenward.runs.files import OVERFLOWED
from greenward.runs.no_signal import NoSignalPeriod, no_signal_periods
from greenward.runs.reading import RecordedRun, algorithm_of, is_run, read_failure, read_recorded_run

Evaluation = Mapping[str, Any]

ARMS_BESIDE = ("grpo", "similarity", "rejection", "control")
CONTROL = "Control"
_FOLDER_LABELS = {"control": CONTROL, "similarity": "Similarity reward"}
_ARM_LABELS = {
    "grpo": "GRPO",
    "ppo": "PPO",
    "rejection": "Rejection sampling",
    "sft": "supervised",
    "dqn": "Q-learning",
}


@dataclass(frozen=True)
class Runs:
    """Runs of one report by group and seed: groups are the arms of an experiment, or what is overlaid.

    `groups` are by label, the main one first, each with one run for every seed (None where a seed lacks it).
    There is at least one seed. The first evaluation of an arm is of the start that it shares with the main
    one.
    """

    title: str
    seeds: tuple[str, ...]
    groups: Mapping[str, tuple[RecordedRun | None, ...]]
    warm_starts: tuple[RecordedRun, ...]
    notes: tuple[str, ...]

    def group(self, label: str) -> tuple[RecordedRun, ...]:
        """The runs of a group, of the seeds that have it."""
        return tuple(run for run in self.groups[label] if run is not None)

    @property
    def main(self) -> str:
        """The label of the main group."""
        return next(iter(self.groups))

    @property
    def main_runs(self) -> tuple[RecordedRun, ...]:
        """The runs of the main group."""
        return self.group(self.main)

    @property
    def first(self) -> RecordedRun:
        """The first seed of the main group."""
        return self.main_runs[0]

    @property
    def measured(self) -> str:
        """What evaluations ask."""
        return task.measured if (task := self.first.task) else "held-out"

    def evaluations(self, place: int, label: str | None = None) -> list[Evaluation | None]:
        """The first (0) or the newest (-1) evaluation of each seed of a group, which is the main one."""
        runs = self.groups[self.main if label is None else label]
        return [run.evaluations[place] if run and run.evaluations else None for run in runs]

    def ends(self, label: str) -> list[Evaluation | None]:
        """The newest evaluation of each seed of a group; None where there is none but the first."""
        return [
            run.evaluations[-1] if run and len(run.evaluations) > 1 else None for run in self.groups[label]
        ]

    @property
    def stages(self) -> dict[str, list[Evaluation | None]]:
        """The evaluations before, and after each arm that has them, by the name of their row."""
        found = {"Before": self.evaluations(0)}
        for label in self.groups:
            if any(ends := self.ends(label)):
                found[f"After {label}" if label == self.main else label] = ends
        return found


def in_a_sentence(label: str) -> str:
    """The label of an arm as it is written in the middle of a sentence."""
    return label if label.isupper() else label.lower()


def read_runs(path: str | Path) -> Runs:
    """The run directory at `path`, or the runs of its seeds; what cannot be read is left out and noted.

    Raises `RunError` when there is neither.
    """
    path = Path(path)
    folders = [path] if is_run(path) else sorted(filter(is_run, path.glob("seed_*")), key=by_numbers)
    if not folders:
        raise RunError(
            f"{path} holds neither a run (config.yaml) nor a study (seed_0/, seed_1/ …)",
            remedy="Give the folder that `greenward train` wrote to.",
        )
    notes = list(failures(path))
    main = [read_recorded_run(folder, notes) for folder in folders]
    arms: dict[str, list[RecordedRun | None]] = {}
    for name in ARMS_BESIDE:
        for index, folder in enumerate(folders):
            if is_run(folder / name):
                run = read_recorded_run(folder / name, notes)
                label = _FOLDER_LABELS.get(name) or _label(run)
                arms.setdefault(label, [None] * len(folders))[index] = run
    arms.pop(_label(main[0]), None)
    warm = (folder / "warm_start" for folder in folders)
    runs = Runs(
        title=str(main[0].config.get("name") or path.resolve().name),
        seeds=tuple(f"seed {run.config['seed']}" if "seed" in run.config else run.path.name for run in main),
        groups={_label(main[0]): tuple(main)} | {label: tuple(found) for label, found in arms.items()},
        warm_starts=tuple(read_recorded_run(folder, notes) for folder in warm if is_run(folder)),
        notes=(),
    )
    begun = {
        label: tuple(run and _from_start(run, start) for run, start in zip(found, main, strict=True))
        for label, found in arms.items()
    }
    return replace(runs, groups={**runs.groups, **begun}, notes=(*notes, *_gaps(runs)))


def overlaid(parts: Mapping[str, Runs]) -> Runs:
    """The main groups of several, by the names of these; those with fewer seeds lack the last ones."""
    seeds = max((one.seeds for one in parts.values()), key=len)
    notes = []
    for note in dict.fromkeys(note for one in parts.values() for note in one.notes):
        names = [name for name, one in parts.items() if note in one.notes]
        notes.append(note if len(names) == len(parts) else f"{', '.join(names)}: {note}")
    return Runs(
        title=", ".join(parts),
        seeds=seeds,
        groups={
            name: (*one.main_runs, *[None] * (len(seeds) - len(one.seeds))) for name, one in parts.items()
        },
        warm_starts=(),
        notes=tuple(notes),
    )


def by_numbers(path: Path) -> list[tuple[bool, float, str]]:
    """A key that sorts folders by the values of the numbers in their names."""
    parts = re.split(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", path.name)
    return [(odd := bool(index % 2), float(part) if odd else 0.0, part) for index, part in enumerate(parts)]


def failures(path: Path) -> Iterator[str]:
    """What runs in `path` and its seeds said that failed as parts of a sweep, each with its folder."""
    for folder in (path, *sorted(path.glob("seed_*"))):
        if (said := read_failure(folder)) is not None:
            named = "" if folder == path else f"{folder.name} "
            yield visible(f"{named}failed: {' '.join(said.split())}", MAX_MESSAGE_CHARS)


def _from_start(arm: RecordedRun, main: RecordedRun) -> RecordedRun:
    """An arm, with the main one's first evaluation where it has none of the start that they share."""
    measured = arm.evaluations and arm.evaluations[0]["step"] > 0
    return replace(arm, evaluations=(*main.evaluations[:1], *arm.evaluations)) if measured else arm


def _label(run: RecordedRun) -> str:
    name = algorithm_of(run.config) or "training"
    return (run.task and run.task.label) or _ARM_LABELS.get(name, name)


def max_lost_share(runs: Runs) -> float:
    """The largest share of answers that the infrastructure lost in any evaluation."""
    every = (run for label in runs.groups for run in runs.group(label))
    return max((share for run in every for _, _, share in _lost_shares(run)), default=0.0)


def _gaps(runs: Runs) -> Iterator[str]:
    """What a reader must know of the runs before he reads a figure."""
    for seed, main, *found in zip(runs.seeds, runs.main_runs, *runs.groups.values(), strict=True):
        prefix = f"{seed}: " if len(runs.seeds) > 1 else ""
        if main.summary.get("status") == "interrupted":
            yield f"{prefix}stopped after {main.steps} steps; go on with it by --resume."
        elif not main.summary:
            yield f"{prefix}not finished: {main.steps} steps so far."
        for label, run in zip(runs.groups, found, strict=True):
            of_group = prefix if label == runs.main else f"{prefix}{label}: "
            yield from (f"{of_group}{text}" for text in (_defects(run) if run else ()))
    task, name = runs.first.task, algorithm_of(runs.first.config)
    if (task is None or task.asks_problems) and name in ("grpo", "ppo") and CONTROL not in runs.groups:
        yield "There is no control arm, so this report cannot tell reinforcement learning from more training."


def _defects(run: RecordedRun) -> Iterator[str]:
    longest: dict[str, NoSignalPeriod] = {}
    for period in sorted(no_signal_periods(run.metrics, run.config), key=lambda period: -period.steps):
        longest.setdefault(period.cause.brief, period)
    for one in sorted(longest.values(), key=lambda period: period.first_step):
        yield f"Steps {one.first_step} to {one.last_step} of {run.steps}: {one.cause}"
    if lost := sum(finite_values(run.metrics, "episodes/infrastructure")):
        yield f"{lost:.0f} episodes were lost to the infrastructure and not trained on."
    for name, step, share in _lost_shares(run):
        yield (
            f"{share:.1%} of the answers to {name} at step {step} were lost to the infrastructure and count "
            "as not passed."
        )
    if empty := max(finite_values(run.metrics, "rejection/empty_rounds"), default=0):
        yield f"{empty:.0f} of {run.steps} rounds kept no answer and taught nothing new."
    told = set()
    for row in run.metrics:
        for key, value in row.items():
            if isinstance(value, float) and not abs(value) <= OVERFLOWED and key not in told:
                told.add(key)
                yield f"{key} is not a finite number from step {row['step']} on, at times."


def _lost_shares(run: RecordedRun) -> Iterator[tuple[str, int, float]]:
    """(what was evaluated, step, share) of each evaluation in which answers were lost."""
    for name, evaluations in (("held-out problems", run.evaluations), *run.suites.items()):
        for evaluation in evaluations:
            if share := evaluation["rates"].get("infrastructure", {}).get("value", 0.0):
                yield name, evaluation["step"], share


def finite_points(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of the rows of metrics in which `key` is a finite number."""
    return tuple(
        (float(row["step"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), (int, float)) and abs(row[key]) <= OVERFLOWED
    )


def finite_values(rows: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    """The values of `key` that are finite numbers."""
    return [value for _, value in finite_points(rows, key)]


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
    """The held-out results of runs; `arms` begin with the main one. Metrics are in their order."""

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


def compare(runs: Runs) -> Results:
    """Pool the evaluations of all seeds and pair them by problem.

    Only seeds that have both evaluations enter a difference.
    """
    before, after = runs.evaluations(0), {label: runs.ends(label) for label in runs.groups}
    main = after[runs.main]
    metrics = sorted({name for one in (*before, *main) if one for name in one["metrics"]}, key=metric_order)

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
            paired_difference(evaluations, main) if label != runs.main else None,
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
    return statistics.paired_difference(np.array(differences)) if differences else None


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
    return statistics.pass_at_k(samples, row["passed"], int(k)) if samples and k.isdecimal() else None


def headline(runs: Runs, results: Results) -> str:
    """The result in plain sentences, one for each arm."""
    metric = results.primary
    if metric is None or metric not in results.before:
        steps = sum(run.steps for run in runs.main_runs)
        rates = finite_values(runs.first.metrics, "pass_rate")
        trend = f"; the training pass rate went from {rates[0]:.0%} to {rates[-1]:.0%}" if rates else ""
        so_far = f"{steps} training steps done{trend}." if steps else "training has not begun."
        return f"No {runs.measured} evaluation yet: {so_far}"
    name, before, main = metric_label(metric), results.before[metric], results.main
    if metric not in main.after:
        what = f"{runs.measured.capitalize()} {name}"
        return f"{what} is {percent(before)} so far; there is no second evaluation yet."
    verb = "went"  # without a paired interval nothing is claimed
    if metric in main.change:
        verb = {1: "rose", -1: "fell", 0: "did not change measurably: it went"}[main.change[metric].sign]
    measured = f"{main.label}: {runs.measured} {name}"
    sentence = f"{measured} {verb} from {percent(before)} to {percent(main.after[metric])}"
    values = main.seeds_after[metric]
    if len(values) > 1:
        sentence += f" (mean of {len(values)} seeds, {seed_range(values)})"
    beside = (_arm_sentence(arm, metric, runs) for arm in results.arms[1:] if metric in arm.after)
    return " ".join((f"{sentence}.", *beside))


def _arm_sentence(arm: ArmResult, metric: str, runs: Runs) -> str:
    """How an arm changed, in how much of the main one's time, and whether the two can be told apart."""
    shown, change = percent(arm.after[metric]), arm.change.get(PRIMARY)
    subject, name = f"{arm.label}, trained", in_a_sentence(arm.label)
    if arm.label == CONTROL:
        subject, name = "The control, further supervised training", "the control"
    own, main = (
        sum(sum(finite_values(run.metrics, "time/step")) for run in runs.group(label))
        for label in (arm.label, runs.main)
    )
    if own and main:
        same = abs(own / main - 1) <= SAME_TIME
        subject += " for the same time" if same else f" for {own / main:.0%} of the time"
    if change is None or arm.lead is None:
        return f"{subject}, ended at {shown}."
    verb = {1: "rose to", -1: "fell to", 0: "did not change measurably and ended at"}[change.sign]
    relation = {1: "is ahead of", -1: "is behind", 0: "is not distinguishable from"}[arm.lead.sign]
    sentence = f"{subject}, {verb} {shown}; {runs.main} {relation} {name} ({points(arm.lead)} points)"
    if arm.label == CONTROL and change.sign > 0:
        sentence += f", so the gain of {runs.main} is not reinforcement learning's alone"
    return f"{sentence}."


SECONDS_SHOWN_AS_MINUTES = 300
_ROLES_BESIDE: Mapping[str, Role] = {"Rejection sampling": "second", CONTROL: "control"}
_SMOOTH_FROM = 30  # steps; shorter curves are shown as they are
_ZERO_IS_UNUSED = frozenset({"kl", "clip/low", "clip/high"})  # not worth a chart while they are 0


@dataclass(frozen=True)
class Curve:
    """A metric of the steps to draw where it was measured; `name` tells it from others of its chart."""

    title: str
    key: str
    name: str = ""
    role: Role = "main"
    unit: Unit = "number"


TRAINING_CURVES = (
    Curve("Reward", "reward/mean"),
    Curve("Pass rate on training problems", "pass_rate", unit="share"),
    Curve("Groups per step", "groups/with_signal", "with signal"),
    Curve("Groups per step", "groups/dead_all_pass", "all pass", "second"),
    Curve("Groups per step", "groups/dead_all_fail", "all fail", "control"),
    Curve("Loss", "loss"),
    Curve("Kept answers per round", "rejection/kept", "kept"),
    Curve("Kept answers per round", "rejection/pool", "trained on", "second"),
    Curve("Entropy (nats per token)", "entropy"),
    Curve("KL to the reference policy", "kl"),
    Curve("Gradient norm", "grad_norm"),
    Curve("Clipped tokens", "clip/low", "low", "second", "share"),
    Curve("Clipped tokens", "clip/high", "high", "control", "share"),
    Curve("Answer length (tokens)", "completion/mean_length"),
    Curve("Answers cut off at the limit", "completion/truncated", unit="share"),
    Curve("Learning rate", "learning_rate"),
    Curve("Tokens per second", "perf/tokens_per_second"),
)


@dataclass(frozen=True)
class Drawn:
    """The seeds of a group: one line for their mean, with its name and colour.

    Their evaluations are paired by steps, or `by_order` where each seed took other steps.
    """

    name: str
    role: Role
    runs: Sequence[RecordedRun]
    by_order: bool = False


def held_out_charts(runs: Runs, results: Results) -> tuple[Chart, ...]:
    """Held-out pass@1 of the main arm and the others: over training time, and over steps."""
    metric = results.primary
    if metric is None or not any(runs.ends(runs.main)):
        return ()
    main = Drawn(runs.main, "main", runs.main_runs)
    by_step = evaluation_chart([main], metric, runs.measured)
    last_step = max(line.points[-1][0] for line in by_step.series)
    drawn, ends = [main], []
    for arm in results.arms[1:]:
        role, name = _ROLES_BESIDE.get(arm.label, "third"), in_a_sentence(arm.label)
        # The other arms train for a time, not for a number of steps.
        drawn.append(Drawn(name, role, runs.group(arm.label), by_order=True))
        if end := arm.after.get(metric):
            ends.append(Series(name, role, ((0.0, end.value), (last_step, end.value)), weight="dashed"))
    seeds = "Thin lines are single seeds. " if len(runs.seeds) > 1 else ""
    dashed = "Dashed lines are where the arms beside it ended." if ends else ""
    return (
        replace(
            evaluation_chart(drawn, metric, runs.measured, over_time=True),
            caption=f"{seeds}Bands are 95 % intervals over problems.",
        ),
        replace(by_step, series=(*by_step.series, *ends), caption=dashed),
    )


def evaluation_chart(
    drawn: Sequence[Drawn], metric: str, measured: str = "held-out", *, over_time: bool = False
) -> Chart:
    """`metric` of what is `measured` over the steps, or over the training time in minutes or seconds."""
    title = f"{measured.capitalize()} {metric_label(metric)}"
    if not over_time:
        lines = [line for one in drawn for line in evaluation_series(one, metric)]
        return Chart(f"{title}, by step", "step", tuple(lines), "share")
    times = (
        float(e.get("elapsed_seconds", 0.0)) for one in drawn for run in one.runs for e in run.evaluations
    )
    name, unit = ("s", 1.0) if max(times, default=0.0) < SECONDS_SHOWN_AS_MINUTES else ("min", 60.0)
    lines = [line for one in drawn for line in evaluation_series(one, metric, "elapsed_seconds", unit)]
    label = f"training time ({name}), evaluation aside"
    return Chart(f"{title}, by training time", label, tuple(lines), "share")


def suite_charts(runs: Runs) -> Iterator[Chart]:
    """pass@1 of the main arm on each public suite that was measured more than once, over steps."""
    for name in suites_of(runs.main_runs):
        lines = evaluation_series(Drawn(runs.main, "main", on_suite(runs.main_runs, name)), PRIMARY)
        if any(len(line.points) > 1 for line in lines):
            caption = "One answer to each problem. Bands are 95 % intervals over problems."
            yield Chart(f"{name}: pass@1, by step", "step", tuple(lines), "share", caption)


def suites_of(runs: Sequence[RecordedRun]) -> list[str]:
    """The suites that any of the runs was evaluated on, games among them."""
    return list(dict.fromkeys(name for run in runs for name in run.suites))


def on_suite(runs: Sequence[RecordedRun], name: str) -> list[RecordedRun]:
    """The runs with their evaluations on a suite in place of those on what they hold out."""
    return [replace(run, evaluations=run.suites.get(name, ())) for run in runs]


def warm_start_charts(runs: Runs, results: Results) -> tuple[Chart, ...]:
    """The supervised training before: held-out pass@1, loss and gradient norm."""
    warm, metric = runs.warm_starts, results.primary
    found = step_charts(warm, [curve for curve in TRAINING_CURVES if curve.key in ("loss", "grad_norm")])
    if metric is None or not any(run.evaluations and run.evaluations[-1]["step"] for run in warm):
        return found
    lines = evaluation_series(Drawn("", "main", warm), metric)
    return (Chart(f"Held-out {metric_label(metric)}", "step", tuple(lines), "share"), *found)


def step_charts(runs: Sequence[RecordedRun], curves: Sequence[Curve] = TRAINING_CURVES) -> tuple[Chart, ...]:
    """What an arm measured at each step, a chart for each title."""
    charts: dict[str, Chart] = {}
    for curve in curves:
        chart = charts.get(curve.title) or Chart(curve.title, "step", (), curve.unit)
        lines = metric_series(Drawn(curve.name, curve.role, runs), curve.key)
        charts[curve.title] = replace(chart, series=(*chart.series, *lines))
    return tuple(chart for chart in charts.values() if chart.series)


def metric_series(drawn: Drawn, key: str) -> list[Series]:
    """Each seed faint, and the smoothed mean over seeds; nothing where it was not measured."""
    seeds = [points for run in drawn.runs if (points := finite_points(run.metrics, key))]
    if not seeds or (key in _ZERO_IS_UNUSED and not any(y for points in seeds for _, y in points)):
        return []
    by_step: dict[float, list[float]] = {}
    for step, value in (point for points in seeds for point in points):
        by_step.setdefault(step, []).append(value)
    mean = _smooth([(step, fmean(values)) for step, values in sorted(by_step.items())])
    faint = [Series("", drawn.role, points, "faint") for points in seeds if points != mean]
    return [*faint, Series(drawn.name, drawn.role, mean)]


def _smooth(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Centred moving average over about a fifteenth of the curve."""
    if len(points) < _SMOOTH_FROM:
        return tuple(points)
    reach = len(points) // 30
    values = [value for _, value in points]
    return tuple(
        (step, fmean(values[max(0, i - reach) : i + reach + 1])) for i, (step, _) in enumerate(points)
    )


def evaluation_series(
    drawn: Drawn, metric: str, x: str = "step", unit: float = 1.0, *, shown: Unit = "share"
) -> list[Series]:
    """The mean over seeds with its band over the field `x` in units of `unit`, and each seed faint."""
    kept = [{e["step"]: e for e in run.evaluations if metric in e["metrics"]} for run in drawn.runs]
    seeds: list[dict[int, Evaluation]] = [
        dict(enumerate(found.values())) if drawn.by_order else found for found in kept if found
    ]
    if not seeds:
        return []

    def place(evaluation: Evaluation) -> float:
        return float(evaluation.get(x, 0.0)) / unit

    points, band, hints = [], [], []
    for key in sorted(set.intersection(*map(set, seeds))):
        evaluations = [found[key] for found in seeds]
        at = fmean(map(place, evaluations))
        estimate = pooled(evaluations, metric)
        assert estimate is not None  # only evaluations with this metric were kept
        points.append((at, estimate.value))
        band.append((at, estimate.low, estimate.high))
        figure = percent(estimate) if shown == "share" else value_text(estimate.value, shown)
        hints.append(f"{drawn.name or 'step'} {at:,.0f}: {figure}")
    lines = []
    for found in seeds if len(seeds) > 1 else ():
        of_seed = tuple((place(e), float(e["metrics"][metric]["value"])) for e in found.values())
        lines.append(Series("", drawn.role, of_seed, "faint"))
    if points:
        lines.append(Series(drawn.name, drawn.role, tuple(points), "bold", tuple(band), tuple(hints)))
    return lines
