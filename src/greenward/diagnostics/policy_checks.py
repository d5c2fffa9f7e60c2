"""Checks of the policy (exploration, KL, length, value function) and of its updates (rate, clipping,
staleness).
"""

from __future__ import annotations

from greenward.diagnostics.checks import Check, SignalChart, Topic
from greenward.diagnostics.learning_tests import beyond, entropy_rises, rate_jumps
from greenward.diagnostics.signal_tests import (
    Result,
    Thresholds,
    falls_to,
    late_mean,
    onset_of,
    share_of_steps,
)
from greenward.diagnostics.signals import TRUNCATED, RunSignals
from greenward.diagnostics.training_tests import kl_runaway


def clip_signals(run: RunSignals) -> list[str]:
    """The share of clipped tokens, or those of both sides where they were logged apart."""
    whole = [name for name in ("clip/fraction",) if len(run.series(name)[1])]
    return (
        whole or [name for name in ("clip/high", "clip/low") if len(run.series(name)[1])] or ["clip/fraction"]
    )


def truncated(run: RunSignals, signal: str, limits: Thresholds) -> Result:
    """Answers that are cut off late in the run, dated by where their share changed."""
    found = late_mean(above=0.2, dated=True)(run, signal, limits)
    values = run.series(signal)[1]
    if found.found and values[: max(5, len(values) // 20)].mean() < 0.2:
        return Result(True, found.numbers, onset=onset_of(run, signal) or found.onset)
    return found


UPDATES = (
    Check(
        "learning-rate-jump",
        rate_jumps,
        """The learning rate jumped, or its warm-up began anew, in the middle of the run
            The learning rate was {before:.3g}, then {at:.3g}, and rose to {after:.3g}.
            - A resumed run that makes its scheduler anew begins the warm-up again: restore the scheduler's
            state,
              or set training.warmup_steps to 0 for the rest.
            - Go on from the last checkpoint before the onset with the schedule as it was.
            Confirm: The step at which the process was started again is the onset.""",
        ("learning_rate",),
        optional=True,
        brief="Learning rate from {before:.3g} to {after:.3g}",
    ),
    Check(
        "stale-policy",
        beyond(above=2.0),
        """Answers are sampled by a policy that is several updates old
            {signal} is {median:.3g} in the median of the {share:.0%} of the steps at which it is above 2.
            - See whether the engine gets the new weights: the sync after each update, and what it returns.
            - Sample less far ahead: a smaller queue of batches, or no overlap.
            - Correct for it by importance weights, if it cannot be avoided.
            Confirm: importance/difference falls when the sampler is synchronised by hand.""",
        ("rollouts/staleness",),
        optional=True,
        brief="Sampler {median:.3g} updates behind",
    ),
    Check(
        "sampler-mismatch",
        beyond(above=0.05),
        """Sampler and learner give the same tokens different probabilities
            {signal} is above its limit in {share:.0%} of the steps, {median:.3g} in the median of those.
            - Compare temperature, top-p and dtype of both: sampling.temperature must be the one that the
              learner divides by.
            - See whether the sampler has the newest weights (rollouts/staleness).
            - Compute the log-probabilities of the old policy by the learner, or cap importance weights at 2.
            Confirm: The log-probabilities of one answer by both, with equal weights, differ by more than
              0.01 a token.""",
        ("importance/difference",),
        optional=True,
        brief="|Δ log p| {median:.3g} between sampler and learner",
    ),
    Check(
        "sampler-mismatch",
        beyond(above=0.02),
        """Sampler and learner give the same tokens different probabilities
            {signal} is above its limit in {share:.0%} of the steps, {median:.3g} in the median of those.
            - Compare temperature, top-p and dtype of both.
            - See whether the sampler has the newest weights.
            Confirm: The log-probabilities of one answer by both, with equal weights, differ.""",
        ("importance/kl",),
        optional=True,
        brief="KL {median:.3g} between sampler and learner",
    ),
    Check(
        "sampler-mismatch",
        beyond(above=0.15, off=1.0),
        """Sampler and learner give the same tokens different probabilities
            {signal} is farther than 0.15 from 1 in {share:.0%} of the steps, {median:.3g} in the median of
            those.
            - Compare temperature, top-p and dtype of both.
            - See whether the sampler has the newest weights.
            Confirm: The log-probabilities of one answer by both, with equal weights, differ.""",
        ("importance/mean", "ratio/mean"),
        optional=True,
        brief="Importance ratio {median:.3g}",
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
            severity="critical",
            brief="Entropy fell to {ratio:.0%} of its start",
        ),
        Check(
            "entropy-rise",
            entropy_rises,
            """The policy becomes incoherent: entropy grows and the reward does not
            Entropy rose from {before:.3g} to {after:.3g} nats a token, {ratio:.1f} times its start.
            - Lower algorithm.entropy_coefficient, or set it to 0.
            - Lower training.learning_rate, or sampling.temperature where it is above 1.
            Confirm: The newest rollouts are less readable than the first ones.""",
            ("entropy",),
            brief="Entropy ×{ratio:.1f} without more reward",
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
            brief="KL to the reference from {before:.3g} to {after:.3g}",
        ),
        Check(
            # Spinning Up's PPO stops at 0.015
            "large-policy-steps",
            beyond(above=0.03),
            """Single updates move the policy far
            approx_kl is above 0.03 in {share:.0%} of the steps (median {median:.3g}).
            - Lower training.learning_rate, algorithm.updates_per_batch or minibatches.
            - Set algorithm.max_step_kl, which ends the updates of a batch early.
            Confirm: approx_kl and clip/fraction fall together.""",
            ("approx_kl",),
        ),
        Check(
            "clip-fraction-high",
            beyond(above=0.3),
            """A large part of the tokens is clipped, so that much of the batch is not learned from
            {signal} is above 0.3 in {share:.0%} of the steps ({median:.2f} in the median of those).
            - Lower training.learning_rate, algorithm.updates_per_batch or minibatches.
            - Sample anew more often: clipped tokens are those of an old policy.
            Confirm: approx_kl falls with it.""",
            clip_signals,
            brief="{median:.0%} of the tokens clipped",
        ),
        Check(
            "truncated-answers",
            truncated,
            """Many answers are cut off at the limit
            In the last quarter of the run {late:.0%} of the answers are cut off at the limit.
            - Raise sampling.max_tokens, or shorten answers by algorithm.overlong.penalty.
            - Leave cut answers out of the loss: algorithm.overlong.mask_truncated.
            - If nearly all are cut from the start, the policy never learned to end: look whether the loss of
              its supervised training masks the end token, as it does where the padding is the same token.
            Confirm: The cut answers in rollouts/ would have been whole with twice the limit.""",
            (TRUNCATED,),
            brief="{late:.0%} of the answers cut off",
        ),
        Check(
            "value-function-useless",
            share_of_steps("<", 0.01, over=0.75, start=0.5),  # a constant prediction explains nothing: 0
            """The value function predicts no better than the mean return would
            explained_variance is below 0.01 in {share:.0%} of the second half (median {median:.2f}).
            - Raise algorithm.critic.learning_rate or loss_weight, or give it a trunk of its own
              (algorithm.critic.trunk).
            - Train it a while with the policy frozen.
            - Or do without: algorithm.advantage rloo or grpo needs none.
            Confirm: explained_variance rises above 0 within fifty steps of the change.""",
            ("explained_variance",),
        ),
        *UPDATES,
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
