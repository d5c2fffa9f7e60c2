"""What each finding is called, what to do about it, and what would confirm it.

Each name is an anchor in docs/diagnostics.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from greenward.reports.document import Finding, Onset, Severity


@dataclass(frozen=True)
class Advice:
    """The words of a kind of finding."""

    title: str
    actions: tuple[str, ...]
    confirm: str


def make_finding(name: str, severity: Severity, measured: str, onset: Onset | None = None) -> Finding:
    """The finding `name` with the advice for it."""
    advice = ADVICE[name]
    return Finding(name, severity, advice.title, measured, advice.actions, advice.confirm, onset)


ADVICE: dict[str, Advice] = {
    "memory-leak": Advice(
        "Memory grows at every step and is never given back",
        (
            "Look for tensors or episodes kept beyond their step: lists of losses without .item(), caches "
            "without a bound, logged tensors.",
            "Until it is found: set training.checkpoint_interval_steps, and restart with --resume before the "
            "memory ends.",
        ),
        "Run 50 steps more and look whether the smallest memory of each ten steps still rises; compare "
        "tracemalloc (or torch.cuda.memory_snapshot) of two steps.",
    ),
    "throughput-drop": Advice(
        "Fewer tokens per second than before",
        (
            "See which part became slower: time/sampling, time/grading or time/update.",
            "If answers became longer, this is their price; see completion/mean_length.",
            "If not: another load on the machine, swapping (see the memory), or too few sandbox.workers.",
        ),
        "Repeat a few steps from the checkpoint before the drop on an idle machine.",
    ),
    "gradient-explosion": Advice(
        "The gradient norm left its scale and stayed away",
        (
            "Go on from the last checkpoint before the onset (--resume) with training.learning_rate 3 to 10 "
            "times lower.",
            "Set training.max_grad_norm (1.0), which bounds what a step may do.",
            "Check training.schedule and warmup_steps for a jump of learning_rate at the onset.",
            "With bfloat16 (model.dtype), repeat in float32.",
        ),
        "The first step after that checkpoint with a lower learning rate keeps the old norm; learning_rate "
        "jumps at the onset if the schedule is to blame.",
    ),
    "gradient-spikes": Advice(
        "Single gradient norms stand far above their surroundings",
        (
            "Set training.max_grad_norm a little above the usual norm.",
            "Look at the rollouts of these steps: very long or degenerate answers, or one group alone in "
            "the batch.",
            "More prompts per step (training.prompts_per_step) average them out.",
        ),
        "The same steps spike again when the run is repeated with its seed.",
    ),
    "gradient-vanished": Advice(
        "Many steps have no gradient at all",
        (
            "Groups whose answers all pass or all fail teach nothing: set algorithm.dynamic_sampling, or "
            "choose problems of middle difficulty.",
            "Raise training.num_generations or sampling.temperature, so that answers differ.",
        ),
        "groups/with_signal is 0 at the same steps.",
    ),
    "non-finite": Advice(
        "NaN or infinite numbers",
        (
            "Go on from the last checkpoint before the first of them with a lower training.learning_rate.",
            "With bfloat16 or float16 (model.dtype), repeat in float32.",
            "If a reward is not finite, mend the reward term: it may return finite numbers only.",
        ),
        "Replay the first such step from the checkpoint before it; whichever signal is not finite first "
        "names the part.",
    ),
    "poor-calibration": Advice(
        "The reward model's probabilities are not the rates that come true",
        (
            "Do not use its output as a reward by its size (weight 0) until it is mended; ranking may still "
            "be right.",
            "Divide its logits by 1/slope (temperature scaling) fitted on held-out predictions.",
            "Train it on newer answers, with a lower learning rate or more weight decay.",
        ),
        "The score of predictions on fresh problems, with the same model frozen, is as low.",
    ),
    "constant-reward": Advice(
        "The reward does not vary, so nothing can be learned from it",
        (
            "Grade a known right and a known wrong answer: greenward grade.",
            "If every answer fails, begin with a longer warm start or easier problems (problems.families).",
            "If every answer passes, choose harder ones.",
        ),
        "The rollouts of a step show answers of different worth with one reward.",
    ),
    "auxiliary-reward-dominates": Advice(
        "An auxiliary reward term varies more than the tests' does",
        (
            "Lower its weight in rewards until the tests own most of the variance.",
            "Give it only to answers that pass, if it is about style.",
        ),
        "With its weight at 0, the pass rate learns faster.",
    ),
    "reward-drop": Advice(
        "A reward fell for good",
        (
            "Go on from the checkpoint before the onset with a lower training.learning_rate.",
            "Compare with the gradient card: a fall after a gradient onset is its consequence.",
            "If one term fell while the total rose, their weights in rewards make the trade: change them.",
        ),
        "Held-out evaluations before and after the onset fall, too.",
    ),
    "dead-groups": Advice(
        "Most groups teach nothing",
        (
            "All fail: a longer warm start (warm_start.max_steps) or easier problems "
            "(problems.families.max_depth).",
            "All pass: harder problems.",
            "Either: algorithm.dynamic_sampling, more training.num_generations, or a higher "
            "sampling.temperature.",
        ),
        "groups/with_signal rises with the change in the next twenty steps.",
    ),
    "entropy-collapse": Advice(
        "The policy has nearly stopped exploring",
        (
            "Raise algorithm.clip_high (0.28, DAPO's clip-higher) or sampling.temperature.",
            "Add a penalty for leaving the reference: algorithm.kl.coefficient.",
            "Lower training.learning_rate, or stop here if held-out results no longer rise.",
        ),
        "completion/unique falls with it: the answers to a problem become copies.",
    ),
    "kl-runaway": Advice(
        "The policy leaves its reference faster and faster without earning more",
        (
            "Raise algorithm.kl.coefficient, or set algorithm.kl.target for an adaptive one.",
            "Go back to the checkpoint where the reward was highest.",
            "Read the newest rollouts: reward hacking looks like this.",
        ),
        "The held-out pass rate is flat or falls while kl rises.",
    ),
    "large-policy-steps": Advice(
        "Single updates move the policy far",
        (
            "Lower training.learning_rate, algorithm.updates_per_batch or minibatches.",
            "Set algorithm.max_step_kl, which ends the updates of a batch early.",
        ),
        "approx_kl and clip/fraction fall together.",
    ),
    "truncated-answers": Advice(
        "Many answers are cut off at the limit",
        (
            "Raise sampling.max_tokens, or shorten answers by algorithm.overlong.penalty.",
            "Leave cut answers out of the loss: algorithm.overlong.mask_truncated.",
        ),
        "The cut answers in rollouts/ would have been whole with twice the limit.",
    ),
    "value-function-useless": Advice(
        "The value function predicts worse than the mean return would",
        (
            "Raise algorithm.critic.learning_rate or loss_weight, or give it a trunk of its own "
            "(algorithm.critic.trunk).",
            "Train it a while with the policy frozen.",
            "Or do without: algorithm.advantage rloo or grpo needs none.",
        ),
        "explained_variance rises above 0 within fifty steps of the change.",
    ),
    "held-out-regression": Advice(
        "Training made held-out results worse",
        (
            "Use the checkpoint of the best evaluation.",
            "Go on from it with a lower training.learning_rate or a larger algorithm.kl.coefficient.",
            "Compare training and held-out problems: greenward audit.",
        ),
        "greenward compare of both checkpoints on the same suite says the same.",
    ),
    "train-held-out-gap": Advice(
        "Training problems improve, held-out ones do not follow",
        (
            "Train on more, or more varied, problems (problems.train, problems.families.limit).",
            "Stop at the step from which held-out results are flat.",
            "Search the rollouts for answers that fit the tests only.",
        ),
        "An evaluation on training problems is as good as their pass rate says.",
    ),
    "quality-drop": Advice(
        "A measure of the answers' quality fell for good",
        (
            "Use a checkpoint from before the onset.",
            "Give the measure a weight in rewards, or a larger one.",
        ),
        "The rollouts before and after the onset show the difference.",
    ),
    "failing-answers-rise": Advice(
        "One way to fail became more frequent for good",
        (
            "Read answers with this status in rollouts/ after the onset.",
            "Timeouts: see whether the machine was loaded (time/grading) before blaming the policy.",
            "Go back to a checkpoint from before the onset.",
        ),
        "Graded again on an idle machine, the answers have the same status.",
    ),
    "cheating": Advice(
        "Answers try to fool the tests",
        (
            "Read these answers in rollouts/; the grader gives them no reward.",
            "Strengthen the tests of the problems where they occur; greenward audit helps.",
            "Keep sandbox.require at the strictest level that the machine has.",
        ),
        "Their share falls when the problems they exploit leave the training set.",
    ),
    "diversity-loss": Advice(
        "Answers to one problem became copies of each other",
        (
            "Raise sampling.temperature or algorithm.clip_high.",
            "Stop earlier, if pass@k for k > 1 matters.",
        ),
        "pass@8 falls towards pass@1 in the evaluations.",
    ),
    "length-growth": Advice(
        "Answers become longer without becoming better",
        (
            "Use a loss that does not favour length (algorithm.loss dr_grpo or dapo).",
            "Set algorithm.overlong.penalty.",
        ),
        "The longest answers of the newest rollouts repeat themselves.",
    ),
}
