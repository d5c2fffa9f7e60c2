"""The report of a sweep: its combinations side by side, as the report of several runs shows them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from greenward.errors import RunError
from greenward.reports.document import Fact, Report
from greenward.reports.overlay import overlay_report
from greenward.reports.study import failures
from greenward.runs.reading import is_run, read_summary, runs_below


def combinations(path: Path) -> list[Path]:
    """The folders of a sweep over other keys than the seed, by the numbers in their names."""
    return sorted((one for one in path.glob("*=*") if one.is_dir()), key=lambda one: _in_order(one.name))


def sweep_report(path: Path) -> Report:
    """The report of the sweep at `path`, whose folders are runs or studies named for their settings.

    Raises `RunError` while none of its runs has begun.
    """
    folders = combinations(path)
    begun = [folder for folder in folders if is_run(folder) or runs_below(folder)]
    failed = {folder: list(failures(folder)) for folder in folders}
    notes = [f"{folder.name}: {note}" for folder in folders if folder not in begun for note in failed[folder]]
    if not begun:
        raise RunError(f"no run of the sweep at {path} has begun", remedy="\n  ".join(notes) or None)
    summaries = [read_summary(run) or {} for run in runs_below(path)]
    finished = sum(one.get("status") == "finished" for one in summaries)
    facts = (
        Fact("combinations", str(len(folders))),
        Fact("runs begun", str(len(summaries))),
        Fact("finished", str(finished)),
        Fact("failed", str(sum(map(len, failed.values())))),
    )
    report = overlay_report(begun)
    return replace(
        report, kind="sweep", title=path.resolve().name, facts=facts, notes=(*notes, *report.notes)
    )


def _in_order(name: str) -> list[tuple[bool, float, str]]:
    """A key that sorts the numbers in a name by their values."""
    parts = re.split(r"([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)", name)
    return [(odd := bool(index % 2), float(part) if odd else 0.0, part) for index, part in enumerate(parts)]
