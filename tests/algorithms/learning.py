"""What tests of trainers and losses share: episodes from rewards, trainers without an environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from greenward.algorithms.advantages import ESTIMATORS
from greenward.algorithms.batches import BatchTotals, TrainingBatch
from greenward.algorithms.losses import LossOutput, policy_loss
from greenward.algorithms.trainer import RLTrainer
from greenward.config.algorithm import AlgorithmConfig, GRPOAlgorithmConfig
from greenward.config.sections import TrainingConfig
from greenward.environments.episode import Episode, Turn
from greenward.grading.verdict import Family, Status, Verdict


class NoCollector:
    """The collector of a trainer whose updates are called with episodes made beforehand."""

    players: Mapping[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


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
    policy: Any, algorithm: AlgorithmConfig | None, training: TrainingConfig, **parts: Any
) -> RLTrainer:
    parts = {"max_completion_tokens": 8, **parts}
    config = algorithm or GRPOAlgorithmConfig()
    return RLTrainer(policy, NoCollector(), ESTIMATORS["grpo"], config, training, **parts)  # type: ignore[arg-type]


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


def loss_of(inputs: LossInputs, totals: BatchTotals, algorithm: AlgorithmConfig) -> LossOutput:
    """The loss with the numbers of `algorithm`."""
    batch = TrainingBatch(
        inputs.advantages_BT,
        inputs.mask_BT,
        inputs.sampler_logprobs_BT,
        inputs.old_logprobs_BT,
        inputs.ref_logprobs_BT,
    )
    return policy_loss(
        inputs.logprobs_BT,
        batch,
        totals,
        loss=algorithm.loss,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
        importance_cap=algorithm.importance_cap,
        kl_coefficient=algorithm.kl.coefficient,
        kl_estimator=algorithm.kl.estimator,
        entropy_coefficient=algorithm.entropy_coefficient,
        entropy_BT=inputs.entropy_BT,
    )
