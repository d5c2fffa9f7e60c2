"""The report of several runs or studies in one page: their curves overlaid, their results side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from greenward.errors import RunError
from greenward.reports.document import NOTHING, Chart, Fact, Paragraph, Report, Role, Table, charts, section
from greenward.reports.figures import metric_label, percent, points, setting_text
from greenward.reports.games import game_charts, games_headline, opponents_in_words, played_games
from greenward.reports.results import Results, compare, paired_difference, pooled
from greenward.reports.study import Evaluation, Study, read_study
from greenward.reports.training_charts import TRAINING_CURVES, Drawn, evaluation_chart, metric_series
from greenward.runs.reading import flattened

ROLES: tuple[Role, ...] = ("main", "second", "control", "third", "fourth", "fifth")
_MAX_SETTINGS = 40
_WITHOUT_EFFECT = ("name", "output")  # keys that change no number of a run


def overlay_report(paths: Sequence[Path]) -> Report:
    """The report of two to six runs or studies; differences are those to the first.

    Raises `RunError` when one of them is neither a run nor a study, and for too many to tell apart.
    """
    if len(paths) > len(ROLES):
        raise RunError(f"{len(paths)} runs cannot be told apart in one chart: give at most {len(ROLES)}.")
    studies = dict(zip(_names(paths), map(read_study, paths), strict=True))
    results = {name: compare(study) for name, study in studies.items()}
    drawn = [
        Drawn(name, role, study.main_runs)
        for (name, study), role in zip(studies.items(), ROLES, strict=False)
    ]
    metric = next((one.primary for one in results.values() if one.primary), None)
    held_out = [evaluation_chart(drawn, metric, over_time=over) for over in (False, True)] if metric else []
    return Report(
        kind="runs overlaid",
        title=", ".join(studies),
        headline=_headline(studies, metric),
        facts=tuple(Fact(name, f"{study.main_runs[0].steps} steps") for name, study in studies.items()),
        notes=tuple(f"{name}: {note}" for name, study in studies.items() for note in study.notes),
        sections=(
            section("Learning", charts(chart for chart in held_out if chart.series)),
            section("Games", *_games(studies), charts(game_charts(drawn))),
            section("Results", _results_table(studies, results, metric) if metric else None),
            section("Settings that differ", _settings(studies), level="detail"),
            section("Training, step by step", charts(_curves(drawn), "small", in_json=False)),
        ),
        footer="Written by greenward from the files of the runs. Intervals are 95 %.",
        data={"results": {name: asdict(one) for name, one in results.items()}},
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


def _headline(studies: Mapping[str, Study], metric: str | None) -> str:
    if metric is None:
        played = [f"{name}: {told}" for name, one in studies.items() if (told := games_headline(one))]
        return " ".join(played) or "None of these runs has a held-out evaluation yet."
    newest = (f"{name} {percent(pooled(_evaluations(one, -1), metric))}" for name, one in studies.items())
    return f"Newest held-out {metric_label(metric)}: {'; '.join(newest)}."


def _results_table(studies: Mapping[str, Study], results: Mapping[str, Results], metric: str) -> Table:
    rows = []
    first = next(iter(studies))
    for name, study in studies.items():
        newest = _evaluations(study, -1)
        # Seeds are paired by their order; a run that has fewer is compared by those that both have.
        pairs = list(zip(_evaluations(studies[first], -1), newest, strict=False))
        lead = paired_difference([a for a, _ in pairs], [b for _, b in pairs], metric)
        change = results[name].main.change.get(metric)
        rows.append(
            (
                name,
                percent(pooled(_evaluations(study, 0), metric)),
                percent(pooled(newest, metric)),
                NOTHING if change is None else points(change),
                NOTHING if lead is None or name == first else points(lead),
            )
        )
    columns = ("Run", "First", "Newest", "Change (points)", f"Minus {first} (points)")
    caption = f"Held-out {metric_label(metric)}; differences are paired by problem, with 95 % intervals."
    return Table("", columns, tuple(rows), caption)


def _games(studies: Mapping[str, Study]) -> Iterator[Paragraph]:
    """Who the opponents of each run were, so that a mixture is not taken for self-play."""
    for name, study in studies.items():
        if played_games(study.main_runs):
            yield Paragraph(f"{name}. {opponents_in_words(study.main_runs[0].config)}")


def _curves(drawn: Sequence[Drawn]) -> Iterator[Chart]:
    """The first line of each training chart, of all runs."""
    titles = set()
    for curve in TRAINING_CURVES:
        series = [line for one in drawn for line in metric_series(one, curve.key)]
        if series and curve.title not in titles:
            titles.add(curve.title)
            title = f"{curve.title}: {curve.name}" if curve.name else curve.title
            yield Chart(title, "step", tuple(series), curve.unit)


def _settings(studies: Mapping[str, Study]) -> Table | None:
    """The keys of the configs in which the runs differ, those of each study's first seed."""
    configs = [dict(flattened(study.main_runs[0].config)) for study in studies.values()]
    keys = dict.fromkeys(key for config in configs for key in config if key not in _WITHOUT_EFFECT)
    rows = [
        (key, *(setting_text(config.get(key, "not set")) for config in configs))
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    ]
    left_out = len(rows) - _MAX_SETTINGS
    caption = f"{left_out} more keys differ." if left_out > 0 else ""
    return Table("", ("Key", *studies), tuple(rows[:_MAX_SETTINGS]), caption) if rows else None
