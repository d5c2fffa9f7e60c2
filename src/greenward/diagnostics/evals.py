"""How good is what a run learned, over training? The checks of `greenward evals`.

Evaluations on the held-out problems or on a suite are paired by problem; the answers in training are checked
by their signals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from greenward.diagnostics.change_points import exactly
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.findings import Diagnosis, Gap
from greenward.diagnostics.held_out_tests import (
    CRITICAL_LOSS,
    Record,
    contaminated,
    held_out_points,
    regression_from_best,
    reward_hacking,
    sound_evaluations,
)
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import (
    ALPHA,
    Result,
    Test,
    Thresholds,
    find_signal_change,
    lasting_change,
    late_mean,
    median_of_part,
    not_made,
)
from greenward.diagnostics.signals import LENGTH, PASS_RATE, TRUNCATED, UNIQUE, RunSignals
from greenward.errors import DiagnosticsError
from greenward.reports.document import NOTHING, Chart, Fact, Onset, Series, Table
from greenward.reports.figures import PRIMARY, metric_label, metric_order, percent, points
from greenward.reports.results import paired_difference, pooled
from greenward.runs.reading import evaluated_suites
from greenward.runs.trackers import tracker_name

CODE = "code"
QUALITY = (PASS_RATE, "reward/code_score", "reward/correctness", "reward/readability")
CHEATING = "status/cheating"
# Ways to fail, except failing tests: those are what training is for.
TIMEOUTS = "status/timeout"
_USUAL = frozenset({"status/passed", "status/failed", "status/drawn", CHEATING})
GAP = 0.15  # training pass rate over held-out pass@1
GAP_GROWTH = 0.1


def regression_on(suite: str | None) -> Test:
    """pass@1 of the last evaluation less that of the first, on a suite or on what the run holds out."""
    subject = "held-out results" if suite is None else f"results on {suite}"

    def test(run: RunSignals, signal: str, limits: Thresholds) -> Result:
        records = sound_evaluations(run, suite)
        if suite is None and not records and held_out_points(run):
            return regression_from_best(run, signal, limits)
        if not records:
            enable = "Set evaluation.enabled." if suite is None else f"Name {suite} in evaluation.suites."
            return not_made(Gap(subject, "the run was not evaluated on it", enable))
        shown: dict[str, Any] = {"tables": (_table(records),), "charts": _charts(records, suite)}
        if len(records) < 2:
            enable = "Set evaluation.at_start, or evaluation.eval_interval_steps."
            reason = "there is one evaluation only, so nothing can be compared"
            return not_made(Gap(subject, reason, enable), **shown)
        gain = paired_difference(records[:1], records[-1:])
        evaluations = [{"step": record["step"], "metrics": dict(record["metrics"])} for record in records]
        shown["data"] = {"evaluations": evaluations, "paired_change": None if gain is None else asdict(gain)}
        if gain is None:
            reason = "the evaluations list no problems in common, so they cannot be paired"
            return not_made(Gap(subject, reason, "Evaluate the same problems each time."), **shown)
        shown["facts"] = (Fact("paired change of pass@1", f"{points(gain)} points"),)
        first, last = records[0]["step"], records[-1]["step"]
        if suite is None and not gain.high < 0:
            fallen = regression_from_best(run, signal, limits)
            if fallen.found:
                return replace(fallen, **shown)
        return Result(
            gain.high < 0,
            {"points": points(gain), "first": first, "last": last},
            "critical" if gain.value <= -CRITICAL_LOSS else "warning",
            regression_from_best(run, signal, limits).onset or Onset(last, first, last),
            **shown,
        )

    return test


def train_held_out_gap(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """The pass rate in training, where it rose, against held-out pass@1 that did not follow."""
    records = sound_evaluations(run, None)
    if len(records) < 2:
        return Result(made=False)
    before, after = (pooled([records[place]], PRIMARY) for place in (0, -1))
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


def _table(records: Sequence[Record]) -> Table:
    metrics = _metrics(records)
    rows = tuple(
        (
            str(record["step"]),
            str(record.get("problems", NOTHING)),
            *(percent(pooled([record], metric)) for metric in metrics),
        )
        for record in records
    )
    columns = ("Step", "Problems", *map(metric_label, metrics))
    return Table("Evaluations", columns, rows, "95 % intervals over problems.")


def _charts(records: Sequence[Record], suite: str | None) -> tuple[Chart, ...]:
    """The first metric over the steps, where it was measured at least twice."""
    for metric in _metrics(records)[:1]:
        known = [(float(r["step"]), found) for r in records if (found := pooled([r], metric))]
        if len(known) > 1:
            points = tuple((step, estimate.value) for step, estimate in known)
            band = tuple((step, estimate.low, estimate.high) for step, estimate in known)
            hints = tuple(f"step {step:.0f}: {percent(estimate)}" for step, estimate in known)
            title = "Held-out problems" if suite is None else f"Suite {suite}"
            series = Series("", "main", points, band=band, hints=hints)
            return (Chart(f"{title}: {metric_label(metric)}", "step", (series,), "share"),)
    return ()


def _metrics(records: Sequence[Record]) -> list[str]:
    return sorted({str(name) for record in records for name in record["metrics"]}, key=metric_order)


def failures(run: RunSignals) -> list[str]:
    """The statuses of answers that fail otherwise than by their tests, the most frequent first.

    A game that one of the roles won, or that is drawn, is no failure.
    """
    names = sorted(
        name
        for name in run.values
        if name.startswith("status/") and name not in _USUAL and not name.endswith("_won")
    )
    means = {name: float(values.mean()) for name in names if len(values := run.series(name)[1])}
    return sorted(names, key=lambda name: -means.get(name, 0.0))


def worse_answers(run: RunSignals) -> list[str]:
    """The shares of answers that should not rise."""
    return [*(failures(run) or ["status"]), TRUNCATED]


def cheating_late(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that try to fool the tests, late in the run, dated by where they became many."""
    found = late_mean(above=0.01)(run, signal, limits)
    if not found.found:
        return found
    change = find_signal_change(run, signal)
    grew = change is not None and change.p_value <= limits.alpha and change.after > change.before
    steps, values = run.series(signal)
    return replace(found, onset=change.onset if change and grew else exactly(steps[values > 0][0]))


ANSWERS = Topic(
    "answers",
    "Answers in training",
    (
        Check("quality-drop", lasting_change(by_sign=-1), QUALITY),
        Check("failing-answers-rise", lasting_change(rise=0.05), worse_answers),
        Check("sandbox-timeouts", lasting_change(rise=0.05), (TIMEOUTS,), optional=True),
        Check(
            "length-collapse",
            lasting_change(below=0.4, if_passing_more="no finding"),
            (LENGTH,),
            optional=True,
        ),
        Check("length-growth", lasting_change(above=1.8, if_passing_more="no finding"), (LENGTH,)),
        # Right answers to an easy problem are alike; copies that fail are what ends learning.
        Check("diversity-loss", lasting_change(below=0.5, if_passing_more="info", ruins=0.3), (UNIQUE,)),
        Check("cheating", cheating_late, (CHEATING,)),
    ),
    (
        SignalChart("Quality of the answers in training", QUALITY, "share"),
        SignalChart("Answer length (tokens)", (LENGTH,)),
        SignalChart("Distinct answers", (UNIQUE,), "share"),
        SignalChart("How answers fail", failures, "share"),
    ),
)


def evaluation_topic(suite: str | None) -> Topic:
    """The evaluations on a suite, or on what the run holds out."""
    regression = Check("held-out-regression", regression_on(suite))
    if suite is not None:
        return Topic(f"suite_{suite}", f"Suite {suite}", (regression,))
    hacking = Check("reward-hacking", reward_hacking, severity="critical")
    gap = Check("train-held-out-gap", train_held_out_gap)
    contamination = Check("evaluation-contaminated", contaminated)
    return Topic("held_out", "Held-out problems", (hacking, regression, gap, contamination))


def diagnose_evals(path: Path, suite: str = CODE, *, alpha: float = ALPHA) -> Diagnosis:
    """Diagnose what the run at `path` learned.

    `code` is everything: held-out problems, the answers in training and every evaluated suite. The name
    of an evaluated suite (humaneval+ or humaneval_plus) is that suite alone.

    Raises:
        DiagnosticsError: there are no metrics, or no such suite.
        RunError: a file that is there and cannot be read.
    """
    run = read_run_signals(path)
    known, wanted = evaluated_suites(path), None if suite == CODE else tracker_name(suite)
    if wanted is not None and wanted not in known:
        near = get_close_matches(suite, [CODE, *known], n=1, cutoff=0.5)
        guess = f"Did you mean {near[0]}? " if near else ""
        raise DiagnosticsError(
            f"there is no suite {suite!r} in {path}", remedy=f"{guess}Known: {', '.join([CODE, *known])}."
        )
    topics = [evaluation_topic(wanted)]
    if wanted is None:
        topics += [ANSWERS, *map(evaluation_topic, known)]
    cards = examine(topics, run, Thresholds(alpha))
    count = len(sound_evaluations(run, wanted))
    what = "held-out problems" if wanted is None else wanted
    unanswered = None
    if count < 2:
        unanswered = f"there are {count} evaluation(s) on {what}, a comparison needs 2"
    elif not cards[0].data["paired_change"]:
        unanswered = f"the evaluations on {what} cannot be paired"
    return Diagnosis(f"evals --suite {suite}", run, cards, alpha, {}, unanswered)
