"""The report of several runs or studies in one page: their curves overlaid, their results side by side.

A sweep is shown like this, by its combinations.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from greenward.errors import RunError
from greenward.reports.document import NOTHING, Chart, Fact, Paragraph, Report, Role, Table, charts, section
from greenward.reports.figures import metric_label, percent, points, seed_range, setting_text
from greenward.reports.games import game_charts, games_headline, opponents_in_words, played_games
from greenward.reports.results import Results, compare, evaluations_at, paired_difference, pooled, seed_values
from greenward.reports.study import Study, failures, read_study
from greenward.reports.training_charts import TRAINING_CURVES, Drawn, evaluation_chart, metric_series
from greenward.runs.reading import WITHOUT_EFFECT, flattened, is_run, read_summary, runs_below
from greenward.user_files import expects

ROLES: tuple[Role, ...] = ("main", "second", "control", "third", "fourth", "fifth")
_MAX_SETTINGS = 40


@expects("the files of runs", RunError)
def overlay_report(paths: Sequence[Path]) -> Report:
    """The report of several runs or studies; differences are those to the first.

    Of more than six, which no chart could tell apart, those are drawn that ended best. Raises `RunError`
    when one of them is neither a run nor a study.
    """
    studies = dict(zip(_names(paths), map(read_study, paths), strict=True))
    results = {name: compare(study) for name, study in studies.items()}
    metric = next((one.primary for one in results.values() if one.primary), None)
    best = dict(_best(studies, metric))
    drawn = [Drawn(name, role, one.main_runs) for (name, one), role in zip(best.items(), ROLES, strict=False)]
    held_out = [evaluation_chart(drawn, metric, over_time=over) for over in (False, True)] if metric else []
    return Report(
        kind="runs overlaid",
        title=", ".join(studies),
        headline=_headline(best, metric, len(studies)),
        facts=tuple(Fact(name, f"{study.main_runs[0].steps} steps") for name, study in studies.items()),
        notes=tuple(_notes(studies)),
        sections=(
            section("Learning", charts(chart for chart in held_out if chart.series)),
            section("Games", *_games(best), charts(game_charts(drawn))),
            section("Results", _results_table(studies, results, metric) if metric else None),
            section("Settings that differ", _settings(best), level="detail"),
            section("Training, step by step", charts(_curves(drawn), "small", in_json=False)),
        ),
        footer="Written by greenward from the files of the runs. Intervals are 95 %.",
        data={"results": {name: asdict(one) for name, one in results.items()}},
    )


def combinations(path: Path) -> list[Path]:
    """The folders of a sweep over other keys than the seed, by the numbers in their names."""
    return sorted((one for one in path.glob("*=*") if one.is_dir()), key=lambda one: _in_order(one.name))


@expects("the files of a sweep", RunError)
def sweep_report(path: Path) -> Report:
    """The report of the sweep at `path`, whose folders are runs or studies named for their settings.

    Raises `RunError` while none of its runs has begun.
    """
    folders = combinations(path)
    begun = [folder for folder in folders if is_run(folder) or runs_below(folder)]
    failed = {folder: list(failures(folder)) for folder in folders}
    notes = [f"{folder.name}: {note}" for folder in folders if folder not in begun for note in failed[folder]]
    if not begun:
        raise RunError(f"no run of the sweep at {path} has begun", remedy="\n  ".join(notes) or None)
    summaries = [read_summary(run) or {} for run in runs_below(path)]
    finished = sum(one.get("status") == "finished" for one in summaries)
    facts = (
        Fact("combinations", str(len(folders))),
        Fact("runs begun", str(len(summaries))),
        Fact("finished", str(finished)),
        Fact("failed", str(sum(map(len, failed.values())))),
    )
    report = overlay_report(begun)
    return replace(
        report, kind="sweep", title=path.resolve().name, facts=facts, notes=(*notes, *report.notes)
    )


def _in_order(name: str) -> list[tuple[bool, float, str]]:
    """A key that sorts the numbers in a name by their values."""
    parts = re.split(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", name)
    return [(odd := bool(index % 2), float(part) if odd else 0.0, part) for index, part in enumerate(parts)]


def _names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise RunError("a run is named twice: give different runs")


def _notes(studies: Mapping[str, Study]) -> Iterator[str]:
    """The notes of all, each once, with the names of those that have it unless they are all."""
    for note in dict.fromkeys(note for study in studies.values() for note in study.notes):
        names = [name for name, study in studies.items() if note in study.notes]
        yield note if len(names) == len(studies) else f"{', '.join(names)}: {note}"


def _best(studies: Mapping[str, Study], metric: str | None) -> Iterator[tuple[str, Study]]:
    """As many as can be drawn, in their order: those whose newest `metric` is highest, else the first."""

    def newest(name: str) -> float:
        found = pooled(evaluations_at(studies[name], -1), metric) if metric else None
        return float("-inf") if found is None else found.value

    chosen = sorted(studies, key=newest, reverse=True)[: len(ROLES)]
    yield from ((name, one) for name, one in studies.items() if name in chosen)


def _headline(best: Mapping[str, Study], metric: str | None, count: int) -> str:
    if metric is None:
        played = [f"{name}: {told}" for name, one in best.items() if (told := games_headline(one))]
        return " ".join(played) or "None of these runs has a held-out evaluation yet."
    newest = {name: pooled(evaluations_at(one, -1), metric) for name, one in best.items()}
    if count == len(best):
        shown = (f"{name} {percent(estimate)}" for name, estimate in newest.items())
        return f"Newest held-out {metric_label(metric)}: {'; '.join(shown)}."
    top = max(newest, key=lambda name: estimate.value if (estimate := newest[name]) else float("-inf"))
    return (
        f"Highest newest held-out {metric_label(metric)} of {count}: {top} {percent(newest[top])}. The "
        f"highest of several estimates is too high on average. The charts show the {len(best)} highest."
    )


def _results_table(studies: Mapping[str, Study], results: Mapping[str, Results], metric: str) -> Table:
    rows = []
    first = next(iter(studies))
    seeds = any(len(study.seeds) > 1 for study in studies.values())
    for name, study in studies.items():
        newest = evaluations_at(study, -1)
        # Seeds are paired by their order; a run that has fewer is compared by those that both have.
        pairs = list(zip(evaluations_at(studies[first], -1), newest, strict=False))
        lead = paired_difference([a for a, _ in pairs], [b for _, b in pairs], metric)
        change = results[name].main.change.get(metric)
        rows.append(
            (
                name,
                percent(pooled(evaluations_at(study, 0), metric)),
                percent(pooled(newest, metric)),
                *([seed_range(seed_values(newest, metric))] if seeds else []),
                NOTHING if change is None else points(change),
                NOTHING if lead is None or name == first else points(lead),
            )
        )
    spread = ["Over seeds"] if seeds else []
    columns = ("Run", "First", "Newest", *spread, "Change (points)", "Minus the first (points)")
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
    keys = dict.fromkeys(key for config in configs for key in config if key not in WITHOUT_EFFECT)
    rows = [
        (key, *(setting_text(config.get(key, "not set")) for config in configs))
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    ]
    left_out = len(rows) - _MAX_SETTINGS
    caption = f"{left_out} more keys differ." if left_out > 0 else ""
    return Table("", ("Key", *studies), tuple(rows[:_MAX_SETTINGS]), caption) if rows else None
