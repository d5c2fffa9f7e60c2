"""Reports one training, or several or a sweep of them in one page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice, repeat
from pathlib import Path
from statistics import fmean

from greenward.common.errors import RunError
from greenward.common.files import expects
from greenward.common.yaml_text import yaml_text
from greenward.reports import learned
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
    games_headline,
    games_section,
    played_section,
)
from greenward.reports.runs import (
    CONTROL,
    ArmResult,
    Evaluation,
    Evaluations,
    Group,
    Results,
    Runs,
    by_numbers,
    evaluation_chart,
    failures,
    finite_values,
    headline,
    held_out_charts,
    in_a_sentence,
    metric_series,
    overlaid,
    paired_difference,
    pooled,
    read_runs,
    seed_values,
    step_charts,
    suite_charts,
    suites_of,
    training_curves,
    warm_start_charts,
)
from greenward.runs.reading import (
    WITHOUT_EFFECT,
    RecordedRun,
    base_model,
    flattened,
    is_run,
    read_summary,
    runs_below,
    stored_as,
)

ROLES: tuple[Role, ...] = ("main", "second", "control", "third", "fourth", "fifth")
_MAX_SETTINGS = 40


@expects("the files of runs", RunError)
def overlay_report(paths: Sequence[Path]) -> Report:
    """The report of several runs, each of one seed or more; differences are those to the first.

    Of more than six, which no chart could tell apart, those are drawn that ended best. Raises `RunError`
    when one of the paths holds no run.
    """
    parts = dict(zip(short_names(paths), map(read_runs, paths), strict=True))
    results = {name: one.results for name, one in parts.items()}
    metric = next((one.primary for one in results.values() if one.primary), None)
    runs = overlaid(parts)
    best = _best(runs.groups, metric)
    held_out = [evaluation_chart(best, metric, over_time=over) for over in (False, True)] if metric else []
    return Report(
        kind="runs overlaid",
        title=runs.title,
        headline=_headline(best, metric, runs.groups),
        facts=tuple(Fact(group.label, f"{group.first.steps} steps") for group in runs.groups),
        notes=runs.notes,
        sections=(
            section("Learning", charts(chart for chart in held_out if chart.series)),
            section("Games", *_opponents(best), charts(game_charts(best))),
            section("Results", _results_table(runs, results, metric) if metric else None),
            section("Training reward", _rewards_table(runs), level="detail" if metric else "main"),
            section("Settings that differ", _overlaid_settings(best), level="detail"),
            section("Training, step by step", charts(_curves(best), "small", in_json=False)),
        ),
        footer="Written by greenward from the files of the runs. Intervals are 95 %.",
        data={"results": {name: asdict(one) for name, one in results.items()}},
    )


def combinations(path: Path) -> list[Path]:
    """The folders of a sweep over other keys than the seed, by the numbers in their names."""
    return sorted(filter(Path.is_dir, path.glob("*=*")), key=by_numbers)


@expects("the files of a sweep", RunError)
def sweep_report(path: Path) -> Report:
    """The report of the sweep at `path`, whose folders are named for their settings.

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


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as few as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, parts))):
        names = ["/".join(one[-count:]) for one in parts]
        if len(set(names)) == len(names):
            return names
    raise RunError("a run is named twice: give different runs")


def _best(groups: Sequence[Group], metric: str | None) -> list[Group]:
    """As many as can be drawn, in their order and colours: those whose newest `metric` is highest."""
    chosen = sorted(groups, key=lambda group: _newest(group, metric), reverse=True)[: len(ROLES)]
    kept = [group for group in groups if group in chosen]
    return [replace(group, role=role) for group, role in zip(kept, ROLES, strict=False)]


def _newest(group: Group, metric: str | None) -> float:
    estimate = pooled(group.at(-1), metric) if metric else None
    return float("-inf") if estimate is None else estimate.value


def _headline(best: Sequence[Group], metric: str | None, groups: Sequence[Group]) -> str:
    count = len(groups)
    if metric is None:
        played = ((group.label, games_headline(group.first)) for group in best)
        said = " ".join(f"{name}: {told}" for name, told in played if told)
        return said or f"{_highest_reward(groups)}None of these runs has a held-out evaluation yet."
    newest = [f"{group.label} {percent(pooled(group.at(-1), metric))}" for group in best]
    if count == len(best):
        return f"Newest held-out {metric_label(metric)}: {'; '.join(newest)}."
    top = max(range(len(best)), key=lambda index: _newest(best[index], metric))
    return (
        f"Highest newest held-out {metric_label(metric)} of {count}: {newest[top]}. The "
        f"highest of several estimates is too high on average. The charts show the {len(best)} highest."
    )


def _results_table(runs: Runs, results: Mapping[str, Results], metric: str) -> Table:
    rows = []
    several = len(runs.seeds) > 1
    for group in runs.groups:
        newest = group.at(-1)
        lead = paired_difference(runs.main.at(-1), newest, metric) if group is not runs.main else None
        rows.append(
            (
                group.label,
                percent(pooled(group.at(0), metric)),
                percent(pooled(newest, metric)),
                *([seed_range(seed_values(newest, metric))] if several else []),
                points(results[group.label].main.change.get(metric)),
                points(lead),
            )
        )
    spread = ["Over seeds"] if several else []
    columns = ("Run", "First", "Newest", *spread, "Change (points)", "Minus the first (points)")
    caption = f"Held-out {metric_label(metric)}; differences are paired by problem, with 95 % intervals."
    return Table("", columns, tuple(rows), caption)


def _training_rewards(groups: Sequence[Group]) -> list[tuple[Group, list[float]]]:
    """The rewards of the seeds at the end of training, for the groups that have any, the highest mean first.

    It is the mean over the last tenth of the steps that logged one, five at least if there are so many.
    """
    found = []
    for group in groups:
        rewards = [finite_values(run.metrics, "reward/mean") for run in group.runs]
        if ends := [fmean(one[-max(5, len(one) // 10) :]) for one in rewards if one]:
            found.append((group, ends))
    return sorted(found, key=lambda one: fmean(one[1]), reverse=True)


def _rewards_table(runs: Runs) -> Table | None:
    ranked = _training_rewards(runs.groups)
    several = len(runs.seeds) > 1
    rows = tuple(
        (
            group.label,
            f"{fmean(ends):.4g}",
            *([f"{min(ends):.4g} to {max(ends):.4g}"] if several else []),
            ", ".join(sorted({str(run.steps) for run in group.runs}, key=int)),
        )
        for group, ends in ranked
    )
    columns = ("Run", "Reward at the end", *(["Over seeds"] if several else []), "Steps")
    caption = (
        "Mean reward in training over the last tenth of the steps (five at least), the highest first. It is "
        "measured on the training problems, is comparable between runs of the same reward only, and the "
        "highest of several is too high on average."
    )
    return Table("", columns, rows, caption) if rows else None


def _highest_reward(groups: Sequence[Group]) -> str:
    ranked = _training_rewards(groups)
    if len(ranked) < 2:
        return ""
    group, ends = ranked[0]
    return f"Highest training reward of {len(ranked)}: {group.label} {fmean(ends):.4g}. "


def _opponents(groups: Sequence[Group]) -> Iterator[Paragraph]:
    """Who the opponents of each run were, so that a mixture is not taken for self-play."""
    for group in groups:
        if suites_of(group.runs, games=True):
            yield Paragraph(f"{group.label}. {described(group.first)}")


def _curves(groups: Sequence[Group]) -> Iterator[Chart]:
    """The first line of each training chart, of all runs."""
    titles = set()
    for curve in training_curves([run for group in groups for run in group.runs]):
        series = [line for group in groups for line in metric_series(group, curve.key)]
        if series and curve.title not in titles:
            titles.add(curve.title)
            title = f"{curve.title}: {curve.name}" if curve.name else curve.title
            yield Chart(title, "step", tuple(series), curve.unit)


def _overlaid_settings(groups: Sequence[Group]) -> Table | None:
    """The keys of the configs in which the runs differ, those of each group's first seed."""
    configs = [dict(flattened(group.first.config)) for group in groups]
    keys = dict.fromkeys(key for config in configs for key in config if key not in WITHOUT_EFFECT)
    rows = [
        (key, *(setting_text(config.get(key, "not set")) for config in configs))
        for key in keys
        if any(config.get(key) != configs[0].get(key) for config in configs)
    ]
    left_out = len(rows) - _MAX_SETTINGS
    caption = f"{left_out} more keys differ." if left_out > 0 else ""
    columns = ("Key", *(group.label for group in groups))
    return Table("", columns, tuple(rows[:_MAX_SETTINGS]), caption) if rows else None


NEGLIGIBLE_SECONDS = 0.05
# Of a problem that most answers solved before and after: the outcome, how many are shown, and how.
_OUTCOMES: Mapping[tuple[bool, ...], tuple[str, int, Tone]] = {
    (False, True): ("fixed", 3, "good"),
    (False, False): ("still failing", 2, "neutral"),
    (True, False): ("broken", 1, "bad"),
}


@expects("the files of a run", RunError)
def training_report(path: str | Path) -> Report:
    """The report of the run at `path`, or of the seeds in it. Raises `RunError` when there is neither."""
    runs = read_runs(path)
    main = runs.main
    return Report(
        kind="run report",
        title=runs.title,
        headline=games_headline(main.first) or headline(runs),
        facts=tuple(_facts(runs)),
        figures=(*_figures(runs.results), *game_figures(main)),
        notes=runs.notes,
        sections=(
            section("Learning", charts((*held_out_charts(runs), *suite_charts(runs)))),
            games_section(main),
            *(main.first.task.report(runs) if main.first.task else ()),
            section(
                "Before and after",
                _before_after(runs),
                *map(_which_to_take, runs.results.arms[1:], repeat(runs.main.label)),
                _seed_by_seed(runs),
                _suites(runs),
                _tags(runs),
            ),
            section("What was learned", *learned.blocks(runs)),
            section("Sample answers", *_sample_answers(runs), level="appendix"),
            section("What became of the answers", _statuses(runs), level="detail"),
            section(
                "Training, step by step",
                charts(step_charts(main.runs, training_curves(main.runs)), "small", in_json=False),
            ),
            played_section(main),
            section("Warm start", charts(warm_start_charts(runs), "small", in_json=False), level="appendix"),
            section("Time and memory", _costs(runs), level="detail"),
            section("Settings", *_settings(main.first), level="appendix"),
        ),
        footer="Written by greenward from the files of the run. Intervals are 95 %.",
        data={"results": asdict(runs.results), "learned": learned.data(runs)},
    )


def _facts(runs: Runs) -> Iterator[Fact]:
    if (recipe := str(runs.main.first.config.get("name") or runs.title)) != runs.title:
        yield Fact("recipe", recipe)
    if len(runs.seeds) > 1:
        yield Fact("seeds", str(len(runs.seeds)))
    steps = sorted(run.steps for run in runs.main.runs)
    yield Fact("steps", " to ".join(map(str, dict.fromkeys((steps[0], steps[-1])))))
    if walls := _of_summaries(runs, "wall_seconds"):
        yield Fact(f"{runs.main.label} wall time", duration(max(walls)))
    if peaks := _of_summaries(runs, "peak_rss_mb"):
        yield Fact("peak memory", memory(max(peaks)))
    sessions = runs.main.first.sessions
    if model := base_model(sessions):
        name = Path(str(model.get("name"))).name
        yield Fact("model", ", ".join(filter(None, (name, stored_as(model)))))
    if sessions and sessions[-1].get("device"):
        yield Fact("on", str(sessions[-1]["device"]))
    algorithm = runs.main.first.config.get("algorithm") or {}
    for key in ("loss", "advantage"):
        if ":" in str(name := algorithm.get(key, "")):
            yield Fact(f"own {key}", str(name))


def _of_summaries(runs: Runs, key: str) -> list[float]:
    return [run.summary[key] for run in runs.main.runs if run.summary.get(key)]


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


def _before_after(runs: Runs) -> Table | None:
    """Every held-out metric before and after, and of the other arms: a row for each."""
    results = runs.results
    if not results.metrics:
        return None
    rows: list[tuple[str, ...]] = []
    for stage, evaluations in runs.stages.items():
        rows.append((stage, *(percent(pooled(evaluations, name)) for name in results.metrics)))
        if len(runs.seeds) > 1:
            spread = (seed_range(seed_values(evaluations, name)) for name in results.metrics)
            rows.append(("  over seeds", *spread))
    evaluation = next(filter(None, runs.main.at(0)), {})
    sentences = []
    if {"problems", "samples", "temperature"} <= evaluation.keys():
        answers = "answer" if evaluation["samples"] == 1 else "answers"
        sentences.append(
            f"{evaluation['problems']} {runs.measured} problems, {evaluation['samples']} {answers} each "
            f"at temperature {evaluation['temperature']:g}; 95 % intervals over problems."
        )
    differences = [(f"Gain of {runs.main.label}", results.main.change)]
    for arm in results.arms[1:]:
        differences.append((f"Change of {arm.label}", arm.change))
        differences.append((f"{runs.main.label} minus {arm.label}", arm.lead))
    paired = [
        (text, *(points(found.get(name)) for name in results.metrics)) for text, found in differences if found
    ]
    if paired:
        rows += paired
        sentences.append("Gains, changes and differences are in points, paired by problem.")
    columns = (runs.measured.capitalize(), *map(metric_label, results.metrics))
    return Table("", columns, tuple(rows), " ".join(sentences))


def _which_to_take(arm: ArmResult, main: str) -> Paragraph | None:
    """For which figures the main arm or another method is better; None for the control."""
    uses: dict[str, list[str]] = {}
    for name, lead in arm.lead.items() if arm.label != CONTROL else ():
        taken = {1: main, -1: in_a_sentence(arm.label), 0: "either"}[lead.sign]
        uses.setdefault(taken, []).append(metric_label(name))
    said = "; ".join(f"{taken} for {', '.join(names)}" for taken, names in uses.items())
    return Paragraph(f"Which to take, by the intervals of the differences: {said}.") if said else None


def _seed_by_seed(runs: Runs) -> Table | None:
    """Each seed in a column of its own; None for a single run."""
    metric = runs.results.primary
    if metric is None or len(runs.seeds) < 2:
        return None
    rows = (
        (stage, *(percent(pooled([one], metric)) for one in evaluations))
        for stage, evaluations in runs.stages.items()
    )
    title = f"{runs.measured.capitalize()} {metric_label(metric)}, seed by seed"
    return Table(title, ("Arm", *runs.seeds), tuple(rows))


def _suites(runs: Runs) -> Table | None:
    """pass@1 on each public suite before and after; None when none was measured."""
    rows = []
    for name in suites_of(runs.main.runs):
        group = runs.main.on(name)
        problems = next((str(e["problems"]) for e in group.at(0) if e and "problems" in e), NOTHING)
        rows.append(
            (name, problems, *(percent(pooled(found, PRIMARY)) for found in (group.at(0), group.ends)))
        )
    columns = ("Suite", "Problems", "Before", f"After {runs.main.label}")
    caption = "pass@1, one answer to each problem; 95 % intervals."
    return Table("Public suites", columns, tuple(rows), caption) if rows else None


def _tags(runs: Runs) -> Table | None:
    """pass@1 of the problems with each tag before and after; None without tags."""
    shown = dict(islice(runs.stages.items(), 2))
    first, *_ = shown.values()
    known = {tag: row["problems"] for e in first if e for tag, row in e.get("tags", {}).items()}

    def rate(evaluations: Evaluations, tag: str) -> str:
        of_tag = [{"metrics": e.get("tags", {}).get(tag, {})} for e in evaluations if e]
        return percent(pooled(of_tag, PRIMARY))

    rows = tuple(
        (words(tag), str(problems), *(rate(evaluations, tag) for evaluations in shown.values()))
        for tag, problems in sorted(known.items())
    )
    title = f"{runs.measured.capitalize()} pass@1 by tag"
    return Table(title, ("Tag", "Problems", *shown), rows) if rows else None


def _statuses(runs: Runs) -> Table | None:
    """What became of the sampled held-out answers: shares of each status, then the rates above zero."""
    stages = {name: list(filter(None, evaluations)) for name, evaluations in runs.stages.items()}
    counts: list[Counter[str]] = [Counter() for _ in stages]
    for count, evaluations in zip(counts, stages.values(), strict=True):
        for evaluation in evaluations:
            count.update(evaluation.get("statuses", {}))
    names = {name for count in counts for name in count}
    rows = [
        (words(name), *(share(count[name], count.total()) for count in counts))
        for name in sorted(names, key=lambda name: (-max(count[name] for count in counts), name))
    ]
    for rate in dict.fromkeys(rate for stage in stages.values() for e in stage for rate in e["rates"]):
        estimates = [pooled(evaluations, rate, "rates") for evaluations in stages.values()]
        if any(estimate is not None and estimate.value > 0 for estimate in estimates):
            rows.append((f"{rate} rate", *map(percent, estimates)))
    return Table("", ("Status", *stages), tuple(rows)) if rows else None


def _sample_answers(runs: Runs) -> list[Block]:
    """The first problems of each outcome, in the order of the evaluation, of the first seed.

    An outcome looks at the majority of a problem's answers: fixed, still failing, broken. The answer
    shown is the first sampled one that the outcome speaks of: before a problem is fixed one that fails,
    after it one that passes. Problems of which no such answer was recorded are not shown.
    """
    before, after = runs.main.at(0)[0], runs.main.ends[0]
    pairs = list(_answered_pairs(before, after)) if before is not None and after is not None else []
    tasks: list[AnsweredTask] = []
    counts = []
    for outcome, limit, _ in _OUTCOMES.values():
        found = [task for task in pairs if task.label == outcome]
        tasks += found[:limit]
        if found:
            counts.append(f"{min(limit, len(found))} of {len(found)} {outcome}")
    if not tasks:
        return []
    caption = (
        f"Shown: {', '.join(counts)} (by the majority of a problem's answers; {runs.seeds[0]}). "
        "Each is the first of its outcome in the order of evaluation; the answers are the first sampled "
        "ones that fail or pass as the outcome says."
    )
    return [Paragraph(caption, quiet=True), Answers(tuple(tasks))]


def _answered_pairs(before: Evaluation, after: Evaluation) -> Iterator[AnsweredTask]:
    later = {row["task_id"]: row for row in after["rows"]}
    for row in before["rows"]:
        pair = {"Before": row, "After": later.get(row["task_id"], {"samples": 0})}
        if not all(one["samples"] for one in pair.values()):
            continue
        passes = tuple(2 * one["passed"] >= one["samples"] for one in pair.values())
        shown = [
            answer
            for (title, one), right in zip(pair.items(), passes, strict=True)
            for answer in _first_answer(title, one, right)
        ]
        if passes in _OUTCOMES and len(shown) == 2:
            outcome, _, tone = _OUTCOMES[passes]
            yield AnsweredTask(row["task_id"], bounded(row.get("prompt", "")), tuple(shown), outcome, tone)


def _first_answer(title: str, row: Evaluation, passes: bool) -> Iterator[ShownAnswer]:
    """The first recorded answer that passed, or that did not; if there is one."""
    remark = f"{row['passed']} of {row['samples']} answers pass"
    found = (one for one in row.get("answers") or () if (one.get("status") == "passed") is passes)
    for one in islice(found, 1):
        yield shown_answer(one.get("status", ""), one.get("code"), one.get("first_failure"), title, remark)


def _costs(runs: Runs) -> Table | None:
    """Where the time of a run went, mean over seeds; parts that took next to nothing are left out."""
    per_seed = [_seconds(runs, seed) for seed in range(len(runs.seeds))]
    names = dict.fromkeys(name for parts in per_seed for name in parts)
    means = ((name, fmean(parts.get(name, 0.0) for parts in per_seed)) for name in names)
    parts = [(name, seconds) for name, seconds in means if seconds >= NEGLIGIBLE_SECONDS]
    total = sum(seconds for _, seconds in parts)
    if not total:
        return None
    rows = [(name, duration(seconds), share(seconds, total)) for name, seconds in parts]
    peaks = _of_summaries(runs, "peak_rss_mb")
    caption = "Mean over seeds. " if len(runs.seeds) > 1 else ""
    caption += f"Peak memory {memory(max(peaks))}." if peaks else ""
    rows.append(("Total", duration(total), ""))
    shares = tuple(seconds for _, seconds in parts)
    return Table("", ("Part", "Time", "Share"), tuple(rows), caption.strip(), shares)


def _seconds(runs: Runs, seed: int) -> dict[str, float]:
    """Seconds of one seed by part."""

    def whole(group: Group) -> float:
        if (run := group.of_seeds[seed]) is None:
            return 0.0
        return float(run.summary.get("wall_seconds") or sum(finite_values(run.metrics, "time/step")))

    main = runs.main.runs[seed]
    parts = {
        name: sum(finite_values(main.metrics, f"time/{name.lower()}"))
        for name in ("Sampling", "Grading", "Update")
    }
    evaluations = (*main.evaluations, *(e for suite in main.suites.values() for e in suite))
    return {
        "Warm start": whole(runs.warm_start),
        **parts,
        "Rest of the steps": max(0.0, sum(finite_values(main.metrics, "time/step")) - sum(parts.values())),
        "Evaluation": sum(sum(e.get("seconds", {}).values()) for e in evaluations),
        **{arm.label: whole(arm) for arm in runs.groups[1:]},
    }


def _settings(run: RecordedRun) -> Iterator[Block]:
    if run.config:
        text = yaml_text(dict(run.config))
        yield Code(text, "yaml", "The resolved recipe", folded=True)
    if run.sessions:
        yield session_table(run.sessions[-1])
