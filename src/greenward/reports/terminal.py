"""The report on a terminal: the headline, the tables, and each learning curve as a spark-line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from greenward.reports.content import Content
from greenward.reports.document import Chart, Fact, Table
from greenward.reports.svg import value_text
from greenward.text import visible

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 26


def print_report(content: Content, console: Console | None = None) -> None:
    """Print the report."""
    console = console or Console()
    print_head(console, content.title, content.headline, content.facts, content.notes)
    for table in (content.before_after, content.seeds, content.suites, content.tags):
        print_table(console, table)
    charts = (*content.held_out_charts[1:], *content.suite_charts, *content.training_charts)
    _print_curves(console, charts)
    for table in (content.answers, content.costs):
        print_table(console, table)


def print_head(
    console: Console, title: str, headline: str, facts: Sequence[Fact], notes: Sequence[str]
) -> None:
    """What stands above the tables."""
    console.print()
    console.print(Text(visible(title), style="bold"))
    console.print(Text(visible(headline), style="bold"))
    console.print(Text(visible("   ".join(f"{fact.label} {fact.value}" for fact in facts)), style="dim"))
    for note in notes:
        console.print(Text(f"! {visible(note)}", style="yellow"))
    console.print()


def print_table(console: Console, table: Table | None) -> None:
    """A table with its caption."""
    if table is None:
        return
    shown = _rich_table(table.title)
    cells = zip(table.columns, *table.rows, strict=True)
    fits = sum(1 + max(map(len, column)) for column in cells) <= console.width
    for index, column in enumerate(table.columns):
        shown.add_column(column, style=None if index else "cyan", no_wrap=fits and index > 0)
    for row in table.rows:
        style = "dim" if row[0].startswith(" ") else None
        shown.add_row(*(Text(visible(cell).replace(" %", "%")) for cell in row), style=style)
    console.print(shown)
    if table.caption:
        console.print(Padding(Text(visible(table.caption), style="dim"), (0, 0, 1, 0)))


def _rich_table(title: str) -> RichTable:
    """An empty table, narrow enough for three intervals in 80 columns."""
    return RichTable(
        title=Text(title, style="bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )


def _print_curves(console: Console, charts: Sequence[Chart]) -> None:
    if not charts:
        return
    shown = _rich_table("Curves")
    for column in ("Curve", "First", "", "Last"):
        shown.add_column(column, style="cyan" if column == "Curve" else None, no_wrap=True)
    for chart in charts:
        for line in chart.series:
            if line.weight != "bold":
                continue
            values = [value for _, value in line.points]
            name = chart.title.partition(",")[0].partition(" (")[0]
            name += f" · {line.name}" if line.name else ""
            first, last = (value_text(value, chart.unit) for value in (values[0], values[-1]))
            shown.add_row(Text(name), Text(first), Text(spark_line(values), style="cyan"), Text(last))
    console.print(shown)


def spark_line(values: Sequence[float], width: int = _SPARK_WIDTH) -> str:
    """The values as one line of blocks, averaged into at most `width` of them."""
    count = min(width, len(values))
    cuts = [round(index * len(values) / count) for index in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(cuts)]
    low, span = min(means), max(means) - min(means)
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round(top * (value - low) / span)] if span else _SPARKS[0] for value in means)
