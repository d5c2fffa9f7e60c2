"""What tests of trainers and losses share: episodes from rewards, trainers without an environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from greenward.config.sections import (
    GRPOAlgorithmConfig,
    PolicyGradientConfig,
    PPOAlgorithmConfig,
    ShapeConfig,
    TrainingConfig,
)
from greenward.grading.verdict import Family, Status, Verdict
from greenward.models.heads import Critic
from greenward.models.policy import Policy
from greenward.models.scoring import TokenScores
from greenward.rollouts.protocols import Episode, StopReason, Turn
from greenward.training.advantages import ESTIMATORS
from greenward.training.batch import MicroBatch
from greenward.training.losses import LossOutput, Objective, policy_loss
from greenward.training.optim import KLCoefficient
from greenward.training.ppo import CriticEstimator, PPOTrainer
from greenward.training.trainer import RLTrainer


class NoCollector:
    """The collector of a trainer whose updates are called with episodes made beforehand."""

    players: Mapping[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


VOCABULARY = 11
TINY_SHAPE = ShapeConfig(
    layers=1, hidden_size=16, heads=2, kv_heads=2, intermediate_size=32, max_positions=64
)


def tiny_policy(seed: int = 0) -> Policy:
    """A decoder of 11 tokens, of which 0 ends an answer."""
    tokenizer: Any = SimpleNamespace(vocab_size=VOCABULARY, pad_id=0, eos_ids=[0])
    return Policy.random(TINY_SHAPE, tokenizer, seed=seed, device="cpu")


def make_turn(prompt: Sequence[int], completion: Any, **changes: Any) -> Turn:
    """A turn of the role programmer that the policy wrote, with log-probabilities 0."""
    completion_ids = np.asarray(completion)
    length = len(completion_ids)
    fields: dict[str, Any] = {
        "role": "programmer",
        "logprobs_T": np.zeros(length, dtype=np.float32),
        "policy_wrote_T": np.ones(length, dtype=bool),
        "stop_reason": StopReason.END,
        "policy_version": 0,
    }
    return Turn(prompt_ids=tuple(prompt), completion_ids=completion_ids, **(fields | changes))


def judged_episode(
    turns: tuple[Turn, ...], rewards: Mapping[str, float], group: int = 0, status: Status = Status.FAILED
) -> Episode:
    return Episode(
        turns,
        rewards,
        group_id=group,
        task_id="p",
        outcome=status.value,
        success=status is Status.PASSED,
        scored=status.family is not Family.INFRASTRUCTURE,
        verdict=Verdict(status),
    )


def make_trainer(
    policy: Any,
    algorithm: PolicyGradientConfig | None,
    training: TrainingConfig,
    kind: type[RLTrainer] = RLTrainer,
    **parts: Any,
) -> RLTrainer:
    parts = {"max_completion_tokens": 8, **parts}
    config = algorithm or GRPOAlgorithmConfig()
    return kind(policy, NoCollector(), ESTIMATORS["grpo"], config, training, **parts)  # type: ignore[arg-type]


class PPOAgent:
    """Policy, critic, estimator and trainer, as a recipe of kind ppo puts them together."""

    def __init__(
        self,
        policy: Policy,
        algorithm: dict[str, Any] | None,
        training: dict[str, Any],
        *,
        max_completion_tokens: int = 8,
    ) -> None:
        self.policy = policy
        config = PPOAlgorithmConfig.model_validate(algorithm or {})
        training_config = TrainingConfig.model_validate(training)
        kl = config.kl
        reference = policy.frozen_copy() if kl.coefficient > 0 else None
        self.critic = Critic(policy, separate_trunk=config.critic.trunk == "separate")
        coefficient = KLCoefficient(kl.coefficient, target=kl.target, horizon=kl.horizon)
        self.estimator = CriticEstimator(
            policy,
            self.critic,
            config.critic,
            kl,
            coefficient,
            micro_batch_sequences=training_config.micro_batch_sequences,
            reference=reference,
        )
        self.trainer = make_trainer(
            policy,
            config,
            training_config,
            PPOTrainer,
            reference=reference,
            kl_in_loss=not kl.in_reward,
            kl_coefficient=coefficient,
            critic=self.critic,
            critic_config=config.critic,
            max_completion_tokens=max_completion_tokens,
        )

    def update(self, episodes: list[Episode], step: int) -> dict[str, float]:
        return self.trainer.update(episodes, self.estimator(episodes), step)


@dataclass(frozen=True)
class LossInputs:
    """The tensors of one micro-batch, all of shape (B, T)."""

    logprobs_BT: Tensor
    advantages_BT: Tensor
    mask_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    sampler_logprobs_BT: Tensor | None = None
    entropy_BT: Tensor | None = None


UNREAD: Any = None
"""The layout of a batch whose log-probabilities are given."""


def loss_of(inputs: LossInputs, totals: tuple[int, int, int], algorithm: PolicyGradientConfig) -> LossOutput:
    """The loss with the numbers of `algorithm`; `totals` are sequences, tokens, and the limit of tokens."""
    batch = MicroBatch(
        UNREAD,
        inputs.advantages_BT,
        inputs.mask_BT,
        *totals,
        inputs.sampler_logprobs_BT,
        inputs.old_logprobs_BT,
        inputs.ref_logprobs_BT,
    )
    objective = Objective.of(
        algorithm,
        kl_coefficient=algorithm.kl.coefficient,
        entropy_coefficient=algorithm.entropy_coefficient,
    )
    return policy_loss(TokenScores(inputs.logprobs_BT, inputs.entropy_BT), batch, objective)
