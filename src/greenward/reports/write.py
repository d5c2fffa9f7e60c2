"""Writes the forms of a report into a folder of greenward's, once or while the run that it is about runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from greenward.reports.document import Report
from greenward.reports.evaluation import evaluation_report
from greenward.reports.render import render_html, render_json, render_markdown
from greenward.reports.training import combinations, overlay_report, sweep_report, training_report
from greenward.runs.files import write_atomically
from greenward.runs.output import claim_folder, is_being_written
from greenward.runs.reading import is_evaluation, is_run

Form = Literal["html", "markdown", "json"]
POLL_SECONDS = 5
_IDLE_POLLS = 2  # an arm may begin a moment after another one ended
_SUFFIXES: dict[Form, str] = {"html": "html", "markdown": "md", "json": "json"}


def report_of(*paths: Path) -> Report:
    """The report of the run, study, sweep or evaluation at a path; that of several paths overlays runs.

    Raises `RunError` where there is none.
    """
    if len(paths) > 1:
        return overlay_report(paths)
    (path,) = paths
    if is_evaluation(path):
        return evaluation_report(path)
    return sweep_report(path) if combinations(path) and not is_run(path) else training_report(path)


def render(report: Report, form: Form) -> str:
    """One form of a report, as text."""
    return {"html": render_html, "markdown": render_markdown, "json": render_json}[form](report)


def usual_folder(path: Path) -> Path:
    """Where reports of a folder that is only read are written without another choice: `reports/NAME`.

    NAME is that of the folder, with those of the folders above it as far as the current one, but for `runs`.
    """
    whole = path.resolve()
    here = Path.cwd()
    parts = whole.relative_to(here).parts if whole.is_relative_to(here) else (whole.name,)
    return Path("reports") / ("-".join(parts[1:] if parts[:1] == ("runs",) else parts) or here.name or "root")


def write_report(
    report: Report, folder: Path, stem: str = "report", forms: Sequence[Form] = ("html", "markdown", "json")
) -> dict[Form, Path]:
    """Writes STEM.html, STEM.md and STEM.json into `folder`, which is made; older ones are replaced whole.

    Returns the path of each form by its name. Raises `RunError` for a folder that is not greenward's, and
    when the file system refused.
    """
    claim_folder(folder, "report")
    paths = {form: folder / f"{stem}.{_SUFFIXES[form]}" for form in forms}
    for form, path in paths.items():
        write_atomically(path, render(report, form).encode("utf-8", "backslashreplace"), forced=False)
    return paths


def is_running(path: Path) -> bool:
    """Whether a process writes the run or study at `path`, or an arm inside it."""
    return any(is_being_written(one) for one in (path, *path.glob("*"), *path.glob("*/*")) if one.is_dir())


def follow(path: Path, folder: Path, say: Callable[[str], object] = lambda text: None) -> Path:
    """Writes `folder`/report.html every few seconds until the run or study at `path` ends; returns its path.

    The last page, which is also written when Ctrl-C ends the command, does not reload itself. What does not
    run has that page only. `say` is told which of the two it is.

    Raises `RunError` when there is neither run nor study, `folder` is not greenward's, or the file system
    refused.
    """
    page = folder / "report.html"
    report_of(path)  # raises before a folder is made
    claim_folder(folder, "report")
    idle = 0 if is_running(path) else _IDLE_POLLS
    if idle:
        say(
            f"{path} is not running: its page is written once. `greenward train` with --resume goes on with "
            "a run that has stopped; --follow then follows it."
        )
    else:
        say(f"Open {page}; Ctrl-C stops following.")
    try:
        while idle < _IDLE_POLLS:
            write_atomically(page, render_html(report_of(path), refresh_seconds=POLL_SECONDS).encode())
            time.sleep(POLL_SECONDS)
            idle = 0 if is_running(path) else idle + 1
    finally:
        write_atomically(page, render_html(report_of(path)).encode())
    return page
