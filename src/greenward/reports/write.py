"""Writes the views of a report beside the run, study or evaluation that it tells of."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from greenward.errors import RunError
from greenward.reports.content import load_report
from greenward.reports.evaluation import is_evaluation, load_evaluation
from greenward.reports.evaluation_views import (
    render_evaluation_html,
    render_evaluation_json,
    render_evaluation_markdown,
)
from greenward.reports.html import render_html
from greenward.reports.json_view import render_json
from greenward.reports.markdown import render_markdown

View = Literal["html", "markdown", "json"]
_NAMES: dict[View, str] = {"html": "report.html", "markdown": "report.md", "json": "report.json"}
_OF_RUN = {"html": render_html, "markdown": render_markdown, "json": render_json}
_OF_EVALUATION = {
    "html": render_evaluation_html,
    "markdown": render_evaluation_markdown,
    "json": render_evaluation_json,
}


def write_all_reports(path: str | Path) -> dict[View, Path]:
    """Write report.html, report.md and report.json into the run, study or evaluation at `path`.

    Returns the path of each view by its name. A report that stood there before is replaced whole.

    Raises:
        RunError: there is none of these, or the file system refused.
    """
    folder = Path(path)
    texts = {view: render(folder, view) for view in _NAMES}
    return {view: _replace(folder / _NAMES[view], text) for view, text in texts.items()}


def render(path: Path, view: View) -> str:
    """One view of the report of the run, study or evaluation at `path`. Raises `RunError`."""
    if is_evaluation(path):
        return _OF_EVALUATION[view](load_evaluation(path))
    return _OF_RUN[view](load_report(path))


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path
