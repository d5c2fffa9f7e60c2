"""Is the training of a run sound, and its reward? The checks of `greenward reward-health`."""

from __future__ import annotations

from pathlib import Path

from greenward.diagnostics.calibration import WARNING_SCORE
from greenward.diagnostics.change_points import MIN_POINTS
from greenward.diagnostics.checks import Check, SignalChart, Topic, examine
from greenward.diagnostics.findings import Diagnosis
from greenward.diagnostics.readers import read_run_signals
from greenward.diagnostics.reward_tests import (
    constant_reward,
    dead_groups,
    dominance,
    poor_calibration,
    tested_rewards,
)
from greenward.diagnostics.signal_tests import (
    ALPHA,
    Thresholds,
    falls_to,
    lasting_change,
    late_mean,
    share_of_steps,
)
from greenward.diagnostics.signals import GRADIENT, PASS_RATE, REWARD, THROUGHPUT, TRUNCATED, RunSignals
from greenward.diagnostics.training_tests import (
    explosion,
    kl_runaway,
    logged_memories,
    memory_leak,
    not_finite,
    spikes,
    step_durations,
)

GRADIENTS = Topic(
    "gradient_drift_card",
    "Gradient drift",
    (
        Check(
            "non-finite",
            not_finite,
            """NaN or infinite numbers
            Not finite, or skipped for it: {signals}; {steps} steps in all.
            - Go on from the last checkpoint before the first of them with a lower training.learning_rate.
            - With bfloat16 or float16 (model.dtype), repeat in float32.
            - If a reward is not finite, correct the reward term: it may return finite numbers only.
            Confirm: Replay the first such step from the checkpoint before it; the signal that is not finite
              first names the part.""",
        ),
        Check(
            "gradient-explosion",
            explosion,
            """The gradient norm left its scale and stayed away
            {text}
            - Go on from the last checkpoint before the onset (--resume) with training.learning_rate 3 to 10
              times lower.
            - Set training.max_grad_norm (1.0), which bounds what a step may do.
            - Check training.schedule and warmup_steps for a jump of learning_rate at the onset.
            - With bfloat16 (model.dtype), repeat in float32.
            Confirm: The first step after that checkpoint with a lower learning rate keeps the old norm;
              learning_rate jumps at the onset if the schedule is to blame.""",
            (GRADIENT,),
            critical=True,
        ),
        Check(
            "gradient-spikes",
            spikes,
            """Single gradient norms stand far above their surroundings
            {spikes} of {count} steps ({share:.1%}) are above 3 times the median around them; the largest at
            step {step}, {ratio:.1f} times.
            - Set training.max_grad_norm a little above the usual norm.
            - Look at the rollouts of these steps: very long or degenerate answers, or one group alone in the
              batch.
            - More prompts per step (training.prompts_per_step) average them out.
            Confirm: The same steps spike again when the run is repeated with its seed.""",
            (GRADIENT,),
        ),
        Check(
            "gradient-vanished",
            share_of_steps("==", 0.0, over=0.4, dated=True),
            """Many steps have no gradient at all
            grad_norm is 0 at {share:.0%} of {count} steps.
            - Groups whose answers all pass or all fail teach nothing: set algorithm.dynamic_sampling, or
              choose problems of middle difficulty.
            - Raise training.num_generations or sampling.temperature, so that answers differ.
            Confirm: groups/with_signal is 0 at the same steps.""",
            (GRADIENT,),
        ),
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
        Check(
            "poor-calibration",
            poor_calibration,
            """The reward model's probabilities are not the rates that come true
            {text}
            - Do not use the size of its output as a reward (weight 0) until it is corrected; its ranking may
              still be right.
            - Divide its logits by 1/slope (temperature scaling) fitted on held-out predictions.
            - Train it on newer answers, with a lower learning rate or more weight decay.
            Confirm: The score of predictions on fresh problems, with the same model frozen, is as low.""",
            critical=True,
        ),
    ),
)
REWARDS = Topic(
    "reward_card",
    "Rewards",
    (
        Check(
            "constant-reward",
            constant_reward,
            """The reward does not vary, so nothing can be learned from it
            {text}
            - Grade a known right and a known wrong answer: greenward grade.
            - If every answer fails, begin with a longer warm start or easier problems (problems.families).
            - If every answer passes, choose harder ones.
            Confirm: The rollouts of a step show answers of different worth with one reward.""",
            (REWARD,),
            severity="critical",
        ),
        Check(
            "reward-drop",
            lasting_change(by_sign=-1),
            """A reward fell and did not recover
            {signal} fell from {before:.3g} to {after:.3g} ({effect_sd:+.1f} sd of its noise) from step
            {onset} on.
            - Go on from the checkpoint before the onset with a lower training.learning_rate.
            - Compare with the gradient card: a fall after a gradient onset is its consequence.
            - If one term fell while the total rose, change their weights in rewards.
            Confirm: Held-out evaluations before and after the onset fall, too.""",
            tested_rewards,
            needs=(REWARD,),
        ),
        Check(
            "auxiliary-reward-dominates",
            dominance,
            """An auxiliary reward term varies more than the tests' does
            {term} owns {share:.0%} of the variance of the weighted terms over steps.
            - Lower its weight in rewards until the tests own most of the variance.
            - Give it only to answers that pass, if it is about style.
            Confirm: With its weight at 0, the pass rate rises faster.""",
            needs=(REWARD,),
        ),
        Check(
            "dead-groups",
            dead_groups,
            """Most groups teach nothing
            In the last quarter of the run {dead:.0%} of the groups teach nothing: {passed:.0%} all pass,
            {failed:.0%} all fail.
            - All fail: a longer warm start (warm_start.max_steps) or easier problems
              (problems.families.max_depth).
            - All pass: harder problems.
            - Either: algorithm.dynamic_sampling, more training.num_generations, or a higher
              sampling.temperature.
            Confirm: groups/with_signal rises with the change in the next twenty steps.""",
            ("groups/with_signal",),
            needs=(REWARD,),
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
        Check(
            # no absolute limit: small models begin low
            "entropy-collapse",
            falls_to(below=0.1),
            """The policy has nearly stopped exploring
            Entropy fell from {before:.3g} to {after:.3g} nats a token, {ratio:.0%} of its start.
            - Raise algorithm.clip_high (0.28, DAPO's clip-higher) or sampling.temperature.
            - Add a penalty for leaving the reference: algorithm.kl.coefficient.
            - Lower training.learning_rate, or stop here if held-out results no longer rise.
            Confirm: completion/unique falls with it: the answers to a problem become copies.""",
            ("entropy",),
        ),
        Check(
            "kl-runaway",
            kl_runaway,
            """The policy leaves its reference faster and faster without earning more
            KL rose from {before:.3g} (first half) to {after:.3g} (last tenth), {slope:.2g} a step in the
            second half and {slope_before:.2g} in the first, while the reward did not rise.
            - Raise algorithm.kl.coefficient, or set algorithm.kl.target for an adaptive one.
            - Go back to the checkpoint where the reward was highest.
            - Read the newest rollouts: reward hacking looks like this.
            Confirm: The held-out pass rate is flat or falls while kl rises.""",
            ("kl",),
        ),
        Check(
            # Spinning Up's PPO stops at 0.015
            "large-policy-steps",
            share_of_steps(">", 0.03, over=0.2),
            """Single updates move the policy far
            approx_kl is above 0.03 in {share:.0%} of the steps (median {median:.3g}).
            - Lower training.learning_rate, algorithm.updates_per_batch or minibatches.
            - Set algorithm.max_step_kl, which ends the updates of a batch early.
            Confirm: approx_kl and clip/fraction fall together.""",
            ("approx_kl",),
        ),
        Check(
            "truncated-answers",
            late_mean(above=0.2, dated=True),
            """Many answers are cut off at the limit
            In the last quarter of the run {late:.0%} of the answers are cut off at the limit.
            - Raise sampling.max_tokens, or shorten answers by algorithm.overlong.penalty.
            - Leave cut answers out of the loss: algorithm.overlong.mask_truncated.
            Confirm: The cut answers in rollouts/ would have been whole with twice the limit.""",
            (TRUNCATED,),
        ),
        Check(
            "value-function-useless",
            share_of_steps("<", 0.0, over=0.75, start=0.5),
            """The value function predicts worse than the mean return would
            explained_variance is below 0 in {share:.0%} of the second half (median {median:.2f}).
            - Raise algorithm.critic.learning_rate or loss_weight, or give it a trunk of its own
              (algorithm.critic.trunk).
            - Train it a while with the policy frozen.
            - Or do without: algorithm.advantage rloo or grpo needs none.
            Confirm: explained_variance rises above 0 within fifty steps of the change.""",
            ("explained_variance",),
        ),
    ),
    (
        SignalChart("Entropy (nats per token)", ("entropy",)),
        SignalChart("KL to the reference", ("kl",)),
        SignalChart("Answers cut off at the limit", (TRUNCATED,), "share"),
        SignalChart("Explained variance of the value function", ("explained_variance",)),
    ),
)
COMPUTE = Topic(
    "compute_profile",
    "Compute profile",
    (
        Check(
            "memory-leak",
            memory_leak,
            """Memory grows at every step and is never freed
            {memory} grew to {factor:.2f} times [{factor_low:.2f}, {factor_high:.2f}] over the run,
            {per_step:.3g} MiB a step{ends}.
            - Look for tensors or episodes kept beyond their step: lists of losses without .item(), caches
              without a bound, logged tensors.
            - Until it is found: set training.checkpoint_interval_steps, and restart with --resume before the
              memory ends.
            Confirm: Run 50 steps more and look whether the smallest memory of each ten steps still rises;
              compare tracemalloc (or torch.cuda.memory_snapshot) of two steps.""",
            logged_memories,
            critical=True,
        ),
        Check(
            "throughput-drop",
            lasting_change(below=0.8),
            """Fewer tokens per second than before
            {before:,.0f} tokens per second fell to {after:,.0f} ({relative:+.0%}).
            - See which part became slower: time/sampling, time/grading or time/update.
            - If answers became longer, they are the reason; see completion/mean_length.
            - If not: another load on the machine, swapping (see the memory), or too few sandbox.workers.
            Confirm: Repeat a few steps from the checkpoint before the drop on an idle machine.""",
            (THROUGHPUT,),
        ),
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
    return Diagnosis("reward-health", run, cards, alpha, thresholds, _unanswered(run))


def _unanswered(run: RunSignals) -> str | None:
    """Why the run may not be called healthy: that needs tests of the reward and of the gradient."""
    if len(run.steps) < MIN_POINTS:
        return f"the run has {len(run.steps)} step(s), a test needs {MIN_POINTS}"
    missing = [name for name in (REWARD, GRADIENT) if run.too_short(name)]
    return f"{' and '.join(missing)} could not be tested" if missing else None
