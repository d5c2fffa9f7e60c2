"""Reports one training, or several runs, studies or a sweep in one page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import yaml

from greenward.common.errors import RunError
from greenward.common.files import expects
from greenward.reports.document import (
    NOTHING,
    PRIMARY,
    AnsweredTask,
    Answers,
    Block,
    Chart,
    Code,
    Fact,
    KeyFigure,
    Paragraph,
    Report,
    Role,
    ShownAnswer,
    Table,
    Tone,
    bounded,
    charts,
    duration,
    interval,
    memory,
    metric_label,
    percent,
    points,
    section,
    seed_range,
    session_table,
    setting_text,
    share,
    shown_answer,
    words,
)
from greenward.reports.games import (
    described,
    game_charts,
    game_figures,
    game_sections,
    games_headline,
    is_game,
    played_games,
)
from greenward.reports.runs import (
    TRAINING_CURVES,
    Drawn,
    Evaluation,
    Evaluations,
    Results,
    Study,
    compare,
    evaluation_chart,
    evaluations_at,
    failures,
    final_evaluations,
    finite_values,
    headline,
    held_out_charts,
    metric_series,
    paired_difference,
    pooled,
    read_study,
    seed_values,
    stages,
    step_charts,
    suite_charts,
    warm_start_charts,
)
from greenward.runs.reading import WITHOUT_EFFECT, RecordedRun, flattened, is_run, read_summary, runs_below
from greenward.tasks import shipped_task

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
            section("Settings that differ", _overlaid_settings(best), level="detail"),
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
    facts = (
        Fact("combinations", str(len(folders))),
        Fact("runs begun", str(len(summaries))),
        Fact("finished", str(sum(one.get("status") == "finished" for one in summaries))),
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
            yield Paragraph(f"{name}. {described(study.main_runs[0].config)}")


def _curves(drawn: Sequence[Drawn]) -> Iterator[Chart]:
    """The first line of each training chart, of all runs."""
    titles = set()
    for curve in TRAINING_CURVES:
        series = [line for one in drawn for line in metric_series(one, curve.key)]
        if series and curve.title not in titles:
            titles.add(curve.title)
            title = f"{curve.title}: {curve.name}" if curve.name else curve.title
            yield Chart(title, "step", tuple(series), curve.unit)


def _overlaid_settings(studies: Mapping[str, Study]) -> Table | None:
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


NEGLIGIBLE_SECONDS = 0.05
_SHOWN_OF: Mapping[str, tuple[int, Tone]] = {
    "fixed": (3, "good"),
    "still failing": (2, "neutral"),
    "broken": (1, "bad"),
}
_OUTCOMES = {(False, True): "fixed", (False, False): "still failing", (True, False): "broken"}


@expects("the files of a run", RunError)
def training_report(path: str | Path) -> Report:
    """The report of the run or study at `path`. Raises `RunError` when there is neither."""
    study = read_study(path)
    results = compare(study)
    found = stages(study)
    main = study.main_runs
    task = shipped_task(main[0].config.get("task"))
    return Report(
        kind="run report",
        title=study.title,
        headline=games_headline(study) or headline(study, results),
        facts=tuple(_facts(study)),
        figures=(*_figures(results), *game_figures(study)),
        notes=study.notes,
        sections=(
            section("Learning", charts((*held_out_charts(study, results), *suite_charts(study)))),
            *game_sections(study),
            *(task.report(study) if task else ()),
            section(
                "Before and after",
                _before_after(study, results, found),
                _seed_by_seed(study, results, found),
                _suites(study),
                _tags(study, found),
            ),
            section("Sample answers", *_sample_answers(study), level="appendix"),
            section("What became of the answers", _statuses(found), level="detail"),
            section("Training, step by step", charts(step_charts(main), "small", in_json=False)),
            section(
                "Warm start",
                charts(warm_start_charts(study, results), "small", in_json=False),
                level="appendix",
            ),
            section("Time and memory", _costs(study), level="detail"),
            section("Settings", *_settings(main[0]), level="appendix"),
        ),
        footer="Written by greenward from the files of the run. Intervals are 95 %.",
        data={"results": asdict(results)},
    )


def _facts(study: Study) -> Iterator[Fact]:
    main = study.main_runs
    if len(study.seeds) > 1:
        yield Fact("seeds", str(len(study.seeds)))
    steps = sorted({run.steps for run in main})
    yield Fact("steps", " to ".join(map(str, dict.fromkeys((steps[0], steps[-1])))))
    if walls := _of_summaries(main, "wall_seconds"):
        yield Fact(f"{study.main} wall time", duration(max(walls)))
    if peaks := _of_summaries(main, "peak_rss_mb"):
        yield Fact("peak memory", memory(max(peaks)))
    if main[0].sessions and main[0].sessions[-1].get("device"):
        yield Fact("on", str(main[0].sessions[-1]["device"]))


def _of_summaries(runs: Sequence[RecordedRun], key: str) -> list[float]:
    return [run.summary[key] for run in runs if run.summary.get(key)]


def _figures(results: Results) -> Iterator[KeyFigure]:
    """Each metric of the main arm, and the first metric of the arms beside.

    Coloured only where the paired interval of the change excludes 0.
    """
    tones: dict[int, Tone] = {1: "good", -1: "bad", 0: "neutral"}
    for arm in results.arms:
        for name in results.metrics if arm is results.main else results.metrics[:1]:
            before, after, change = results.before.get(name), arm.after.get(name), arm.change.get(name)
            if before is not None and after is not None:
                yield KeyFigure(
                    f"{arm.label}, {metric_label(name)}",
                    f"{100 * after.value:.1f} %",
                    f"{100 * before.value:.1f}",
                    f"{interval(before)} → {interval(after)}",
                    tones[0 if change is None else change.sign],
                )


def _before_after(study: Study, results: Results, found: Mapping[str, Evaluations]) -> Table | None:
    """Every held-out metric before and after, and of the arms beside: a row for each."""
    if not results.metrics:
        return None
    rows: list[tuple[str, ...]] = []
    for stage, evaluations in found.items():
        rows.append((stage, *(percent(pooled(evaluations, name)) for name in results.metrics)))
        if len(study.seeds) > 1:
            spread = (seed_range(seed_values(evaluations, name)) for name in results.metrics)
            rows.append(("  over seeds", *spread))
    evaluation = next(filter(None, found["Before"]), {})
    sentences = []
    if {"problems", "samples", "temperature"} <= evaluation.keys():
        answers = "answer" if evaluation["samples"] == 1 else "answers"
        sentences.append(
            f"{evaluation['problems']} {study.measured} problems, {evaluation['samples']} {answers} each "
            f"at temperature {evaluation['temperature']:g}; 95 % intervals over problems."
        )
    differences = [(f"Gain of {study.main}", results.main.change.get(PRIMARY))]
    for arm in results.arms[1:]:
        differences.append((f"Change of {arm.label}", arm.change.get(PRIMARY)))
        differences.append((f"{study.main} minus {arm.label}", arm.lead))
    shown = [f"{text} {points(estimate)}" for text, estimate in differences if estimate is not None]
    if shown:
        sentences.append(f"Differences of pass@1 in points, paired by problem: {'; '.join(shown)}.")
    columns = (study.measured.capitalize(), *map(metric_label, results.metrics))
    return Table("", columns, tuple(rows), " ".join(sentences))


def _seed_by_seed(study: Study, results: Results, found: Mapping[str, Evaluations]) -> Table | None:
    """Each seed in a column of its own; None for a single run."""
    metric = results.primary
    if metric is None or len(study.seeds) < 2:
        return None
    rows = (
        (stage, *(percent(pooled([one], metric)) for one in evaluations))
        for stage, evaluations in found.items()
    )
    title = f"{study.measured.capitalize()} {metric_label(metric)}, seed by seed"
    return Table(title, ("Arm", *study.seeds), tuple(rows))


def _suites(study: Study) -> Table | None:
    """pass@1 on each public suite before and after; None when none was measured."""
    rows = []
    for name in dict.fromkeys(name for run in study.main_runs for name in run.suites):
        found = [run.suites[name] for run in study.main_runs if run.suites.get(name)]
        if is_game(found[0][0]):
            continue
        before = [evaluations[0] for evaluations in found]
        after = [evaluations[-1] for evaluations in found if len(evaluations) > 1]
        problems = next((str(e["problems"]) for e in before if "problems" in e), NOTHING)
        rows.append((name, problems, percent(pooled(before, PRIMARY)), percent(pooled(after, PRIMARY))))
    columns = ("Suite", "Problems", "Before", f"After {study.main}")
    caption = "pass@1, one answer to each problem; 95 % intervals."
    return Table("Public suites", columns, tuple(rows), caption) if rows else None


def _tags(study: Study, found: Mapping[str, Evaluations]) -> Table | None:
    """pass@1 of the problems with each tag before and after; None without tags."""
    shown = dict(islice(found.items(), 2))
    known = {tag: row["problems"] for e in shown["Before"] if e for tag, row in e.get("tags", {}).items()}

    def rate(evaluations: Evaluations, tag: str) -> str:
        of_tag = [{"metrics": e.get("tags", {}).get(tag, {})} for e in evaluations if e]
        return percent(pooled(of_tag, PRIMARY))

    rows = tuple(
        (words(tag), str(problems), *(rate(evaluations, tag) for evaluations in shown.values()))
        for tag, problems in sorted(known.items())
    )
    title = f"{study.measured.capitalize()} pass@1 by tag"
    return Table(title, ("Tag", "Problems", *shown), rows) if rows else None


def _statuses(found: Mapping[str, Evaluations]) -> Table | None:
    """What became of the sampled held-out answers: shares of each status, then the rates above zero."""
    counts: list[Counter[str]] = [Counter() for _ in found]
    for count, evaluations in zip(counts, found.values(), strict=True):
        for evaluation in filter(None, evaluations):
            count.update(evaluation.get("statuses", {}))
    names = {name for count in counts for name in count}
    rows = [
        (words(name), *(share(count[name], count.total()) for count in counts))
        for name in sorted(names, key=lambda name: (-max(count[name] for count in counts), name))
    ]
    for rate in dict.fromkeys(rate for stage in found.values() for e in stage if e for rate in e["rates"]):
        estimates = [pooled(evaluations, rate, "rates") for evaluations in found.values()]
        if any(estimate is not None and estimate.value > 0 for estimate in estimates):
            rows.append((f"{rate} rate", *map(percent, estimates)))
    return Table("", ("Status", *found), tuple(rows)) if rows else None


def _sample_answers(study: Study) -> list[Block]:
    """The first problems of each outcome, in the order of the evaluation, of the first seed.

    An outcome looks at the majority of a problem's answers: fixed, still failing, broken. The answer
    shown is the first sampled one that the outcome speaks of: before a problem is fixed one that fails,
    after it one that passes. Problems of which no such answer was recorded are not shown.
    """
    before, after = evaluations_at(study, 0)[0], final_evaluations(study, study.main)[0]
    pairs = list(_answered_pairs(before, after)) if before is not None and after is not None else []
    tasks: list[AnsweredTask] = []
    counts = []
    for outcome, (limit, _) in _SHOWN_OF.items():
        found = [task for task in pairs if task.label == outcome]
        tasks += found[:limit]
        if found:
            counts.append(f"{min(limit, len(found))} of {len(found)} {outcome}")
    if not tasks:
        return []
    caption = (
        f"Shown: {', '.join(counts)} (by the majority of a problem's answers; {study.seeds[0]}). "
        "Each is the first of its outcome in the order of evaluation; the answers are the first sampled "
        "ones that fail or pass as the outcome says."
    )
    return [Paragraph(caption, quiet=True), Answers(tuple(tasks))]


def _answered_pairs(before: Evaluation, after: Evaluation) -> Iterator[AnsweredTask]:
    later = {row.get("task_id"): row for row in after.get("rows", ())}
    for row in before.get("rows", ()):
        other = later.get(row.get("task_id"))
        if other is None or not (row.get("samples") and other.get("samples")):
            continue
        shown = [*_first_answer("Before", row), *_first_answer("After", other)]
        outcome = _OUTCOMES.get((_passes(row), _passes(other)))
        if outcome is not None and len(shown) == 2:
            prompt = bounded(row.get("prompt", ""))
            yield AnsweredTask(str(row["task_id"]), prompt, tuple(shown), outcome, _SHOWN_OF[outcome][1])


def _passes(row: Evaluation) -> bool:
    return bool(2 * row["passed"] >= row["samples"])


def _first_answer(title: str, row: Evaluation) -> list[ShownAnswer]:
    """The first recorded answer that passed if the problem passes, or else that did not; if there is one."""
    passes, remark = _passes(row), f"{row['passed']} of {row['samples']} answers pass"
    found = (one for one in row.get("answers") or () if (one.get("status") == "passed") is passes)
    return [
        shown_answer(one.get("status", ""), one.get("code"), one.get("first_failure"), title, remark)
        for one in islice(found, 1)
    ]


def _costs(study: Study) -> Table | None:
    """Where the time of a run went, mean over seeds; parts that took next to nothing are left out."""
    per_seed = [_seconds(study, index) for index in range(len(study.seeds))]
    names = dict.fromkeys(name for parts in per_seed for name in parts)
    means = ((name, fmean(parts.get(name, 0.0) for parts in per_seed)) for name in names)
    parts = [(name, seconds) for name, seconds in means if seconds >= NEGLIGIBLE_SECONDS]
    total = sum(seconds for _, seconds in parts)
    if not total:
        return None
    rows = [(name, duration(seconds), share(seconds, total)) for name, seconds in parts]
    peaks = _of_summaries(study.main_runs, "peak_rss_mb")
    caption = "Mean over seeds. " if len(study.seeds) > 1 else ""
    caption += f"Peak memory {memory(max(peaks))}." if peaks else ""
    rows.append(("Total", duration(total), ""))
    shares = tuple(seconds for _, seconds in parts)
    return Table("", ("Part", "Time", "Share"), tuple(rows), caption.strip(), shares)


def _seconds(study: Study, seed: int) -> dict[str, float]:
    """Seconds of one seed by part."""
    main = study.main_runs[seed]
    parts = {
        name: sum(finite_values(main.metrics, f"time/{name.lower()}"))
        for name in ("Sampling", "Grading", "Update")
    }
    warm = [run for run in study.warm_starts if run.path.parent == main.path]
    evaluations = (*main.evaluations, *(e for suite in main.suites.values() for e in suite))
    beside = {label: runs[seed] for label, runs in study.arms.items() if label != study.main}
    return {
        "Warm start": sum(map(_run_seconds, warm)),
        **parts,
        "Rest of the steps": max(0.0, sum(finite_values(main.metrics, "time/step")) - sum(parts.values())),
        "Evaluation": sum(sum(e.get("seconds", {}).values()) for e in evaluations),
        **{label: _run_seconds(run) for label, run in beside.items() if run is not None},
    }


def _run_seconds(run: RecordedRun) -> float:
    return float(run.summary.get("wall_seconds") or sum(finite_values(run.metrics, "time/step")))


def _settings(run: RecordedRun) -> Iterator[Block]:
    if run.config:
        text = yaml.safe_dump(dict(run.config), sort_keys=False, allow_unicode=True)
        yield Code(text, "yaml", "The resolved recipe", folded=True)
    if run.sessions:
        yield session_table(run.sessions[-1])
