"""Writes the forms of a report into a folder of greenward's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from greenward.reports.document import Report
from greenward.reports.render import render_json, render_markdown
from greenward.runs.files import write_atomically
from greenward.runs.output import claim_folder

Form = Literal["html", "markdown", "json"]
_SUFFIXES: dict[Form, str] = {"html": "html", "markdown": "md", "json": "json"}


def render(report: Report, form: Form) -> str:
    """One form of a report, as text."""
    if form == "html":
        from greenward.reports.page import render_html

        return render_html(report)
    return render_json(report) if form == "json" else render_markdown(report)


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
