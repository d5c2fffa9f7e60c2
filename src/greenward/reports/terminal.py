"""The report on a terminal: the headline, the tables, and each learning curve as a spark-line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from greenward.reports.document import Fact, Table
from greenward.text import visible

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 26


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
