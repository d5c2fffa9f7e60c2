"""The trainer of reinforcement learning: collect, estimate, minibatches, loss, step, sync, record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from greenward.common.errors import ConfigError
from greenward.common.seeding import step_seed
from greenward.config.sections import PolicyGradientConfig, TrainingConfig
from greenward.models.policy import Policy
from greenward.models.scoring import TokenScores
from greenward.rollouts.protocols import Episode
from greenward.training.advantages import Advantages, Estimator
from greenward.training.batch import (
    MicroBatch,
    Minibatch,
    RowGroup,
    TrainingRow,
    has_signal,
    minibatches,
    row_groups,
    row_scores,
    training_batches,
)
from greenward.training.collector import Collector
from greenward.training.loop import StepRecord
from greenward.training.losses import Objective, policy_loss
from greenward.training.optim import (
    EntropyCoefficient,
    KLCoefficient,
    LossScale,
    MicroBatchLimit,
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
    and becomes `reference_source`, which is `policy` unless set, every `algorithm.kl.refresh_every` steps;
    `kl_coefficient` is shared with an estimator that has the KL in its rewards. `seed` orders minibatches.

    `algorithm`, `training`, `collector` and `estimator` are read anew at each step. With a critic:
    `greenward.training.ppo.PPOTrainer`.
    """

    policy: Policy
    collector: Collector
    estimator: Estimator
    algorithm: PolicyGradientConfig
    training: TrainingConfig
    _: KW_ONLY
    max_completion_tokens: int
    kl_coefficient: KLCoefficient | None = None
    reference: Policy | None = None
    kl_in_loss: bool = True
    seed: int = 0
    _saved: ClassVar = {
        "collector": "collector",
        "estimator": "estimator",
        "optimizer": "_optimizer",
        "kl": "_kl_coefficient",
        "entropy": "_entropy_coefficient",
        "limit": "_limit",
        "loss_scale": "_loss_scale",
    }

    def __post_init__(self) -> None:
        policy, training, kl = self.policy, self.training, self.algorithm.kl
        if kl.coefficient > 0 and self.reference is None:
            raise ConfigError(
                f"algorithm.kl.coefficient is {kl.coefficient}, but there is no reference policy.",
                remedy="Give the trainer a reference, or set algorithm.kl.coefficient to 0.",
            )
        self.reference_source = policy
        self._kl_in_loss = self.reference is not None and self.kl_in_loss
        self._kl_coefficient = self.kl_coefficient or KLCoefficient(
            kl.coefficient, target=kl.target, horizon=kl.horizon
        )
        self._entropy_coefficient = EntropyCoefficient(
            self.algorithm.entropy_coefficient, target=self.algorithm.entropy_target
        )
        self._policy_parameters = [p for p in policy.parameters() if p.requires_grad]
        groups: list[Sequence[Tensor]] = [self._policy_parameters, *self._further_parameters()]
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
            self.reference.sync(self.reference_source)
        return StepRecord(metrics | {"time/update": time.perf_counter() - started}, episodes)

    def update(self, episodes: Sequence[Episode], advantages: Advantages, step: int) -> dict[str, float]:
        """Train on one batch of episodes; the metrics of it, those of the estimator included.

        Groups without signal are left out unless a critic, a KL term or an entropy bonus gives them a
        gradient. If nothing has a gradient, nothing is updated and the metrics hold counts, entropy and
        learning rate. An optimizer step whose gradient is not finite is skipped and counted in
        `updates/non_finite`. With `algorithm.max_step_kl`, the first minibatch on which the policy has moved
        further than that from the one before the update ends the policy's update, and no step of the policy
        is taken on it (as in Spinning Up).
        """
        algorithm = self.algorithm
        rate = self._set_learning_rates(step)
        statistics = UpdateStatistics()
        groups, left_out = row_groups(episodes, advantages, mask_truncated=algorithm.overlong.mask_truncated)
        all_groups = self._kl_in_loss or algorithm.entropy_coefficient > 0
        trained = [group for group in groups if group and (all_groups or has_signal(group))]
        if not all_groups:
            left_out += [row for group in groups if not has_signal(group) for row in group]
        off_policy = algorithm.updates_per_batch * algorithm.minibatches > 1
        groups = self._with_fixed_logprobs(groups, off_policy=off_policy, all_groups=all_groups)
        self._measure_entropy(left_out, statistics)
        split = partial(
            minibatches,
            count=algorithm.minibatches,
            max_completion_tokens=self.max_completion_tokens,
            all_groups=all_groups,
        )
        stopped_early = self._learn(groups, split, step, statistics)
        self.policy.version += statistics.policy_steps > 0
        metrics = {
            "learning_rate": rate,
            "groups/trained": float(len(trained)),
            "tokens/trained": float(sum(row.turn.policy_tokens for group in trained for row in group)),
            **advantages.metrics,
            **statistics.metrics(),
        }
        if algorithm.max_step_kl is not None:
            metrics["updates/stopped_early"] = float(stopped_early)
        return metrics | self._adapt_coefficients(metrics, sum(episode.scored for episode in episodes))

    def _learn(
        self,
        groups: list[RowGroup],
        split: Callable[..., list[Minibatch]],
        step: int,
        statistics: UpdateStatistics,
    ) -> bool:
        """The passes over the minibatches; whether they ended early because the policy moved too far."""
        stopped_early = False
        for number in range(self.algorithm.updates_per_batch):
            if number == 0:  # in order; shuffled anew for each further pass
                batches = split(groups)
            elif self.algorithm.minibatches > 1:
                batches = split(groups, shuffle_seed=step_seed(self.seed, step, f"minibatches/{number}"))
            for minibatch in batches:
                if not stopped_early:
                    stopped_early = not self._optimizer_step(minibatch, statistics, first_pass=number == 0)
                elif number == 0:
                    self._measure_entropy(minibatch.rows, statistics)  # the metric is of all answers
        return stopped_early

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
        rates = [training.learning_rate, *self._further_rates()]
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

        def score(micro: MicroBatch) -> dict[str, Tensor]:
            return {"logprobs": micro.scores(policy).logprobs_BT}

        found = self._limit.run_within_memory(
            lambda: row_scores(score, rows, self._limit.size, policy.device), len(rows)
        )
        return {id(row): one["logprobs"] for row, one in zip(rows, found, strict=True)}

    def _optimizer_step(self, batch: Minibatch, statistics: UpdateStatistics, *, first_pass: bool) -> bool:
        """One step on a minibatch; False, and no step, if the policy has moved too far. PPO has its own."""
        with casting_once(self.policy):
            found = self._limit.run_within_memory(
                lambda: self._accumulate(batch, first_pass), len(batch.rows)
            )
        statistics.extend(found)
        within = self._is_within(found)
        self._loss_scale.unscale(self._policy_parameters)
        if within:
            norm = clip_gradients(self._policy_parameters, self.training.max_grad_norm)
            if math.isfinite(norm):
                self._optimizer.step()
            statistics.add_step({"policy": norm}, applied=math.isfinite(norm))
            self._loss_scale.update(finite=math.isfinite(norm))
        self._optimizer.zero_grad()
        return within

    def _is_within(self, statistics: UpdateStatistics) -> bool:
        """Whether the policy has moved no further than `max_step_kl` on a minibatch."""
        limit = self.algorithm.max_step_kl
        return limit is None or not statistics.mean("approx_kl") > limit

    def _accumulate(self, batch: Minibatch, first_pass: bool) -> UpdateStatistics:
        """The gradients of a minibatch, added up over its micro-batches, and statistics."""
        self._optimizer.zero_grad()
        statistics, losses = UpdateStatistics(), []
        for micro in batch.micro_batches(self._limit.size, self.policy.device):
            scores = micro.scores(self.policy, entropy=True)
            losses.append(self._backward(scores, micro, statistics, first_pass=first_pass))
        statistics.losses.append(torch.stack(losses).sum())
        return statistics

    def _backward(
        self, scores: TokenScores, micro: MicroBatch, statistics: UpdateStatistics, *, first_pass: bool
    ) -> Tensor:
        """The gradient of the policy's loss on a micro-batch; the loss."""
        output = policy_loss(scores, micro, self.objective())
        self._loss_scale(output.loss).backward()
        statistics.add(output, micro.mask_BT)
        if first_pass:
            statistics.add_entropy(scores, micro.mask_BT)
        return output.loss.detach()

    def objective(self) -> Objective:
        """The loss and its terms, with the coefficients of this step."""
        return Objective.of(
            self.algorithm,
            kl_coefficient=self._kl_coefficient.value if self._kl_in_loss else 0.0,
            entropy_coefficient=self._entropy_coefficient.value,
        )

    def _further_parameters(self) -> list[Sequence[Tensor]]:
        """The parameters of what is trained beside the policy, with learning rates of their own."""
        return []

    def _further_rates(self) -> list[float]:
        """The learning rates of `_further_parameters`, without the schedule."""
        return []

    @torch.no_grad()
    def _measure_entropy(self, rows: Sequence[TrainingRow], statistics: UpdateStatistics) -> None:
        """Entropy of answers without a gradient of the policy: the metric is of all scored answers."""

        def measure() -> UpdateStatistics:
            found = UpdateStatistics()
            for micro in training_batches(rows, self._limit.size, self.policy.device):
                found.add_entropy(micro.scores(self.policy, entropy=True), micro.mask_BT)
            return found

        statistics.extend(self._limit.run_within_memory(measure, len(rows)))

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
