"""Policy-gradient losses as pure functions of tensors.

A loss is three choices: the level of the importance ratio, the surrogate, and how tokens are
averaged. `LOSSES` names the known combinations; `policy_loss` evaluates one of them, adds the KL
and entropy terms and corrects for a sampler that is not the trainer.

Names carry shapes: B rows (one turn of one episode each), T completion positions, right-padded.
All log-probabilities are natural and of the tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from greenward.algorithms.kl import KL_ESTIMATORS
from greenward.config.algorithm import AlgorithmConfig


@dataclass(frozen=True)
class LossInputs:
    """The tensors of one micro-batch, all of shape (B, T).

    `logprobs_BT` and `entropy_BT` carry gradients; the latter is the entropy in nats of the whole
    next-token distribution that each token was drawn from. `old_logprobs_BT` are the trainer's before
    the first update on this batch; None means that this *is* the first update, so the ratio is 1 and
    only its gradient counts. `mask_BT` is True for the tokens that are trained on.
    `sampler_logprobs_BT` are those that the sampler reported.
    """

    logprobs_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    sampler_logprobs_BT: Tensor | None = None
    entropy_BT: Tensor | None = None


@dataclass(frozen=True)
class BatchTotals:
    """What the whole optimizer batch holds, so that its micro-batches' losses add up exactly.

    `max_completion_tokens` is the sampler's limit, not the longest answer: Dr. GRPO's constant.
    """

    sequences: int
    tokens: int
    max_completion_tokens: int


@dataclass(frozen=True)
class LossOutput:
    """The loss of a micro-batch (its share of the batch's) and detached statistics over its tokens.

    `sums` add up over micro-batches and become means when divided by the number of trained tokens;
    `maxima` combine by maximum.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


# The ratio between the policy and the old policy, from their log ratio.


def token_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """One ratio a token (PPO)."""
    return log_ratio_BT


def sequence_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """One ratio a sequence, the geometric mean over its tokens (GSPO, arXiv 2507.18071, eq. 7)."""
    lengths_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return ((log_ratio_BT * mask_BT).sum(-1, keepdim=True) / lengths_B1).expand_as(log_ratio_BT)


# The surrogate: what is minimised at each token.


def clipped_ratio(ratio_BT: Tensor, inputs: LossInputs, low: float, high: float) -> Tensor:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) (PPO, arXiv 1707.06347, eq. 7).

    Bounds that differ are DAPO's clip-higher (arXiv 2503.14476, eq. 10).
    """
    clipped_BT = ratio_BT.clamp(1 - low, 1 + high)
    return -torch.min(ratio_BT * inputs.advantages_BT, clipped_BT * inputs.advantages_BT)


def clipped_weight(ratio_BT: Tensor, inputs: LossInputs, low: float, high: float) -> Tensor:
    """-stop_gradient(min(ratio, 1 + high)) * A * log p (CISPO, arXiv 2506.13585, eq. 4-5).

    Every token keeps a gradient; only its weight is bounded. There is no lower bound.
    """
    return -ratio_BT.clamp(max=1 + high).detach() * inputs.advantages_BT * inputs.logprobs_BT


def unclipped_ratio(ratio_BT: Tensor, inputs: LossInputs, low: float, high: float) -> Tensor:
    """-ratio * A: the importance-weighted policy gradient; at ratio 1 its gradient is REINFORCE's."""
    return -ratio_BT * inputs.advantages_BT


# The average over the optimizer batch. Values outside the mask are 0.


def mean_of_sequence_means(values_BT: Tensor, mask_BT: Tensor, totals: BatchTotals) -> Tensor:
    """Every sequence weighs the same, whatever its length (GRPO)."""
    means_B = values_BT.sum(-1) / mask_BT.sum(-1).clamp(min=1)
    return means_B.sum() / max(totals.sequences, 1)


def mean_over_limit(values_BT: Tensor, mask_BT: Tensor, totals: BatchTotals) -> Tensor:
    """Sums divided by a constant, so that length has no influence (Dr. GRPO, arXiv 2503.20783)."""
    return values_BT.sum() / (max(totals.sequences, 1) * totals.max_completion_tokens)


def mean_over_tokens(values_BT: Tensor, mask_BT: Tensor, totals: BatchTotals) -> Tensor:
    """Every token of the batch weighs the same (DAPO, arXiv 2503.14476, eq. 12)."""
    return values_BT.sum() / max(totals.tokens, 1)


def mean_of_sequence_sums(values_BT: Tensor, mask_BT: Tensor, totals: BatchTotals) -> Tensor:
    """Sum over the tokens, mean over the sequences: the gradient of the expected return itself."""
    return values_BT.sum() / max(totals.sequences, 1)


@dataclass(frozen=True)
class PolicyLoss:
    """One loss: level of the ratio, surrogate, average."""

    log_ratio: Callable[[Tensor, Tensor], Tensor]
    surrogate: Callable[[Tensor, LossInputs, float, float], Tensor]
    average: Callable[[Tensor, Tensor, BatchTotals], Tensor]


LOSSES: Mapping[str, PolicyLoss] = MappingProxyType(
    {
        "grpo": PolicyLoss(token_log_ratio, clipped_ratio, mean_of_sequence_means),
        "dr_grpo": PolicyLoss(token_log_ratio, clipped_ratio, mean_over_limit),
        "dapo": PolicyLoss(token_log_ratio, clipped_ratio, mean_over_tokens),
        "gspo": PolicyLoss(sequence_log_ratio, clipped_ratio, mean_of_sequence_means),
        "cispo": PolicyLoss(token_log_ratio, clipped_weight, mean_over_tokens),
        "ppo": PolicyLoss(token_log_ratio, clipped_ratio, mean_over_tokens),
        "reinforce": PolicyLoss(token_log_ratio, unclipped_ratio, mean_of_sequence_sums),
    }
)


def policy_loss(
    inputs: LossInputs,
    totals: BatchTotals,
    algorithm: AlgorithmConfig,
    *,
    kl_coefficient: float | None = None,
    entropy_coefficient: float | None = None,
) -> LossOutput:
    """The loss `algorithm.loss` of one micro-batch, with its KL and entropy terms and importance correction.

    At each token the loss is surrogate + `kl_coefficient` * KL estimate - `entropy_coefficient` *
    entropy; all three are averaged alike. The surrogate is multiplied by min(p_old / p_sampler,
    `importance_cap`) when a cap is set (truncated importance sampling); the other terms are not. The KL
    estimate is weighted by the ratio of each token, also where the surrogate's ratio is of the sequence.

    Coefficients default to those of `algorithm`. Above 0 they need `ref_logprobs_BT` and `entropy_BT`.
    """
    if kl_coefficient is None:
        kl_coefficient = algorithm.kl.coefficient
    if entropy_coefficient is None:
        entropy_coefficient = algorithm.entropy_coefficient
    parts = LOSSES[algorithm.loss]
    inputs = _zero_outside_mask(inputs)
    old_BT = inputs.logprobs_BT.detach() if inputs.old_logprobs_BT is None else inputs.old_logprobs_BT
    token_log_ratio_BT = inputs.logprobs_BT - old_BT
    ratio_BT = parts.log_ratio(token_log_ratio_BT, inputs.mask_BT).exp()

    values_BT = parts.surrogate(ratio_BT, inputs, algorithm.clip_low, algorithm.clip_high)
    sums = _ratio_sums(token_log_ratio_BT, ratio_BT, inputs, algorithm)
    if inputs.sampler_logprobs_BT is not None:
        log_importance_BT = old_BT - inputs.sampler_logprobs_BT
        importance_BT = log_importance_BT.exp()
        sums["importance/mean"] = importance_BT
        sums["importance/kl"] = importance_BT - 1 - log_importance_BT
        if algorithm.importance_cap is not None:
            values_BT = values_BT * importance_BT.clamp(max=algorithm.importance_cap)
            sums["importance/capped"] = (importance_BT > algorithm.importance_cap).float()
            sums["importance/mean_capped"] = importance_BT.clamp(max=algorithm.importance_cap)
    if kl_coefficient > 0:
        assert inputs.ref_logprobs_BT is not None, "a KL coefficient above 0 needs ref_logprobs_BT"
        estimate = KL_ESTIMATORS[algorithm.kl.estimator]
        kl_BT = estimate(inputs.logprobs_BT - inputs.ref_logprobs_BT, token_log_ratio_BT.exp())
        values_BT = values_BT + kl_coefficient * kl_BT
        sums["kl"] = kl_BT
    if entropy_coefficient > 0:
        assert inputs.entropy_BT is not None, "an entropy coefficient above 0 needs entropy_BT"
        values_BT = values_BT - entropy_coefficient * inputs.entropy_BT

    return LossOutput(
        loss=parts.average(values_BT * inputs.mask_BT, inputs.mask_BT, totals),
        sums={name: (each_BT.detach() * inputs.mask_BT).sum() for name, each_BT in sums.items()},
        maxima={"ratio/max": (ratio_BT.detach() * inputs.mask_BT).amax()},
    )


def _zero_outside_mask(inputs: LossInputs) -> LossInputs:
    """Padding may hold anything, infinities included: 0 there keeps every product finite."""
    keep_BT = inputs.mask_BT.bool()

    def zeroed(values_BT: Tensor | None) -> Tensor | None:
        return None if values_BT is None else values_BT.masked_fill(~keep_BT, 0.0)

    return LossInputs(
        logprobs_BT=inputs.logprobs_BT.masked_fill(~keep_BT, 0.0),
        advantages_BT=inputs.advantages_BT,
        mask_BT=keep_BT,
        old_logprobs_BT=zeroed(inputs.old_logprobs_BT),
        ref_logprobs_BT=zeroed(inputs.ref_logprobs_BT),
        sampler_logprobs_BT=zeroed(inputs.sampler_logprobs_BT),
        entropy_BT=zeroed(inputs.entropy_BT),
    )


def _ratio_sums(
    log_ratio_BT: Tensor, ratio_BT: Tensor, inputs: LossInputs, algorithm: AlgorithmConfig
) -> dict[str, Tensor]:
    """How far the policy has moved on this batch, per token, and where clipping stopped the gradient.

    `approx_kl` is Schulman's k3 estimate of KL(old || policy).
    """
    surrogate = LOSSES[algorithm.loss].surrogate
    above_BT = ratio_BT > 1 + algorithm.clip_high
    below_BT = ratio_BT < 1 - algorithm.clip_low
    never_BT = torch.zeros_like(above_BT)
    if surrogate is clipped_ratio:
        low_BT, high_BT = below_BT & (inputs.advantages_BT < 0), above_BT & (inputs.advantages_BT > 0)
    else:
        low_BT, high_BT = never_BT, above_BT if surrogate is clipped_weight else never_BT
    return {
        "ratio/mean": ratio_BT,
        "approx_kl": log_ratio_BT.exp() - 1 - log_ratio_BT,
        "clip/low": low_BT.float(),
        "clip/high": high_BT.float(),
        "clip/fraction": (low_BT | high_BT).float(),
    }
