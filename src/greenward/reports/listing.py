"""Shows the runs in a folder and what of them can be deleted, as a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from greenward.reports.document import NOTHING, Report, Table, memory, section, value_text
from greenward.runs.listing import ListedRun

_MAX_FAILURE_CHARACTERS = 200
_COLUMNS = ("Run", "State", "Recipe", "Steps", "Reward", "Score", "Size")


def listing_report(folder: Path, runs: Sequence[ListedRun], notes: Sequence[str]) -> Report:
    """The report of the runs that `list_runs` has found in a folder."""
    states = ", ".join(
        f"{count} {state}" for state, count in Counter(one.state for one in runs).most_common()
    )
    deletable = [part for one in runs for part in one.deletable]
    headline = "No runs."
    if runs:
        plural = "s" if len(runs) > 1 else ""
        headline = f"{len(runs)} run{plural} ({states}), {_size(sum(one.bytes for one in runs))}."
    if deletable:
        headline += f" {_size(sum(one.bytes for one in deletable))} can be deleted."
    rows = tuple(
        (
            one.path,
            one.state,
            one.recipe or NOTHING,
            f"{one.steps}/{one.planned}" if one.planned else str(one.steps),
            NOTHING if one.reward is None else value_text(one.reward, "number"),
            _score(one),
            _size(one.bytes),
        )
        for one in runs
    )
    parts = tuple((one.path, _size(one.bytes), one.why) for one in deletable)
    said = (f"{one.path}: {one.failure[:_MAX_FAILURE_CHARACTERS]}" for one in runs if one.failure)
    return Report(
        kind="runs",
        title=str(folder),
        headline=headline,
        notes=(*notes, *said),
        sections=(
            section("Runs", Table("", _COLUMNS, rows) if rows else None),
            section("What can be deleted", Table("", ("Path", "Size", "Why"), parts) if parts else None),
        ),
    )


def _score(run: ListedRun) -> str:
    if run.metric is None or run.score is None:
        return NOTHING
    is_share = run.metric.removeprefix("greedy_").startswith("pass@")
    return f"{run.metric} {value_text(run.score, 'share' if is_share else 'number')}"


def _size(count: int) -> str:
    return memory(count / 2**20) if count >= 2**20 else f"{count / 1024:.0f} KiB"
