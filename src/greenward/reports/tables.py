"""The tables of a report as plain text cells, equal in every view."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from greenward.reports.document import NOTHING, Table
from greenward.reports.record import Arm, ReportRecord, SeedRun
from greenward.reports.results import (
    PRIMARY,
    Estimate,
    MetricResult,
    Results,
    final_evaluation,
    metric_label,
    percent,
    points,
    pooled,
    seed_range,
)

NEGLIGIBLE_SECONDS = 0.05


def before_after_table(record: ReportRecord, results: Results) -> Table | None:
    """Every held-out metric before and after, and of the arms beside: a row for each."""
    if not results.metrics:
        return None
    rows: list[tuple[str, ...]] = []
    for stage, of_metric in _stages(record):
        found = [of_metric(metric) for metric in results.metrics]
        if stage == "Before" or any(estimate for estimate, _ in found):
            rows.append((stage, *(_cell(estimate) for estimate, _ in found)))
            if len(record.seeds) > 1:
                rows.append(("  over seeds", *(_spread(values) for _, values in found)))
    columns = ("Held-out", *(metric_label(metric.name) for metric in results.metrics))
    return Table("Before and after", columns, tuple(rows), _before_after_caption(record, results))


def tags_table(record: ReportRecord) -> Table | None:
    """pass@1 of the held-out problems with each tag before and after; None without tags."""
    before = [arm.evaluations[0] for arm in record.main_arms if arm.evaluations]
    after = [arm.evaluations[-1] for arm in record.main_arms if len(arm.evaluations) > 1]
    found = {tag: row for evaluation in before for tag, row in evaluation.get("tags", {}).items()}
    rows = tuple(
        (tag.replace("_", " "), str(found[tag]["problems"]), _of_tag(before, tag), _of_tag(after, tag))
        for tag in sorted(found)
    )
    label = record.main_arms[0].label
    return (
        Table("Held-out pass@1 by tag", ("Tag", "Problems", "Before", f"After {label}"), rows)
        if rows
        else None
    )


def _stages(
    record: ReportRecord,
) -> list[tuple[str, Callable[[MetricResult], tuple[Estimate | None, tuple[float, ...]]]]]:
    """(name of a row, what a metric says there and of single seeds)."""

    def of_arm(label: str) -> Callable[[MetricResult], tuple[Estimate | None, tuple[float, ...]]]:
        return lambda metric: (metric.beside.get(label), metric.seeds_beside.get(label, ()))

    return [
        ("Before", lambda metric: (metric.before, metric.seeds_before)),
        (f"After {record.main_arms[0].label}", lambda metric: (metric.after, metric.seeds_after)),
        *((label, of_arm(label)) for label in record.labels_beside),
    ]


def suites_table(record: ReportRecord) -> Table | None:
    """pass@1 on each public suite before and after; None when none was measured."""
    rows = []
    for name in dict.fromkeys(name for arm in record.main_arms for name in arm.suites):
        found = [arm.suites[name] for arm in record.main_arms if arm.suites.get(name)]
        before = [evaluations[0] for evaluations in found]
        after = [evaluations[-1] for evaluations in found if len(evaluations) > 1]
        problems = next((str(e["problems"]) for e in before if "problems" in e), NOTHING)
        rows.append((name, problems, _cell(pooled(before, PRIMARY)), _cell(pooled(after, PRIMARY))))
    if not rows:
        return None
    columns = ("Suite", "Problems", "Before", f"After {record.main_arms[0].label}")
    return Table("Public suites", columns, tuple(rows), "pass@1, one answer to each problem; 95 % intervals.")


def seeds_table(record: ReportRecord, results: Results) -> Table | None:
    """Each seed in a column of its own; None for a single run."""
    metric = results.primary
    if metric is None or len(record.seeds) < 2:
        return None
    rows = [
        ("Before", *(_of_evaluation(seed.main.evaluations[:1], metric) for seed in record.seeds)),
        (
            f"After {record.main_arms[0].label}",
            *(_of_evaluation(seed.main.evaluations[1:][-1:], metric) for seed in record.seeds),
        ),
    ]
    for label in record.labels_beside:
        arms = [seed.beside.get(label) for seed in record.seeds]
        rows.append(
            (label, *(_of_evaluation([final_evaluation(arm) if arm else None], metric) for arm in arms))
        )
    columns = ("Arm", *(seed.label for seed in record.seeds))
    return Table(f"Held-out {metric_label(metric.name)}, seed by seed", columns, tuple(rows))


def answers_table(record: ReportRecord) -> Table | None:
    """What became of the sampled held-out answers: shares of each status, then the rates above zero."""
    stages = [
        ("Before", [arm.evaluations[0] for arm in record.main_arms if arm.evaluations]),
        ("After", [arm.evaluations[-1] for arm in record.main_arms if len(arm.evaluations) > 1]),
        *(
            (label, [last for arm in record.arms_beside(label) if (last := final_evaluation(arm))])
            for label in record.labels_beside
        ),
    ]
    stages = [(name, evaluations) for name, evaluations in stages if evaluations]
    counts = [_summed(evaluations, "statuses") for _, evaluations in stages]
    names = sorted(
        {name for count in counts for name in count}, key=lambda n: -max(c.get(n, 0) for c in counts)
    )
    rows = [
        (name.replace("_", " "), *(_share(count.get(name, 0), sum(count.values())) for count in counts))
        for name in names
    ]
    rates = dict.fromkeys(
        rate for _, evaluations in stages for e in evaluations for rate in e.get("rates", ())
    )
    for rate in rates:
        estimates = [
            pooled([{"metrics": e["rates"]} for e in evaluations if rate in e.get("rates", ())], rate)
            for _, evaluations in stages
        ]
        if any(estimate is not None and estimate.value > 0 for estimate in estimates):
            rows.append((f"{rate} rate", *(_cell(estimate) for estimate in estimates)))
    if not rows:
        return None
    columns = ("Status", *(name for name, _ in stages))
    return Table("What became of the answers", columns, tuple(rows))


def costs_table(record: ReportRecord) -> Table | None:
    """Where the time of a run went, mean over seeds."""
    parts = time_parts(record)
    total = sum(seconds for _, seconds in parts)
    if not total:
        return None
    rows = [(name, duration(seconds), _share(seconds, total)) for name, seconds in parts]
    rows.append(("Total", duration(total), ""))
    caption = "Mean over seeds. " if len(record.seeds) > 1 else ""
    peaks = [arm.summary["peak_rss_mb"] for arm in record.main_arms if arm.summary.get("peak_rss_mb")]
    if peaks:
        caption += f"Peak memory {memory(max(peaks))}."
    return Table("Time and memory", ("Part", "Time", "Share"), tuple(rows), caption)


def time_parts(record: ReportRecord) -> tuple[tuple[str, float], ...]:
    """(part, seconds) of one run, mean over seeds; parts that took next to nothing are left out."""
    per_seed = [_seed_parts(seed) for seed in record.seeds]
    names = dict.fromkeys(name for parts in per_seed for name in parts)
    means = ((name, fmean(parts.get(name, 0.0) for parts in per_seed)) for name in names)
    return tuple((name, seconds) for name, seconds in means if seconds >= NEGLIGIBLE_SECONDS)


def settings_table(record: ReportRecord) -> Table | None:
    """With what the newest session ran."""
    sessions = record.main_arms[0].sessions
    if not sessions:
        return None
    newest = sessions[-1]
    rows = [(key, _plain(value)) for key, value in newest.items() if not isinstance(value, dict) and value]
    packages = newest.get("packages")
    if isinstance(packages, dict):
        rows += [(name, str(version)) for name, version in packages.items()]
    sandbox = newest.get("sandbox")
    if isinstance(sandbox, dict):
        rows.append(("isolation", f"level {sandbox.get('level')}: {', '.join(sandbox.get('layers', []))}"))
    git = newest.get("git")
    if isinstance(git, dict):
        rows.append(("git commit", f"{git.get('commit')}{' (modified)' if git.get('modified') else ''}"))
    return Table("Made with", ("", ""), tuple((key.replace("_", " "), value) for key, value in rows))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def memory(mebibytes: float) -> str:
    """Mebibytes as people say them."""
    return f"{mebibytes / 1024:.2f} GiB" if mebibytes >= 1024 else f"{mebibytes:.0f} MiB"


def _seed_parts(seed: SeedRun) -> dict[str, float]:
    main = seed.main
    step = _total(main, "time/step")
    parts = {name: _total(main, f"time/{name.lower()}") for name in ("Sampling", "Grading", "Update")}
    seconds = {"Warm start": _arm_seconds(seed.warm_start), **parts}
    seconds["Rest of the steps"] = max(0.0, step - sum(parts.values()))
    evaluations = (*main.evaluations, *(e for suite in main.suites.values() for e in suite))
    seconds["Evaluation"] = sum(sum(e.get("seconds", {}).values()) for e in evaluations)
    return seconds | {label: _arm_seconds(arm) for label, arm in seed.beside.items()}


def _arm_seconds(arm: Arm | None) -> float:
    if arm is None:
        return 0.0
    return float(arm.summary.get("wall_seconds") or _total(arm, "time/step"))


def _total(arm: Arm, key: str) -> float:
    return sum(row[key] for row in arm.metrics if isinstance(row.get(key), (int, float)))


def _cell(estimate: Any) -> str:
    return NOTHING if estimate is None else percent(estimate)


def _spread(values: Sequence[float]) -> str:
    return seed_range(values) if values else NOTHING


def _of_evaluation(evaluations: Sequence[Mapping[str, Any] | None], metric: MetricResult) -> str:
    return _cell(pooled(evaluations, metric.name))


def _of_tag(evaluations: Sequence[Mapping[str, Any]], tag: str) -> str:
    return _cell(pooled([{"metrics": e.get("tags", {}).get(tag, {})} for e in evaluations], PRIMARY))


def _summed(evaluations: Sequence[Mapping[str, Any]], key: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for evaluation in evaluations:
        for name, count in evaluation.get(key, {}).items():
            total[name] = total.get(name, 0) + count
    return total


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else NOTHING


def _plain(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _before_after_caption(record: ReportRecord, results: Results) -> str:
    evaluation = next((arm.evaluations[0] for arm in record.main_arms if arm.evaluations), {})
    sentences = []
    if {"problems", "samples", "temperature"} <= evaluation.keys():
        sentences.append(
            f"{evaluation['problems']} held-out problems, {evaluation['samples']} answers each "
            f"at temperature {evaluation['temperature']:g}; 95 % intervals over problems."
        )
    main = record.main_arms[0].label
    differences = [(f"Gain of {main}", results.gain)]
    for arm in results.arms:
        differences += [(f"Change of {arm.label}", arm.change), (f"{main} minus {arm.label}", arm.lead)]
    shown = [f"{text} {points(estimate)}" for text, estimate in differences if estimate is not None]
    if shown:
        sentences.append(f"Differences of pass@1 in points, paired by problem: {'; '.join(shown)}.")
    return " ".join(sentences)
