"""How good is what a run learned, over training? The checks of `greenward evals`.

Evaluations on the held-out problems or on a suite are paired by problem; the answers in training are checked
by their signals.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from greenward.diagnostics import held_out_tests
from greenward.diagnostics.change_points import exactly
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import (
    ALPHA,
    Result,
    Thresholds,
    find_signal_change,
    lasting_change,
    late_mean,
)
from greenward.diagnostics.signals import LENGTH, PASS_RATE, TRUNCATED, UNIQUE, RunSignals
from greenward.errors import DiagnosticsError
from greenward.runs.reading import evaluated_suites
from greenward.runs.trackers import tracker_name
from greenward.user_files import expects

CODE = "code"
QUALITY = (PASS_RATE, "reward/code_score", "reward/correctness", "reward/readability")
CHEATING = "status/cheating"
# Ways to fail, except failing tests: those are what training is for.
TIMEOUTS = "status/timeout"
_USUAL = frozenset({"status/passed", "status/failed", "status/drawn", CHEATING})


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
        Check("quality-drop", lasting_change(falls=True), QUALITY),
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
    regression = Check("held-out-regression", held_out_tests.regression_on(suite))
    if suite is not None:
        return Topic(f"suite_{suite}", f"Suite {suite}", (regression,))
    hacking = Check("reward-hacking", held_out_tests.reward_hacking, severity="critical")
    gap = Check("train-held-out-gap", held_out_tests.train_held_out_gap)
    contamination = Check("evaluation-contaminated", held_out_tests.contaminated)
    return Topic("held_out", "Held-out problems", (hacking, regression, gap, contamination))


@expects("the files of a run", DiagnosticsError)
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
    count = len(held_out_tests.sound_evaluations(run, wanted))
    what = "held-out problems" if wanted is None else wanted
    unanswered = None
    if count < 2:
        unanswered = f"there are {count} evaluation(s) on {what}, a comparison needs 2"
    elif not cards[0].data["paired_change"]:
        unanswered = f"the evaluations on {what} cannot be paired"
    return Diagnosis(f"evals --suite {suite}", run, cards, alpha, {}, unanswered)
