"""Writes the views of a run's report beside the run."""

from __future__ import annotations

import os
from pathlib import Path

from greenward.errors import RunError
from greenward.reports.content import load_report
from greenward.reports.html import render_html
from greenward.reports.json_view import render_json
from greenward.reports.markdown import render_markdown


def write_all_reports(run_path: str | Path) -> dict[str, Path]:
    """Write report.html, report.md and report.json into the run or study at `run_path`.

    Returns the path of each view by its name: html, markdown, json. A report that stood there
    before is replaced whole.

    Raises:
        RunError: there is no run, or the file system refused.
    """
    folder = Path(run_path)
    content = load_report(folder)
    views = {
        "html": ("report.html", render_html(content)),
        "markdown": ("report.md", render_markdown(content)),
        "json": ("report.json", render_json(content)),
    }
    return {view: _replace(folder / name, text) for view, (name, text) in views.items()}


def _replace(path: Path, text: str) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error
    return path
