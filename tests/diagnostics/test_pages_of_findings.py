"""Every finding has a page, which a report names beside the finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenward.diagnostics.findings import FINDINGS
from greenward.reports.document import Findings, Occurrence, Report, Section
from greenward.reports.page import render_html
from greenward.reports.render import as_text, render_markdown
from greenward.tasks import TASKS, find_task

ROOT = Path(__file__).parents[2]
OF_TASKS = {one.name: one for task in TASKS for topic in find_task(task).findings() for one in topic.findings}


def occurrence(name: str) -> Occurrence:
    return Occurrence(name, "warning", "A title", "It was measured.", ("Do this.",), "That rises.")


@pytest.mark.parametrize("name", sorted({**FINDINGS, **OF_TASKS}))
def test_the_page_of_a_finding_is_there_and_is_about_it(name: str) -> None:
    page = (ROOT / occurrence(name).docs).read_text(encoding="utf-8")
    assert page.startswith("# ") and f"`{name}`" in page


def test_every_form_that_is_read_names_the_page() -> None:
    names = ("reward-drop", "no-learning")
    found = Findings(tuple(map(occurrence, names)), in_full=True)
    report = Report("diagnosis", "A run", "Two findings", sections=(Section("The cause", (found,)),))
    for render in (render_html, render_markdown, as_text):
        text = render(report).replace("\\", "")
        assert all(f"docs/findings/{name}.md" in text for name in names), render.__name__
