"""Is the training of a run sound, and its reward? The checks of `greenward reward-health`."""

from __future__ import annotations

from pathlib import Path

from greenward.diagnostics import learning_tests, reward_tests, training_tests
from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.calibration_tests import no_discrimination, poor_calibration
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.signal_tests import ALPHA, Thresholds, beyond, late_share, moves_to
from greenward.diagnostics.signals import GRADIENT, PASS_RATE, REWARD, THROUGHPUT, TRUNCATED, RunSignals
from greenward.errors import DiagnosticsError
from greenward.user_files import expects

GRADIENTS = Topic(
    "gradient_drift_card",
    "Gradient drift",
    (
        Check("non-finite", training_tests.not_finite),
        Check("gradient-explosion", training_tests.explosion, (GRADIENT,), critical=True),
        Check("gradient-spikes", training_tests.spikes, (GRADIENT,)),
        Check("gradient-vanished", learning_tests.vanished, (GRADIENT,)),
        Check("gradient-always-clipped", learning_tests.always_clipped, (GRADIENT,)),
    ),
    (
        SignalChart("Gradient norm, logarithmic", (GRADIENT,), log=True, marks="gradient-explosion"),
        SignalChart("Learning rate", ("learning_rate",), marks="gradient-explosion"),
    ),
)
CALIBRATION = Topic(
    "calibration_report",
    "Calibration of the reward model",
    (
        Check("poor-calibration", poor_calibration, critical=True),
        Check("calibration-no-discrimination", no_discrimination, optional=True),
    ),
)
REWARDS = Topic(
    "reward_card",
    "Rewards",
    (
        Check("constant-reward", reward_tests.constant_reward, (REWARD,), severity="critical"),
        Check("reward-term-dead", reward_tests.dead_term, reward_tests.reward_terms, needs=(REWARD,)),
        Check("reward-scale-jump", learning_tests.scale_jumps, ("reward/std",), needs=(REWARD,)),
        Check("no-learning", learning_tests.no_learning, needs=(REWARD,)),
        Check("reward-drop", reward_tests.reward_drop, reward_tests.tested_rewards, needs=(REWARD,)),
        Check("auxiliary-reward-dominates", reward_tests.dominance, needs=(REWARD,)),
        Check("dead-groups", reward_tests.dead_groups, reward_tests.group_signals, needs=(REWARD,)),
        Check(
            "group-signal-fades",
            learning_tests.group_signal_fades,
            ("groups/with_signal",),
            needs=(REWARD,),
            optional=True,
        ),
    ),
    (
        SignalChart("Rewards", reward_tests.tested_rewards),
        SignalChart("Pass rate on training problems", (PASS_RATE,), "share"),
        SignalChart(
            "Groups per step", ("groups/with_signal", "groups/dead_all_pass", "groups/dead_all_fail")
        ),
    ),
)
POLICY = Topic(
    "policy_card",
    "Policy",
    (
        # no absolute limit: small models begin low
        Check("entropy-collapse", moves_to(below=0.1), ("entropy",), severity="critical"),
        Check("entropy-rise", learning_tests.entropy_rises, ("entropy",)),
        Check("kl-runaway", training_tests.kl_runaway, ("kl",)),
        # Spinning Up's PPO stops at 0.015
        Check("large-policy-steps", beyond(above=0.03), ("approx_kl",)),
        Check("clip-fraction-high", beyond(above=0.3), learning_tests.clip_signals),
        Check("truncated-answers", learning_tests.truncated, (TRUNCATED,)),
        # a constant prediction explains nothing: 0
        Check("value-function-useless", late_share(below=0.01, over=0.75), ("explained_variance",)),
        Check("learning-rate-jump", learning_tests.rate_jumps, ("learning_rate",), optional=True),
        Check("stale-policy", beyond(above=2.0), ("rollouts/staleness",), optional=True),
        Check("sampler-mismatch", beyond(above=0.05), ("importance/difference",), optional=True),
        Check("sampler-mismatch", beyond(above=0.02), ("importance/kl",), optional=True),
        Check(
            "sampler-mismatch", beyond(above=0.15, off=1.0), ("importance/mean", "ratio/mean"), optional=True
        ),
    ),
    (
        SignalChart("Entropy (nats per token)", ("entropy",)),
        SignalChart("KL to the reference", ("kl",)),
        SignalChart("Answers cut off at the limit", (TRUNCATED,), "share"),
        SignalChart("Explained variance of the value function", ("explained_variance",)),
        SignalChart("Sampler against learner: |Δ log p|", ("importance/difference",)),
        SignalChart("Share of clipped tokens", learning_tests.clip_signals, "share"),
    ),
)
COMPUTE = Topic(
    "compute_profile",
    "Compute profile",
    (
        Check("memory-leak", training_tests.memory_leak, training_tests.logged_memories, critical=True),
        Check("throughput-drop", training_tests.throughput_drop, (THROUGHPUT,)),
    ),
    (SignalChart("Tokens per second", (THROUGHPUT,)),),
    training_tests.step_durations,
)
TOPICS = (GRADIENTS, CALIBRATION, REWARDS, POLICY, COMPUTE)


@expects("the files of a run", DiagnosticsError)
def diagnose_reward_health(
    path: Path,
    *,
    calibration_threshold: float = WARNING_SCORE,
    memory_limit_mb: float | None = None,
    alpha: float = ALPHA,
) -> Diagnosis:
    """Diagnose the run directory at `path`.

    Raises:
        DiagnosticsError: there are no metrics.
        RunError: a file that is there and cannot be read.
    """
    run = read_run_signals(path)
    limits = Thresholds(alpha, calibration_threshold, memory_limit_mb)
    cards = examine(TOPICS, run, limits)
    return Diagnosis("reward-health", run, cards, alpha, limits.to_json(), unanswered_question(run))


def unanswered_question(run: RunSignals) -> str | None:
    """Why the run may not be called healthy.

    That needs tests of the gradient and of the reward, or of the loss in supervised training.
    """
    if len(run.steps) < MIN_POINTS:
        return f"the run has {len(run.steps)} step(s), a test needs {MIN_POINTS}"
    needed = ("loss" if run.kind == "sft" else REWARD, GRADIENT)
    missing = [name for name in needed if run.too_short(name)]
    return f"{' and '.join(missing)} could not be tested" if missing else None
