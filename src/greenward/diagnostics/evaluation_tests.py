"""Tests of evaluations over training: pass@k of the held-out problems or of a suite, paired by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from greenward.diagnostics.findings import Gap
from greenward.diagnostics.signal_tests import (
    Result,
    Test,
    Thresholds,
    find_signal_change,
    median_of_part,
    not_made,
)
from greenward.diagnostics.signals import PASS_RATE, RunSignals
from greenward.intervals import Estimate
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Series, Table
from greenward.reports.figures import PRIMARY, metric_label, metric_order, percent, points
from greenward.reports.results import paired_difference
from greenward.runs.reading import read_evaluations

CRITICAL_LOSS = 0.05  # of pass@1, beyond its interval; a smaller sure loss is a warning
GAP = 0.15  # training pass rate over held-out pass@1
GAP_GROWTH = 0.1

Record = Mapping[str, Any]


def sound_evaluations(run: RunSignals, suite: str | None) -> list[Record]:
    """The evaluations with a step and metrics on a suite, or on what the run holds out, oldest first.

    Raises:
        RunError: an evaluation cannot be read.
    """
    records = read_evaluations(run.path, suite)
    return [r for r in records if isinstance(r.get("metrics"), dict) and isinstance(r.get("step"), int)]


def regression_on(suite: str | None) -> Test:
    """pass@1 of the last evaluation less that of the first, on a suite or on what the run holds out."""
    subject = "held-out results" if suite is None else f"results on {suite}"

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        records = sound_evaluations(run, suite)
        if not records:
            enable = "Set evaluation.enabled." if suite is None else f"Name {suite} in evaluation.suites."
            return not_made(Gap(subject, "the run was not evaluated on it", enable))
        shown: dict[str, Any] = {"tables": (_table(records),), "charts": _charts(records, suite)}
        if len(records) < 2:
            enable = "Set evaluation.at_start, or evaluation.eval_interval_steps."
            reason = "there is one evaluation only, so nothing can be compared"
            return not_made(Gap(subject, reason, enable), **shown)
        gain = paired_difference(_with_sound_rows(records[0]), _with_sound_rows(records[-1]))
        evaluations = [{"step": record["step"], "metrics": dict(record["metrics"])} for record in records]
        shown["data"] = {"evaluations": evaluations, "paired_change": None if gain is None else asdict(gain)}
        if gain is None:
            reason = "the evaluations list no problems in common, so they cannot be paired"
            return not_made(Gap(subject, reason, "Evaluate the same problems each time."), **shown)
        first, last = records[0]["step"], records[-1]["step"]
        return Result(
            gain.high < 0,
            {"points": points(gain), "first": first, "last": last},
            "critical" if gain.value <= -CRITICAL_LOSS else "warning",
            Onset(last, first, last),
            facts=(Fact("paired change of pass@1", f"{points(gain)} points"),),
            **shown,
        )

    return test


def train_held_out_gap(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """The pass rate in training, where it rose, against held-out pass@1 that did not follow."""
    records = sound_evaluations(run, None)
    if len(records) < 2:
        return Result(made=False)
    before, after = _estimate(records[0], PRIMARY), _estimate(records[-1], PRIMARY)
    rates = run.series(PASS_RATE)[1]
    change = find_signal_change(run, PASS_RATE)
    if before is None or after is None or change is None:
        return Result()
    first, last = median_of_part(rates, 0, 0.1), median_of_part(rates, 0.9, 1)
    gap = last - after.high  # beyond the interval of the held-out rate
    rose = change.p_value <= limits.alpha and change.is_large and last > first
    found = rose and gap >= GAP and (last - after.value) - (first - before.value) >= GAP_GROWTH
    numbers = {"first": first, "last": last, "before": percent(before), "after": percent(after)}
    return Result(found, numbers, onset=change.onset)


def _estimate(record: Record, metric: str) -> Estimate | None:
    """A metric of an evaluation; None where it is missing or broken."""
    found = record["metrics"].get(metric)
    bounds = [found.get(key) for key in ("value", "low", "high")] if isinstance(found, dict) else []
    known = [float(b) for b in bounds if isinstance(b, (int, float)) and np.isfinite(b)]
    return Estimate(*known) if len(known) == 3 else None


def _with_sound_rows(record: Record) -> Sequence[Record]:
    rows = record.get("rows")
    return [{**record, "rows": [row for row in rows if _is_sound(row)] if isinstance(rows, list) else []}]


def _is_sound(row: Any) -> bool:
    return isinstance(row, dict) and all(
        isinstance(row.get(key), (int, float)) for key in ("passed", "samples")
    )


def _metrics(records: Sequence[Record]) -> list[str]:
    return sorted({str(name) for record in records for name in record["metrics"]}, key=metric_order)


def _table(records: Sequence[Record]) -> Table:
    metrics = _metrics(records)
    rows = []
    for record in records:
        cells = (percent(_estimate(record, metric)) for metric in metrics)
        rows.append((str(record["step"]), str(record.get("problems", NOTHING)), *cells))
    columns = ("Step", "Problems", *map(metric_label, metrics))
    return Table("Evaluations", columns, tuple(rows), "95 % intervals over problems.")


def _charts(records: Sequence[Record], suite: str | None) -> tuple[Chart, ...]:
    metric = next(iter(_metrics(records)), None)
    found = [] if metric is None else [(float(r["step"]), _estimate(r, metric)) for r in records]
    known = [(step, estimate) for step, estimate in found if estimate is not None]
    if metric is None or len(known) < 2:
        return ()
    series = Series(
        "",
        "main",
        tuple((step, estimate.value) for step, estimate in known),
        band=tuple((step, estimate.low, estimate.high) for step, estimate in known),
        hints=tuple(f"step {step:.0f}: {percent(estimate)}" for step, estimate in known),
    )
    title = "Held-out problems" if suite is None else f"Suite {suite}"
    return (Chart(f"{title}: {metric_label(metric)}", "step", (series,), "share"),)
