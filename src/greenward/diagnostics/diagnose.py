"""`greenward diagnose`: everything that is known of a run as one verdict with one cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from greenward.diagnostics.advice import filled_in
from greenward.diagnostics.causes import causes_of
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.evals import ANSWERS, evaluation_topic
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.reward_health import TOPICS, unanswered_question
from greenward.diagnostics.rollout_tests import dominant_answer, flaky_grades, length_bias
from greenward.diagnostics.signal_tests import ALPHA, Result, Thresholds, late_mean, late_part
from greenward.diagnostics.signals import GREEDY_PASS_RATE, RunSignals
from greenward.errors import DiagnosticsError
from greenward.runs.reading import evaluated_suites
from greenward.user_files import expects

OVERESTIMATION, STALENESS, EPSILON = "q/overestimation", "replay/staleness", "epsilon"
COMMONEST = "programs/most_common"
LEAST_EPSILON, ENOUGH_SOLVED = 0.02, 0.5


def dead_epsilon(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Next to no random tokens in the last quarter, while less than half of the greedy programs pass."""
    epsilon, solved = (run.series(name)[1] for name in (signal, GREEDY_PASS_RATE))
    late, passed = (float(late_part(values).mean()) for values in (epsilon, solved))
    return Result(late < LEAST_EPSILON and passed < ENOUGH_SOLVED, {"late": late, "solved": passed})


Q_LEARNING = Topic(  # runs of `kind: dqn`
    "q-learning",
    "Q-learning",
    (
        Check("q-overestimation", late_mean(above=1.0), (OVERESTIMATION,), optional=True),
        Check("stale-replay", late_mean(above=5000.0), (STALENESS,), optional=True),
        Check("dead-epsilon", dead_epsilon, (EPSILON,), needs=(GREEDY_PASS_RATE,), optional=True),
        Check("program-collapse", late_mean(above=0.5), (COMMONEST,), optional=True),
    ),
    (
        SignalChart("Q of the first token less the return", (OVERESTIMATION,)),
        SignalChart("Updates since a drawn transition was made", (STALENESS,)),
        SignalChart("Share of greedy programs that pass", (GREEDY_PASS_RATE,), "share"),
    ),
)
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


@expects("the files of a run", DiagnosticsError)
def diagnose_run(
    path: Path,
    *,
    alpha: float = ALPHA,
    mapping: Mapping[str, str] | None = None,
    pick: str | None = None,
    memory_limit_mb: float | None = None,
) -> Diagnosis:
    """Diagnose the run at `path`, a run directory or the log of another trainer (`read_run_signals`).

    Raises:
        DiagnosticsError: there is no log that can be read, or several.
        RunError: a file of a run directory that cannot be read.
    """
    limits = Thresholds(alpha, memory_mb=memory_limit_mb)
    return diagnose_signals(read_run_signals(path, mapping=mapping, pick=pick), limits)


def diagnose_signals(run: RunSignals, limits: Thresholds) -> Diagnosis:
    """Diagnose signals that were read before."""
    suites = evaluated_suites(run.path) if run.path.is_dir() else []
    cards = tuple(
        replace(card, findings=tuple(filled_in(finding, run) for finding in card.findings))
        for card in examine(topics_of(suites), run, limits)
    )
    findings = [finding for card in cards for finding in card.findings]
    causes = causes_of(findings, len(run.steps))
    unanswered = unanswered_question(run)
    return Diagnosis("diagnose", run, cards, limits.alpha, limits.to_json(), unanswered, causes)
