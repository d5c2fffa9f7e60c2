"""The live page of a run: written anew while the run goes on, and reloaded by the browser."""

from __future__ import annotations

import time
from pathlib import Path

from greenward.reports.render_html import render_html
from greenward.reports.write import report_of
from greenward.runs.files import write_atomically
from greenward.runs.lock import is_being_written

POLL_SECONDS = 5
_IDLE_POLLS = 2  # an arm may begin a moment after another one ended


def follow(path: Path, folder: Path) -> Path:
    """Write `folder`/report.html every few seconds until the run or study at `path` ends; returns its path.

    The last page, which is also written when Ctrl-C ends the command, does not reload itself.

    Raises:
        RunError: there is neither run nor study, or the file system refused.
    """
    page, idle = folder / "report.html", 0
    started = False
    try:
        while True:
            writers = (path, *path.glob("*"), *path.glob("*/*"))
            going_on = any(is_being_written(one) for one in writers if one.is_dir())
            started, idle = started or going_on, 0 if going_on else idle + 1
            if not going_on and (not started or idle >= _IDLE_POLLS):
                break
            write_atomically(page, render_html(report_of(path), refresh_seconds=POLL_SECONDS).encode())
            time.sleep(POLL_SECONDS)
    finally:
        write_atomically(page, render_html(report_of(path)).encode())
    return page
