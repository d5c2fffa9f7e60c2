"""Everything that a report says, view-neutral: the views only lay it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from greenward.reports.answers import SampleAnswers, sample_answers
from greenward.reports.charts import held_out_charts, suite_charts, training_charts, warm_start_charts
from greenward.reports.document import Chart, Fact, Table
from greenward.reports.record import ReportRecord, read_report
from greenward.reports.results import Results, compare, headline
from greenward.reports.tables import (
    answers_table,
    before_after_table,
    costs_table,
    duration,
    memory,
    seeds_table,
    settings_table,
    suites_table,
    tags_table,
    time_parts,
)


@dataclass(frozen=True)
class Content:
    """A report, laid out by no view yet."""

    title: str
    headline: str
    facts: tuple[Fact, ...]
    notes: tuple[str, ...]
    results: Results
    held_out_charts: tuple[Chart, ...]
    suite_charts: tuple[Chart, ...]
    training_charts: tuple[Chart, ...]
    warm_start_charts: tuple[Chart, ...]
    before_after: Table | None
    seeds: Table | None
    suites: Table | None
    tags: Table | None
    answers: Table | None
    costs: Table | None
    time_parts: tuple[tuple[str, float], ...]
    samples: SampleAnswers | None
    made_with: Table | None
    settings: str
    main_label: str


def load_report(run_path: str | Path) -> Content:
    """The report of the run or study at `run_path`, for any view.

    Raises:
        RunError: there is neither.
    """
    return assemble(read_report(run_path))


def assemble(record: ReportRecord) -> Content:
    """Work out everything that the views show."""
    results = compare(record)
    return Content(
        title=record.title,
        headline=headline(record, results),
        facts=_facts(record),
        notes=record.notes,
        results=results,
        held_out_charts=held_out_charts(record),
        suite_charts=suite_charts(record),
        training_charts=training_charts(record),
        warm_start_charts=warm_start_charts(record),
        before_after=before_after_table(record, results),
        seeds=seeds_table(record, results),
        suites=suites_table(record),
        tags=tags_table(record),
        answers=answers_table(record),
        costs=costs_table(record),
        time_parts=time_parts(record),
        samples=sample_answers(record),
        made_with=settings_table(record),
        settings=_settings(record.main_arms[0].config),
        main_label=record.main_arms[0].label,
    )


def _facts(record: ReportRecord) -> tuple[Fact, ...]:
    facts = []
    if len(record.seeds) > 1:
        facts.append(Fact("seeds", str(len(record.seeds))))
    steps = sorted({arm.steps for arm in record.main_arms})
    facts.append(Fact("steps", " to ".join(map(str, dict.fromkeys((steps[0], steps[-1]))))))
    walls = [arm.summary["wall_seconds"] for arm in record.main_arms if arm.summary.get("wall_seconds")]
    if walls:
        facts.append(Fact(f"{record.main_arms[0].label} wall time", duration(max(walls))))
    peaks = [arm.summary["peak_rss_mb"] for arm in record.main_arms if arm.summary.get("peak_rss_mb")]
    if peaks:
        facts.append(Fact("peak memory", memory(max(peaks))))
    sessions = record.main_arms[0].sessions
    if sessions and sessions[-1].get("device"):
        facts.append(Fact("on", str(sessions[-1]["device"])))
    return tuple(facts)


def _settings(config: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True) if config else ""
