"""A diagnosis as the record that reports render, and as files: the page, each card, the metrics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from greenward.diagnostics.findings import Card, Diagnosis, Gap
from greenward.diagnostics.reward_tests import DIAGRAM
from greenward.diagnostics.signals import RunSignals
from greenward.reports.document import (
    Fact,
    Facts,
    Finding,
    Findings,
    Paragraph,
    Report,
    Section,
    Table,
    charts,
    section,
)
from greenward.reports.svg import standalone
from greenward.reports.write import render, write_report
from greenward.runs.files import dump_json, to_json, write_atomically, writing
from greenward.runs.reading import METRICS

ANALYSED_METRICS = "training_metrics.jsonl"
_FOOTER = (
    "Written by greenward from the files of the run. Brackets are 95 % intervals; p-values of findings are "
    "adjusted for the number of tests (Holm)."
)


def diagnosis_report(diagnosis: Diagnosis) -> Report:
    """The verdict, the findings with what to do, each card, and what could not be checked."""
    run = diagnosis.run
    steps = {"count": len(run.steps), "first": int(run.steps[0]), "last": int(run.steps[-1])}
    data = {
        "command": diagnosis.command,
        "run": str(run.path),
        "verdict": diagnosis.verdict,
        "steps": steps,
        "findings": _finding_records(diagnosis.findings),
        "not_checked": [asdict(gap) for gap in diagnosis.gaps],
        "unanswered": diagnosis.unanswered,
        "alpha": diagnosis.alpha,
        "thresholds": diagnosis.thresholds,
        "cards": {card.name: _card_record(card) for card in diagnosis.cards},
    }
    return Report(
        kind="diagnosis",
        title=f"{diagnosis.command} of {_name(run)}",
        headline=diagnosis.headline,
        facts=(
            Fact("steps", "{count:,} ({first} to {last})".format(**steps)),
            Fact("checks", str(diagnosis.checks)),
            Fact("not checked", str(len(diagnosis.gaps))),
        ),
        notes=run.notes,
        sections=(
            _findings_section(diagnosis.findings),
            *map(_card_section, diagnosis.cards),
            _gaps_section(diagnosis.gaps),
        ),
        footer=_FOOTER,
        data=to_json(data),
    )


def card_report(card: Card, run: RunSignals) -> Report:
    """One card as a report of its own."""
    return Report(
        kind="diagnosis",
        title=f"{card.title}: {_name(run)}",
        headline=card.headline,
        facts=card.facts,
        sections=(
            _findings_section(card.findings),
            section("Details", *card.tables, charts(card.charts, in_json=False)),
            _gaps_section(card.gaps),
        ),
        footer=_FOOTER,
        data=to_json(_card_record(card)),
    )


def write_reward_health(diagnosis: Diagnosis, folder: Path) -> list[Path]:
    """Write the page, each card, the reliability diagram if there is one, and the metrics as analysed.

    Raises:
        RunError: the file system refused.
    """
    written = [*write_report(diagnosis_report(diagnosis), folder, "reward_health").values()]
    texts: dict[str, str] = {}
    for card in diagnosis.cards:
        report = card_report(card, diagnosis.run)
        texts |= {f"{card.name}.md": render(report, "markdown"), f"{card.name}.json": render(report, "json")}
        texts |= {chart.file: standalone(chart) for chart in card.charts if chart.file}
    with writing(str(folder)):
        (folder / DIAGRAM).unlink(missing_ok=True)
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    write_atomically(folder / ANALYSED_METRICS, _metrics_as_analysed(diagnosis.run))
    return [*written, *(folder / name for name in texts), folder / ANALYSED_METRICS]


def _metrics_as_analysed(run: RunSignals) -> bytes:
    """One row a step, in order, no torn line."""
    source = run.path / METRICS
    if not run.notes and source.is_file():
        return source.read_bytes()  # nothing was sorted, merged or left out
    columns = {name: values.tolist() for name, values in run.values.items()}
    rows = (
        {"step": int(step), **{name: columns[name][i] for name in columns if run.recorded[name][i]}}
        for i, step in enumerate(run.steps)
    )
    return "".join(dump_json(row) + "\n" for row in rows).encode()


def _name(run: RunSignals) -> str:
    return run.path.resolve().name


def _findings_section(findings: tuple[Finding, ...]) -> Section:
    return section("Findings", Findings(findings) if findings else None)


def _card_section(card: Card) -> Section:
    facts = Facts(card.facts) if card.facts else None
    shown = charts(card.charts, in_json=False)
    return section(card.title, Paragraph(card.headline), facts, shown, *card.tables, level="appendix")


def _gaps_section(gaps: tuple[Gap, ...]) -> Section:
    rows = tuple((f"{gap.subject}: {gap.reason}. {gap.enable}",) for gap in gaps)
    table = Table("", ("What, why, and what would enable it",), rows) if rows else None
    return section("What could not be checked", table)


def _finding_records(findings: tuple[Finding, ...]) -> list[dict[str, Any]]:
    return [{**asdict(finding), "docs": finding.docs} for finding in findings]


def _card_record(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "title": card.title,
        "headline": card.headline,
        "findings": _finding_records(card.findings),
        "checked": list(card.checked),
        "not_checked": [asdict(gap) for gap in card.gaps],
        "data": card.data,
    }
