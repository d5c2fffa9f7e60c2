"""The charts of a training report as plain data: which lines, over what, with which bands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from greenward.reports.document import Chart, Role, Series, Unit
from greenward.reports.figures import PRIMARY, metric_label, percent, value_text
from greenward.reports.results import Results, final_evaluation, pooled
from greenward.reports.study import CONTROL, Evaluation, Study, finite_points, in_a_sentence
from greenward.runs.reading import RecordedRun

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
    """The seeds of an arm, or of a study: one line for their mean, with its name and colour.

    Their evaluations are paired by steps, or `by_order` where each seed took other steps.
    """

    name: str
    role: Role
    runs: Sequence[RecordedRun]
    by_order: bool = False


def held_out_charts(study: Study, results: Results) -> tuple[Chart, ...]:
    """Held-out pass@1 of the main arm and those beside it: over training time, and over steps."""
    metric = results.primary
    if metric is None or all(len(run.evaluations) < 2 for run in study.main_runs):
        return ()
    main = Drawn(study.main, "main", study.main_runs)
    by_step = evaluation_chart([main], metric, study.measured)
    last_step = max(line.points[-1][0] for line in by_step.series)
    drawn, ends = [main], []
    for arm in results.arms[1:]:
        role, name = _ROLES_BESIDE.get(arm.label, "third"), in_a_sentence(arm.label)
        pairs = zip(study.arms[arm.label], study.main_runs, strict=True)
        runs = [_from_the_start(run, started) for run, started in pairs if run is not None]
        # An arm beside trains for a time, not for a number of steps.
        drawn.append(Drawn(name, role, runs, by_order=True))
        if end := arm.after.get(metric):
            ends.append(Series(name, role, ((0.0, end.value), (last_step, end.value)), weight="dashed"))
    seeds = "Thin lines are single seeds. " if len(study.seeds) > 1 else ""
    dashed = "Dashed lines are where the arms beside it ended." if ends else ""
    return (
        replace(
            evaluation_chart(drawn, metric, study.measured, over_time=True),
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


def _from_the_start(run: RecordedRun, main: RecordedRun) -> RecordedRun:
    """An arm beside, with the main arm's first evaluation where it has none of the start that they share."""
    if main.evaluations and run.evaluations and run.evaluations[0]["step"] > 0:
        return replace(run, evaluations=(main.evaluations[0], *run.evaluations))
    return run


def suite_charts(study: Study) -> tuple[Chart, ...]:
    """pass@1 of the main arm on each public suite that was measured more than once, over steps."""
    charts = []
    for name in dict.fromkeys(name for run in study.main_runs for name in run.suites):
        runs = [replace(run, evaluations=run.suites.get(name, ())) for run in study.main_runs]
        lines = evaluation_series(Drawn(study.main, "main", runs), PRIMARY)
        if any(len(line.points) > 1 for line in lines):
            caption = "One answer to each problem. Bands are 95 % intervals over problems."
            charts.append(Chart(f"{name}: pass@1, by step", "step", tuple(lines), "share", caption))
    return tuple(charts)


def warm_start_charts(study: Study, results: Results) -> tuple[Chart, ...]:
    """The supervised training before: held-out pass@1, loss and gradient norm."""
    runs, metric = study.warm_starts, results.primary
    found = step_charts(runs, [curve for curve in TRAINING_CURVES if curve.key in ("loss", "grad_norm")])
    if metric is None or not any(map(final_evaluation, runs)):
        return found
    lines = evaluation_series(Drawn("", "main", runs), metric)
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
