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
    group_signal_fades,
    no_learning,
    scale_jumps,
    vanished,
)
from greenward.diagnostics.policy_checks import POLICY
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
from greenward.diagnostics.signal_tests import ALPHA, Thresholds
from greenward.diagnostics.signals import GRADIENT, PASS_RATE, REWARD, THROUGHPUT, RunSignals
from greenward.diagnostics.training_tests import (
    explosion,
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
            brief="Gradient norm ×{ratio:.3g}{recovered}",
        ),
        Check(
            "gradient-spikes",
            spikes,
            """Single gradient norms stand far above their surroundings
            {spikes} of {count} steps, {late} in the second half, are above 3 times the median around them;
            the largest at step {step}, {ratio:.1f} times.
            - Set training.max_grad_norm a little above the usual norm.
            - Look at the rollouts of these steps: very long or degenerate answers, or one group alone in the
              batch.
            - More prompts per step (training.prompts_per_step) average them out.
            Confirm: The same steps spike again when the run is repeated with its seed.""",
            (GRADIENT,),
        ),
        Check(
            "gradient-vanished",
            vanished,
            """There is hardly a gradient left, or none at many steps
            {text}
            - Groups whose answers all pass or all fail teach nothing: set algorithm.dynamic_sampling, or
              choose problems of middle difficulty.
            - Raise training.num_generations or sampling.temperature, so that answers differ.
            Confirm: groups/with_signal is 0 at the same steps.""",
            (GRADIENT,),
        ),
        Check(
            "gradient-always-clipped",
            always_clipped,
            """Clipping decides the size of every update
            {text}
            - The direction is kept, the size is not: an update is as large as the learning rate says,
            whatever
              the gradient. Set training.max_grad_norm a little above the usual norm.
            - Or lower training.learning_rate and look for what makes norms large: sums in place of means
            in the
              loss, very long answers, unscaled rewards.
            Confirm: With the limit above the usual norm, the share of clipped steps falls below a tenth.""",
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
            brief="Calibration of the reward model: {short}",
        ),
        Check(
            "calibration-no-discrimination",
            no_discrimination,
            """The reward model does not tell good answers from bad ones
            A passing answer is ranked above a failing one in {auc:.0%} of the pairs, at most {high:.0%}
            (95 %); chance
            is 50 %.
            - Give it weight 0 until it does: as a reward it is noise.
            - See what it reads: an answer that is cut off or masked, a head that was never trained, one
            class only
              in its training data.
            Confirm: On its own training answers it is as bad.""",
            optional=True,
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
            "reward-term-dead",
            dead_term,
            """A term of the reward is 0 for every answer
            {signal} is 0 at each of {count} steps.
            - Call the reward function on a known good answer: it returns 0, raises, or never finds its input.
            - Remove it from rewards if it is not meant to count.
            Confirm: The function returns more than 0 for a hand-written answer of the best kind.""",
            reward_terms,
            needs=(REWARD,),
        ),
        Check(
            "reward-scale-jump",
            scale_jumps,
            """The size of the reward changed at once, not what answers earn
            {signal} became {factor:.2g} times as large from one step to the next, while the pass rate
            moved by
            {passing:.1%}.
            - Compare the configs and the code of rewards before and after: a weight, a normalisation or a
              reward model was changed, or the run was resumed with other settings.
            - Advantages that are not divided by the spread of a group (dr_grpo, ppo) grow as well: lower
              training.learning_rate by the same factor.
            Confirm: Rewards of the rollouts before the onset, computed with the present code, have the new
              size.""",
            ("reward/std",),
            needs=(REWARD,),
            brief="Reward scale ×{factor:.2g}",
        ),
        Check(
            "no-learning",
            no_learning,
            """Nothing was learned
            {signal} rose by {rise:+.3f} from {start:.3g} over {count} steps, at most by {bound:.3f} (95
            %); a rise
            of {unit:.3f} would have been seen.
            - See whether weights move at all: learning_rate above 0, updates/applied, and greenward
            diff-ckpt of
              the first and the last checkpoint.
            - Grade a known right and a known wrong answer: greenward grade.
            - Choose easier problems, or more answers per problem (training.num_generations), so that groups
              differ.
            - Raise training.learning_rate threefold for fifty steps.
            Confirm: The pass rate of a few training problems alone, trained on for fifty steps, rises.""",
            needs=(REWARD,),
            brief="No learning in {count} steps",
        ),
        Check(
            "reward-drop",
            reward_drop,
            """A reward fell and did not recover
            {signal} fell from {before:.3g} to {after:.3g} ({effect_sd:+.1f} sd of its noise) from step
            {onset} on.
            - Go on from the checkpoint before the onset with a lower training.learning_rate.
            - Compare with the gradient card: a fall after a gradient onset is its consequence.
            - If one term fell while the total rose, change their weights in rewards.
            Confirm: Held-out evaluations before and after the onset fall, too.""",
            tested_rewards,
            needs=(REWARD,),
            brief="{signal} fell from {before:.3g} to {after:.3g}",
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
            group_signals,
            needs=(REWARD,),
            brief="{dead:.0%} of the groups teach nothing",
        ),
        Check(
            "group-signal-fades",
            group_signal_fades,
            """Fewer and fewer groups can teach
            Groups with signal fell from {before:.3g} to {after:.3g} a step ({ratio:.0%}).
            - Set algorithm.dynamic_sampling, which draws other groups in place of dead ones.
            - Mix in harder problems as these are solved.
            Confirm: groups/dead_all_pass grows as groups/with_signal falls.""",
            ("groups/with_signal",),
            needs=(REWARD,),
            optional=True,
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
            brief="{memory} ×{factor:.2f}",
        ),
        Check(
            "throughput-drop",
            throughput_drop,
            """Fewer tokens per second than before
            {before:,.0f} tokens per second fell to {after:,.0f} ({relative:+.0%}).{waited}
            - See which part became slower: time/sampling, time/grading or time/update.
            - If answers became longer, they are the reason; see completion/mean_length.
            - If not: another load on the machine, swapping (see the memory), or too few sandbox.workers.
            Confirm: Repeat a few steps from the checkpoint before the drop on an idle machine.""",
            (THROUGHPUT,),
            brief="Throughput {relative:+.0%}",
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
