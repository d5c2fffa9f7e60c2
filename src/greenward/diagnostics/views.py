"""A diagnosis as an HTML page, markdown cards, a terminal summary and JSON."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from greenward.diagnostics.finding import Card, Diagnosis, Gap
from greenward.reports import html, markdown
from greenward.reports.document import NOTHING, Fact, Finding, Severity, Table
from greenward.runs.files import dump_json

if TYPE_CHECKING:
    from rich.console import Console

DIAGRAM = "reliability_diagram.svg"
_PILLS: dict[Severity, str] = {"critical": "bad", "warning": "warn", "info": "plain"}
_COLOURS: dict[Severity, str] = {"critical": "bold red", "warning": "yellow", "info": "dim"}
_FOOTER = (
    "Written by greenward from the files of the run. Brackets are 95 % intervals; p-values of findings are "
    "adjusted for the number of tests (Holm)."
)


def diagnosis_json(diagnosis: Diagnosis) -> str:
    """Everything but the charts, whose series metrics.jsonl has."""
    record = {
        "command": diagnosis.command,
        "run": diagnosis.run,
        "verdict": diagnosis.verdict,
        "headline": diagnosis.headline,
        "steps": {"count": diagnosis.steps, "first": diagnosis.first_step, "last": diagnosis.last_step},
        "findings": [_finding_record(finding) for finding in diagnosis.findings],
        "not_checked": [asdict(gap) for gap in diagnosis.gaps],
        "unanswered": diagnosis.unanswered,
        "alpha": diagnosis.alpha,
        "thresholds": diagnosis.thresholds,
        "notes": diagnosis.notes,
        "cards": {card.name: _card_record(card) for card in diagnosis.cards},
    }
    return dump_json(record, indent=1) + "\n"


def card_json(card: Card) -> str:
    """One card."""
    return dump_json(_card_record(card), indent=1) + "\n"


def diagnosis_markdown(diagnosis: Diagnosis) -> str:
    """The verdict, the findings with what to do, the cards folded."""
    blocks = [
        markdown.head(_title(diagnosis), diagnosis.headline, _facts(diagnosis), diagnosis.notes),
        *map(_finding_markdown, diagnosis.findings),
        markdown.table_of(gaps_table(diagnosis.gaps)),
        *(markdown.folded(card.title, _folded_body(card)) for card in diagnosis.cards),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def card_markdown(card: Card, diagnosis: Diagnosis) -> str:
    """One card as a file of its own."""
    blocks = [
        markdown.head(f"{card.title}: {_name(diagnosis)}", card.headline, card.facts, card.notes),
        *map(_finding_markdown, card.findings),
        markdown.table_of(gaps_table(card.gaps)),
        _card_body(card),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """One self-contained page."""
    title = _title(diagnosis)
    cards = (html.section(card.title, _card_html(card)) for card in diagnosis.cards)
    return html.page(
        title,
        (
            html.head("diagnosis", title, diagnosis.headline, _facts(diagnosis), diagnosis.notes),
            html.section("Findings", "".join(map(_finding_html, diagnosis.findings))),
            *cards,
            html.section("What could not be checked", html.card(gaps_table(diagnosis.gaps))),
        ),
        _FOOTER,
    )


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """A short verdict and the findings, each with the first thing to do about it."""
    from rich.console import Console
    from rich.text import Text

    from greenward.reports.terminal import print_head
    from greenward.text import visible

    console = Console()
    print_head(console, _title(diagnosis), diagnosis.headline, _facts(diagnosis), diagnosis.notes)
    _print_findings(console, diagnosis.findings)
    if diagnosis.findings:
        console.print(Text("All actions, and what would confirm each: --output-dir or --json.", style="dim"))
    if diagnosis.gaps:
        console.print()
        console.print(Text("Not checked:", style="bold"))
        for gap in diagnosis.gaps:
            console.print(Text(visible(f"  {gap.subject}: {gap.reason}."), style="dim"))


def _print_findings(console: Console, findings: tuple[Finding, ...]) -> None:
    from rich.table import Table as RichTable
    from rich.text import Text

    from greenward.text import visible

    if not findings:
        return
    shown = RichTable(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    for column in ("Severity", "Finding", "From step"):
        shown.add_column(column, ratio=1 if column == "Finding" else None)
    for finding in findings:
        text = Text(finding.title, style="bold")
        text.append(f"\n{visible(finding.measured)}", style="not bold")
        text.append(f"\nFirst: {visible(finding.actions[0])}", style="not bold dim")
        onset = NOTHING if finding.onset is None else str(finding.onset)
        shown.add_row(Text(finding.severity, style=_COLOURS[finding.severity]), text, Text(onset))
    console.print(shown)


def gaps_table(gaps: tuple[Gap, ...]) -> Table | None:
    """What could not be checked."""
    if not gaps:
        return None
    rows = tuple((f"{gap.subject}: {gap.reason}. {gap.enable}",) for gap in gaps)
    return Table("What could not be checked", ("What, why, and what would enable it",), rows)


def _name(diagnosis: Diagnosis) -> str:
    return Path(diagnosis.run).resolve().name


def _title(diagnosis: Diagnosis) -> str:
    return f"{diagnosis.command} of {_name(diagnosis)}"


def _facts(diagnosis: Diagnosis) -> tuple[Fact, ...]:
    steps = f"{diagnosis.steps:,} ({diagnosis.first_step} to {diagnosis.last_step})"
    return (
        Fact("steps", steps),
        Fact("checks", str(diagnosis.checks)),
        Fact("not checked", str(len(diagnosis.gaps))),
    )


def _finding_record(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "docs": finding.docs}


def _card_record(card: Card) -> dict[str, Any]:
    return {
        "name": card.name,
        "title": card.title,
        "headline": card.headline,
        "findings": [_finding_record(finding) for finding in card.findings],
        "checked": [check.subject for check in card.checks],
        "not_checked": [asdict(gap) for gap in card.gaps],
        "notes": card.notes,
        "data": card.data,
    }


def _evidence(finding: Finding) -> str:
    parts = []
    if finding.onset is not None:
        parts.append(f"from step {finding.onset}")
    if finding.p_value is not None:
        parts.append(f"adjusted p {finding.p_value:.2g}")
    parts.append(finding.docs)
    return " · ".join(parts)


def _finding_markdown(finding: Finding) -> str:
    actions = "\n".join(
        f"{n}. {markdown.inline(action)}" for n, action in enumerate(finding.actions, start=1)
    )
    return (
        f"## {finding.severity.upper()}: {markdown.inline(finding.title)}\n\n"
        f"{markdown.inline(finding.measured)}\n\n"
        f"{markdown.inline(_evidence(finding))}\n\nWhat to do:\n\n{actions}\n\n"
        f"To confirm: {markdown.inline(finding.confirm)}"
    )


def _folded_body(card: Card) -> str:
    facts = " · ".join(f"{markdown.inline(fact.label)}: {markdown.inline(fact.value)}" for fact in card.facts)
    return "\n\n".join(part for part in (markdown.inline(card.headline), facts, _card_body(card)) if part)


def _card_body(card: Card) -> str:
    blocks = [markdown.table_of(table) for table in card.tables]
    if has_diagram(card):
        blocks.insert(0, f"![Reliability diagram]({DIAGRAM})")
    return "\n\n".join(blocks)


def has_diagram(card: Card) -> bool:
    """Whether the card draws the reliability diagram that its markdown shows."""
    return card.name == "calibration_report" and bool(card.charts)


def _finding_html(finding: Finding) -> str:
    actions = "".join(f"<li>{html.escaped(action)}</li>" for action in finding.actions)
    return (
        f'<article class="card finding" id="{html.escaped(finding.name)}"><header><h3>'
        f'<span class="pill {_PILLS[finding.severity]}">{finding.severity}</span> '
        f"{html.escaped(finding.title)}</h3></header><p>{html.escaped(finding.measured)}</p>"
        f'<p class="soft">{html.escaped(_evidence(finding))}</p><ol>{actions}</ol>'
        f'<p class="soft">To confirm: {html.escaped(finding.confirm)}</p></article>'
    )


def _card_html(card: Card) -> str:
    facts = " · ".join(f"{html.escaped(fact.label)} {html.escaped(fact.value)}" for fact in card.facts)
    return (
        f"<p>{html.escaped(card.headline)}</p>"
        + (f'<p class="soft">{facts}</p>' if facts else "")
        + html.charts(card.charts, "wide", html.WIDE)
        + "".join(html.card(table, titled=True) for table in card.tables)
    )
