"""The report as a markdown card that fits in a pull request or a model's page."""

from __future__ import annotations

import re
from collections.abc import Iterable

from greenward.reports.document import Fact, Table
from greenward.text import visible


def head(title: str, headline: str, facts: Iterable[Fact], notes: Iterable[str]) -> str:
    """What stands above the tables."""
    blocks = (
        f"# {inline(title)}",
        f"**{inline(headline)}**",
        " · ".join(f"{inline(fact.label)}: {inline(fact.value)}" for fact in facts),
        "\n".join(f"- {inline(note)}" for note in notes),
    )
    return "\n\n".join(block for block in blocks if block)


def inline(text: str) -> str:
    """One line of text in which nothing acts as markdown or HTML. Intervals keep their brackets."""
    line = " ".join(visible(text).split())
    return re.sub(r"([\\`*_{}<>|#]|\](?=[(\[:]))", r"\\\1", line)


def table_of(table: Table | None, titled: bool = True) -> str:
    """A table with its caption."""
    if table is None:
        return ""
    lines = [
        "| " + " | ".join(map(inline, table.columns)) + " |",
        "|" + " --- |" * len(table.columns),
        *("| " + " | ".join(map(inline, row)) + " |" for row in table.rows),
    ]
    title = f"## {table.title}\n\n" if titled else ""
    caption = f"\n\n{inline(table.caption)}" if table.caption else ""
    return f"{title}{chr(10).join(lines)}{caption}"


def folded(title: str, inner: str) -> str:
    """A part that opens on a click; nothing if it would be empty."""
    return f"<details><summary>{title}</summary>\n\n{inner}\n\n</details>" if inner else ""


def code_block(text: str, language: str = "") -> str:
    """A fenced block whose fence is longer than any run of backticks inside."""
    text = visible(text)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
