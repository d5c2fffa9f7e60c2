"""How good is what a run learned, over training? The checks of `greenward evals`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.evaluation_tests import regression_on, sound_evaluations, train_held_out_gap
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.reward_health import ALPHA
from greenward.diagnostics.signal_tests import Thresholds, lasting_change, late_mean
from greenward.diagnostics.signals import LENGTH, PASS_RATE, TRUNCATED, UNIQUE, RunSignals
from greenward.errors import DiagnosticsError
from greenward.runs.reading import evaluated_suites
from greenward.runs.trackers import tracker_name

CODE = "code"
QUALITY = (PASS_RATE, "reward/code_score", "reward/correctness", "reward/readability")
CHEATING = "status/cheating"
_MOVED = "{signal} went from {before:.3g} to {after:.3g} from step {onset} on."
# Ways to fail, except failing tests: those are what training is for.
_USUAL = frozenset({"status/passed", "status/failed", CHEATING})


def failures(run: RunSignals) -> list[str]:
    """The statuses of answers that fail otherwise than by their tests, the most frequent first."""
    names = sorted(name for name in run.values if name.startswith("status/") and name not in _USUAL)
    means = {name: float(values.mean()) for name in names if len(values := run.series(name)[1])}
    return sorted(names, key=lambda name: -means.get(name, 0.0))


def worse_answers(run: RunSignals) -> list[str]:
    """The shares of answers that should not rise."""
    return [*(failures(run) or ["status"]), TRUNCATED]


ANSWERS = Topic(
    "answers",
    "Answers in training",
    (
        Check(
            "quality-drop",
            lasting_change(by_sign=-1),
            """A measure of the answers' quality fell and did not recover
            {signal} went from {before:.3g} to {after:.3g} from step {onset} on.
            - Use a checkpoint from before the onset.
            - Give the measure a weight in rewards, or a larger one.
            Confirm: The rollouts before and after the onset show the difference.""",
            QUALITY,
        ),
        Check(
            "failing-answers-rise",
            lasting_change(rise=0.05),
            """One way to fail became more frequent and stayed so
            {signal} went from {before:.3g} to {after:.3g} from step {onset} on.
            - Read answers with this status in rollouts/ after the onset.
            - Timeouts: see whether the machine was loaded (time/grading) before blaming the policy.
            - Go back to a checkpoint from before the onset.
            Confirm: Graded again on an idle machine, the answers have the same status.""",
            worse_answers,
        ),
        Check(
            "length-growth",
            lasting_change(above=1.5, if_passing_more="no finding"),
            """Answers become longer without becoming better
            {signal} went from {before:.3g} to {after:.3g} from step {onset} on.
            - Use a loss that does not favour length (algorithm.loss dr_grpo or dapo).
            - Set algorithm.overlong.penalty.
            Confirm: The longest answers of the newest rollouts repeat themselves.""",
            (LENGTH,),
        ),
        Check(
            # Right answers to an easy problem are alike; copies that fail are what ends learning.
            "diversity-loss",
            lasting_change(below=0.5, if_passing_more="info"),
            """Answers to one problem became copies of each other
            {signal} went from {before:.3g} to {after:.3g} from step {onset} on.
            - Raise sampling.temperature or algorithm.clip_high.
            - Stop earlier, if pass@k for k > 1 matters.
            Confirm: pass@8 falls towards pass@1 in the evaluations.""",
            (UNIQUE,),
        ),
        Check(
            "cheating",
            late_mean(above=0.01),
            """Answers try to fool the tests
            In the last quarter of the run {late:.1%} of the answers try to fool the tests.
            - Read these answers in rollouts/; the grader gives them no reward.
            - Strengthen the tests of the problems where they occur; greenward audit helps.
            - Keep sandbox.require at the strictest level that the machine has.
            Confirm: Their share falls when the problems they exploit leave the training set.""",
            (CHEATING,),
        ),
    ),
    (
        SignalChart("Quality of the answers in training", QUALITY, "share"),
        SignalChart("Answer length (tokens)", (LENGTH,)),
        SignalChart("Distinct answers", (UNIQUE,), "share"),
        SignalChart("How answers fail", failures, "share"),
    ),
)
TRAIN_HELD_OUT_GAP = Check(
    "train-held-out-gap",
    train_held_out_gap,
    """Training problems improve, held-out ones do not follow
                         The pass rate in training rose from {first:.0%} to {last:.0%}; held-out pass@1 went
                         from {before} to {after}.
                         - Train on more, or more varied, problems (problems.train, problems.families.limit).
                         - Stop at the step from which held-out results are flat.
                         - Search the rollouts for answers that fit the tests only.
                         Confirm: An evaluation on training problems is as good as their pass rate says.""",
)


def evaluation_topic(suite: str | None) -> Topic:
    """The evaluations on a suite, or on what the run holds out."""
    regression = Check(
        "held-out-regression",
        regression_on(suite),
        """Training made held-out results worse
                     pass@1 changed by {points} points from step {first} to step {last}, paired by problem.
                     - Use the checkpoint of the best evaluation.
                     - Go on from it with a lower training.learning_rate or a larger algorithm.kl.coefficient.
                     - Compare training and held-out problems: greenward audit.
                     Confirm: greenward compare of both checkpoints on the same suite says the same.""",
    )
    if suite is None:
        return Topic("held_out", "Held-out problems", (regression, TRAIN_HELD_OUT_GAP))
    return Topic(f"suite_{suite}", f"Suite {suite}", (regression,))


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
    limits = Thresholds(alpha, WARNING_SCORE, None)
    cards = examine(topics, run, limits)
    count = len(sound_evaluations(run, wanted))
    what = "held-out problems" if wanted is None else wanted
    unanswered = None
    if count < 2:
        unanswered = f"there are {count} evaluation(s) on {what}, a comparison needs 2"
    elif not cards[0].data["paired_change"]:
        unanswered = f"the evaluations on {what} cannot be paired"
    return Diagnosis(f"evals --suite {suite}", run, cards, alpha, {}, unanswered)
