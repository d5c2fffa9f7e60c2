"""Renders a report as HTML, as Markdown or JSON, and on the terminal.

The HTML page is one file without network, script or foreign markup. jinja2 escapes every text of the record.
The content security policy allows nothing but the one style sheet of this page, by its hash, so even markup
that slipped through could not act.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from greenward.common.text import visible
from greenward.reports import document
from greenward.reports.document import Report, value_text
from greenward.reports.svg import colour_key, draw, printed, stacked_bar, style_sheet
from greenward.runs.files import dump_json

if TYPE_CHECKING:
    from jinja2 import Environment


def render_markdown(report: document.Report) -> str:
    """The report as Markdown; sections below the main ones are folded, charts without a `file` left out."""
    head = (
        f"# {inline(report.title)}",
        f"**{inline(report.headline)}**",
        _markdown_facts(report.facts),
        "\n".join(f"- {inline(note)}" for note in report.notes),
    )
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
    return dump_json(record, indent=1) + "\n"


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
    if not (inner := _joined(map(_block, section.blocks))):
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
            return _markdown_facts(block.facts)
        case document.Table():
            rows = [block.columns, ("---",) * len(block.columns), *block.rows]
            lines = ("| " + " | ".join(map(inline, row)) + " |" for row in rows)
            title = f"### {inline(block.title)}" if block.title else ""
            return _joined((title, "\n".join(lines), inline(block.caption)))
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


def _markdown_facts(facts: Iterable[document.Fact]) -> str:
    return " · ".join(f"{inline(fact.label)}: {inline(fact.value)}" for fact in facts)


def _task(task: document.AnsweredTask) -> str:
    label = f": {task.label}" if task.label else ""
    blocks = [f"### {inline(task.task_id + label)}", code_block(task.prompt.strip()) if task.prompt else ""]
    for answer in task.answers:
        title = f"{answer.title}: " if answer.title else ""
        remark = f"; {answer.remark}" if answer.remark else ""
        blocks += [inline(f"{title}{answer.status}{remark}"), code_block(answer.code, "python")]
        blocks.append(code_block(answer.failure) if answer.failure else "")
    return _joined(blocks)


def _finding(finding: document.Occurrence) -> str:
    title = f"### {finding.severity.upper()}: {inline(finding.title)}"
    actions = (f"{number}. {inline(action)}" for number, action in enumerate(finding.actions, start=1))
    evidence = (inline(finding.measured), inline(finding.evidence))
    confirm = f"To confirm: {inline(finding.confirm)}"
    return _joined((title, *evidence, "What to do:", "\n".join(actions), confirm))


def _joined(blocks: Iterable[str]) -> str:
    return "\n\n".join(block for block in blocks if block)


_SHAPES = {"wide": (520, 290), "small": (340, 190)}


def render_html(report: Report) -> str:
    """The whole page."""
    return render_page("page.html.j2", style_sheet(), report=report)


def render_page(template: str, style: str, **variables: Any) -> str:
    """A page of a template of this package, with `style` as the one style sheet that it allows."""
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template(template)
    return page.render(style=Markup(style), style_hash=Markup(style_hash), **variables)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("greenward.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: visible(value) if type(value) is str else value,  # before it is escaped
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "type_of": lambda block: type(block).__name__,
        "draw": lambda chart, size: draw(chart, *_SHAPES[size]),
        "bar": lambda table: stacked_bar(
            list(zip((row[0] for row in table.rows), table.shares, strict=False))
        ),
        "key": colour_key,
    }
    return environment


_NOTEBOOK_COLUMNS = 110
_NOTEBOOK_CHARTS = 4


def mime_bundle(report: Report) -> dict[str, str]:
    """The report without its appendices as notebooks show it: `text/plain` and `text/html`.

    The HTML is the headline, the first charts as images, and the page in a frame in which no script runs: its
    styles and the notebook's are apart. A notebook that is not trusted drops frames and drawings, and shows
    images.
    """
    shown = replace(report, sections=tuple(one for one in report.sections if one.level != "appendix"))
    blocks = (block for section in shown.sections for block in section.blocks)
    charts = (chart for block in blocks if isinstance(block, document.Charts) for chart in block.charts)
    images = "".join(map(_image, islice(charts, _NOTEBOOK_CHARTS)))
    frame = '<iframe sandbox style="width:100%;height:36em;border:0" srcdoc="{}"></iframe>'
    page = f"<details><summary>The whole report</summary>{frame.format(escape(render_html(shown)))}</details>"
    headline = f"<p><b>{escape(visible(shown.title))}</b> {escape(visible(shown.headline))}</p>"
    return {"text/plain": as_text(shown), "text/html": f"{headline}{images}{page}"}


def _image(chart: document.Chart) -> str:
    """A chart as an image that has all that it needs."""
    drawn = base64.b64encode(printed(chart, *_SHAPES["small"]).encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{drawn}" alt="{escape(visible(chart.title))}">'


def as_text(report: Report, *, brief: bool = False, whole: bool = False) -> str:
    """What `print_report` prints, without colours."""
    out = io.StringIO()
    console = Console(file=out, width=_NOTEBOOK_COLUMNS, force_jupyter=False, color_system=None)
    print_report(report, console, brief=brief, whole=whole)
    return out.getvalue()


_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 26
_TONES = {"good": "green", "bad": "red", "warning": "yellow", "neutral": "dim"}
_SEVERITIES = {"critical": "bold red", "warning": "yellow", "info": "dim"}


_NOTES_IN_BRIEF = 2


def print_report(
    report: document.Report, console: Console | None = None, *, brief: bool = False, whole: bool = False
) -> None:
    """Print the report without its appendices, or the `whole` of it.

    In brief, notes and remarks (findings of no weight) take a line each, and of many notes the first are
    shown. A section of one table needs no heading beside the table's.
    """
    console = console or Console()
    if console.is_jupyter:  # which would show each line as an output of its own
        print(as_text(report, brief=brief, whole=whole), end="")
        return
    console.print()
    _line(console, report.title, "bold")
    _line(console, report.headline, "bold")
    _print_facts(console, report.facts)
    shown = report.notes[:_NOTES_IN_BRIEF] if brief else report.notes
    for note in shown:
        _line(console, f"! {note}", "yellow", cut=brief)
    if more := len(report.notes) - len(shown):
        _line(console, f"! {more} more note{'s' if more > 1 else ''}", "yellow")
    console.print()
    for section in report.sections:
        if section.blocks and (whole or section.level != "appendix"):
            if brief and all(map(_is_remark, section.blocks)):
                for block in section.blocks:
                    _print_remarks(console, block)
                continue
            _line(console, section.title, "bold")
            for block in section.blocks:
                _print_block(console, block)


def _is_remark(block: document.Block) -> bool:
    return isinstance(block, document.Findings) and all(one.severity == "info" for one in block.findings)


def _print_remarks(console: Console, block: document.Block) -> None:
    for one in block.findings if isinstance(block, document.Findings) else ():
        since = "" if one.onset is None else f" from step {one.onset.step}"
        _line(console, f"{one.severity}: {one.brief or one.title}{since}", "dim", cut=True)


def _print_block(console: Console, block: document.Block) -> None:
    match block:
        case document.Paragraph():
            _line(console, block.text, "dim" if block.quiet else "")
            console.print()
        case document.Facts():
            _print_facts(console, block.facts)
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
            _print_findings(console, block)
        case document.Links():
            for link in block.links:
                _line(console, f"{link.text}: {link.target}", "dim")


def _line(console: Console, text: str, style: str, *, cut: bool = False) -> None:
    """A line of text, wrapped or cut where it is too long."""
    console.print(Text(visible(text), style=style), no_wrap=cut, overflow="ellipsis" if cut else None)


def _print_facts(console: Console, facts: Iterable[document.Fact]) -> None:
    """The facts in a line; one that does not fit begins another."""
    shown: list[str] = []
    for text in (f"{fact.label} {fact.value}" for fact in facts):
        if shown and len(shown[-1]) + 3 + len(text) <= console.width:
            shown[-1] += f"   {text}"
        else:
            shown.append(text)
    _line(console, "\n".join(shown), "dim")


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


def _print_findings(console: Console, block: document.Findings) -> None:
    shown = RichTable(box=None, padding=(0, 2, 1, 0), pad_edge=False)
    for column in ("Severity", "Finding", "From step"):
        shown.add_column(column, ratio=1 if column == "Finding" else None)
    for finding in block.findings:
        text = Text(visible(finding.title), style="bold")
        text.append(f"\n{visible(finding.measured)}", style="not bold")
        actions = [f"First: {finding.actions[0]}"]
        if block.in_full:
            actions = [f"{number}. {action}" for number, action in enumerate(finding.actions, start=1)]
            actions.append(f"To confirm: {finding.confirm}")
        text.append("".join(f"\n{visible(action)}" for action in actions), style="not bold dim")
        onset = document.NOTHING if finding.onset is None else str(finding.onset)
        shown.add_row(Text(finding.severity, style=_SEVERITIES[finding.severity]), text, Text(onset))
    console.print(shown)
