"""A report as one HTML file: no network, no script, no foreign markup.

jinja2 escapes every text of the record. The content security policy allows nothing but the one style
sheet of this page, by its hash, so even markup that slipped through could not act.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from greenward.reports.document import Report
from greenward.reports.svg import colour_key, draw, stacked_bar, style_sheet
from greenward.text import visible

_SHAPES = {"wide": (520, 290), "small": (340, 190)}


def render_html(report: Report, *, refresh_seconds: int | None = None) -> str:
    """The whole page. A browser loads it anew every `refresh_seconds`, for the page of a running run."""
    return render_page("page.html.j2", style_sheet(), report=report, refresh_seconds=refresh_seconds)


def render_page(template: str, style: str, **variables: Any) -> str:
    """A page of a template of this package, with `style` as the one style sheet that it allows."""
    style_hash = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = _environment().get_template(template)
    return page.render(style=Markup(style), style_hash=Markup(style_hash), **variables)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("greenward.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
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


def _shown(value: Any) -> Any:
    """Make control characters of plain text visible before it is escaped."""
    return visible(value) if type(value) is str else value
