"""The charts of a report as plain data: which series, over what, with which bands. No drawing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from greenward.reports.document import Chart, Role, Series, Unit
from greenward.reports.record import CONTROL, Arm, ReportRecord, SeedRun, in_a_sentence
from greenward.reports.results import PRIMARY, compare, final_evaluation, metric_label, percent, pooled

SECONDS_SHOWN_AS_MINUTES = 300
_ROLES_BESIDE: Mapping[str, Role] = {"Rejection sampling": "second", CONTROL: "control"}
_SMOOTH_FROM = 30  # steps; shorter curves are shown as they are


@dataclass(frozen=True)
class _Curve:
    """A training curve to draw where there is data: its title and (key, name, role) of its lines."""

    title: str
    lines: tuple[tuple[str, str, Role], ...]
    unit: Unit = "number"


_TRAINING_CURVES = (
    _Curve("Reward", (("reward/mean", "", "main"),)),
    _Curve("Pass rate on training problems", (("pass_rate", "", "main"),), "share"),
    _Curve(
        "Groups per step",
        (
            ("groups/with_signal", "with signal", "main"),
            ("groups/dead_all_pass", "all pass", "second"),
            ("groups/dead_all_fail", "all fail", "control"),
        ),
    ),
    _Curve("Loss", (("loss", "", "main"),)),
    _Curve(
        "Kept answers per round",
        (("rejection/kept", "kept", "main"), ("rejection/pool", "trained on", "second")),
    ),
    _Curve("Entropy (nats per token)", (("entropy", "", "main"),)),
    _Curve("KL to the reference policy", (("kl", "", "main"),)),
    _Curve("Gradient norm", (("grad_norm", "", "main"),)),
    _Curve("Clipped tokens", (("clip/low", "low", "second"), ("clip/high", "high", "control")), "share"),
    _Curve("Answer length (tokens)", (("completion/mean_length", "", "main"),)),
    _Curve("Answers cut off at the limit", (("completion/truncated", "", "main"),), "share"),
    _Curve("Learning rate", (("learning_rate", "", "main"),)),
    _Curve("Tokens per second", (("perf/tokens_per_second", "", "main"),)),
)


def held_out_charts(record: ReportRecord) -> tuple[Chart, ...]:
    """Held-out pass@1 of the main arm and those beside it: over training time, and over steps."""
    metric = compare(record).primary
    if metric is None or all(len(arm.evaluations) < 2 for arm in record.main_arms):
        return ()
    label = record.main_arms[0].label
    name = metric_label(metric.name)
    seeds = "Thin lines are single seeds. " if len(record.seeds) > 1 else ""
    over_time = _evaluation_series(record.main_arms, metric.name, "elapsed_seconds", label, "main")
    over_steps = _evaluation_series(record.main_arms, metric.name, "step", label, "main")
    last_step = max(series.points[-1][0] for series in over_steps)
    for other in record.labels_beside:
        role, shown = _ROLES_BESIDE.get(other, "third"), in_a_sentence(other)
        arms = [_from_the_start(seed, other) for seed in record.seeds if other in seed.beside]
        over_time += _evaluation_series(arms, metric.name, "elapsed_seconds", shown, role)
        if end := metric.beside.get(other):
            level = ((0.0, end.value), (last_step, end.value))
            over_steps.append(Series(shown, role, level, weight="dashed"))
    series, unit = _in_readable_time(over_time)
    return (
        Chart(
            f"Held-out {name}, by training time",
            f"training time ({unit}), evaluation aside",
            series,
            "share",
            f"{seeds}Bands are 95 % intervals over problems.",
        ),
        Chart(
            f"Held-out {name}, by step",
            "step",
            tuple(over_steps),
            "share",
            "Dashed lines are where the arms beside it ended." if metric.beside else "",
        ),
    )


def _from_the_start(seed: SeedRun, label: str) -> Arm:
    """An arm beside, with the main arm's first evaluation where it has none of the start that they share."""
    arm = seed.beside[label]
    if seed.main.evaluations and arm.evaluations and arm.evaluations[0]["step"] > 0:
        return replace(arm, evaluations=(seed.main.evaluations[0], *arm.evaluations))
    return arm


def suite_charts(record: ReportRecord) -> tuple[Chart, ...]:
    """pass@1 of the main arm on each public suite that was measured more than once, over steps."""
    charts = []
    for name in dict.fromkeys(name for arm in record.main_arms for name in arm.suites):
        arms = [replace(arm, evaluations=arm.suites.get(name, ())) for arm in record.main_arms]
        series = _evaluation_series(arms, PRIMARY, "step", record.main_arms[0].label, "main")
        if any(len(line.points) > 1 for line in series):
            caption = "One answer to each problem. Bands are 95 % intervals over problems."
            charts.append(Chart(f"{name}: pass@1, by step", "step", tuple(series), "share", caption))
    return tuple(charts)


def training_charts(record: ReportRecord) -> tuple[Chart, ...]:
    """What the main arm measured at each step."""
    return _step_charts(record.main_arms)


def warm_start_charts(record: ReportRecord) -> tuple[Chart, ...]:
    """The supervised training before: held-out pass@1 and loss."""
    arms = record.warm_start_arms
    metric = compare(record).primary
    charts = []
    if metric is not None and any(final_evaluation(arm) for arm in arms):
        series = tuple(_evaluation_series(arms, metric.name, "step", "", "main"))
        charts.append(Chart(f"Held-out {metric_label(metric.name)}", "step", series, "share"))
    return (*charts, *(chart for chart in _step_charts(arms) if chart.title in {"Loss", "Gradient norm"}))


def _step_charts(arms: Sequence[Arm]) -> tuple[Chart, ...]:
    charts = []
    for curve in _TRAINING_CURVES:
        series = [line for key, name, role in curve.lines for line in _metric_series(arms, key, name, role)]
        if series:
            charts.append(Chart(curve.title, "step", tuple(series), curve.unit))
    return tuple(charts)


def _metric_series(arms: Sequence[Arm], key: str, name: str, role: Role) -> list[Series]:
    """Each seed faint, and the smoothed mean over seeds."""
    per_seed = [points for arm in arms if (points := finite_points(arm.metrics, key))]
    if not per_seed or (
        key in {"kl", "clip/low", "clip/high"} and not any(y for p in per_seed for _, y in p)
    ):
        return []
    by_step: dict[float, list[float]] = {}
    for points in per_seed:
        for step, value in points:
            by_step.setdefault(step, []).append(value)
    mean = _smooth([(step, fmean(values)) for step, values in sorted(by_step.items())])
    faint = [Series("", role, points, "faint") for points in per_seed if points != mean]
    return [*faint, Series(name, role, mean)]


def finite_points(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[tuple[float, float], ...]:
    """(step, value) of the rows in which `key` is a finite number."""
    return tuple(
        (float(row["step"]), float(row[key]))
        for row in rows
        if isinstance(row.get(key), (int, float)) and math.isfinite(row[key])
    )


def _smooth(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Centred moving average over about a fifteenth of the curve."""
    if len(points) < _SMOOTH_FROM:
        return tuple(points)
    reach = max(1, len(points) // 30)
    values = [value for _, value in points]
    return tuple(
        (step, fmean(values[max(0, i - reach) : i + reach + 1])) for i, (step, _) in enumerate(points)
    )


def _evaluation_series(arms: Sequence[Arm], metric: str, x: str, name: str, role: Role) -> list[Series]:
    """The mean over seeds with its band, and each seed faint when there are several."""
    arms = [arm for arm in arms if any(metric in e["metrics"] for e in arm.evaluations)]
    if not arms:
        return []
    by_step: list[dict[int, Mapping[str, Any]]] = [
        {e["step"]: e for e in arm.evaluations if metric in e["metrics"]} for arm in arms
    ]
    if role != "main":  # runs for a time, not for a number of steps: pair first and last
        by_step = [dict(enumerate(evaluations.values())) for evaluations in by_step]
    shared = sorted(set.intersection(*(set(evaluations) for evaluations in by_step)))
    points, band, hints = [], [], []
    for key in shared:
        evaluations = [seed[key] for seed in by_step]
        estimate = pooled(evaluations, metric)
        assert estimate is not None
        at = fmean(float(e.get(x, 0.0)) for e in evaluations)
        points.append((at, estimate.value))
        band.append((at, estimate.low, estimate.high))
        hints.append(f"{name or 'step'} {at:,.0f}: {percent(estimate)}")
    faint = [
        Series(
            "",
            role,
            tuple((float(e.get(x, 0.0)), e["metrics"][metric]["value"]) for e in seed.values()),
            "faint",
        )
        for seed in by_step
        if len(arms) > 1
    ]
    return [*faint, Series(name, role, tuple(points), "bold", tuple(band), tuple(hints))]


def _in_readable_time(series: Sequence[Series]) -> tuple[tuple[Series, ...], str]:
    longest = max((x for line in series for x, _ in line.points), default=0.0)
    if longest < SECONDS_SHOWN_AS_MINUTES:
        return tuple(series), "s"
    return tuple(
        Series(
            line.name,
            line.role,
            tuple((x / 60, y) for x, y in line.points),
            line.weight,
            tuple((x / 60, low, high) for x, low, high in line.band),
            line.hints,
        )
        for line in series
    ), "min"
