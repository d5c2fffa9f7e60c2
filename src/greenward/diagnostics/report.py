"""A diagnosis as the record that reports render, and as files: the page, each card, the metrics."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from greenward.diagnostics.calibration_tests import DIAGRAM
from greenward.diagnostics.findings import Card, Diagnosis
from greenward.diagnostics.rollout_tests import answers_around
from greenward.diagnostics.signals import RunSignals
from greenward.reports.document import (
    NOTHING,
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
from greenward.runs.files import to_json, write_atomically, writing
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
        "causes": [
            {
                "name": one.finding.name,
                "severity": one.severity,
                "headline": one.headline,
                "consequences": [effect.name for effect in one.consequences],
            }
            for one in diagnosis.causes
        ],
        "format": run.format,
        "names": dict(run.theirs),
        "not_checked": [asdict(gap) for gap in diagnosis.gaps],
        "unanswered": diagnosis.unanswered,
        "alpha": diagnosis.alpha,
        "thresholds": diagnosis.thresholds,
        "cards": {card.name: _card_record(card) for card in diagnosis.cards},
    }
    facts = (
        Fact("steps", "{count:,} ({first} to {last})".format(**steps)),
        Fact("checks", str(diagnosis.checks)),
        Fact("not checked", str(len(diagnosis.gaps))),
    )
    cards = (
        section(
            card.title,
            Paragraph(card.headline),
            Facts(card.facts) if card.facts else None,
            charts(card.charts, in_json=False),
            *card.tables,
            level="appendix",
        )
        for card in diagnosis.cards
    )
    return _report(diagnosis, f"{diagnosis.command} of", run, facts, cards, data, run.notes)


def card_report(card: Card, run: RunSignals) -> Report:
    """One card as a report of its own."""
    details = section("Details", *card.tables, charts(card.charts, in_json=False))
    return _report(card, f"{card.title}:", run, card.facts, [details], _card_record(card))


def _report(
    found: Diagnosis | Card,
    subject: str,
    run: RunSignals,
    facts: tuple[Fact, ...],
    details: Iterable[Section],
    data: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Report:
    """The findings, the details, and what could not be checked."""
    gaps = tuple((f"{gap.subject}: {gap.reason}. {gap.enable}",) for gap in found.gaps)
    missing = Table("", ("What, why, and what would enable it",), gaps) if gaps else None
    return Report(
        kind="diagnosis",
        title=f"{subject} {run.path.resolve().name}",
        headline=found.headline,
        facts=facts,
        notes=notes,
        sections=(*_finding_sections(found, run), *details, section("What could not be checked", missing)),
        footer=_FOOTER,
        data=to_json(data),
    )


def _finding_sections(found: Diagnosis | Card, run: RunSignals) -> list[Section]:
    """The findings; where causes are known, the first with its consequences and answers, then the others."""
    if isinstance(found, Card) or not found.causes:
        return [section("Findings", Findings(found.findings) if found.findings else None)]
    titles = itertools.chain(("The cause", "Also found"), itertools.repeat(""))
    first, *others = (
        section(title, Findings((cause.finding,)), _consequences(cause.consequences))
        for title, cause in zip(titles, found.causes, strict=False)
    )
    onset = found.causes[0].finding.onset
    answers = answers_around(run, onset.step) if onset else None
    remarks = tuple(finding for finding in found.findings if finding.severity == "info")
    return [
        first,
        section("Answers around the onset", answers, level="detail"),
        *others,
        section("Remarks", Findings(remarks) if remarks else None, level="detail"),
    ]


def _consequences(findings: tuple[Finding, ...]) -> Table | None:
    rows = tuple(
        (one.name, one.severity, NOTHING if one.onset is None else str(one.onset), one.measured)
        for one in findings
    )
    return Table("What followed", ("Finding", "Weight", "From step", "Measured"), rows) if rows else None


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
        write_atomically(folder / name, text.encode("utf-8", "backslashreplace"), forced=False)
    source = diagnosis.run.path / METRICS
    as_logged = not diagnosis.run.notes and source.is_file()  # nothing was sorted, merged or left out
    analysed = source.read_bytes() if as_logged else metrics_as_rows(diagnosis.run)
    write_atomically(folder / ANALYSED_METRICS, analysed, forced=False)
    return [*written, *(folder / name for name in texts), folder / ANALYSED_METRICS]


def metrics_as_rows(run: RunSignals) -> bytes:
    """JSON lines, one row a step in order, under greenward's names."""
    columns = {
        name: values.tolist() if np.isfinite(values).all() else to_json(values.tolist())
        for name, values in run.values.items()
    }
    rows = (
        {"step": int(step), **{name: columns[name][i] for name in columns if run.recorded[name][i]}}
        for i, step in enumerate(run.steps)
    )
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


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
