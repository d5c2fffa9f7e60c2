"""Makes the report of what was recorded at a path: a run, a study, a sweep, an evaluation, several runs."""

from __future__ import annotations

from pathlib import Path

from greenward.reports.document import Report
from greenward.reports.evaluation import evaluation_report
from greenward.reports.training import combinations, overlay_report, sweep_report, training_report
from greenward.runs.reading import is_evaluation, is_run


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
