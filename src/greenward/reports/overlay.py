"""The report of several runs or studies in one page: their curves overlaid, their results side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from greenward.errors import RunError
from greenward.reports.document import NOTHING, Chart, Fact, Report, Role, Table, charts, section
from greenward.reports.figures import metric_label, percent, points, setting_text
from greenward.reports.results import Results, compare, paired_difference, pooled
from greenward.reports.study import Evaluation, Study, read_study
from greenward.reports.training_charts import TRAINING_CURVES, evaluation_series, metric_series, time_unit
from greenward.runs.reading import flattened

ROLES: tuple[Role, ...] = ("main", "second", "control", "third", "fourth", "fifth")
_MAX_SETTINGS = 40
_WITHOUT_EFFECT = ("name", "output")  # keys that change no number of a run


@dataclass(frozen=True)
class _Shown:
    """A run or study with its name and its colour."""

    name: str
    role: Role
    study: Study
    results: Results


def overlay_report(paths: Sequence[Path]) -> Report:
    """The report of two to six runs or studies; differences are those to the first.

    Raises:
        RunError: one of them is neither a run nor a study, or there are too many to tell apart.
    """
    if len(paths) > len(ROLES):
        raise RunError(f"{len(paths)} runs cannot be told apart in one chart: give at most {len(ROLES)}.")
    studies = [read_study(path) for path in paths]
    shown = [
        _Shown(name, role, study, compare(study))
        for name, role, study in zip(_names(paths), ROLES, studies, strict=False)
    ]
    metric = next((one.results.primary for one in shown if one.results.primary), None)
    return Report(
        kind="runs overlaid",
        title=", ".join(one.name for one in shown),
        headline=_headline(shown, metric),
        facts=tuple(Fact(one.name, f"{one.study.main_runs[0].steps} steps") for one in shown),
        notes=tuple(f"{one.name}: {note}" for one in shown for note in one.study.notes),
        sections=(
            section("Learning", charts(_held_out(shown, metric) if metric else ())),
            section("Results", _results_table(shown, metric) if metric else None),
            section("Settings that differ", _settings(shown), level="detail"),
            section("Training, step by step", charts(_curves(shown), "small", in_json=False)),
        ),
        footer="Written by greenward from the files of the runs. Intervals are 95 %.",
        data={"results": {one.name: asdict(one.results) for one in shown}},
    )


def _names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise RunError("a run is named twice: give different runs")


def _evaluations(study: Study, place: int) -> list[Evaluation | None]:
    """The first (0) or the newest (-1) evaluation of each seed."""
    return [run.evaluations[place] if run.evaluations else None for run in study.main_runs]


def _headline(shown: Sequence[_Shown], metric: str | None) -> str:
    if metric is None:
        return "None of these runs has a held-out evaluation yet."
    newest = (f"{one.name} {percent(pooled(_evaluations(one.study, -1), metric))}" for one in shown)
    return f"Newest held-out {metric_label(metric)}: {'; '.join(newest)}."


def _results_table(shown: Sequence[_Shown], metric: str) -> Table:
    first = _evaluations(shown[0].study, -1)
    rows = []
    for one in shown:
        start, newest = _evaluations(one.study, 0), _evaluations(one.study, -1)
        # Seeds are paired by their order; a run that has fewer is compared by those that both have.
        pairs = list(zip(first, newest, strict=False))
        lead = paired_difference([a for a, _ in pairs], [b for _, b in pairs], metric)
        change = one.results.main.change.get(metric)
        rows.append(
            (
                one.name,
                percent(pooled(start, metric)),
                percent(pooled(newest, metric)),
                NOTHING if change is None else points(change),
                NOTHING if lead is None or one is shown[0] else points(lead),
            )
        )
    columns = ("Run", "First", "Newest", "Change (points)", f"Minus {shown[0].name} (points)")
    caption = f"Held-out {metric_label(metric)}; differences are paired by problem, with 95 % intervals."
    return Table("", columns, tuple(rows), caption)


def _held_out(shown: Sequence[_Shown], metric: str) -> Iterator[Chart]:
    time, seconds = time_unit([run for one in shown for run in one.study.main_runs])
    axes = (
        ("step", "step", "step", 1.0),
        ("training time", f"training time ({time}), evaluation aside", "elapsed_seconds", seconds),
    )
    for over, label, key, unit in axes:
        lines = [
            line
            for one in shown
            for line in evaluation_series(one.study.main_runs, metric, one.name, one.role, key, unit=unit)
        ]
        if lines:
            yield Chart(f"Held-out {metric_label(metric)}, by {over}", label, tuple(lines), "share")


def _curves(shown: Sequence[_Shown]) -> Iterator[Chart]:
    """The first line of each training chart, of all runs."""
    drawn = set()
    for curve in TRAINING_CURVES:
        series = [
            line
            for one in shown
            for line in metric_series(one.study.main_runs, curve.key, one.name, one.role)
        ]
        if series and curve.title not in drawn:
            drawn.add(curve.title)
            title = f"{curve.title}: {curve.name}" if curve.name else curve.title
            yield Chart(title, "step", tuple(series), curve.unit)


def _settings(shown: Sequence[_Shown]) -> Table | None:
    """The keys of the configs in which the runs differ, those of each study's first seed."""
    configs = [dict(flattened(one.study.main_runs[0].config)) for one in shown]
    keys = dict.fromkeys(key for config in configs for key in config if key not in _WITHOUT_EFFECT)
    rows = [
        (key, *(setting_text(config.get(key, "not set")) for config in configs))
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    ]
    left_out = len(rows) - _MAX_SETTINGS
    caption = f"{left_out} more keys differ." if left_out > 0 else ""
    columns = ("Key", *(one.name for one in shown))
    return Table("", columns, tuple(rows[:_MAX_SETTINGS]), caption) if rows else None
