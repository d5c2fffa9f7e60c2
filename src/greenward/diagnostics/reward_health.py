"""Is the training of a run sound, and its reward? The checks of `greenward reward-health`."""

from __future__ import annotations

from pathlib import Path

from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.calibration_tests import no_discrimination, poor_calibration
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.learning_tests import (
    always_clipped,
    beyond,
    clip_signals,
    entropy_rises,
    group_signal_fades,
    no_learning,
    rate_jumps,
    scale_jumps,
    truncated,
    vanished,
)
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.reward_tests import (
    constant_reward,
    dead_groups,
    dead_term,
    dominance,
    group_signals,
    reward_drop,
    reward_terms,
    tested_rewards,
)
from greenward.diagnostics.signal_tests import ALPHA, Thresholds, falls_to, late_share
from greenward.diagnostics.signals import GRADIENT, PASS_RATE, REWARD, THROUGHPUT, TRUNCATED, RunSignals
from greenward.diagnostics.training_tests import (
    explosion,
    kl_runaway,
    logged_memories,
    memory_leak,
    not_finite,
    spikes,
    step_durations,
    throughput_drop,
)

GRADIENTS = Topic(
    "gradient_drift_card",
    "Gradient drift",
    (
        Check("non-finite", not_finite),
        Check("gradient-explosion", explosion, (GRADIENT,), critical=True),
        Check("gradient-spikes", spikes, (GRADIENT,)),
        Check("gradient-vanished", vanished, (GRADIENT,)),
        Check("gradient-always-clipped", always_clipped, (GRADIENT,)),
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
        Check("constant-reward", constant_reward, (REWARD,), severity="critical"),
        Check("reward-term-dead", dead_term, reward_terms, needs=(REWARD,)),
        Check("reward-scale-jump", scale_jumps, ("reward/std",), needs=(REWARD,)),
        Check("no-learning", no_learning, needs=(REWARD,)),
        Check("reward-drop", reward_drop, tested_rewards, needs=(REWARD,)),
        Check("auxiliary-reward-dominates", dominance, needs=(REWARD,)),
        Check("dead-groups", dead_groups, group_signals, needs=(REWARD,)),
        Check(
            "group-signal-fades", group_signal_fades, ("groups/with_signal",), needs=(REWARD,), optional=True
        ),
    ),
    (
        SignalChart("Rewards", tested_rewards),
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
        Check("entropy-collapse", falls_to(below=0.1), ("entropy",), severity="critical"),
        Check("entropy-rise", entropy_rises, ("entropy",)),
        Check("kl-runaway", kl_runaway, ("kl",)),
        # Spinning Up's PPO stops at 0.015
        Check("large-policy-steps", beyond(above=0.03), ("approx_kl",)),
        Check("clip-fraction-high", beyond(above=0.3), clip_signals),
        Check("truncated-answers", truncated, (TRUNCATED,)),
        # a constant prediction explains nothing: 0
        Check("value-function-useless", late_share(below=0.01, over=0.75), ("explained_variance",)),
        Check("learning-rate-jump", rate_jumps, ("learning_rate",), optional=True),
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
        SignalChart("Share of clipped tokens", clip_signals, "share"),
    ),
)
COMPUTE = Topic(
    "compute_profile",
    "Compute profile",
    (
        Check("memory-leak", memory_leak, logged_memories, critical=True),
        Check("throughput-drop", throughput_drop, (THROUGHPUT,)),
    ),
    (SignalChart("Tokens per second", (THROUGHPUT,)),),
    step_durations,
)
TOPICS = (GRADIENTS, CALIBRATION, REWARDS, POLICY, COMPUTE)


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
    cards = examine(TOPICS, run, Thresholds(alpha, calibration_threshold, memory_limit_mb))
    thresholds = {"calibration": calibration_threshold, "memory_limit_mb": memory_limit_mb}
    return Diagnosis("reward-health", run, cards, alpha, thresholds, unanswered_question(run))


def unanswered_question(run: RunSignals) -> str | None:
    """Why the run may not be called healthy.

    That needs tests of the gradient and of the reward, or of the loss in supervised training.
    """
    if len(run.steps) < MIN_POINTS:
        return f"the run has {len(run.steps)} step(s), a test needs {MIN_POINTS}"
    needed = ("loss" if run.kind == "sft" else REWARD, GRADIENT)
    missing = [name for name in needed if run.too_short(name)]
    return f"{' and '.join(missing)} could not be tested" if missing else None
