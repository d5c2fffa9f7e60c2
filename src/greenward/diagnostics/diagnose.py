"""`greenward diagnose`: everything that is known of a run as one verdict with one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from greenward.diagnostics.advice import filled_in
from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.causes import causes_of
from greenward.diagnostics.checks import Check, Topic, examine
from greenward.diagnostics.evals import ANSWERS, evaluation_topic
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.q_learning import Q_LEARNING
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.reward_health import TOPICS, unanswered_question
from greenward.diagnostics.rollout_tests import dominant_answer, flaky_grades, length_bias
from greenward.diagnostics.signal_tests import ALPHA, Thresholds
from greenward.diagnostics.signals import RunSignals
from greenward.runs.reading import evaluated_suites

ROLLOUTS = Topic(
    "rollouts",
    "Kept answers",
    (
        Check("length-bias", length_bias),
        Check("dominant-answer", dominant_answer, severity="critical"),
        Check("flaky-grades", flaky_grades),
    ),
)


def topics_of(suites: Iterable[str]) -> list[Topic]:
    """Everything that is checked of a run which was evaluated on `suites`."""
    return [*TOPICS, evaluation_topic(None), *map(evaluation_topic, suites), ANSWERS, Q_LEARNING, ROLLOUTS]


def diagnose_run(
    path: Path,
    *,
    alpha: float = ALPHA,
    mapping: Mapping[str, str] | None = None,
    pick: str | None = None,
    calibration_threshold: float = WARNING_SCORE,
    memory_limit_mb: float | None = None,
) -> Diagnosis:
    """Diagnose the run at `path`, a run directory or the log of another trainer (`read_run_signals`).

    Raises:
        DiagnosticsError: there is no log that can be read, or several.
        RunError: a file of a run directory that cannot be read.
    """
    run = read_run_signals(path, mapping=mapping, pick=pick)
    limits = Thresholds(alpha, calibration_threshold, memory_limit_mb)
    thresholds = {"calibration": calibration_threshold, "memory_limit_mb": memory_limit_mb}
    return diagnose_signals(run, limits, thresholds)


def diagnose_signals(
    run: RunSignals, limits: Thresholds, thresholds: Mapping[str, float | None] | None = None
) -> Diagnosis:
    """Diagnose signals that were read before."""
    suites = evaluated_suites(run.path) if run.path.is_dir() else []
    cards = tuple(
        replace(card, findings=tuple(filled_in(finding, run) for finding in card.findings))
        for card in examine(topics_of(suites), run, limits)
    )
    findings = [finding for card in cards for finding in card.findings]
    causes = causes_of(findings, len(run.steps))
    unanswered = unanswered_question(run)
    return Diagnosis("diagnose", run, cards, limits.alpha, dict(thresholds or {}), unanswered, causes)
