"""Computes policy-gradient losses as pure functions of tensors.

A loss is three choices: the level of the importance ratio, the surrogate, and how tokens are averaged.
`LOSSES` names the known combinations; `policy_loss` evaluates one of them, adds the KL and entropy terms and
corrects for a sampler that is not the trainer. Names carry shapes: B rows (one turn of one episode each), T
completion positions, right-padded. All log-probabilities are natural and of the tokens that were sampled.
KL(policy || reference) is estimated at tokens sampled from the policy. With l = log p - log p_ref,
Schulman's estimators (joschu.net/blog/kl-approx.html) are k1 = l (unbiased value, may be negative), k2 =
l^2/2 (biased value, low variance) and k3 = exp(-l) - 1 + l (unbiased value, never negative). Differentiating
k1 or k3 as they stand gives a wrong gradient, since the expectation also depends on the policy through the
sampling. Weighted by the importance ratio of the token r = p / p_old (whose value is 1 on policy, but whose
gradient is not 0) both get the gradient E[l * grad log p] of the KL of the next-token distribution, on and
off policy (DeepSeek-V3.2, arXiv 2512.02556, §3.1; TRL's `use_bias_correction_kl`). k2 gets it when r is held
constant; k2 and k3 then have the same gradient at every token. The ratio of a whole sequence is not
suitable: its gradient at one token is 1/T of the ratio's own, so k1 would lose all but 1/T of its gradient.
The limits are:
- The gradient is that of the KL at the prefixes in the batch. How an earlier token changes which prefixes
  are reached, and with them the KL of later tokens, has no part in it. A critic with the KL in its rewards
  accounts for that.
- Off policy, r corrects the choice of the token and not the frequency of its prefix, which stays that of the
  old policy. r is not bounded, so far off policy the variance is large, and k1 and k3 are unbiased only
  where the policy gives every token of the reference's support some probability.
- p_old is the trainer's. Where the sampler's probabilities differ, the KL term is not corrected for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from greenward.config.sections import PolicyGradientConfig
from greenward.models.scoring import TokenScores
from greenward.training.batch import MicroBatch


@dataclass(frozen=True)
class LossOutput:
    """The loss of a micro-batch (its share of the batch's) and detached statistics over its tokens.

    `sums` add up over micro-batches and become means when divided by the number of trained tokens;
    `maxima` combine by maximum.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    maxima: dict[str, Tensor]


# Estimates of the KL to the reference, from l = log p - log p_ref and the ratio r = p / p_old.


def k1(log_ratio_BT: Tensor, importance_BT: Tensor) -> Tensor:
    """r l: may be negative at single tokens."""
    return importance_BT * log_ratio_BT


def k2(log_ratio_BT: Tensor, importance_BT: Tensor) -> Tensor:
    """r l^2 / 2, r held constant: the value is biased, the gradient is not."""
    return importance_BT.detach() * log_ratio_BT.square() / 2


def k3(log_ratio_BT: Tensor, importance_BT: Tensor) -> Tensor:
    """r (exp(-l) - 1 + l): never negative."""
    return importance_BT * ((-log_ratio_BT).exp() - 1 + log_ratio_BT)


KL_ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3}
)


# The ratio between the policy and the old policy, from their log ratio.


def token_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """One ratio a token (PPO)."""
    return log_ratio_BT


def sequence_log_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """One ratio a sequence, the geometric mean over its tokens (GSPO, arXiv 2507.18071, eq. 7)."""
    lengths_B1 = mask_BT.sum(-1, keepdim=True).clamp(min=1)
    return ((log_ratio_BT * mask_BT).sum(-1, keepdim=True) / lengths_B1).expand_as(log_ratio_BT)


# The surrogate: what is minimised at each token, and where its lower and its upper bound stop the gradient.

Surrogate = tuple[Tensor, Tensor, Tensor]


def clipped_ratio(
    ratio_BT: Tensor, logprobs_BT: Tensor, advantages_BT: Tensor, low: float, high: float
) -> Surrogate:
    """-min(ratio * A, clip(ratio, 1 - low, 1 + high) * A) (PPO, arXiv 1707.06347, eq. 7).

    Bounds that differ are DAPO's clip-higher (arXiv 2503.14476, eq. 10).
    """
    values_BT = -torch.min(ratio_BT * advantages_BT, ratio_BT.clamp(1 - low, 1 + high) * advantages_BT)
    below_BT, above_BT = ratio_BT < 1 - low, ratio_BT > 1 + high
    return values_BT, below_BT & (advantages_BT < 0), above_BT & (advantages_BT > 0)


def clipped_weight(
    ratio_BT: Tensor, logprobs_BT: Tensor, advantages_BT: Tensor, low: float, high: float
) -> Surrogate:
    """-stop_gradient(min(ratio, 1 + high)) * A * log p (CISPO, arXiv 2506.13585, eq. 4-5).

    Every token keeps a gradient; only its weight is bounded. There is no lower bound.
    """
    values_BT = -ratio_BT.clamp(max=1 + high).detach() * advantages_BT * logprobs_BT
    return values_BT, torch.zeros_like(ratio_BT, dtype=torch.bool), ratio_BT > 1 + high


def unclipped_ratio(
    ratio_BT: Tensor, logprobs_BT: Tensor, advantages_BT: Tensor, low: float, high: float
) -> Surrogate:
    """-ratio * A: the importance-weighted policy gradient; at ratio 1 its gradient is REINFORCE's."""
    nowhere_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return -ratio_BT * advantages_BT, nowhere_BT, nowhere_BT


def no_surrogate(
    ratio_BT: Tensor, logprobs_BT: Tensor, advantages_BT: Tensor, low: float, high: float
) -> Surrogate:
    """0: a loss of the user's is computed beside it."""
    nowhere_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return torch.zeros_like(ratio_BT), nowhere_BT, nowhere_BT


# The correction for a sampler whose probabilities are not the trainer's.


@dataclass(frozen=True)
class ImportanceCorrection:
    """Weights of the surrogate for tokens that another distribution than the trainer's has drawn.

    With r = p_old / p_sampler of each token, or of the sequence (the product over its trained tokens) at
    `level` "sequence", the `mode` "truncate" gives clip(r, low, high), truncated importance sampling
    (IMPALA, arXiv 1802.01561, eq. 1, bounds c and rho), and "mask" gives r within [low, high] and 0 outside
    of it. The bias of the former is bounded by what was cut off; the latter drops what says too little about
    the policy, at a further loss of data.
    """

    mode: str
    level: str
    low: float
    high: float

    def __call__(self, log_ratio_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (B, T), and where r lies outside of the bounds; `log_ratio_BT` is 0 in the padding."""
        if self.level == "sequence":
            log_ratio_BT = (log_ratio_BT * mask_BT).sum(-1, keepdim=True).expand_as(log_ratio_BT)
        ratio_BT = log_ratio_BT.exp()
        outside_BT = (ratio_BT < self.low) | (ratio_BT > self.high)
        if self.mode == "mask":
            return ratio_BT.masked_fill(outside_BT, 0.0), outside_BT
        return ratio_BT.clamp(self.low, self.high), outside_BT


# The average over the optimizer batch. Values outside the mask are 0.


def mean_of_sequence_means(values_BT: Tensor, batch: MicroBatch) -> Tensor:
    """Every sequence weighs the same, whatever its length (GRPO)."""
    means_B = values_BT.sum(-1) / batch.mask_BT.sum(-1).clamp(min=1)
    return means_B.sum() / max(batch.total_sequences, 1)


def mean_over_limit(values_BT: Tensor, batch: MicroBatch) -> Tensor:
    """Sums over sequences × `sampling.max_tokens`, so that length has no influence (Dr. GRPO)."""
    return values_BT.sum() / (max(batch.total_sequences, 1) * batch.max_completion_tokens)


def mean_over_tokens(values_BT: Tensor, batch: MicroBatch) -> Tensor:
    """Every token of the batch weighs the same (DAPO, arXiv 2503.14476, eq. 12)."""
    return values_BT.sum() / max(batch.total_tokens, 1)


def mean_of_sequence_sums(values_BT: Tensor, batch: MicroBatch) -> Tensor:
    """Sum over the tokens, mean over the sequences: the gradient of the expected return itself."""
    return values_BT.sum() / max(batch.total_sequences, 1)


@dataclass(frozen=True)
class PolicyLoss:
    """One loss: level of the ratio, surrogate, average."""

    log_ratio: Callable[[Tensor, Tensor], Tensor]
    surrogate: Callable[[Tensor, Tensor, Tensor, float, float], Surrogate]
    average: Callable[[Tensor, MicroBatch], Tensor]


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


BESIDE_OWN = PolicyLoss(token_log_ratio, no_surrogate, mean_over_tokens)
"""How the KL and entropy terms beside a loss of the user's are averaged."""


@dataclass(frozen=True)
class Objective:
    """What is minimised at each token: surrogate + `kl_coefficient` * KL - `entropy_coefficient` * entropy.

    `loss` is a name in `LOSSES`; `clip_low` and `clip_high` are its bounds on the ratio. The surrogate is
    multiplied by the weights of `importance`, if it is given; the other terms are not. `own` is a loss of the
    user's (`own.OwnLoss`) in the place of surrogate and average; advantages are multiplied by those weights.
    """

    loss: str
    clip_low: float = 0.2
    clip_high: float = 0.2
    importance: ImportanceCorrection | None = None
    kl_coefficient: float = 0.0
    kl_estimator: str = "k3"
    entropy_coefficient: float = 0.0
    own: Callable[..., Tensor] | None = None

    @classmethod
    def of(
        cls,
        algorithm: PolicyGradientConfig,
        *,
        kl_coefficient: float,
        entropy_coefficient: float,
        own: Callable[..., Tensor] | None = None,
    ) -> Objective:
        """That of a recipe, with the present coefficients."""
        importance = algorithm.importance
        return cls(
            algorithm.loss,
            algorithm.clip_low,
            algorithm.clip_high,
            None if importance is None else ImportanceCorrection(**importance.model_dump()),
            kl_coefficient,
            algorithm.kl.estimator,
            entropy_coefficient,
            own,
        )


def policy_loss(scores: TokenScores, batch: MicroBatch, objective: Objective) -> LossOutput:
    """The loss of one micro-batch: its share of the loss of its minibatch.

    `scores` carry gradients; their entropy is that in nats of the whole next-token distribution that each
    token was drawn from, and needed for an entropy coefficient above 0. All terms are averaged alike. The
    mismatch of sampler and trainer is measured whether or not it is corrected. The KL estimate is weighted by
    the ratio of each token, also where the surrogate's ratio is of the sequence; a KL coefficient above 0
    needs `batch.ref_logprobs_BT`, with which the KL is measured in any case.
    """
    parts = BESIDE_OWN if objective.own else LOSSES[objective.loss]
    mask_BT = batch.mask_BT

    def within(values_BT: Tensor) -> Tensor:
        """Padding may hold anything, infinities included: 0 there keeps every product finite."""
        return values_BT.masked_fill(~mask_BT, 0.0)

    logprobs_BT = within(scores.logprobs_BT)
    old_BT = logprobs_BT.detach() if batch.old_logprobs_BT is None else within(batch.old_logprobs_BT)
    token_log_ratio_BT = logprobs_BT - old_BT
    ratio_BT = parts.log_ratio(token_log_ratio_BT, mask_BT).exp()
    values_BT, low_BT, high_BT = parts.surrogate(
        ratio_BT, logprobs_BT, batch.advantages_BT, objective.clip_low, objective.clip_high
    )
    sums = {
        "ratio/mean": ratio_BT,
        "approx_kl": token_log_ratio_BT.exp() - 1 - token_log_ratio_BT,  # Schulman's k3 of KL(old || policy)
    }
    if not objective.own:
        sums["clip/low"], sums["clip/high"] = low_BT.float(), high_BT.float()
        sums["clip/fraction"] = (low_BT | high_BT).float()
    maxima = {"ratio/max": ratio_BT}
    if batch.sampler_logprobs_BT is not None:
        log_importance_BT = old_BT - within(batch.sampler_logprobs_BT)
        importance_BT = log_importance_BT.exp()
        sums["importance/mean"] = importance_BT
        sums["importance/kl"] = importance_BT - 1 - log_importance_BT
        sums["importance/difference"] = log_importance_BT.abs()
        maxima["importance/max_difference"] = log_importance_BT.abs()
        if objective.importance is not None:
            weights_BT, outside_BT = objective.importance(log_importance_BT, mask_BT)
            values_BT = values_BT * weights_BT
            batch = replace(batch, advantages_BT=batch.advantages_BT * weights_BT)
            sums["importance/outside"] = outside_BT.float()
            sums["importance/mean_corrected"] = weights_BT
    assert objective.kl_coefficient == 0 or batch.ref_logprobs_BT is not None, (
        "a KL term needs ref_logprobs_BT"
    )
    if batch.ref_logprobs_BT is not None:
        log_ratio_BT = logprobs_BT - within(batch.ref_logprobs_BT)
        kl_BT = KL_ESTIMATORS[objective.kl_estimator](log_ratio_BT, token_log_ratio_BT.exp())
        if objective.kl_coefficient > 0:
            values_BT = values_BT + objective.kl_coefficient * kl_BT
        sums["kl"] = kl_BT
    if objective.entropy_coefficient > 0:
        assert scores.entropy_BT is not None, "an entropy coefficient above 0 needs entropies"
        values_BT = values_BT - objective.entropy_coefficient * within(scores.entropy_BT)
    loss = parts.average(values_BT * mask_BT, batch)
    if objective.own:
        optional = {
            "sampler_logprobs_BT": batch.sampler_logprobs_BT,
            "ref_logprobs_BT": batch.ref_logprobs_BT,
            "entropy_BT": scores.entropy_BT,
        }
        loss = loss + objective.own(
            logprobs_BT=logprobs_BT,
            old_logprobs_BT=old_BT,
            **{name: None if one is None else within(one) for name, one in optional.items()},
            advantages_BT=within(batch.advantages_BT),
            mask_BT=mask_BT,
            total_sequences=max(batch.total_sequences, 1),
            total_tokens=max(batch.total_tokens, 1),
            max_completion_tokens=batch.max_completion_tokens,
            clip_low=objective.clip_low,
            clip_high=objective.clip_high,
        )
    return LossOutput(
        loss=loss,
        sums={name: (each_BT.detach() * mask_BT).sum() for name, each_BT in sums.items()},
        maxima={name: (each_BT.detach() * mask_BT).amax() for name, each_BT in maxima.items()},
    )


def value_loss(values_BT: Tensor, batch: MicroBatch, *, clip: float | None) -> LossOutput:
    """Half the squared error of the values, averaged over the trained tokens of the whole batch.

    With `clip` c, the error of a token is the larger one of (V - R)^2 and (V_old + clip(V - V_old, ±c)
    - R)^2, as in the PPO2 of OpenAI Baselines: a value that has moved more than c towards its return
    has no gradient any more. The sums are `value/loss` and `value/clipped`, the share of such tokens.
    """
    old_values_BT, returns_BT = batch.values_BT, batch.returns_BT
    assert old_values_BT is not None and returns_BT is not None, "a critic needs its estimator"
    error_BT = (values_BT - returns_BT).square()
    clipped_BT = torch.zeros_like(batch.mask_BT)
    if clip is not None:
        near_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
        near_error_BT = (near_BT - returns_BT).square()
        clipped_BT = near_error_BT > error_BT
        error_BT = torch.max(error_BT, near_error_BT)
    half_BT = (error_BT / 2).masked_fill(~batch.mask_BT, 0.0)
    return LossOutput(
        loss=half_BT.sum() / max(batch.total_tokens, 1),
        sums={
            "value/loss": half_BT.detach().sum(),
            "value/clipped": (clipped_BT & batch.mask_BT).float().sum(),
        },
        maxima={},
    )
