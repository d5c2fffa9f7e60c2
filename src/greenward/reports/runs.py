"""Reads the runs of a report, pools and compares their results, and draws their charts.

Arms of a run are runs inside it: `warm_start/` (supervised training before) and those of `ARMS`,
which trained from the same start for the time that the main arm took. A folder of several seeds holds one
such run for each: `seed_0/`, `seed_1/` …
Over seeds, results are pooled (`reports/pooled.py`), and their spread is shown beside the mean. What is said
of a difference follows from its interval alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from shlex import quote
from statistics import fmean
from typing import Any

import numpy as np

from greenward.common.errors import RunError
from greenward.common.statistics import Estimate
from greenward.common.text import MAX_MESSAGE_CHARS, visible
from greenward.reports.document import (
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
from greenward.reports.pooled import Evaluation, Evaluations, paired_difference, pooled, seed_values
from greenward.runs.files import OVERFLOWED
from greenward.runs.no_signal import NoSignalPeriod, no_signal_periods
from greenward.runs.reading import (
    ARMS,
    WARM_START,
    RecordedRun,
    algorithm_of,
    is_evaluation,
    is_run,
    read_failure,
    read_recorded_run,
)

CONTROL = "Control"
_FOLDER_LABELS = {"control": CONTROL, "similarity": "Similarity reward"}
ALGORITHM_LABELS = {
    "grpo": "GRPO",
    "ppo": "PPO",
    "rejection": "Rejection sampling",
    "sft": "supervised",
    "dqn": "Q-learning",
}


@dataclass(frozen=True)
class Group:
    """Runs that differ in the seed alone (None where a seed lacks it), with the colour of their line.

    Their evaluations are drawn by steps, or `by_order` where each seed took other steps.
    """

    label: str
    of_seeds: Sequence[RecordedRun | None]
    role: Role = "main"
    by_order: bool = False

    @property
    def runs(self) -> list[RecordedRun]:
        """The runs of the seeds that have one."""
        return [run for run in self.of_seeds if run is not None]

    @property
    def first(self) -> RecordedRun:
        """The run of the first seed."""
        return self.runs[0]

    def at(self, place: int) -> list[Evaluation | None]:
        """The first (0) or the newest (-1) evaluation of each seed."""
        return [run.evaluations[place] if run and run.evaluations else None for run in self.of_seeds]

    @property
    def ends(self) -> list[Evaluation | None]:
        """The newest evaluation of each seed, None where there is none but the first."""
        return [end if end is not start else None for start, end in zip(self.at(0), self.at(-1), strict=True)]

    def on(self, suite: str) -> Group:
        """Those evaluated on a suite, with these evaluations in place of those on what they hold out."""
        found = (run for run in self.runs if run.suites.get(suite))
        return replace(self, of_seeds=[replace(run, evaluations=run.suites[suite]) for run in found])


@dataclass(frozen=True)
class Runs:
    """The runs of a report by what differs: the group (an arm, or what is overlaid) and the seed.

    There is one group and one seed at least. The first group is the main one; of arms it has all seeds, and
    the first evaluation of the others is of the start that they share with it.
    """

    title: str
    seeds: tuple[str, ...]
    groups: tuple[Group, ...]
    warm_start: Group = Group("", ())
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> Group:
        return self.groups[0]

    @property
    def measured(self) -> str:
        """What evaluations ask."""
        return task.measured if (task := self.main.first.task) else "held-out"

    @property
    def first_step(self) -> str | None:
        """The step of the first evaluations, None where that is the start."""
        steps = sorted({one["step"] for one in self.main.at(0) if one})
        return None if steps in ([], [0]) else f"step {', '.join(map(str, steps))}"

    @property
    def stages(self) -> dict[str, list[Evaluation | None]]:
        """The first evaluations, and those after each arm that has them, by the name of their row."""
        first = "Before" if self.first_step is None else self.first_step.capitalize()
        ends = {f"After {one.label}" if one is self.main else one.label: one.ends for one in self.groups}
        return {first: self.main.at(0)} | {row: found for row, found in ends.items() if any(found)}

    @cached_property
    def results(self) -> Results:
        """The evaluations of all seeds pooled, and paired by problem: only seeds that have both are."""
        before, main = self.main.at(0), self.main.ends
        found = {name for one in (*before, *main) if one for name in one["metrics"]}
        metrics = tuple(sorted(found, key=metric_order))

        def of_each(figure: Callable[..., Any], *evaluations: Evaluations) -> dict[str, Any]:
            """A figure of each metric that has it."""
            figures = {name: figure(*evaluations, name) for name in metrics}
            return {name: one for name, one in figures.items() if one is not None}

        arms = (
            ArmResult(
                group.label,
                of_each(pooled, group.ends),
                of_each(seed_values, group.ends),
                of_each(paired_difference, before, group.ends),
                of_each(paired_difference, group.ends, main) if group is not self.main else {},
            )
            for group in self.groups
        )
        return Results(metrics, of_each(pooled, before), tuple(arms))


_MOST_NAMED = 8  # evaluations in a message
_NO_CONTROL = "There is no control arm, so this report cannot tell reinforcement learning from more training."
_FEWEST_STEPS = 5  # of a training that is more than a trial


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
        raise _no_run(path)
    notes = list(failures(path))
    runs = [read_recorded_run(folder, notes) for folder in folders]
    main, found = Group(_label(runs[0]), runs), dict[str, list[RecordedRun | None]]()
    for name in ARMS:
        for index, folder in enumerate(folders):
            if is_run(folder / name):
                run = read_recorded_run(folder / name, notes)
                if (label := _FOLDER_LABELS.get(name) or _label(run)) != main.label:
                    found.setdefault(label, [None] * len(folders))[index] = run
    arms = [Group(label, of_seeds, _ROLES_OF_ARMS.get(label, "third")) for label, of_seeds in found.items()]
    warm = (folder / WARM_START for folder in folders)
    warm_starts = [read_recorded_run(folder, notes) if is_run(folder) else None for folder in warm]
    seeds = tuple(f"seed {run.config['seed']}" if "seed" in run.config else run.path.name for run in runs)
    return Runs(
        title=path.resolve().name or str(path),
        seeds=seeds,
        groups=(main, *(_from_start(arm, main) for arm in arms)),
        warm_start=Group("", warm_starts),
        notes=(*notes, *_gaps(seeds, (main, *arms))),
    )


def _no_run(path: Path) -> RunError:
    """The error for a place without runs, which says what is there."""
    named = quote(str(path))
    if is_evaluation(path):
        return RunError(
            f"{path} is an evaluation, and no run.",
            remedy=f"See it by `greenward report {named}`, compare two by `greenward compare A B`.",
        )
    if path.is_dir() and (evaluations := sorted(filter(is_evaluation, path.iterdir()))):
        first, *others = (quote(str(one)) for one in evaluations)
        compare = f", or `greenward compare {first} {others[0]}`" if others else ""
        names = ", ".join(one.name for one in evaluations[:_MOST_NAMED])
        return RunError(
            f"{path} holds evaluations, and no run: {names}.",
            remedy=f"See one by `greenward report {first}`{compare}.",
        )
    if path.is_file():
        return RunError(
            f"{path} is a file, and no run of greenward's.",
            remedy=f"Of another trainer: `greenward diagnose {named}` or `greenward watch {named}`.",
        )
    return RunError(
        f"{path} holds neither a run (config.yaml) nor a study (seed_0/, seed_1/ …)",
        remedy="Give the folder that `greenward train` wrote to. What another trainer logged is read by "
        "`greenward diagnose` and `greenward watch`.",
    )


def overlaid(parts: Mapping[str, Runs]) -> Runs:
    """The main groups of several, by the names of these; those with fewer seeds lack the last ones."""
    seeds = max((one.seeds for one in parts.values()), key=len)
    notes = []
    for note in dict.fromkeys(note for one in parts.values() for note in one.notes if note != _NO_CONTROL):
        names = [name for name, one in parts.items() if note in one.notes]
        notes.append(note if len(names) == len(parts) else f"{', '.join(names)}: {note}")
    groups = (
        Group(name, [*one.main.runs, *[None] * (len(seeds) - len(one.seeds))]) for name, one in parts.items()
    )
    return Runs(", ".join(parts), seeds, tuple(groups), notes=tuple(notes))


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


def _from_start(arm: Group, main: Group) -> Group:
    """An arm, with the main one's first evaluations where it has none of the start that they share."""

    def begun(run: RecordedRun | None, start: RecordedRun) -> RecordedRun | None:
        if run and run.evaluations and run.evaluations[0]["step"] > 0:
            return replace(run, evaluations=(*start.evaluations[:1], *run.evaluations))
        return run

    # An arm trains for a time, not for a number of steps.
    return replace(arm, of_seeds=[*map(begun, arm.of_seeds, main.runs)], by_order=True)


def _label(run: RecordedRun) -> str:
    name = algorithm_of(run.config) or "training"
    return (run.task and run.task.label) or ALGORITHM_LABELS.get(name, name)


def max_lost_share(runs: Runs) -> float:
    """The largest share of answers that the infrastructure lost in any evaluation."""
    every = (run for group in runs.groups for run in group.runs)
    return max((share for run in every for _, _, share in _lost_shares(run)), default=0.0)


def _gaps(seeds: Sequence[str], groups: Sequence[Group]) -> Iterator[str]:
    """What a reader must know of the runs before he reads a figure."""
    for index, main in enumerate(groups[0].runs):
        prefix = f"{seeds[index]}: " if len(seeds) > 1 else ""
        if main.summary.get("status") == "interrupted":
            yield f"{prefix}stopped after {main.steps} steps; go on with it by --resume."
        elif not main.summary:
            yield f"{prefix}not finished: {main.steps} steps so far."
        elif 0 < main.steps < _FEWEST_STEPS and "reward/mean" in (main.metrics[-1] if main.metrics else ()):
            count = f"{main.steps} step{'s were' if main.steps > 1 else ' was'}"
            yield f"{prefix}only {count} trained: that everything works is shown, and nothing can be learned."
        for group in groups:
            of_group = prefix if group is groups[0] else f"{prefix}{group.label}: "
            run = group.of_seeds[index]
            yield from (f"{of_group}{text}" for text in (_defects(run) if run else ()))
    first = groups[0].first
    asks_problems = first.task is None or first.task.asks_problems
    shows_a_gain = any(groups[0].ends)
    if asks_problems and shows_a_gain and algorithm_of(first.config) in ("grpo", "ppo") and len(groups) == 1:
        yield _NO_CONTROL


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


@dataclass(frozen=True)
class ArmResult:
    """How an arm ended, by metric: pooled estimates, the seeds' values, and the paired change from the start.

    `lead` is the main arm's paired lead over this one, empty for the main arm itself.
    """

    label: str
    after: Mapping[str, Estimate]
    seeds_after: Mapping[str, tuple[float, ...]]
    change: Mapping[str, Estimate]
    lead: Mapping[str, Estimate]


@dataclass(frozen=True)
class Results:
    """The held-out results of runs; `arms` begin with the main one. Metrics are in their order."""

    metrics: tuple[str, ...]
    before: Mapping[str, Estimate]
    arms: tuple[ArmResult, ...]

    @property
    def primary(self) -> str | None:
        """The metric that the headline speaks of: pass@1, else the first there is."""
        return next(iter(self.metrics), None)

    @property
    def main(self) -> ArmResult:
        return self.arms[0]


def headline(runs: Runs) -> str:
    """The result in plain sentences, one for each arm."""
    results = runs.results
    metric = results.primary
    if metric is None or metric not in results.before:
        steps = sum(run.steps for run in runs.main.runs)
        rates = finite_values(runs.main.first.metrics, "pass_rate")
        trend = f"; the training pass rate went from {rates[0]:.0%} to {rates[-1]:.0%}" if rates else ""
        so_far = f"{steps} training steps done{trend}." if steps else "training has not begun."
        return f"No {runs.measured} evaluation yet: {so_far}"
    name, before, main = metric_label(metric), results.before[metric], results.main
    if metric not in main.after:
        what = f"{runs.measured.capitalize()} {name}"
        when = "so far" if runs.first_step is None else f"at {runs.first_step}"
        return f"{what} is {percent(before)} {when}; there is no second evaluation yet."
    verb = "went"  # without a paired interval nothing is claimed
    if metric in main.change:
        verb = {1: "rose", -1: "fell", 0: "did not change measurably: it went"}[main.change[metric].sign]
    measured = f"{main.label}: {runs.measured} {name}"
    sentence = f"{measured} {verb} from {percent(before)} to {percent(main.after[metric])}"
    values = main.seeds_after[metric]
    if len(values) > 1:
        sentence += f" (mean of {len(values)} seeds, {seed_range(values)})"
    arms = zip(results.arms[1:], runs.groups[1:], strict=True)
    beside = (_arm_sentence(arm, metric, group, runs.main) for arm, group in arms if metric in arm.after)
    return " ".join((f"{sentence}.", *beside))


def _arm_sentence(arm: ArmResult, metric: str, group: Group, main: Group) -> str:
    """How an arm changed, in how much of the main one's time, and whether the two can be told apart."""
    shown, change = percent(arm.after[metric]), arm.change.get(PRIMARY)
    subject, name = f"{arm.label}, trained", in_a_sentence(arm.label)
    if arm.label == CONTROL:
        subject, name = "The control, further supervised training", "the control"
    own, whole = (
        sum(sum(finite_values(run.metrics, "time/step")) for run in one.runs) for one in (group, main)
    )
    if own and whole:
        same = abs(own / whole - 1) <= SAME_TIME
        subject += " for the same time" if same else f" for {own / whole:.0%} of the time"
    if change is None or PRIMARY not in arm.lead:
        return f"{subject}, ended at {shown}."
    verb = {1: "rose to", -1: "fell to", 0: "did not change measurably and ended at"}[change.sign]
    lead = arm.lead[PRIMARY]
    relation = {1: "is ahead of", -1: "is behind", 0: "is not distinguishable from"}[lead.sign]
    sentence = f"{subject}, {verb} {shown}; {main.label} {relation} {name} ({points(lead)} points)"
    for beside, other in arm.lead.items():
        if beside != PRIMARY and other.sign:
            place = "ahead" if other.sign > 0 else "behind"
            sentence += f", and {place} in {metric_label(beside)} ({points(other)})"
    if arm.label == CONTROL and change.sign > 0:
        sentence += f", so the gain of {main.label} is not reinforcement learning's alone"
    return f"{sentence}."


SECONDS_SHOWN_AS_MINUTES = 300
_ROLES_OF_ARMS: Mapping[str, Role] = {"Rejection sampling": "second", CONTROL: "control"}
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


_SUMMARIES = frozenset({"reward/mean", "reward/std", "reward/min", "reward/max"})
_MOST_TERMS = 12


def training_curves(runs: Sequence[RecordedRun]) -> list[Curve]:
    """The curves of a training, behind the reward those of its terms, unless it is the only one."""
    keys = {key for run in runs for row in run.metrics for key in row if key.startswith("reward/")}
    terms = [
        key
        for key in sorted(keys - _SUMMARIES)
        if any(finite_points(run.metrics, key) != finite_points(run.metrics, "reward/mean") for run in runs)
    ]
    reward, *others = TRAINING_CURVES
    of_terms = [Curve(f"Reward: {key.partition('/')[2]}", key) for key in terms[:_MOST_TERMS]]
    return [reward, *of_terms, *others]


def held_out_charts(runs: Runs) -> tuple[Chart, ...]:
    """Held-out pass@1 of the main arm and the others: over training time, and over steps."""
    metric = runs.results.primary
    if metric is None or not any(runs.main.ends):
        return ()
    by_step = evaluation_chart([runs.main], metric, runs.measured)
    last_step = max(line.points[-1][0] for line in by_step.series)
    arms = [replace(arm, label=in_a_sentence(arm.label)) for arm in runs.groups[1:]]
    ends = [
        Series(arm.label, arm.role, ((0.0, end.value), (last_step, end.value)), weight="dashed")
        for arm in arms
        if (end := pooled(arm.ends, metric))
    ]
    seeds = "Thin lines are single seeds. " if len(runs.seeds) > 1 else ""
    dashed = "Dashed lines are where the arms beside it ended." if ends else ""
    return (
        replace(
            evaluation_chart([runs.main, *arms], metric, runs.measured, over_time=True),
            caption=f"{seeds}Bands are 95 % intervals over problems.",
        ),
        replace(by_step, series=(*by_step.series, *ends), caption=dashed),
    )


def evaluation_chart(
    groups: Sequence[Group], metric: str, measured: str = "held-out", *, over_time: bool = False
) -> Chart:
    """`metric` of what is `measured` over the steps, or over the training time in minutes or seconds."""
    how, label, x, unit = "by step", "step", "step", 1.0
    if over_time:
        evaluations = [e for group in groups for run in group.runs for e in run.evaluations]
        seconds = max((float(e.get("elapsed_seconds", 0.0)) for e in evaluations), default=0.0)
        name, unit = ("s", 1.0) if seconds < SECONDS_SHOWN_AS_MINUTES else ("min", 60.0)
        how, label, x = "by training time", f"training time ({name}), evaluation aside", "elapsed_seconds"
    lines = tuple(line for group in groups for line in evaluation_series(group, metric, x, unit))
    return Chart(f"{measured.capitalize()} {metric_label(metric)}, {how}", label, lines, "share")


def suite_charts(runs: Runs) -> Iterator[Chart]:
    """pass@1 of the main arm on each public suite that was measured more than once, over steps."""
    for name in suites_of(runs.main.runs):
        lines = evaluation_series(runs.main.on(name), PRIMARY)
        if any(len(line.points) > 1 for line in lines):
            caption = "One answer to each problem. Bands are 95 % intervals over problems."
            yield Chart(f"{name}: pass@1, by step", "step", tuple(lines), "share", caption)


def suites_of(runs: Sequence[RecordedRun], *, games: bool = False) -> list[str]:
    """The suites, or the games, that any of the runs was evaluated on, as their files name them."""
    first = {name: found[0] for run in runs for name, found in run.suites.items() if found}
    return [name for name, evaluation in first.items() if is_game(evaluation) is games]


def is_game(evaluation: Evaluation) -> bool:
    """Whether an evaluation is one of a game."""
    return "roles" in evaluation


def warm_start_charts(runs: Runs) -> tuple[Chart, ...]:
    """The supervised training before: held-out pass@1, loss and gradient norm."""
    warm, metric = runs.warm_start, runs.results.primary
    found = step_charts(warm.runs, [curve for curve in TRAINING_CURVES if curve.key in ("loss", "grad_norm")])
    if metric is None or not any(end and end["step"] for end in warm.at(-1)):
        return found
    lines = evaluation_series(warm, metric)
    return (Chart(f"Held-out {metric_label(metric)}", "step", tuple(lines), "share"), *found)


def step_charts(runs: Sequence[RecordedRun], curves: Sequence[Curve]) -> tuple[Chart, ...]:
    """What an arm measured at each step, a chart for each title."""
    charts: dict[str, Chart] = {}
    for curve in curves:
        chart = charts.get(curve.title) or Chart(curve.title, "step", (), curve.unit)
        lines = metric_series(Group(curve.name, runs, curve.role), curve.key)
        charts[curve.title] = replace(chart, series=(*chart.series, *lines))
    return tuple(chart for chart in charts.values() if chart.series)


def metric_series(group: Group, key: str) -> list[Series]:
    """Each seed faint, and the smoothed mean over seeds; nothing where it was not measured."""
    seeds = [points for run in group.runs if (points := finite_points(run.metrics, key))]
    if not seeds or (key in _ZERO_IS_UNUSED and not any(y for points in seeds for _, y in points)):
        return []
    by_step: dict[float, list[float]] = {}
    for step, value in (point for points in seeds for point in points):
        by_step.setdefault(step, []).append(value)
    mean = _smooth([(step, fmean(values)) for step, values in sorted(by_step.items())])
    faint = [Series("", group.role, points, "faint") for points in seeds if points != mean]
    return [*faint, Series(group.label, group.role, mean)]


def _smooth(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Centred moving average over about a fifteenth of the curve."""
    if len(points) < _SMOOTH_FROM:
        return tuple(points)
    reach = len(points) // 30
    values = np.array([value for _, value in points])
    counts = _sums_around(np.ones(len(values)), reach)
    means = (_sums_around(values, reach) / counts).tolist()
    return tuple((step, mean) for (step, _), mean in zip(points, means, strict=True))


def _sums_around(values: np.ndarray, reach: int) -> np.ndarray:
    """The sum of each value and of `reach` neighbours on both sides; what lies beyond the ends counts as 0.

    Sums of 1, 2, 4 … values are put together: differences of running sums would lose small values behind a
    huge one.
    """
    count, width, taken, left = len(values), 1, 0, 2 * reach + 1
    sums, found = np.pad(values, reach), np.zeros(len(values))
    while left:
        if left & width:
            found += sums[taken : taken + count]
            taken += width
            left -= width
        sums, width = sums[:-width] + sums[width:], 2 * width
    return found


def evaluation_series(
    group: Group, metric: str, x: str = "step", unit: float = 1.0, *, shown: Unit = "share"
) -> list[Series]:
    """The mean over seeds with its band over the field `x` in units of `unit`, and each seed faint."""
    kept = [{e["step"]: e for e in run.evaluations if metric in e["metrics"]} for run in group.runs]
    seeds: list[dict[int, Evaluation]] = [
        dict(enumerate(found.values())) if group.by_order else found for found in kept if found
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
        hints.append(f"{group.label or 'step'} {at:,.0f}: {figure}")
    lines = []
    for found in seeds if len(seeds) > 1 else ():
        of_seed = tuple((place(e), float(e["metrics"][metric]["value"])) for e in found.values())
        lines.append(Series("", group.role, of_seed, "faint"))
    if points:
        lines.append(Series(group.label, group.role, tuple(points), "bold", tuple(band), tuple(hints)))
    return lines
