"""The trainer of reinforcement learning: collect, estimate, minibatches, loss, step, sync, record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from greenward.common.errors import ConfigError
from greenward.common.seeding import step_seed
from greenward.config.sections import TrainingConfig
from greenward.config.training import AlgorithmConfig, CriticConfig
from greenward.models.heads import Critic
from greenward.models.policy import Policy
from greenward.models.scoring import TokenScores
from greenward.rollouts.episode import Episode
from greenward.training.advantages import AdvantageBatch, Estimator
from greenward.training.batch import (
    Minibatch,
    RowGroup,
    TrainingBatch,
    TrainingRow,
    has_signal,
    minibatches,
    row_groups,
    row_scores,
    training_batches,
)
from greenward.training.collector import Collector
from greenward.training.loop import StepRecord
from greenward.training.losses import ImportanceCorrection, LossOutput, policy_loss, value_loss
from greenward.training.optim import (
    EntropyCoefficient,
    KLCoefficient,
    LossScale,
    MicroBatchLimit,
    SeparateGradients,
    UpdateStatistics,
    adamw,
    casting_once,
    clip_gradients,
    learning_rate_factor,
    set_learning_rates,
)
from greenward.training.protocols import Stateful


@dataclass(eq=False)
class RLTrainer(Stateful):
    """Trains a policy by policy gradients on the episodes of a collector.

    Works with any estimator of advantages and any loss (`algorithm.loss`). `max_completion_tokens` is the
    sampler's limit, by which Dr. GRPO divides. `reference` is read for a KL term in the loss (`kl_in_loss`)
    and becomes `renewed_from`, which is `policy` unless set, every `algorithm.kl.refresh_every` steps;
    `kl_coefficient` is shared with an estimator that has the KL in its rewards. `seed` orders minibatches.

    A `critic` learns the returns that its estimator gives. Its gradient is clipped apart from the
    policy's. On a trunk that both share, each of the two gradients is clipped by its own norm and their
    sum is applied, so that neither can shrink the other. Where the policy takes no step, because
    `max_step_kl` has ended its update or it has done all its passes, the critic goes on with the weights
    that are its own: a shared trunk rests, since moving it would move the policy.

    `algorithm`, `critic_config`, `training`, `collector` and `estimator` are read anew at each step.
    """

    policy: Policy
    collector: Collector
    estimator: Estimator
    algorithm: AlgorithmConfig
    training: TrainingConfig
    _: KW_ONLY
    max_completion_tokens: int
    kl_coefficient: KLCoefficient | None = None
    reference: Policy | None = None
    kl_in_loss: bool = True
    critic: Critic | None = None
    critic_config: CriticConfig | None = None
    seed: int = 0
    _saved: ClassVar = {
        "collector": "collector",
        "estimator": "estimator",
        "optimizer": "_optimizer",
        "kl": "_kl_coefficient",
        "entropy": "_entropy_coefficient",
        "limit": "_limit",
        "loss_scale": "_loss_scale",
        "critic": "critic",
    }

    def __post_init__(self) -> None:
        policy, critic, training, kl = self.policy, self.critic, self.training, self.algorithm.kl
        if kl.coefficient > 0 and self.reference is None:
            raise ConfigError(
                f"algorithm.kl.coefficient is {kl.coefficient}, but there is no reference policy.",
                remedy="Give the trainer a reference, or set algorithm.kl.coefficient to 0.",
            )
        self.renewed_from = policy
        self._kl_in_loss = self.reference is not None and self.kl_in_loss
        self._kl_coefficient = self.kl_coefficient or KLCoefficient(
            kl.coefficient, target=kl.target, horizon=kl.horizon
        )
        self._entropy_coefficient = EntropyCoefficient(
            self.algorithm.entropy_coefficient, target=self.algorithm.entropy_target
        )
        self._policy_parameters = [p for p in policy.parameters() if p.requires_grad]
        self._critic_parameters = [p for p in critic.parameters() if p.requires_grad] if critic else []
        self._shared_trunk = self._policy_parameters if critic is not None and critic.reads_policy else []
        groups = [self._policy_parameters, *([self._critic_parameters] if critic is not None else [])]
        self._optimizer = adamw(groups, betas=training.adam_betas, weight_decay=training.weight_decay)
        self._limit = MicroBatchLimit(training.micro_batch_sequences)
        self._loss_scale = LossScale(policy.dtype)

    def train_step(self, step: int) -> StepRecord:
        self.collector.sync(self.policy)
        episodes, metrics = self.collector.collect(step)
        advantages = self.estimator(episodes)
        started = time.perf_counter()
        metrics |= self.update(episodes, advantages, step)
        refresh_every = self.algorithm.kl.refresh_every
        if self.reference is not None and refresh_every and (step + 1) % refresh_every == 0:
            self.reference.sync(self.renewed_from)
        return StepRecord(metrics | {"time/update": time.perf_counter() - started}, episodes)

    def update(self, episodes: Sequence[Episode], advantages: AdvantageBatch, step: int) -> dict[str, float]:
        """Train on one batch of episodes; the metrics of it, those of the estimator included.

        Groups without signal are left out unless a critic, a KL term or an entropy bonus gives them a
        gradient. If nothing has a gradient, nothing is updated and the metrics hold counts, entropy and
        learning rate. An optimizer step whose gradient is not finite is skipped and counted in
        `updates/non_finite`. With `algorithm.max_step_kl`, the first minibatch on which the policy has moved
        further than that from the one before the update ends the policy's update, and no step of the policy
        is taken on it (as in Spinning Up); the critic's passes are not affected.
        """
        algorithm = self.algorithm
        rate = self._set_learning_rates(step)
        statistics = UpdateStatistics()
        groups, left_out = row_groups(episodes, advantages, mask_truncated=algorithm.overlong.mask_truncated)
        all_groups = self._kl_in_loss or algorithm.entropy_coefficient > 0
        trained = [group for group in groups if group and (all_groups or has_signal(group))]
        if not all_groups:
            left_out += [row for group in groups if not has_signal(group) for row in group]
        passes, count = algorithm.updates_per_batch, algorithm.minibatches
        critic_passes = (self.critic_config.updates_per_batch or passes) if self.critic_config else 0
        groups = self._with_fixed_logprobs(groups, off_policy=passes * count > 1, all_groups=all_groups)
        if self.critic is not None:  # its baseline is not of the group, which may therefore be split
            groups = [[row] for group in groups for row in group]
        self._measure_entropy(left_out, statistics)
        stopped_early = False
        for number in range(max(passes, critic_passes)):
            if number == 0 or count > 1:  # shuffled anew for each pass; whole groups are in order at first
                in_order = number == 0 and self.critic is None
                batches = minibatches(
                    groups,
                    count=count,
                    max_completion_tokens=self.max_completion_tokens,
                    all_groups=all_groups,
                    shuffle_seed=None if in_order else step_seed(self.seed, step, f"minibatches/{number}"),
                )
            for minibatch in batches:
                learning = _Learning(
                    policy=number < passes and not stopped_early,
                    critic=number < critic_passes,
                    is_first_pass=number == 0,
                )
                stopped_early |= not self._optimizer_step(minibatch, statistics, learning)
        self.policy.version += statistics.policy_steps > 0
        metrics = {
            "learning_rate": rate,
            "groups/trained": float(len(trained)),
            "tokens/trained": float(sum(row.turn.written_tokens for group in trained for row in group)),
            **advantages.metrics,
            **statistics.metrics(),
        }
        if algorithm.max_step_kl is not None:
            metrics["updates/stopped_early"] = float(stopped_early)
        return metrics | self._adapt_coefficients(metrics, sum(episode.scored for episode in episodes))

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        if self.reference is not None and self.algorithm.kl.refresh_every:
            state["reference"] = self.reference.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        if self.reference is not None and "reference" in state:
            self.reference.load_state_dict(state["reference"])

    def _set_learning_rates(self, step: int) -> float:
        """Set all rates for this step; the policy's."""
        training = self.training
        factor = learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps, final=training.final_rate
        )
        rates = [training.learning_rate]
        if self.critic_config is not None:
            rates.append(self.critic_config.learning_rate or training.learning_rate)
        set_learning_rates(self._optimizer, [rate * factor for rate in rates])
        return training.learning_rate * factor

    def _with_fixed_logprobs(
        self, groups: Sequence[RowGroup], *, off_policy: bool, all_groups: bool
    ) -> list[RowGroup]:
        """The rows with the log-probabilities that stay fixed during the update.

        The policy's own are needed only if it will have moved before the last of them is used, and
        scored only if the estimator has not done so.
        """
        rows = [row for group in groups if all_groups or has_signal(group) for row in group]
        there = all(row.old_logprobs_T is not None for row in rows)
        if off_policy and there and not self._kl_in_loss:
            return list(groups)
        old = self._logprobs(self.policy, rows) if off_policy and not there else {}
        ref = self._logprobs(self.reference, rows) if self._kl_in_loss and self.reference else {}

        def scored(row: TrainingRow) -> TrainingRow:
            old_T = old.get(id(row), row.old_logprobs_T) if off_policy else None
            return replace(row, old_logprobs_T=old_T, ref_logprobs_T=ref.get(id(row)))

        return [[scored(row) for row in group] for group in groups]

    def _logprobs(self, policy: Policy, rows: Sequence[TrainingRow]) -> dict[int, np.ndarray]:
        """The log-probabilities (T,) of each row's tokens, by the row's id."""

        def score(micro: TrainingBatch) -> dict[str, Tensor]:
            return {"logprobs": micro.scores(policy).logprobs_BT}

        found = self._limit.fit(lambda: row_scores(score, rows, self._limit.size, policy.device), len(rows))
        return {id(row): one["logprobs"] for row, one in zip(rows, found, strict=True)}

    def _optimizer_step(self, batch: Minibatch, statistics: UpdateStatistics, learning: _Learning) -> bool:
        """One step on a minibatch; False, and no step of the policy, if the policy has moved too far."""
        with casting_once(self.policy):
            value_gradients, found = self._limit.fit(
                lambda: self._accumulate(batch, learning), len(batch.rows)
            )
        statistics.extend(found)
        limit = self.algorithm.max_step_kl
        within = not learning.policy or limit is None or not found.mean("approx_kl") > limit
        self._step(value_gradients, statistics, policy=learning.policy and within, critic=learning.critic)
        return within

    def _accumulate(
        self, batch: Minibatch, learning: _Learning
    ) -> tuple[SeparateGradients, UpdateStatistics]:
        """The gradients of a minibatch, those of the value loss on a shared trunk apart, and statistics."""
        self._optimizer.zero_grad()
        trunk = self._shared_trunk if learning.policy else []
        value_gradients, statistics, losses = SeparateGradients(trunk), UpdateStatistics(), []
        for micro in batch.laid_out(self._limit.size, self.policy.device):
            scores, hidden_SE = self._forward(micro, learning.policy)
            if learning.critic:
                value = self._value_loss(micro, batch, hidden_SE)
                with value_gradients:
                    self._loss_scale(value.loss).backward(retain_graph=bool(trunk))
                losses.append(value.loss.detach())
                statistics.add(value, micro.mask_BT)
            if scores is not None:
                output = self._policy_loss(micro, batch, scores)
                self._loss_scale(output.loss).backward()
                losses.append(output.loss.detach())
                statistics.add(output, micro.mask_BT)
                if learning.is_first_pass:
                    statistics.add_entropy(scores, micro.mask_BT)
        if learning.policy:
            statistics.losses.append(torch.stack(losses).sum())
        elif learning.is_first_pass:  # the policy's update has ended early: the metric is of all answers
            self._measure_entropy(batch.rows, statistics)
        return value_gradients, statistics

    def _step(
        self, value_gradients: SeparateGradients, statistics: UpdateStatistics, *, policy: bool, critic: bool
    ) -> None:
        """Clip the gradients of those that learn, each by its own norm, and step if all are finite."""
        norms: dict[str, float] = {}
        max_norm = self.training.max_grad_norm
        self._loss_scale.unscale([*self._policy_parameters, *self._critic_parameters])
        if policy:
            norms["policy"] = clip_gradients(self._policy_parameters, max_norm)
        else:
            for parameter in self._policy_parameters:
                parameter.grad = None
        if critic and self.critic_config is not None:
            trunk = value_gradients.parameters
            with value_gradients:
                self._loss_scale.unscale(trunk)
                parameters = [*(trunk if policy else ()), *self._critic_parameters]
                norms["critic"] = clip_gradients(parameters, self.critic_config.max_grad_norm or max_norm)
        if policy:
            value_gradients.merge()
        finite = all(math.isfinite(norm) for norm in norms.values())
        if norms:
            if finite:
                self._optimizer.step()
            statistics.add_step(norms, applied=finite)
            self._loss_scale.update(finite=finite)
        self._optimizer.zero_grad()

    def _forward(self, micro: TrainingBatch, policy_learns: bool) -> tuple[TokenScores | None, Tensor | None]:
        """The policy's scores if it learns, and the hidden states for a critic that reads them."""
        reads = self.critic is not None and self.critic.reads_policy
        if policy_learns:
            scores = micro.scores(self.policy, entropy=True, hidden=reads)
            return scores, scores.hidden_SE
        with torch.no_grad():
            return None, self.policy.completion_hidden(micro.laid_out) if reads else None

    def _policy_loss(self, micro: TrainingBatch, batch: Minibatch, scores: TokenScores) -> LossOutput:
        algorithm, importance = self.algorithm, self.algorithm.importance
        return policy_loss(
            scores.logprobs_BT.float(),
            micro,
            batch.totals,
            loss=algorithm.loss,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            importance=None if importance is None else ImportanceCorrection(**importance.model_dump()),
            kl_coefficient=self._kl_coefficient.value if self._kl_in_loss else 0.0,
            kl_estimator=algorithm.kl.estimator,
            entropy_coefficient=self._entropy_coefficient.value,
            entropy_BT=scores.entropy_BT,
        )

    def _value_loss(self, micro: TrainingBatch, batch: Minibatch, hidden_SE: Tensor | None) -> LossOutput:
        critic, section = self.critic, self.critic_config
        assert critic is not None and section is not None
        assert micro.values_BT is not None and micro.returns_BT is not None, "a critic needs its estimator"
        output = value_loss(
            critic(micro.laid_out, hidden_SE),
            micro.values_BT,
            micro.returns_BT,
            micro.mask_BT,
            batch.totals,
            clip=section.clip,
        )
        return replace(output, loss=section.loss_weight * output.loss)

    @torch.no_grad()
    def _measure_entropy(self, rows: Sequence[TrainingRow], statistics: UpdateStatistics) -> None:
        """Entropy of answers without a gradient of the policy: the metric is of all scored answers."""
        for micro in training_batches(rows, self._limit.size, self.policy.device):
            statistics.add_entropy(micro.scores(self.policy, entropy=True), micro.mask_BT)

    def _adapt_coefficients(self, metrics: Mapping[str, float], episodes: int) -> dict[str, float]:
        """The coefficients that this batch was used with; the next ones follow what was measured."""
        used = {}
        if self.algorithm.kl.coefficient > 0:
            used["kl/coefficient"] = self._kl_coefficient.value
            if "kl" in metrics:
                self._kl_coefficient.update(metrics["kl"], episodes=episodes)
        if self.algorithm.entropy_coefficient > 0:
            used["entropy/coefficient"] = self._entropy_coefficient.value
            if "entropy" in metrics:
                self._entropy_coefficient.update(metrics["entropy"])
        return used


class _Learning(NamedTuple):
    """What a minibatch changes, and whether its rows are read for the first time."""

    policy: bool
    critic: bool
    is_first_pass: bool
