"""What goes wrong in Q-learning: the checks of runs of `kind: dqn`."""

from __future__ import annotations

from greenward.diagnostics.checks import Check, SignalChart, Topic
from greenward.diagnostics.signal_tests import LATE, Result, Thresholds, late_mean
from greenward.diagnostics.signals import RunSignals

OVERESTIMATION, STALENESS, EPSILON = "q/overestimation", "replay/staleness", "epsilon"
COMMONEST, SOLVED = "programs/most_common", "pass_rate/greedy"
LEAST_EPSILON, ENOUGH_SOLVED = 0.02, 0.5


def dead_epsilon(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Next to no random tokens in the last quarter, while less than half of the greedy programs pass."""
    epsilon, solved = (run.series(name)[1] for name in (signal, SOLVED))
    late, passed = (float(values[int(LATE * len(values)) :].mean()) for values in (epsilon, solved))
    return Result(late < LEAST_EPSILON and passed < ENOUGH_SOLVED, {"late": late, "solved": passed})


Q_LEARNING = Topic(
    "q-learning",
    "Q-learning",
    (
        Check(
            "q-overestimation",
            late_mean(above=1.0),
            """Values promise more than the episodes bring
            In the last quarter of the run the values of the first tokens are {late:.2f} above the returns
            that followed, in units of the scaled reward.
            - Switch on agent.double; copy the target network less often (agent.target_update_interval).
            - Lower agent.learning_rate or agent.n_step.
            Confirm: With double the difference falls below 1.""",
            (OVERESTIMATION,),
            optional=True,
            brief="Values are {late:.2f} above the returns",
        ),
        Check(
            "stale-replay",
            late_mean(above=5000.0),
            """The memory holds what a much older network did
            Transitions of the last quarter were {late:.0f} updates old on average when they were drawn.
            - Lower agent.buffer_capacity or training.updates_per_step.
            - Use agent.prioritized, which draws what is still wrong.
            Confirm: With a smaller memory the TD error falls.""",
            (STALENESS,),
            optional=True,
            brief="Replayed transitions are {late:.0f} updates old",
        ),
        Check(
            "dead-epsilon",
            dead_epsilon,
            """Exploration ended before the problems were solved
            In the last quarter epsilon is {late:.3f}, and {solved:.0%} of the greedy programs pass.
            - Raise agent.epsilon_end, or agent.epsilon_decay towards 1.
            - Raise exploration.bonus.
            Confirm: With more exploration further problems are solved.""",
            (EPSILON,),
            needs=(SOLVED,),
            optional=True,
            brief="epsilon {late:.3f}, {solved:.0%} solved",
        ),
        Check(
            "program-collapse",
            late_mean(above=0.5),
            """Episodes end in one and the same program
            In the last quarter {late:.0%} of the programs of a round are copies of one.
            - Raise agent.epsilon_end or exploration.bonus.
            - Give partial credit (reward.type=code_quality), and see whether a constant passes many tests.
            Confirm: The newest rollouts hold one program for different problems.""",
            (COMMONEST,),
            optional=True,
            brief="{late:.0%} of the programs are copies of one",
        ),
    ),
    (
        SignalChart("Q of the first token less the return", (OVERESTIMATION,)),
        SignalChart("Updates since a drawn transition was made", (STALENESS,)),
        SignalChart("Share of greedy programs that pass", (SOLVED,), "share"),
    ),
)
