"""A report in a browser on a phone, 390 pixels wide, and on a desk: nothing is cut, and texts can be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from greenward.reports.document import Charts, Paragraph, Table
from greenward.reports.page import render_html
from greenward.reports.recorded import report_of

LEAST_TEXT = 8  # pixels of the smallest letters, which the page gives charts at any width

MEASURE = """() => ({
  page: document.documentElement.scrollWidth,
  cut: [...document.querySelectorAll('.scroll, pre, .card')].filter(one => one.scrollWidth > one.clientWidth + 1).length,
  heights: [...document.querySelectorAll('.chart text')].map(one => one.getBoundingClientRect())
    .filter(one => one.width > 0).map(one => one.height),
  charts: [...document.querySelectorAll('figure')].map(figure =>
    [...figure.querySelectorAll('.chart')].filter(one => one.getBoundingClientRect().width > 0).length),
  heads: [...document.querySelectorAll('.stacks thead')].filter(one => one.getBoundingClientRect().height > 1).length,
  texts: [...document.querySelectorAll('tbody tr')].map(row => row.innerText),
  labels: [...document.querySelectorAll('.stacks td')].map(
    cell => getComputedStyle(cell, '::before').content),
})"""


@pytest.fixture
def measure(browser: Any) -> Callable[..., list[dict[str, Any]]]:
    """`measure(page, *widths)`: what a browser makes of the text of a page at each width."""

    def measured(page: str, *widths: int) -> list[dict[str, Any]]:
        tab = browser.new_page()
        tab.set_content(page)
        found = []
        for width in widths:
            tab.set_viewport_size({"width": width, "height": 844})
            found.append(tab.evaluate(MEASURE))
        tab.close()
        return found

    return measured


def test_nothing_of_a_report_is_cut_at_any_width(study: Path, measure: Any) -> None:
    report = report_of(study)
    shown = [block for one in report.sections for block in one.blocks]
    assert any(isinstance(block, Charts) and block.size == "wide" for block in shown)
    assert any(isinstance(block, Table) and len(block.columns) > 2 for block in shown)
    widths = (360, 390, 560, 561, 800, 1280)
    for width, found in zip(widths, measure(render_html(report), *widths), strict=True):
        assert found["page"] <= width
        assert found["cut"] == 0 or width >= 561, width  # a table may be scrolled where it is one
        assert min(found["heights"]) >= LEAST_TEXT, width
        assert set(found["charts"]) == {1}, width


def test_cells_of_a_narrow_table_have_the_names_of_their_columns(measure: Any) -> None:
    from greenward.reports.document import Report, section

    table = Table("Numbers", ("Name", 'first "column"', "second"), (("row", "1.5", "2.5"),))
    blocks = (table, Paragraph("text"))
    report = Report(kind="k", title="t", headline="h", facts=(), sections=(section("S", *blocks),), footer="")
    narrow, broad = measure(render_html(report), 390, 1280)
    assert narrow["labels"] == ["none", '"first \\"column\\""', '"second"']
    assert narrow["heads"] == 0
    assert broad["labels"] == ["none"] * 3
    assert broad["heads"] == 1
    assert [text.split() for text in broad["texts"]] == [["row", "1.5", "2.5"]]
