"""Findings of Q-learning: values, replay, exploration and programs."""

from __future__ import annotations

from greenward.diagnostics.finding import Finding, Result, SignalChart, Thresholds, Topic
from greenward.diagnostics.signal_tests import late_mean, late_part
from greenward.diagnostics.signals import GREEDY_PASS_RATE, RunSignals

OVERESTIMATION, STALENESS, EPSILON = "q/overestimation", "replay/staleness", "epsilon"
COMMONEST = "programs/most_common"
LEAST_EPSILON, ENOUGH_SOLVED = 0.02, 0.5


Q_OVERESTIMATION = Finding(
    "q-overestimation",
    "Values promise more than the episodes bring",
    late_mean(above=1.0),
    (OVERESTIMATION,),
    optional=True,
    measured=(
        "In the last quarter of the run the values of the first tokens are {late:.2f} above the returns "
        "that followed, in units of the scaled reward."
    ),
    brief="Values are {late:.2f} above the returns",
    actions=(
        "Switch on algorithm.double; copy the target network less often (algorithm.target_update_interval).",
        "Lower algorithm.learning_rate or algorithm.n_step.",
    ),
    confirm="With double the difference falls below 1.",
    limit=(
        "Q of the first token above the return that followed by more than 1 (scaled reward) in the last "
        "quarter"
    ),
)


STALE_REPLAY = Finding(
    "stale-replay",
    "The memory holds what a much older network did",
    late_mean(above=5000.0),
    (STALENESS,),
    optional=True,
    measured="Transitions of the last quarter were {late:.0f} updates old on average when they were drawn.",
    brief="Replayed transitions are {late:.0f} updates old",
    actions=(
        "Lower algorithm.buffer_capacity or training.updates_per_step.",
        "Use algorithm.prioritized, which draws what is still wrong.",
    ),
    confirm="With a smaller memory the TD error falls.",
    limit="drawn transitions more than 5,000 updates old on average in the last quarter",
    suspects=("rollouts", "algorithm.updates_per_batch"),
)


def dead_epsilon(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Next to no random tokens in the last quarter, while less than half of the greedy programs pass."""
    epsilon, solved = (run.series(name)[1] for name in (signal, GREEDY_PASS_RATE))
    late, passed = (float(late_part(values).mean()) for values in (epsilon, solved))
    return Result(late < LEAST_EPSILON and passed < ENOUGH_SOLVED, {"late": late, "solved": passed})


DEAD_EPSILON = Finding(
    "dead-epsilon",
    "Exploration ended before the problems were solved",
    dead_epsilon,
    (EPSILON,),
    needs=(GREEDY_PASS_RATE,),
    optional=True,
    measured="In the last quarter epsilon is {late:.3f}, and {solved:.0%} of the greedy programs pass.",
    brief="epsilon {late:.3f}, {solved:.0%} solved",
    actions=(
        "Raise algorithm.epsilon_end, or algorithm.epsilon_decay towards 1.",
        "Raise exploration.bonus.",
    ),
    confirm="With more exploration further problems are solved.",
    limit="epsilon below 0.02 in the last quarter while less than half of the greedy programs pass",
)


PROGRAM_COLLAPSE = Finding(
    "program-collapse",
    "Episodes end in one and the same program",
    late_mean(above=0.5),
    (COMMONEST,),
    optional=True,
    measured="In the last quarter {late:.0%} of the programs of a round are copies of one.",
    brief="{late:.0%} of the programs are copies of one",
    actions=(
        "Raise algorithm.epsilon_end or exploration.bonus.",
        "Give partial credit (reward.type=code_quality), and see whether a constant passes many tests.",
    ),
    confirm="The newest rollouts hold one program for different problems.",
    limit="over half of the programs of a round are copies of one in the last quarter",
)


Q_LEARNING = Topic(
    "q-learning",
    "Q-learning",
    (Q_OVERESTIMATION, STALE_REPLAY, DEAD_EPSILON, PROGRAM_COLLAPSE),
    (
        SignalChart("Q of the first token less the return", (OVERESTIMATION,)),
        SignalChart("Updates since a drawn transition was made", (STALENESS,)),
        SignalChart("Share of greedy programs that pass", (GREEDY_PASS_RATE,), "share"),
    ),
)
