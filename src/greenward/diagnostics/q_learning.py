"""What goes wrong in Q-learning: the checks of runs of `kind: dqn`."""

from __future__ import annotations

from greenward.diagnostics.checks import Check, SignalChart, Topic
from greenward.diagnostics.signal_tests import Result, Thresholds, late_mean, late_part
from greenward.diagnostics.signals import GREEDY_PASS_RATE, RunSignals

OVERESTIMATION, STALENESS, EPSILON = "q/overestimation", "replay/staleness", "epsilon"
COMMONEST = "programs/most_common"
LEAST_EPSILON, ENOUGH_SOLVED = 0.02, 0.5


def dead_epsilon(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Next to no random tokens in the last quarter, while less than half of the greedy programs pass."""
    epsilon, solved = (run.series(name)[1] for name in (signal, GREEDY_PASS_RATE))
    late, passed = (float(late_part(values).mean()) for values in (epsilon, solved))
    return Result(late < LEAST_EPSILON and passed < ENOUGH_SOLVED, {"late": late, "solved": passed})


Q_LEARNING = Topic(
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
