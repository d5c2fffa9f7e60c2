"""Evaluations over training: pass@k of the held-out problems or of a suite, paired by problem."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from greenward.diagnostics.advice import make_finding
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.finding import Card, Check, Gap
from greenward.diagnostics.run_data import RunData, find_trend, median_of_part
from greenward.intervals import Estimate
from greenward.reports.document import NOTHING, Chart, Fact, Finding, Onset, Series, Severity, Table
from greenward.reports.figures import PRIMARY, metric_label, metric_order, percent, points
from greenward.reports.results import paired_difference
from greenward.runs.reading import read_evaluations

CRITICAL_LOSS = 0.05  # of pass@1, beyond its interval; a smaller sure loss is a warning
GAP = 0.15  # training pass rate over held-out pass@1
GAP_GROWTH = 0.1
_TRAINING_RATE = "pass_rate"


@dataclass(frozen=True)
class Evaluated:
    """The evaluations of one set of problems that can be read, oldest first; (step, record) each."""

    records: tuple[tuple[int, Mapping[str, Any]], ...]

    def estimate(self, index: int, metric: str) -> Estimate | None:
        """A metric of one of them; None where it is missing or broken."""
        found = self.records[index][1]["metrics"].get(metric)
        bounds = [found.get(key) for key in ("value", "low", "high")] if isinstance(found, dict) else []
        known = [float(b) for b in bounds if isinstance(b, (int, float)) and np.isfinite(b)]
        return Estimate(*known) if len(known) == 3 else None

    @property
    def metrics(self) -> tuple[str, ...]:
        """All that any of them has, pass@1 first."""
        names = {str(name) for _, record in self.records for name in record["metrics"]}
        return tuple(sorted(names, key=metric_order))


def read_evaluated(run: RunData, suite: str | None) -> Evaluated:
    """Read the evaluations on a suite, or on what the run holds out. Raises `RunError` for a broken file."""
    records = (
        (record.get("step"), record)
        for record in read_evaluations(run.path, suite)
        if isinstance(record.get("metrics"), dict)
    )
    return Evaluated(tuple((step, record) for step, record in records if isinstance(step, int)))


def evaluation_card(run: RunData, suite: str | None, name: str) -> Card:
    """Before and after, over training, and what was gained with its interval."""
    title = "Held-out problems" if suite is None else f"Suite {suite}"
    found = read_evaluated(run, suite)
    subject = "held-out results" if suite is None else f"results on {suite}"
    if not found.records:
        enable = "Set evaluation.enabled" if suite is None else f"Name {suite} in evaluation.suites"
        return Card(name, title, gaps=(Gap(subject, "the run was not evaluated on it", f"{enable}."),))
    tables, charts = (_table(found),), _charts(found, title)
    if len(found.records) < 2:
        gap = Gap(
            subject,
            "there is one evaluation only, so nothing can be compared",
            "Set evaluation.at_start, or evaluation.eval_interval_steps.",
        )
        return Card(name, title, gaps=(gap,), tables=tables, charts=charts)
    gain = _gain(found)
    checks = [Check(f"{subject} do not fall", None if gain is None else _regression(found, gain))]
    gaps: tuple[Gap, ...] = ()
    if gain is None:
        checks = []
        reason = "the evaluations list no problems in common, so they cannot be paired"
        gaps = (Gap(subject, reason, "Evaluate the same problems each time."),)
    if suite is None:
        checks.append(Check("training and held-out problems agree", _training_gap(run, found)))
    facts = () if gain is None else (Fact("paired change of pass@1", f"{points(gain)} points"),)
    data = {
        "evaluations": [{"step": step, "metrics": dict(record["metrics"])} for step, record in found.records],
        "paired_change": None if gain is None else asdict(gain),
    }
    return Card(name, title, tuple(checks), gaps, facts, tables, charts, data=data)


def _gain(found: Evaluated) -> Estimate | None:
    """pass@1 of the last less the first evaluation; the interval is over problems, paired."""
    return paired_difference(_with_rows(found.records[0][1]), _with_rows(found.records[-1][1]))


def _with_rows(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    rows = record.get("rows")
    sound = [row for row in rows if _is_row(row)] if isinstance(rows, list) else []
    return [{**record, "rows": sound}]


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and all(
        isinstance(row.get(key), (int, float)) for key in ("passed", "samples")
    )


def _regression(found: Evaluated, gain: Estimate) -> Finding | None:
    if gain.high >= 0:
        return None
    (first, _), (last, _) = found.records[0], found.records[-1]
    measured = f"pass@1 changed by {points(gain)} points from step {first} to step {last}, paired by problem."
    severity: Severity = "critical" if gain.value <= -CRITICAL_LOSS else "warning"
    return make_finding("held-out-regression", severity, measured, Onset(last, first, last))


def _training_gap(run: RunData, found: Evaluated) -> Finding | None:
    """The pass rate in training, where it rose, against held-out pass@1 that did not follow."""
    before, after = found.estimate(0, PRIMARY), found.estimate(-1, PRIMARY)
    rates = run.series(_TRAINING_RATE)[1]
    trend = find_trend(run, _TRAINING_RATE)
    if before is None or after is None or trend is None or len(rates) < MIN_POINTS:
        return None
    first, last = median_of_part(rates, 0, 0.1), median_of_part(rates, 0.9, 1)
    gap = last - after.high  # beyond the interval of the held-out rate
    rose = trend.p_value <= run.alpha and trend.is_large and last > first
    if not rose or gap < GAP or (last - after.value) - (first - before.value) < GAP_GROWTH:
        return None
    measured = (
        f"The pass rate in training rose from {first:.0%} to {last:.0%}; held-out pass@1 went from "
        f"{percent(before)} to {percent(after)}."
    )
    return make_finding("train-held-out-gap", "warning", measured, trend.onset)


def _table(found: Evaluated) -> Table:
    rows = []
    for index, (step, record) in enumerate(found.records):
        estimates = (found.estimate(index, metric) for metric in found.metrics)
        cells = (NOTHING if estimate is None else percent(estimate) for estimate in estimates)
        rows.append((str(step), str(record.get("problems", NOTHING)), *cells))
    columns = ("Step", "Problems", *map(metric_label, found.metrics))
    return Table("Evaluations", columns, tuple(rows), "95 % intervals over problems.")


def _charts(found: Evaluated, title: str) -> tuple[Chart, ...]:
    metric = next(iter(found.metrics), None)
    if metric is None or len(found.records) < 2:
        return ()
    estimates = [(step, found.estimate(i, metric)) for i, (step, _) in enumerate(found.records)]
    known = [(float(step), estimate) for step, estimate in estimates if estimate is not None]
    if len(known) < 2:
        return ()
    series = Series(
        "",
        "main",
        tuple((step, estimate.value) for step, estimate in known),
        band=tuple((step, estimate.low, estimate.high) for step, estimate in known),
        hints=tuple(f"step {step:.0f}: {percent(estimate)}" for step, estimate in known),
    )
    return (Chart(f"{title}: {metric_label(metric)}", "step", (series,), "share"),)
