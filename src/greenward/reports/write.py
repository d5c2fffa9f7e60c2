"""Writes the forms of a report beside the run, study or evaluation that it tells of."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from greenward.reports.document import Report
from greenward.reports.evaluation import evaluation_report, is_evaluation
from greenward.reports.render_html import render_html
from greenward.reports.render_text import render_json, render_markdown
from greenward.reports.training import training_report
from greenward.runs.files import write_atomically, writing

Form = Literal["html", "markdown", "json"]
_SUFFIXES: dict[Form, str] = {"html": "html", "markdown": "md", "json": "json"}


def report_of(path: Path) -> Report:
    """The report of the run, study or evaluation at `path`. Raises `RunError` where there is none."""
    return evaluation_report(path) if is_evaluation(path) else training_report(path)


def render(report: Report, form: Form) -> str:
    """One form of a report, as text."""
    return {"html": render_html, "markdown": render_markdown, "json": render_json}[form](report)


def write_report(report: Report, folder: Path, stem: str = "report") -> dict[Form, Path]:
    """Write STEM.html, STEM.md and STEM.json into `folder`, which is made; older ones are replaced whole.

    Returns the path of each form by its name.

    Raises:
        RunError: the file system refused.
    """
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    paths = {form: folder / f"{stem}.{suffix}" for form, suffix in _SUFFIXES.items()}
    for form, path in paths.items():
        write_atomically(path, render(report, form).encode())
    return paths
