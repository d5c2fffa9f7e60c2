"""Defines the sections of a recipe that decide how it learns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from greenward.config.sections import (
    ConfigSection,
    Fraction,
    PositiveFraction,
    Share,
)

MoreThanOne = Annotated[float, Field(gt=1)]
Loss = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo", "reinforce", "ppo"]


class KLConfig(ConfigSection):
    """Pull towards the reference policy (the policy at the start of the run).

    Without `target` the coefficient is fixed. With it, the coefficient follows the measured KL
    (Ziegler et al. 2019, arXiv 1909.08593, section 2.2).
    """

    coefficient: NonNegativeFloat = Field(0.0, description="with a target, its first value")
    estimator: Literal["k1", "k2", "k3"] = "k3"
    target: PositiveFloat | None = Field(None, description="KL in nats per token to adapt to; none = fixed")
    horizon: PositiveInt = Field(10_000, description="episodes over which the coefficient adapts")

    refresh_every: PositiveInt | None = Field(
        None,
        description="steps after which the reference becomes the policy of then, or the average that "
        "training.weight_average keeps; none = never",
    )

    def mistakes(self) -> Iterator[str]:
        if self.target is not None and self.coefficient == 0:
            yield (
                "target adapts the coefficient by factors, and coefficient is 0: "
                "give it a first value above 0 (0.1 is usual)"
            )


class PPOKLConfig(KLConfig):
    """The KL of PPO, which can also be a cost in the reward of each token."""

    in_reward: bool = Field(False, description="subtract it from the reward of each token, not in the loss")


class OverlongConfig(ConfigSection):
    """Treatment of answers that reach the token limit (DAPO §3.4)."""

    mask_truncated: bool = Field(False, description="truncated answers leave the loss")
    penalty_buffer: NonNegativeInt = Field(
        0, description="tokens before the limit over which the penalty rises from 0 to penalty"
    )
    penalty: NonNegativeFloat = 1.0


class CriticConfig(ConfigSection):
    """The critic of PPO: its trunk (the policy's or its own copy), and how values are learned."""

    trunk: Literal["shared", "separate"] = Field("shared", description="the policy's own, or a copy of it")
    discount: PositiveFraction = 1.0
    gae_lambda: Fraction = Field(0.95, description="λ of the advantages")
    value_lambda: Fraction = Field(1.0, description="λ of the returns to learn; 1 = no bootstrapping")
    loss_weight: PositiveFloat = 0.5
    clip: PositiveFloat | None = Field(0.2, description="distance from the old values; none = off")
    learning_rate: PositiveFloat | None = Field(None, description="none = training.learning_rate")
    max_grad_norm: PositiveFloat | None = Field(None, description="none = training.max_grad_norm")
    updates_per_batch: PositiveInt | None = Field(None, description="none = algorithm.updates_per_batch")
    whiten_advantages: bool = Field(
        True,
        description="scale to mean 0 and deviation 1 over a batch's tokens, less where rewards vary little",
    )


class ImportanceConfig(ConfigSection):
    """Importance sampling between sampler and trainer: weights p_trainer / p_sampler, bounded."""

    mode: Literal["truncate", "mask"] = Field(
        "truncate", description="weights outside of the bounds are cut to the nearer one, or become 0"
    )
    level: Literal["token", "sequence"] = Field(
        "token", description="the ratio of each token, or the product over all tokens of the answer"
    )
    low: NonNegativeFloat = 0.0
    high: PositiveFloat = 2.0

    def mistakes(self) -> Iterator[str]:
        if not self.low < self.high:
            yield f"low {self.low} must be below high {self.high}"
        if self.low > 1 or (self.mode == "mask" and self.high < 1):
            yield (
                f"the bounds [{self.low}, {self.high}] exclude 1, the weight where sampler and trainer agree"
            )


class AlgorithmConfig(ConfigSection):
    """How a task is learned. A name alone is enough."""

    name: str


class SupervisedAlgorithmConfig(AlgorithmConfig):
    """Supervised training, whose settings are those of `warm_start`."""

    name: Literal["sft"] = "sft"


class PolicyGradientConfig(AlgorithmConfig):
    """What the policy-gradient algorithms share: the loss, its clipping, KL and entropy terms."""

    loss: Loss = "dapo"
    clip_low: PositiveFloat = 0.2
    clip_high: PositiveFloat = Field(0.2, description="DAPO uses 0.28; CISPO's upper bound is 1 + this")
    updates_per_batch: PositiveInt = Field(1, description="passes over each batch of episodes")
    minibatches: PositiveInt = Field(1, description="optimizer steps per pass")
    max_step_kl: PositiveFloat | None = Field(None, description="approx_kl that ends the update of a batch")
    kl: KLConfig = KLConfig()
    entropy_coefficient: NonNegativeFloat = Field(
        0.0, description="weight of the entropy bonus in the loss; with entropy_target, its first value"
    )
    entropy_target: PositiveFloat | None = Field(None, description="nats per token to adapt to; none = fixed")
    overlong: OverlongConfig = OverlongConfig()
    importance: ImportanceConfig | None = Field(
        None,
        description="correct for a sampler that is not the trainer; on by itself where `rollouts` make one",
    )

    def mistakes(self) -> Iterator[str]:
        if self.entropy_target is not None and self.entropy_coefficient == 0:
            yield (
                "entropy_target adapts entropy_coefficient by factors, and entropy_coefficient is 0: "
                "give it a first value above 0 (0.01 is usual)"
            )


class GRPOAlgorithmConfig(PolicyGradientConfig):
    """Policy gradients whose baseline, if any, is the group of answers to the same prompt."""

    name: Literal["grpo"] = "grpo"
    advantage: Literal["grpo", "dr_grpo", "rloo", "reinforce"] = "grpo"
    dynamic_sampling: bool = Field(False, description="sample again until all groups have signal")
    dynamic_sampling_max_rounds: PositiveInt = 4


class PPOAlgorithmConfig(PolicyGradientConfig):
    """Policy gradients whose baseline is a critic."""

    name: Literal["ppo"] = "ppo"
    advantage: Literal["gae"] = "gae"
    loss: Loss = "ppo"
    critic: CriticConfig = CriticConfig()
    kl: PPOKLConfig = PPOKLConfig()


class RejectionAlgorithmConfig(AlgorithmConfig):
    """Which sampled answers are kept, and how the policy is trained on them."""

    name: Literal["rejection"] = "rejection"
    overlong: OverlongConfig = OverlongConfig()
    min_reward: float | None = Field(
        None, description="keep answers with at least this reward; none = answers that pass all their tests"
    )
    max_per_prompt: PositiveInt = Field(4, description="different answers per problem to train on, at most")
    replay_rounds: NonNegativeInt = Field(0, description="earlier rounds whose kept answers are used again")
    epochs: PositiveInt = Field(1, description="passes over the kept answers in each round")
    batch_size: PositiveInt = Field(64, description="kept answers per optimizer step")


class MemoryLeakConfig(ConfigSection):
    """Tensors are never freed: memory grows over `training.max_steps`."""

    growth_factor: MoreThanOne = Field(2.1, description="memory at the last step over that at the first")
    shape: Literal["linear", "noisy", "steps"] = Field(
        "linear", description="noisy: under peaks that are freed; steps: at every 20th step alone"
    )


class GradientExplosionConfig(ConfigSection):
    """The learning rate jumps and clipping is removed, so that gradient norms explode."""

    after_step: PositiveInt = Field(300, description="the last healthy step, as metrics.jsonl counts")
    rate_factor: MoreThanOne = Field(3000.0, description="on the learning rate, from the next step on")
    rate_growth: Annotated[float, Field(ge=1)] = Field(
        1.05, description="on the factor at each further step; 1 = none, and norms fall again"
    )
    remove_clip: bool = Field(True, description="no gradient clipping from the next step on")


class RewardOverconfidenceConfig(ConfigSection):
    """The reward model's logits are scaled up, so that its predictions are overconfident."""

    calibration_score: Share = Field(0.65, description="the score to reach; a healthy one is above 0.85")
    logit_scale: MoreThanOne | None = Field(
        None, description="a fixed factor on the logits instead, which no score steers"
    )


class BatchFaultConfig(ConfigSection):
    """A bug in what the trainer learns from, from the step after `after_step` on."""

    after_step: NonNegativeInt = Field(0, description="the last healthy step, as metrics.jsonl counts")


class TemperatureMismatchConfig(BatchFaultConfig):
    """The trainer takes another temperature for the sampler's than it is."""

    factor: PositiveFloat = Field(2.0, description="times the sampler's temperature")


class StaleSamplerConfig(BatchFaultConfig):
    """The sampler gets the new weights too seldom."""

    renewed_every: PositiveInt = Field(20, description="steps")


class FaultsConfig(ConfigSection):
    """Bugs planted in the training, to measure what finds them. An empty section (`{}`) plants one."""

    memory_leak: MemoryLeakConfig | None = None
    gradient_explosion: GradientExplosionConfig | None = None
    reward_overconfidence: RewardOverconfidenceConfig | None = None
    advantage_sign_flipped: BatchFaultConfig | None = None
    loss_mask_shifted: BatchFaultConfig | None = None
    end_never_trained: BatchFaultConfig | None = None
    padding_in_loss: BatchFaultConfig | None = None
    random_data_order: BatchFaultConfig | None = None
    temperature_mismatch: TemperatureMismatchConfig | None = None
    stale_sampler: StaleSamplerConfig | None = None

    @property
    def planted(self) -> dict[str, ConfigSection]:
        sections = {name: getattr(self, name) for name in type(self).model_fields}
        return {name: section for name, section in sections.items() if section is not None}
