"""A report as Markdown, for a pull request or the page of a model, and as JSON, for programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict

from greenward.reports import document
from greenward.runs.files import dump_json
from greenward.text import visible


def render_markdown(report: document.Report) -> str:
    """The report as Markdown; sections below the main ones are folded, charts without a `file` left out."""
    notes = "\n".join(f"- {inline(note)}" for note in report.notes)
    head = (f"# {inline(report.title)}", f"**{inline(report.headline)}**", _facts(report.facts), notes)
    return _joined((*head, *map(_section, report.sections))) + "\n"


def render_json(report: document.Report) -> str:
    """The report as one JSON object: its texts, its `data`, and its sections as blocks with a `type`.

    Charts whose series a file of the run holds already are left out.
    """
    record = {
        "kind": report.kind,
        "title": report.title,
        "headline": report.headline,
        "facts": {fact.label: fact.value for fact in report.facts},
        "notes": report.notes,
        **report.data,
        "sections": [
            {
                "title": section.title,
                "blocks": [
                    {"type": type(block).__name__.lower(), **asdict(block)}
                    for block in section.blocks
                    if not isinstance(block, document.Charts) or block.in_json
                ],
            }
            for section in report.sections
        ],
    }
    # A lone surrogate, which UTF-8 has not, becomes its escape in JSON.
    return dump_json(record, indent=1).encode("utf-8", "backslashreplace").decode() + "\n"


def inline(text: str) -> str:
    """One line of text in which nothing acts as Markdown or HTML. Intervals keep their brackets."""
    line = " ".join(visible(text).split())
    return re.sub(r"([\\`*_{}<>|#~]|\](?=[(\[:]))", r"\\\1", line)


def code_block(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    text = visible(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _section(section: document.Section) -> str:
    inner = _joined(map(_block, section.blocks))
    if not inner:
        return ""
    title = inline(section.title)
    if section.level == "main":
        return f"## {title}\n\n{inner}"
    return f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>"


def _block(block: document.Block) -> str:
    match block:
        case document.Paragraph():
            return inline(block.text)
        case document.Facts():
            return _facts(block.facts)
        case document.Table():
            return _table(block)
        case document.Charts():
            return _joined(f"![{inline(chart.title)}]({chart.file})" for chart in block.charts if chart.file)
        case document.Code():
            return code_block(block.text, block.language)
        case document.Answers():
            return _joined(map(_task, block.tasks))
        case document.Findings():
            return _joined(map(_finding, block.findings))
        case document.Links():
            return " · ".join(f"[{inline(link.text)}]({link.target})" for link in block.links)


def _facts(facts: Iterable[document.Fact]) -> str:
    return " · ".join(f"{inline(fact.label)}: {inline(fact.value)}" for fact in facts)


def _table(table: document.Table) -> str:
    rows = [table.columns, ("---",) * len(table.columns), *table.rows]
    lines = ("| " + " | ".join(map(inline, row)) + " |" for row in rows)
    title = f"### {inline(table.title)}" if table.title else ""
    return _joined((title, "\n".join(lines), inline(table.caption)))


def _task(task: document.AnsweredTask) -> str:
    label = f": {task.label}" if task.label else ""
    blocks = [f"### {inline(task.task_id + label)}", code_block(task.prompt.strip()) if task.prompt else ""]
    for answer in task.answers:
        title = f"{answer.title}: " if answer.title else ""
        remark = f"; {answer.remark}" if answer.remark else ""
        blocks += [inline(f"{title}{answer.status}{remark}"), code_block(answer.code, "python")]
        blocks.append(code_block(answer.failure) if answer.failure else "")
    return _joined(blocks)


def _finding(finding: document.Finding) -> str:
    title = f"### {finding.severity.upper()}: {inline(finding.title)}"
    actions = (f"{number}. {inline(action)}" for number, action in enumerate(finding.actions, start=1))
    evidence = (inline(finding.measured), inline(finding.evidence))
    confirm = f"To confirm: {inline(finding.confirm)}"
    return _joined((title, *evidence, "What to do:", "\n".join(actions), confirm))


def _joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block)
