"""A report on the terminal: the headline, the tables, and each line of a chart as a spark line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from greenward.reports import document
from greenward.reports.figures import value_text
from greenward.text import visible

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 26
_TONES = {"good": "green", "bad": "red", "warning": "yellow", "neutral": "dim"}
_SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "dim"}


def print_report(report: document.Report, console: Console | None = None) -> None:
    """Print the report without its appendices. A section of one table needs no heading beside the table's."""
    console = console or Console()
    console.print()
    _line(console, report.title, "bold")
    _line(console, report.headline, "bold")
    _facts(console, report.facts)
    for note in report.notes:
        _line(console, f"! {note}", "yellow")
    console.print()
    for section in report.sections:
        if section.level != "appendix" and section.blocks:
            _line(console, section.title, "bold")
            for block in section.blocks:
                _print_block(console, block)


def _print_block(console: Console, block: document.Block) -> None:
    match block:
        case document.Paragraph():
            _line(console, block.text, "dim" if block.quiet else "")
            console.print()
        case document.Facts():
            _facts(console, block.facts)
            console.print()
        case document.Table():
            _print_table(console, block)
        case document.Charts():
            _print_curves(console, block.charts)
        case document.Code():
            console.print(Padding(Text(visible(block.text)), (0, 0, 1, 2)))
        case document.Answers():
            for task in block.tasks:
                _print_task(console, task)
        case document.Findings():
            _print_findings(console, block.findings)
        case document.Links():
            for link in block.links:
                _line(console, f"{link.text}: {link.target}", "dim")


def _line(console: Console, text: str, style: str) -> None:
    console.print(Text(visible(text), style=style))


def _facts(console: Console, facts: Iterable[document.Fact]) -> None:
    _line(console, "   ".join(f"{fact.label} {fact.value}" for fact in facts), "dim")


def _print_table(console: Console, table: document.Table) -> None:
    shown = _rich_table(table.title, headed=any(table.columns))
    cells = zip(table.columns, *table.rows, strict=True)
    fits = sum(1 + max(map(len, column)) for column in cells) <= console.width
    for index, column in enumerate(table.columns):
        style = None if index else "cyan"
        shown.add_column(Text(visible(column)), style=style, no_wrap=fits and index > 0, overflow="fold")
    for row in table.rows:
        style = "dim" if row[0].startswith(" ") else None
        shown.add_row(*(Text(visible(cell).replace(" %", "%")) for cell in row), style=style)
    console.print(shown)
    if table.caption:
        console.print(Padding(Text(visible(table.caption), style="dim"), (0, 0, 1, 0)))


def _rich_table(title: str = "", *, headed: bool = True) -> RichTable:
    """An empty table, narrow enough for three intervals in 80 columns."""
    return RichTable(
        title=Text(visible(title), style="bold") if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_header=headed,
    )


def _print_curves(console: Console, charts: Sequence[document.Chart]) -> None:
    """A row for each line; of charts that show the same over other axes, the first."""
    rows: dict[str, tuple[str, Text, str]] = {}
    for chart in charts:
        for line in chart.series:
            name = chart.title.partition(",")[0].partition(" (")[0]
            name += f" · {line.name}" if line.name else ""
            if line.weight == "bold" and name not in rows:
                values = [value for _, value in line.points]
                first, last = (value_text(value, chart.unit) for value in (values[0], values[-1]))
                rows[name] = first, Text(spark_line(values), style="cyan"), last
    shown = _rich_table()
    for column in ("Curve", "First", "", "Last"):
        is_name = column == "Curve"  # which alone is wrapped where there is no room
        shown.add_column(column, style="cyan" if is_name else None, no_wrap=not is_name)
    for name, cells in rows.items():
        shown.add_row(Text(visible(name)), *cells)
    console.print(shown)


def spark_line(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """The values as one line of blocks, averaged into at most `width` of them."""
    count = min(width, len(values))
    cuts = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, span = min(means), max(means) - min(means)
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round(top * (value - low) / span)] if span else _SPARKS[0] for value in means)


def _print_task(console: Console, task: document.AnsweredTask) -> None:
    title = Text(visible(task.task_id), style="bold cyan")
    if task.label:
        title.append(f"  {visible(task.label)}", style=_TONES[task.tone])
    console.print(title)
    if task.prompt.strip():
        console.print(Padding(Text(visible(task.prompt.strip()), style="dim"), (0, 0, 0, 2)))
    for answer in task.answers:
        head = Text(visible(f"{answer.title} " if answer.title else ""), style="bold")
        head.append(visible(answer.status), style=_TONES[answer.tone])
        head.append(visible(f"  {answer.remark}" if answer.remark else ""), style="dim")
        console.print(head)
        console.print(Padding(Text(visible(answer.code)), (0, 0, 0, 2)))
        if answer.failure:
            console.print(Padding(Text(visible(answer.failure), style="red"), (0, 0, 0, 2)))
    console.print()


def _print_findings(console: Console, findings: Sequence[document.Finding]) -> None:
    shown = RichTable(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    for column in ("Severity", "Finding", "From step"):
        shown.add_column(column, ratio=1 if column == "Finding" else None)
    for finding in findings:
        text = Text(visible(finding.title), style="bold")
        text.append(f"\n{visible(finding.measured)}", style="not bold")
        text.append(f"\nFirst: {visible(finding.actions[0])}", style="not bold dim")
        onset = document.NOTHING if finding.onset is None else str(finding.onset)
        shown.add_row(Text(finding.severity, style=_SEVERITIES[finding.severity]), text, Text(onset))
    console.print(shown)
