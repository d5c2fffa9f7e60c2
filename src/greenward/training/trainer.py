"""The trainer of reinforcement learning: collect, estimate, minibatches, loss, step, sync, record."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from greenward.common.errors import ConfigError
from greenward.config.sections import PolicyGradientConfig, TrainingConfig
from greenward.models.policy import Policy, release_sampling
from greenward.models.scoring import TokenScores
from greenward.rollouts.protocols import Episode, StopReason
from greenward.training import distributed
from greenward.training.advantages import Advantages, Estimator
from greenward.training.batch import Batch, MicroBatch
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
from greenward.training.own import OwnLoss
from greenward.training.protocols import Stateful
from greenward.training.sft import AcceptedAnswers


@dataclass(eq=False)
class RLTrainer(Stateful):
    """Trains a policy by policy gradients on the episodes of a collector.

    Works with any estimator of advantages and any loss (`algorithm.loss`, or the user's `own_loss` in its
    place). `max_completion_tokens` is the sampler's limit, by which Dr. GRPO divides. `reference` is read for
    a KL term in the loss (`kl_in_loss`), or to measure the KL where its coefficient is 0, and becomes
    `reference_source`, which is `policy` unless set, every `algorithm.kl.refresh_every` steps;
    `kl_coefficient` is shared with an estimator that has the KL in its rewards. `seed` orders minibatches.

    With `imitation` each update is followed by supervised steps on the policy's own right answers, by an
    optimizer of their own: the moments of the two gradients differ in scale.

    A callback that sets `token_scores` to {} finds the numbers by token of the step in it (`ScoresTokens`).
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
    imitation: AcceptedAnswers | None = None
    own_loss: OwnLoss | None = None
    seed: int = 0
    token_scores: dict[int, dict[str, np.ndarray]] | None = field(default=None, init=False)
    _saved: ClassVar = {
        "collector": "collector",
        "estimator": "estimator",
        "optimizer": "_optimizer",
        "kl": "_kl_coefficient",
        "entropy": "_entropy_coefficient",
        "limit": "_limit",
        "loss_scale": "_loss_scale",
        "imitation": "imitation",
    }

    def __post_init__(self) -> None:
        policy, training, kl = self.policy, self.training, self.algorithm.kl
        if kl.coefficient > 0 and self.reference is None:
            raise ConfigError(
                f"algorithm.kl.coefficient is {kl.coefficient}, but there is no reference policy.",
                remedy="Give the trainer a reference, or set algorithm.kl.coefficient to 0.",
            )
        self.reference_source = policy
        self._kl_in_loss = self.reference is not None and self.kl_in_loss and kl.coefficient > 0
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
        release_sampling(self.policy)
        advantages = self.estimator(episodes)
        started = time.perf_counter()
        version = self.policy.version
        metrics |= self.update(episodes, advantages, step)
        if self.imitation is not None:
            metrics |= self._imitate(self.imitation, episodes, advantages, step)
            self.policy.version = min(self.policy.version, version + 1)  # staleness is counted in steps
        refresh_every = self.algorithm.kl.refresh_every
        if self.reference is not None and refresh_every and (step + 1) % refresh_every == 0:
            self.reference.sync(self.reference_source)
        metrics["time/update"] = time.perf_counter() - started
        return StepRecord(metrics, self._annotated(episodes, advantages))

    def update(self, episodes: Sequence[Episode], advantages: Advantages, step: int) -> dict[str, float]:
        """Train on one batch of episodes; the metrics of it, those of the estimator included.

        Groups without signal are left out unless a critic, a KL term, an entropy bonus or a loss of the
        user's gives them a gradient. If nothing has a gradient, nothing is updated and the metrics hold
        counts, entropy and learning rate. An optimizer step whose gradient is not finite is skipped and
        counted in `updates/non_finite`. With `algorithm.max_step_kl`, the first minibatch on which the policy
        has moved further than that from the one before the update ends the policy's update, and no step of
        the policy is taken on it (as in Spinning Up).

        - `loss`: of the whole batch; near 0 on policy by construction
        - `grad_norm`; `grad_norm/policy`, `grad_norm/critic`: before clipping, not finite if that of any
          step was not; with a critic also of each loss
        - `entropy`, `entropy/coefficient`: nats per token over all scored answers of the first pass (with
          `top_p` or `top_k`, partly of the narrowed distribution); the coefficient of this step
        - `kl`, `kl/coefficient`: estimate of KL(policy ‖ reference) per trained token; β of this step
        - `ratio/mean`, `ratio/max`, `approx_kl`: how far the policy moved within this batch (k3 of old ‖
          new)
        - `clip/low`, `clip/high`, `clip/fraction`: share of tokens whose gradient (`cispo`: whose weight)
          was clipped; the last is the sum
        - `value/loss`, `value/clipped`, `value/mean`: unweighted loss of the critic, share of clipped
          values, mean value before the update
        - `explained_variance`: 1 − Var(G − V) / Var(G) before the update, G the discounted reward to go;
          absent when G does not vary
        - `advantage/mean`, `advantage/std`: with a critic: before whitening
        - `importance/mean`, `/kl`, `/difference`, `/max_difference`: trainer against sampler,
          uncorrected: mean of r, of r − 1 − log r, of |log r|, and its maximum
        - `importance/mean_corrected`, `importance/outside`: mean of w, and share of tokens outside its
          bounds
        - `rollouts/staleness`: updates between the oldest weights that sampled and the policy
        - `groups/trained`, `tokens/trained`: what entered the backward pass
        - `updates/applied`, `updates/non_finite`, `updates/stopped_early`: optimizer steps of the policy;
          steps skipped for a gradient that is not finite; whether `max_step_kl` stopped the rest
        - `learning_rate`: of this step
        """
        algorithm, statistics = self.algorithm, UpdateStatistics()
        rate = self._set_learning_rates(step)
        if algorithm.negative_weight != 1:
            advantages = advantages.with_negative_weight(algorithm.negative_weight)
        # The policy's log-probabilities before the update are needed if it takes more than one step.
        off_policy = algorithm.updates_per_batch * algorithm.minibatches > 1
        batch = Batch.of(
            episodes,
            advantages if off_policy else replace(advantages, logprobs=None),
            mask_truncated=algorithm.overlong.mask_truncated,
            every_group=self._kl_in_loss
            or algorithm.entropy_coefficient > 0
            or (self.own_loss is not None and self.own_loss.learns_everywhere),
            max_completion_tokens=self.max_completion_tokens,
        )
        if off_policy and any(row.old_logprobs_T is None for row in batch.rows):
            self._add_logprobs("old_logprobs_T", self.policy, batch)
        if self.kl_in_loss and self.reference is not None:
            self._add_logprobs("ref_logprobs_T", self.reference, batch)
        self._estimate_entropy(batch.left_out, statistics)
        stopped_early = False
        for number, minibatch in batch.minibatches(
            algorithm.minibatches, passes=self._passes(), seed=self.seed, step=step
        ):
            learns = number < algorithm.updates_per_batch and not stopped_early
            stopped_early |= not self._optimizer_step(minibatch, number, statistics, learns=learns)
            if number == 0 and not learns:  # the metric is of all answers
                self._estimate_entropy(minibatch, statistics)
        self.policy.version += statistics.policy_steps > 0
        metrics = {
            "learning_rate": rate,
            "groups/trained": float(len(batch.trained)),
            "tokens/trained": float(sum(row.turn.policy_tokens for row in batch.rows)),
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

    def _annotated(self, episodes: Sequence[Episode], advantages: Advantages) -> list[Episode]:
        """The episodes with what the update made of each, for those who read the run."""
        mask_truncated = self.algorithm.overlong.mask_truncated
        found = []
        for episode, turns in zip(episodes, advantages.advantages, strict=True):
            pairs = zip(episode.turns, turns, strict=True)
            of_tokens = [each_T[turn.policy_wrote_T] for turn, each_T in pairs if turn.trained]
            masked = "" if episode.scored else "infrastructure"
            if episode.scored and mask_truncated and episode.truncated:
                masked = StopReason.LENGTH.value
            advantage = float(np.concatenate(of_tokens).mean(dtype=np.float64)) if of_tokens else None
            found.append(replace(episode, advantage=advantage, masked=masked))
        return found

    def _imitate(
        self, answers: AcceptedAnswers, episodes: Sequence[Episode], advantages: Advantages, step: int
    ) -> dict[str, float]:
        """Train on accepted answers above their baseline, of this step and of those before; the metrics.

        Only answers with a positive advantage teach something that the policy does not do already (the
        (R - V)+ of self-imitation learning, arXiv 1806.05635, eq. 2).
        """
        assert self.algorithm.self_imitation is not None
        rate = self.algorithm.self_imitation.learning_rate or self.training.learning_rate
        above = [
            episode
            for episode, turns in zip(episodes, advantages.advantages, strict=True)
            if sum(float(each_T.sum()) for each_T in turns) > 0
        ]
        found = answers.update(above, step, rate * self._rate_factor(step))
        return {f"imitation/{name}": value for name, value in found.items()}

    def _set_learning_rates(self, step: int) -> float:
        """Set all rates for this step; the policy's."""
        factor = self._rate_factor(step)
        rates = [self.training.learning_rate, *self._further_rates()]
        set_learning_rates(self._optimizer, [rate * factor for rate in rates])
        return self.training.learning_rate * factor

    def _rate_factor(self, step: int) -> float:
        """What the schedule makes of the learning rates at this step."""
        training = self.training
        return learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps, final=training.final_rate
        )

    def _add_logprobs(self, name: str, policy: Policy, batch: Batch) -> None:
        """Give each row, as its field `name`, the log-probabilities (T,) of its tokens."""

        def score(micro: MicroBatch) -> dict[str, Tensor]:
            return {name: micro.scores(policy).logprobs_BT}

        found = self._limit.run_within_memory(
            lambda: batch.scores(score, self._limit.size, policy.device), len(batch.rows)
        )
        for row, scores in zip(batch.rows, found, strict=True):
            setattr(row, name, scores[name])

    def _optimizer_step(
        self, minibatch: Batch, number: int, statistics: UpdateStatistics, *, learns: bool
    ) -> bool:
        """One step on a minibatch in pass `number`, if the policy still `learns`.

        False, and no step, if the policy has moved too far.
        """
        if not learns:
            return True
        with casting_once(self.policy):
            found = self._limit.run_within_memory(
                lambda: self._accumulate(minibatch, number), len(minibatch.rows)
            )
        statistics.extend(found)
        within = self._is_within(found)
        self._loss_scale.unscale(self._policy_parameters)
        if within:
            norm = clip_gradients(self._policy_parameters, self.training.max_grad_norm)
            self._apply_gradients({"policy": norm}, statistics)
        self._optimizer.zero_grad()
        return within

    def _is_within(self, statistics: UpdateStatistics) -> bool:
        """Whether the policy has moved no further than `max_step_kl` on a minibatch."""
        limit = self.algorithm.max_step_kl
        return limit is None or not statistics.mean("approx_kl") > limit

    def _apply_gradients(self, norms: Mapping[str, float], statistics: UpdateStatistics) -> None:
        """Step if the gradients, which have these norms by the part that learns, are finite."""
        finite = all(math.isfinite(norm) for norm in norms.values())
        if finite:
            self._optimizer.step()
        statistics.add_step(norms, applied=finite)
        self._loss_scale.update(finite=finite)

    def _accumulate(self, minibatch: Batch, number: int) -> UpdateStatistics:
        """The gradients of a minibatch, added up over its micro-batches, and statistics."""
        self._optimizer.zero_grad()
        statistics, losses = UpdateStatistics(), []
        for micro in minibatch.micro_batches(self._limit.size, self.policy.device):
            scores = micro.scores(self.policy, entropy=True)
            losses.append(self._backward(scores, micro, statistics, number))
        statistics.losses.append(torch.stack(losses).sum())
        return statistics

    def _backward(
        self, scores: TokenScores, micro: MicroBatch, statistics: UpdateStatistics, number: int
    ) -> Tensor:
        """The gradient of the policy's loss on a micro-batch; the loss."""
        output = policy_loss(scores, micro, self.objective())
        self._loss_scale(output.loss).backward()
        statistics.add(output, micro.mask_BT)
        if number == 0:
            assert scores.entropy_BT is not None
            if self.token_scores is not None:
                self.token_scores |= micro.token_scores(scores)
            statistics.add_entropy(scores.entropy_BT.detach(), micro.mask_BT)
        return output.loss.detach()

    def objective(self) -> Objective:
        """The loss and its terms, with the coefficients of this step."""
        return Objective.of(
            self.algorithm,
            kl_coefficient=self._kl_coefficient.value if self._kl_in_loss else 0.0,
            entropy_coefficient=self._entropy_coefficient.value,
            own=self.own_loss,
        )

    def _passes(self) -> int:
        """The number of passes over a batch."""
        return self.algorithm.updates_per_batch

    def _further_parameters(self) -> list[Sequence[Tensor]]:
        """The parameters of what is trained beside the policy, with learning rates of their own."""
        return []

    def _further_rates(self) -> list[float]:
        """The learning rates of `_further_parameters`, without the schedule."""
        return []

    def _estimate_entropy(self, batch: Batch, statistics: UpdateStatistics) -> None:
        """Entropy of answers without a gradient of the policy: the metric is of all scored answers.

        The mean of -log π over tokens that π sampled is an unbiased estimate of it, without a forward pass.
        """
        turns = [row.turn for row in batch.rows[distributed.rank() :: distributed.size()]]
        logprobs = [turn.logprobs_T[turn.policy_wrote_T] for turn in turns]
        surprisal = torch.from_numpy(-np.concatenate([np.empty(0, np.float32), *logprobs]))
        surprisal = surprisal.to(self.policy.device)
        statistics.add_entropy(surprisal, torch.ones_like(surprisal, dtype=torch.bool))

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
