"""Writes a page for each finding, and the table of all: .venv/bin/python docs/make_findings.py"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from greenward.diagnostics.finding import Finding, Topic
from greenward.diagnostics.findings import FINDINGS, topics_of
from greenward.tasks import TASKS, find_task

FOLDER = Path(__file__).parent / "findings"
TABLE = "README"


def pages() -> dict[str, str]:
    """Name of a page -> its text."""
    topics = topics_of([])
    topics[-1:-1] = [topic for name in TASKS for topic in find_task(name).findings()]
    return {TABLE: table(topics)} | {one.name: page(one) for topic in topics for one in topic.findings}


def table(topics: list[Topic]) -> str:
    """The page with all findings, by topic."""
    lines = ["# Findings", "", "Each is explained in [Diagnosing a run](../diagnostics.md#findings)."]
    for topic in topics:
        lines += ["", f"## {topic.title}", "", "| finding | severity | limit | source |", "|---|---|---|---|"]
        lines += map(row, topic.findings)
    return "\n".join(lines) + "\n"


def row(one: Finding) -> str:
    """The finding in the table."""
    cells = (f"[`{one.name}`]({one.name}.md)", one.weight or one.severity, one.limit, source(one))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def source(one: Finding) -> str:
    """Where the limit comes from; links to sections of diagnostics.md as seen from the pages."""
    return one.source.replace("(#", "(../diagnostics.md#")


def page(one: Finding) -> str:
    """The page of a finding."""
    lines = [f"# {one.title}", "", f"`{one.name}` · {one.weight or one.severity}", ""]
    if not callable(one.signals) and any(one.signals):
        lines += [f"Read from {', '.join(f'`{signal}`' for signal in sorted(one.signals))}.", ""]
    lines += ["## When it is found", "", f"{one.limit[:1].upper()}{one.limit[1:]}.", ""]
    if one.live:
        lines += ["A [monitor](../monitor.md) raises an alarm of this name while the training runs.", ""]
    if one.measured != "{text}":
        shown = re.sub(r"\{[^}]*\}", "…", one.measured)
        lines += ["The report says:", "", f"> {shown}", ""]
    lines += ["## What to do", "", *(f"{i}. {action}" for i, action in enumerate(one.actions, start=1)), ""]
    lines += ["## What confirms it", "", one.confirm, ""]
    causes = (name for name, cause in FINDINGS.items() if one.name in cause.explains)
    lines += [*links("Often follows from it", one.explains), *links("Often a consequence of", causes)]
    return "\n".join((*lines, "[All findings](README.md)")) + "\n"


def links(heading: str, names: Iterable[str]) -> list[str]:
    """A section with links to other findings; none without names."""
    shown = ", ".join(f"[{name}]({name}.md)" for name in sorted(set(names)))
    return [f"## {heading}", "", shown, ""] if shown else []


if __name__ == "__main__":
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (FOLDER / f"{name}.md").write_text(text, encoding="utf-8")
