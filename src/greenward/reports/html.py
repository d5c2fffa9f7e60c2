"""The report as one HTML file: no network, no script, no foreign markup.

Everything that is not written here is escaped; the content security policy allows nothing but the
one style sheet of this page, by its hash, so even markup that slipped through could not act.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files

from greenward.reports.document import Chart, Fact, Table
from greenward.reports.svg import draw
from greenward.text import visible

WIDE, SMALL = (520, 290), (340, 190)


def page(title: str, sections: Iterable[str], footer: str) -> str:
    """A page of sections that are HTML already."""
    style = (files("greenward.reports") / "report.css").read_text()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="'
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)} · greenward</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(sections)}<footer>{escaped(footer)}</footer></main></body></html>\n"
    )


def escaped(text: str) -> str:
    """Foreign text, harmless in HTML."""
    return escape(visible(text))


def head(
    kind: str,
    title: str,
    headline: str,
    facts: Iterable[Fact],
    notes: Iterable[str],
    tiles: Iterable[str] = (),
) -> str:
    """What stands above the sections."""
    shown_facts = "".join(
        f"<div><dt>{escaped(fact.label)}</dt><dd>{escaped(fact.value)}</dd></div>" for fact in facts
    )
    shown_tiles = "".join(tiles)
    shown_notes = "".join(f"<li>{escaped(note)}</li>" for note in notes)
    return (
        f'<div class="brand">greenward <b>· {escaped(kind)}</b></div><h1>{escaped(title)}</h1>'
        f'<p class="headline">{escaped(headline)}</p><dl class="facts">{shown_facts}</dl>'
        + (f'<div class="tiles">{shown_tiles}</div>' if shown_tiles else "")
        + (f'<ul class="notes card">{shown_notes}</ul>' if shown_notes else "")
    )


def section(title: str, inner: str) -> str:
    """A section of the page; nothing if it would be empty."""
    return f"<section><h2>{escaped(title)}</h2>{inner}</section>" if inner else ""


def charts(shown: Iterable[Chart], size: str, shape: tuple[int, int] = SMALL) -> str:
    """Charts side by side; nothing without any."""
    figures = "".join(
        f'<figure class="card"><h3>{escaped(chart.title)}</h3>{draw(chart, *shape)}'
        + (f"<figcaption>{escaped(chart.caption)}</figcaption>" if chart.caption else "")
        + "</figure>"
        for chart in shown
    )
    return f'<div class="grid {size}">{figures}</div>' if figures else ""


def card(table: Table | None, titled: bool = False) -> str:
    """A table on a card."""
    if table is None:
        return ""
    title = f"<h3>{escaped(table.title)}</h3>" if titled else ""
    caption = f'<p class="soft">{escaped(table.caption)}</p>' if table.caption else ""
    return f'<div class="card grid">{title}<div class="scroll">{_table(table)}</div>{caption}</div>'


def _table(table: Table) -> str:
    head = "".join(f"<th>{escaped(column)}</th>" for column in table.columns)
    rows = []
    for row in table.rows:
        sub = ' class="sub"' if row[0].startswith(" ") else ""
        cells = "".join(f"<td>{escaped(cell.strip())}</td>" for cell in row)
        rows.append(f"<tr{sub}>{cells}</tr>")
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
