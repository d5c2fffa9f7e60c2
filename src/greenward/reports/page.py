"""Renders a report as an HTML page, and for notebooks.

The page is one file without network, script or foreign markup. jinja2 escapes every text of the record. The
content security policy allows nothing but the one style sheet of this page, by its hash, so even markup that
slipped through could not act.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from greenward.common.text import visible
from greenward.reports.document import Chart, Charts, Report
from greenward.reports.render import as_text
from greenward.reports.svg import colour_key, draw, printed, stacked_bar, style_sheet

if TYPE_CHECKING:
    from jinja2 import Environment

_SHAPES = {"wide": (520, 290), "small": (340, 190)}
_NOTEBOOK_CHARTS = 4


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


def mime_bundle(report: Report) -> dict[str, str]:
    """The report without its appendices as notebooks show it: `text/plain` and `text/html`.

    The HTML is the headline, the first charts as images, and the page in a frame in which no script runs: its
    styles and the notebook's are apart. A notebook that is not trusted drops frames and drawings, and shows
    images.
    """
    shown = replace(report, sections=tuple(one for one in report.sections if one.level != "appendix"))
    blocks = (block for section in shown.sections for block in section.blocks)
    charts = (chart for block in blocks if isinstance(block, Charts) for chart in block.charts)
    images = "".join(map(_image, islice(charts, _NOTEBOOK_CHARTS)))
    frame = '<iframe sandbox style="width:100%;height:36em;border:0" srcdoc="{}"></iframe>'
    page = f"<details><summary>The whole report</summary>{frame.format(escape(render_html(shown)))}</details>"
    headline = f"<p><b>{escape(visible(shown.title))}</b> {escape(visible(shown.headline))}</p>"
    return {"text/plain": as_text(shown), "text/html": f"{headline}{images}{page}"}


def _image(chart: Chart) -> str:
    """A chart as an image that has all that it needs."""
    drawn = base64.b64encode(printed(chart, *_SHAPES["small"]).encode()).decode()
    return f'<img src="data:image/svg+xml;base64,{drawn}" alt="{escape(visible(chart.title))}">'
