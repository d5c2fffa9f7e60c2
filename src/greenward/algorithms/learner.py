"""One batch of episodes and advantages in, a better policy out, and a better critic if there is one.

The learner is blind to the algorithm: it batches, accumulates, clips and steps; which loss it
minimises is `AlgorithmConfig.loss`, and advantages come ready from an estimator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from greenward.algorithms.advantages import Advantages, Estimate
from greenward.algorithms.batching import (
    Minibatch,
    Row,
    RowGroup,
    has_signal,
    micro_batches,
    minibatches,
    row_groups,
)
from greenward.algorithms.entropy import EntropyControl
from greenward.algorithms.gradients_apart import GradientsApart
from greenward.algorithms.kl import KLControl
from greenward.algorithms.losses import LossInputs, LossOutput, policy_loss
from greenward.algorithms.micro_batches import MicroBatch
from greenward.algorithms.schedules import learning_rate_factor
from greenward.algorithms.seeding import step_seed
from greenward.algorithms.statistics import UpdateStatistics
from greenward.algorithms.value_loss import value_loss
from greenward.config.algorithm import AlgorithmConfig, PPOAlgorithmConfig
from greenward.config.sections import TrainingConfig
from greenward.environments.episode import Episode
from greenward.errors import ConfigError
from greenward.policies.heads import Critic
from greenward.policies.policy import Policy
from greenward.policies.scoring import TokenScores


class Learner:
    """Updates a policy with AdamW from episodes and their advantages.

    `max_completion_tokens` is the sampler's limit, by which Dr. GRPO divides. `reference_policy`
    is needed when the loss has a KL term (`algorithm.kl.coefficient` above 0, not `in_reward`); it
    is only read. `kl_control` is shared with an estimator that has the KL in its rewards. `seed`
    determines the order of the minibatches.

    A `critic` learns the returns that its estimator gives. Its gradient is clipped apart from the
    policy's. On a trunk that both share, each of the two gradients is clipped by its own norm and their
    sum is applied, so that neither can shrink the other. Where the policy takes no step, because
    `max_step_kl` has ended its update or it has done all its passes, the critic goes on with the weights
    that are its own: a shared trunk rests, since moving it would move the policy.

    Public and read at each update: `learning_rate_scale` multiplies the scheduled learning rate,
    `max_grad_norm` bounds the norm of the policy's gradient, and of the critic's where the recipe names no
    bound for it (`math.inf`: no clipping).
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
        seed: int = 0,
    ) -> None:
        ppo = algorithm if isinstance(algorithm, PPOAlgorithmConfig) else None
        kl_in_loss = algorithm.kl.coefficient > 0 and not (ppo and ppo.kl.in_reward)
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
        self._critic_config = ppo.critic if ppo is not None else None
        self._kl_control = kl_control or KLControl(algorithm.kl)
        self._entropy_control = EntropyControl(algorithm.entropy_coefficient, algorithm.entropy_target)
        self._seed = seed
        self.learning_rate_scale = 1.0
        self.max_grad_norm = training.max_grad_norm
        self._policy_parameters = [p for p in policy.parameters() if p.requires_grad]
        groups = [{"params": self._policy_parameters}]
        self._peak_rates = [training.learning_rate]
        self._critic_parameters: list[torch.nn.Parameter] = []
        self._shared_trunk = self._policy_parameters if critic is not None and critic.reads_policy else []
        if critic is not None and self._critic_config is not None:
            self._critic_parameters = list(critic.parameters())
            groups.append({"params": self._critic_parameters})
            self._peak_rates.append(self._critic_config.learning_rate or training.learning_rate)
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

        `temperature` is the one the episodes were sampled at. Groups without signal are left out unless
        a critic, a KL term or an entropy bonus gives them a gradient. If nothing has a gradient, nothing
        is updated and the metrics hold counts, entropy and learning rate. An optimizer step whose
        gradient is not finite is skipped and counted in `updates/non_finite`. With
        `algorithm.max_step_kl`, the first minibatch on which the policy has moved further than that from
        the one before the update ends the policy's update, and no step of the policy is taken on it (as
        in Spinning Up); the critic's passes are not affected.
        """
        estimate = advantages if isinstance(advantages, Estimate) else Estimate(advantages)
        rate = self._set_learning_rate(step)
        all_groups = self._reference is not None or self._algorithm.entropy_coefficient > 0
        groups, left_out = row_groups(
            episodes, estimate, mask_truncated=self._algorithm.overlong.mask_truncated
        )
        trained = [group for group in groups if group and (all_groups or has_signal(group))]
        if not all_groups:
            left_out += [row for group in groups if not has_signal(group) for row in group]
        passes = self._algorithm.updates_per_batch
        critic_passes = self._critic_passes()
        count = self._algorithm.minibatches
        groups = self._score(groups, temperature, off_policy=passes * count > 1, all_groups=all_groups)
        if self._critic is not None:  # its baseline is not of the group, which may therefore be split
            groups = [[row] for group in groups for row in group]
        statistics = UpdateStatistics()
        self._measure_entropy((micro for _, micro in self._micro_batches(left_out)), temperature, statistics)
        stopped_early = False
        for number in range(max(passes, critic_passes)):
            if number == 0 or count > 1:
                batches = self._minibatches(groups, step, number, all_groups=all_groups)
            for batch, micros in batches:
                stopped_early |= not self._optimizer_step(
                    batch,
                    micros,
                    temperature,
                    statistics,
                    policy_learns=number < passes and not stopped_early,
                    critic_learns=number < critic_passes,
                    first_pass=number == 0,
                )
        if statistics.policy_steps:
            self._policy.version += 1
        metrics = {
            "learning_rate": rate,
            "groups/trained": float(len(trained)),
            "tokens/trained": float(sum(int(row.trained_T.sum()) for group in trained for row in group)),
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
        if self._algorithm.entropy_coefficient > 0:
            metrics["entropy/coefficient"] = self._entropy_control.coefficient
            if "entropy" in metrics:
                self._entropy_control.update(metrics["entropy"])
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs beside the policy's weights."""
        state = {
            "optimizer": self._optimizer.state_dict(),
            "kl": self._kl_control.state_dict(),
            "entropy": self._entropy_control.state_dict(),
        }
        return state if self._critic is None else state | {"critic": self._critic.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
        self._kl_control.load_state_dict(state["kl"])
        self._entropy_control.load_state_dict(state["entropy"])
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

    def _critic_passes(self) -> int:
        if self._critic is None or self._critic_config is None:
            return 0
        return self._critic_config.updates_per_batch or self._algorithm.updates_per_batch

    def _score(
        self, groups: Sequence[RowGroup], temperature: float, *, off_policy: bool, all_groups: bool
    ) -> list[RowGroup]:
        """The rows with the log-probabilities that stay fixed during the update.

        The policy's own are needed only if it will have moved before the last of them is used, and
        scored only if the estimator has not done so.
        """
        rows = [row for group in groups if all_groups or has_signal(group) for row in group]
        old: dict[int, np.ndarray] = {}
        ref: dict[int, np.ndarray] = {}
        if off_policy and any(row.old_logprobs_T is None for row in rows):
            old = self._logprobs(self._policy, rows, temperature)
        if self._reference is not None:
            ref = self._logprobs(self._reference, rows, temperature)

        def scored(row: Row) -> Row:
            old_T = old.get(id(row), row.old_logprobs_T) if off_policy else None
            return replace(row, old_logprobs_T=old_T, ref_logprobs_T=ref.get(id(row)))

        return [[scored(row) for row in group] for group in groups]

    def _micro_batches(self, rows: Sequence[Row]) -> Iterable[tuple[list[Row], MicroBatch]]:
        """Micro-batches, each with its rows in the order of its tensors."""
        for sharers in micro_batches(rows, self._training.micro_batch_sequences):
            micro = MicroBatch.build(
                sharers, pad_id=self._policy.tokenizer.pad_id, device=self._policy.device
            )
            yield [row for rows_of_prompt in sharers for row in rows_of_prompt], micro

    @torch.no_grad()
    def _logprobs(self, policy: Policy, rows: Sequence[Row], temperature: float) -> dict[int, np.ndarray]:
        """The log-probabilities (T,) of each row's tokens, by the row's id."""
        found: dict[int, np.ndarray] = {}
        for ordered, micro in self._micro_batches(rows):
            logprobs_BT = policy.completion_logprobs(micro.groups, temperature=temperature).logprobs_BT
            for row, logprobs_T in zip(ordered, logprobs_BT.float().cpu().numpy(), strict=True):
                found[id(row)] = logprobs_T[: len(row.trained_T)]
        return found

    @torch.no_grad()
    def _measure_entropy(
        self, micros: Iterable[MicroBatch], temperature: float, statistics: UpdateStatistics
    ) -> None:
        """Entropy of answers without a gradient of the policy: the metric is of all scored answers."""
        for micro in micros:
            scores = self._policy.completion_logprobs(micro.groups, temperature=temperature, entropy=True)
            _add_entropy(scores, micro, statistics)

    def _minibatches(
        self, groups: Sequence[RowGroup], step: int, number: int, *, all_groups: bool
    ) -> list[tuple[Minibatch, list[MicroBatch]]]:
        """The minibatches of pass `number`, shuffled anew for each; whole groups are in order at first."""
        in_order = number == 0 and self._critic is None
        batches = minibatches(
            groups,
            count=self._algorithm.minibatches,
            max_completion_tokens=self._max_completion_tokens,
            all_groups=all_groups,
            shuffle_seed=None if in_order else step_seed(self._seed, step, f"minibatches/{number}"),
        )
        return [(batch, [micro for _, micro in self._micro_batches(batch.rows)]) for batch in batches]

    def _optimizer_step(
        self,
        batch: Minibatch,
        micros: Sequence[MicroBatch],
        temperature: float,
        statistics: UpdateStatistics,
        *,
        policy_learns: bool,
        critic_learns: bool,
        first_pass: bool,
    ) -> bool:
        """One step on a minibatch; False, and no step of the policy, if the policy has moved too far."""
        self._optimizer.zero_grad()
        trunk = self._shared_trunk if policy_learns else []
        value_gradients = GradientsApart(trunk)
        losses, moved, tokens = [], [], []
        for micro in micros:
            scores, hidden_SE = self._forward(micro, temperature, policy_learns)
            if critic_learns:
                value = self._value_loss(micro, batch, hidden_SE)
                with value_gradients:
                    value.loss.backward(retain_graph=bool(trunk))
                losses.append(value.loss.detach())
                statistics.add(value.sums, micro.mask_BT)
            if scores is not None:
                output = self._policy_loss(micro, batch, scores)
                output.loss.backward()
                losses.append(output.loss.detach())
                moved.append(output.sums["approx_kl"])
                tokens.append(micro.mask_BT.sum())
                statistics.add(output.sums, micro.mask_BT)
                statistics.add_maxima(output.maxima)
                if first_pass:
                    _add_entropy(scores, micro, statistics)
        if first_pass and not policy_learns:  # its update has ended early: the metric is of all answers
            self._measure_entropy(micros, temperature, statistics)
        within = True
        if policy_learns:
            statistics.add_loss(torch.stack(losses).sum())
            limit = self._algorithm.max_step_kl
            within = limit is None or not torch.stack(moved).sum() / torch.stack(tokens).sum() > limit
        self._apply(value_gradients, trunk, statistics, policy=policy_learns and within, critic=critic_learns)
        return within

    def _apply(
        self,
        value_gradients: GradientsApart,
        trunk: Sequence[Tensor],
        statistics: UpdateStatistics,
        *,
        policy: bool,
        critic: bool,
    ) -> None:
        """Clip the gradients of those that learn, each by its own norm, and step if all are finite."""
        norms: dict[str, float] = {}
        if policy:
            norms["policy"] = float(clip_grad_norm_(self._policy_parameters, self.max_grad_norm))
        else:
            for parameter in self._policy_parameters:
                parameter.grad = None
        if critic:
            limit = (self._critic_config and self._critic_config.max_grad_norm) or self.max_grad_norm
            with value_gradients:
                parameters = [*trunk, *self._critic_parameters] if policy else self._critic_parameters
                norms["critic"] = float(clip_grad_norm_(parameters, limit))
        if policy:
            value_gradients.merge()
        finite = all(math.isfinite(norm) for norm in norms.values())
        if norms:
            if finite:
                self._optimizer.step()
            statistics.add_step(norms, applied=finite)
        self._optimizer.zero_grad()

    def _forward(
        self, micro: MicroBatch, temperature: float, policy_learns: bool
    ) -> tuple[TokenScores | None, Tensor | None]:
        """The policy's scores if it learns, and the hidden states that the critic reads, if it reads them.

        If the policy does not learn, the hidden states have no gradient.
        """
        critic_reads = self._critic is not None and self._critic.reads_policy
        if policy_learns:
            scores = self._policy.completion_logprobs(
                micro.groups, temperature=temperature, entropy=True, hidden=critic_reads
            )
            return scores, scores.hidden_SE
        with torch.no_grad():
            return None, self._policy.completion_hidden(micro.groups) if critic_reads else None

    def _policy_loss(self, micro: MicroBatch, batch: Minibatch, scores: TokenScores) -> LossOutput:
        return policy_loss(
            LossInputs(
                logprobs_BT=scores.logprobs_BT.float(),
                advantages_BT=micro.advantages_BT,
                mask_BT=micro.mask_BT,
                old_logprobs_BT=micro.old_logprobs_BT,
                ref_logprobs_BT=micro.ref_logprobs_BT,
                sampler_logprobs_BT=micro.sampler_logprobs_BT,
                entropy_BT=scores.entropy_BT,
            ),
            batch.totals,
            self._algorithm,
            kl_coefficient=0.0 if self._reference is None else self._kl_control.coefficient,
            entropy_coefficient=self._entropy_control.coefficient,
        )

    def _value_loss(self, micro: MicroBatch, batch: Minibatch, hidden_SE: Tensor | None) -> LossOutput:
        """The critic's loss with its weight."""
        critic, section = self._critic, self._critic_config
        assert critic is not None and section is not None
        assert micro.values_BT is not None and micro.returns_BT is not None, "a critic needs an Estimate"
        output = value_loss(
            critic(micro.groups, hidden_SE),
            micro.values_BT,
            micro.returns_BT,
            micro.mask_BT,
            batch.totals,
            clip=section.clip,
        )
        return replace(output, loss=section.loss_weight * output.loss)


def _add_entropy(scores: TokenScores, micro: MicroBatch, statistics: UpdateStatistics) -> None:
    assert scores.entropy_BT is not None
    entropy = scores.entropy_BT.detach().masked_fill(~micro.mask_BT, 0.0).sum()
    statistics.add({"entropy": entropy}, micro.mask_BT)
