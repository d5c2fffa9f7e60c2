"""One batch of episodes and advantages in, a better policy out, and a better critic if there is one.

The learner is blind to the algorithm: it batches, accumulates, clips and steps; which loss it
minimises is `AlgorithmConfig.loss`, and advantages come ready from an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from greenward.algorithms.advantages import Advantages, Estimate
from greenward.algorithms.batching import Minibatch, micro_batches, minibatches
from greenward.algorithms.kl import KLControl
from greenward.algorithms.losses import LossInputs, policy_loss
from greenward.algorithms.micro_batches import MicroBatch
from greenward.algorithms.schedules import learning_rate_factor
from greenward.algorithms.statistics import UpdateStatistics
from greenward.algorithms.value_loss import value_loss
from greenward.config.algorithm import AlgorithmConfig
from greenward.config.schema import TrainingConfig
from greenward.environments.episode import Episode
from greenward.errors import ConfigError
from greenward.policies.critic import Critic
from greenward.policies.policy import Policy


class Learner:
    """Updates a policy with AdamW from episodes and their advantages.

    `max_completion_tokens` is the sampler's limit, by which Dr. GRPO divides. `reference_policy`
    is needed when the loss has a KL term (`algorithm.kl.coefficient` above 0, not `in_reward`); it
    is only read. A `critic` learns the returns that its estimator gives, by one gradient with the
    policy. `kl_control` is shared with an estimator that has the KL in its rewards.

    Public and read at each update: `learning_rate_scale` multiplies the scheduled learning rate,
    `max_grad_norm` bounds the gradient's norm (`math.inf`: no clipping).
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: AlgorithmConfig,
        training: TrainingConfig,
        *,
        max_completion_tokens: int,
        reference_policy: Policy | None = None,
        critic: Critic | None = None,
        kl_control: KLControl | None = None,
    ) -> None:
        kl_in_loss = algorithm.kl.coefficient > 0 and not algorithm.kl.in_reward
        if kl_in_loss and reference_policy is None:
            raise ConfigError(
                f"algorithm.kl.coefficient is {algorithm.kl.coefficient}, but there is no reference policy.",
                remedy="Give the learner a reference_policy, or set algorithm.kl.coefficient to 0.",
            )
        self._policy = policy
        self._algorithm = algorithm
        self._training = training
        self._max_completion_tokens = max_completion_tokens
        self._reference = reference_policy if kl_in_loss else None
        self._critic = critic
        self._kl_control = kl_control or KLControl(algorithm.kl)
        self.learning_rate_scale = 1.0
        self.max_grad_norm = training.max_grad_norm
        groups = [{"params": [p for p in policy.parameters() if p.requires_grad]}]
        self._peak_rates = [training.learning_rate]
        if critic is not None and algorithm.critic is not None:
            groups.append({"params": list(critic.parameters())})
            self._peak_rates.append(algorithm.critic.learning_rate or training.learning_rate)
        self._parameters = [parameter for group in groups for parameter in group["params"]]
        self._optimizer = torch.optim.AdamW(
            groups,
            lr=training.learning_rate,
            betas=training.adam_betas,
            weight_decay=training.weight_decay,
            fused=True,
        )

    def update(
        self, episodes: Sequence[Episode], advantages: Advantages | Estimate, *, step: int, temperature: float
    ) -> dict[str, float]:
        """Train on one batch of episodes; the metrics of it, those of an `Estimate` included.

        `temperature` is the one the episodes were sampled at. Without any group that has signal
        nothing is updated and the metrics hold only counts and the learning rate. An optimizer
        step whose gradient is not finite is skipped and counted in `updates/non_finite`. With
        `algorithm.max_step_kl`, the first minibatch on which the policy has moved further than
        that from the one before the update ends it, and no step is taken on it (as in Spinning Up).
        """
        estimate = advantages if isinstance(advantages, Estimate) else Estimate(advantages)
        rate = self._set_learning_rate(step)
        batches = minibatches(
            episodes,
            estimate,
            count=self._algorithm.minibatches,
            max_completion_tokens=self._max_completion_tokens,
            mask_truncated=self._algorithm.overlong.mask_truncated,
        )
        batches = [batch for batch in batches if batch.rows]
        passes = self._algorithm.updates_per_batch
        off_policy = passes * len(batches) > 1
        prepared = [self._prepare(batch, temperature, off_policy=off_policy) for batch in batches]
        statistics = UpdateStatistics()
        stopped_early = not all(
            self._optimizer_step(batch, micro, temperature, statistics)
            for _ in range(passes)
            for batch, micro in zip(batches, prepared, strict=True)
        )
        if statistics.applied:
            self._policy.version += 1
        metrics = {
            "learning_rate": rate,
            "groups/trained": float(sum(batch.groups for batch in batches)),
            "tokens/trained": float(sum(int(row.trained_T.sum()) for b in batches for row in b.rows)),
            **estimate.metrics,
            **statistics.metrics(),
        }
        if self._algorithm.max_step_kl is not None:
            metrics["updates/stopped_early"] = float(stopped_early)
        if self._algorithm.kl.coefficient > 0:
            metrics["kl/coefficient"] = self._kl_control.coefficient
            if "kl" in metrics:
                scored = sum(episode.scored for episode in episodes)
                self._kl_control.update(metrics["kl"], episodes=scored)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs beside the policy's weights."""
        state = {"optimizer": self._optimizer.state_dict(), "kl": self._kl_control.state_dict()}
        return state if self._critic is None else state | {"critic": self._critic.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._kl_control.load_state_dict(state["kl"])
        if self._critic is not None:
            self._critic.load_state_dict(state["critic"])

    def _set_learning_rate(self, step: int) -> float:
        """Set all rates for this step; the policy's."""
        training = self._training
        factor = self.learning_rate_scale * learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps
        )
        for group, peak in zip(self._optimizer.param_groups, self._peak_rates, strict=True):
            group["lr"] = peak * factor
        return training.learning_rate * factor

    def _prepare(self, batch: Minibatch, temperature: float, *, off_policy: bool) -> list[MicroBatch]:
        """Micro-batches as tensors, with the log-probabilities that stay fixed during the update.

        The policy's own are needed only if it will have moved before the last of them is used, and
        scored only if the estimator has not done so.
        """
        prepared = []
        for groups in micro_batches(batch.rows, self._training.micro_batch_sequences):
            micro = MicroBatch.build(groups, pad_id=self._policy.tokenizer.pad_id, device=self._policy.device)
            if not off_policy:
                micro = replace(micro, old_logprobs_BT=None)
            elif micro.old_logprobs_BT is None:
                micro = replace(micro, old_logprobs_BT=_score(self._policy, micro, temperature))
            if self._reference is not None:
                micro = replace(micro, ref_logprobs_BT=_score(self._reference, micro, temperature))
            prepared.append(micro)
        return prepared

    def _optimizer_step(
        self,
        batch: Minibatch,
        prepared: Sequence[MicroBatch],
        temperature: float,
        statistics: UpdateStatistics,
    ) -> bool:
        """One step on a minibatch; False, and no step, if the policy has moved too far already."""
        self._optimizer.zero_grad()
        for micro in prepared:
            self._backward(micro, batch, temperature, statistics)
        statistics.close_minibatch()
        limit = self._algorithm.max_step_kl
        if limit is not None and statistics.last_minibatch_mean("approx_kl") > limit:
            self._optimizer.zero_grad()
            return False
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.max_grad_norm))
        finite = math.isfinite(norm)
        if finite:
            self._optimizer.step()
        self._optimizer.zero_grad()
        statistics.add_step(norm, applied=finite)
        return True

    def _backward(
        self, micro: MicroBatch, batch: Minibatch, temperature: float, statistics: UpdateStatistics
    ) -> None:
        """Add the gradient of a micro-batch's losses."""
        critic, section = self._critic, self._algorithm.critic
        scores = self._policy.completion_logprobs(
            micro.groups,
            temperature=temperature,
            entropy=True,
            hidden=critic is not None and critic.reads_policy,
        )
        output = policy_loss(
            LossInputs(
                logprobs_BT=scores.logprobs_BT.float(),
                advantages_BT=micro.advantages_BT,
                mask_BT=micro.mask_BT,
                old_logprobs_BT=micro.old_logprobs_BT,
                ref_logprobs_BT=micro.ref_logprobs_BT,
                sampler_logprobs_BT=micro.sampler_logprobs_BT,
            ),
            batch.totals,
            self._algorithm,
            kl_coefficient=0.0 if self._reference is None else self._kl_control.coefficient,
        )
        loss, sums = output.loss, dict(output.sums)
        if critic is not None and section is not None:
            assert micro.values_BT is not None and micro.returns_BT is not None, "a critic needs an Estimate"
            of_critic = value_loss(
                critic(micro.groups, scores.hidden_SE),
                micro.values_BT,
                micro.returns_BT,
                micro.mask_BT,
                batch.totals,
                clip=section.clip,
            )
            loss = loss + section.loss_weight * of_critic.loss
            sums |= of_critic.sums
        loss.backward()
        assert scores.entropy_BT is not None
        sums["entropy"] = scores.entropy_BT.detach().masked_fill(~micro.mask_BT, 0.0).sum()
        statistics.add(loss, sums, output.maxima, micro.mask_BT)


@torch.no_grad()
def _score(policy: Policy, micro: MicroBatch, temperature: float) -> Tensor:
    return policy.completion_logprobs(micro.groups, temperature=temperature).logprobs_BT.float()
