"""The section `algorithm`: advantage estimator, loss, critic, KL and what is done with long answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from greenward.config.section import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


class KLConfig(Section):
    """Pull towards the reference policy (the policy at the start of the run).

    Without `target` the coefficient is fixed. With it, the coefficient follows the measured KL
    (Ziegler et al. 2019, arXiv 1909.08593, section 2.2).
    """

    coefficient: NonNegativeFloat = Field(0.0, description="with a target, only the first one")
    estimator: Literal["k1", "k2", "k3"] = "k3"
    in_reward: bool = Field(
        False, description="subtract it from the reward of each token (kind: ppo), not in the loss"
    )
    target: PositiveFloat | None = Field(
        None, description="nats per token that the coefficient is steered to; none = fixed coefficient"
    )
    horizon: PositiveInt = Field(
        10_000, description="episodes over which the coefficient adapts; larger is slower"
    )

    @model_validator(mode="after")
    def _can_adapt(self) -> KLConfig:
        if self.target is not None and self.coefficient == 0:
            raise ValueError(
                "target adapts the coefficient by factors, and coefficient is 0: "
                "give it a first value above 0 (0.1 is usual)"
            )
        return self


class OverlongConfig(Section):
    """What happens to answers that hit the token limit (DAPO §3.4)."""

    mask_truncated: bool = Field(False, description="truncated answers leave the loss")
    penalty_buffer: NonNegativeInt = Field(
        0, description="tokens before the limit over which the penalty rises from 0 to penalty"
    )
    penalty: NonNegativeFloat = 1.0


class CriticConfig(Section):
    """The critic of `kind: ppo`: what values are computed from and how they are learned."""

    trunk: Literal["shared", "separate"] = Field(
        "shared",
        description="shared: a head on the policy's hidden states; separate: on those of a copy of its own",
    )
    discount: Annotated[float, Field(gt=0, le=1)] = 1.0
    gae_lambda: Fraction = Field(0.95, description="λ of the advantages")
    value_lambda: Fraction = Field(
        1.0, description="λ of the returns that the critic learns; 1 = rewards alone, not its own guesses"
    )
    loss_weight: PositiveFloat = 0.5
    clip: PositiveFloat | None = Field(
        0.2, description="how far values move from the old ones before the loss is clipped; none = off"
    )
    learning_rate: PositiveFloat | None = Field(
        None, description="of the head and of a separate trunk; none = training.learning_rate"
    )
    max_grad_norm: PositiveFloat | None = Field(
        None, description="of the gradient of the value loss; none = training.max_grad_norm"
    )
    updates_per_batch: PositiveInt | None = Field(
        None, description="passes of the critic over each batch; none = algorithm.updates_per_batch"
    )
    whiten_advantages: bool = Field(
        True,
        description="to mean 0 and deviation 1 over each batch's tokens, or less where rewards vary little",
    )


class AlgorithmConfig(Section):
    """How reward becomes gradient: an advantage estimator, a loss, and a few numbers."""

    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce", "gae"] = Field(
        "grpo", description="gae needs kind: ppo, whose default it is"
    )
    loss: Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "ppo"] = Field(
        "dapo", description="kind: ppo has the default ppo"
    )
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = Field(0.2, description="DAPO uses 0.28; CISPO's upper bound is 1 + this")
    updates_per_batch: PositiveInt = Field(1, description="passes over each batch of episodes")
    minibatches: PositiveInt = Field(1, description="optimizer steps per pass")
    max_step_kl: PositiveFloat | None = Field(
        None, description="approx_kl of a minibatch above which the policy's update of the batch ends"
    )
    critic: CriticConfig | None = Field(None, description="kind: ppo only, where it is always on")
    kl: KLConfig = KLConfig()
    entropy_coefficient: NonNegativeFloat = Field(
        0.0,
        description="weight of the entropy bonus in the loss; with entropy_target, only the first one",
    )
    entropy_target: PositiveFloat | None = Field(
        None, description="nats per token that entropy_coefficient is steered to; none = fixed coefficient"
    )
    dynamic_sampling: bool = Field(
        False, description="resample until the batch is full of groups with signal"
    )
    dynamic_sampling_max_rounds: PositiveInt = 4
    overlong: OverlongConfig = OverlongConfig()
    importance_cap: PositiveFloat | None = Field(
        None, description="truncated importance sampling between sampler and trainer, capped here"
    )

    @model_validator(mode="after")
    def _can_steer_entropy(self) -> AlgorithmConfig:
        if self.entropy_target is not None and self.entropy_coefficient == 0:
            raise ValueError(
                "entropy_target adapts entropy_coefficient by factors, and entropy_coefficient is 0: "
                "give it a first value above 0 (0.01 is usual)"
            )
        return self
