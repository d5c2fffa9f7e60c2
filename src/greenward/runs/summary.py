"""summary.json: how a run ended, what it reached and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from greenward.no_signal import spells
from greenward.runs.directory import RunDirectory
from greenward.runs.files import dump_json, write_atomically
from greenward.runs.metrics import read_metrics
from greenward.runs.reading import evaluated_suites, is_run, read_evaluations, read_summary

ARM_NAMES = ("warm_start", "grpo", "rejection", "control")

RunStatus = Literal["finished", "interrupted"]


def write_summary(
    run: RunDirectory,
    *,
    status: RunStatus,
    steps: int,
    wall_seconds: float,
    peak_rss_mb: float | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write and return the summary of a run.

    `before` and `after` are the metrics of its first and newest evaluation (None without one), `suites`
    the same for each suite, `arms` the summaries of the runs inside it. `warnings` names the steps that gave
    nothing to learn from (`no_signal`). `wall_seconds` counts all sessions, `extra` adds keys of the
    caller's own.

    Raises:
        RunError: the file system refused.
    """
    rows = read_metrics(run.path / "metrics.jsonl").rows
    summary = {
        "status": status,
        "steps": steps,
        "wall_seconds": wall_seconds,
        "peak_rss_mb": peak_rss_mb,
        **_before_and_after(run.path, None),
        "suites": {suite: _before_and_after(run.path, suite) for suite in evaluated_suites(run.path)},
        "arms": {name: read_summary(run.path / name) for name in ARM_NAMES if is_run(run.path / name)},
        "warnings": [spell.to_json() for spell in spells(rows, run.config)],
        **(extra or {}),
    }
    write_atomically(run.path / "summary.json", dump_json(summary, indent=2).encode())
    return summary


def _before_and_after(path: Path, suite: str | None) -> dict[str, Any]:
    evaluations = read_evaluations(path, suite)
    return {
        "before": evaluations[0]["metrics"] if evaluations else None,
        "after": evaluations[-1]["metrics"] if evaluations else None,
    }
