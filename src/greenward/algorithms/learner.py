"""One batch of episodes and advantages in, a better policy out.

The learner is blind to the algorithm: it batches, accumulates, clips and steps; which loss it
minimises is `AlgorithmConfig.loss`, and advantages come ready from an estimator.

Names carry shapes: B rows (one turn of one episode each), T completion positions, right-padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenward.algorithms.advantages import Advantages
from greenward.algorithms.batching import Minibatch, Row, micro_batches, minibatches
from greenward.algorithms.losses import LossInputs, policy_loss
from greenward.algorithms.schedules import learning_rate_factor
from greenward.config.schema import AlgorithmConfig, TrainingConfig
from greenward.environments.episode import Episode
from greenward.errors import ConfigError
from greenward.policies.group_batch import GroupBatch
from greenward.policies.policy import Policy


class Learner:
    """Updates a policy with AdamW from episodes and their advantages.

    `max_completion_tokens` is the sampler's limit, by which Dr. GRPO divides. `reference_policy`
    is needed when `algorithm.kl.coefficient` is above 0; it is only read.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: AlgorithmConfig,
        training: TrainingConfig,
        *,
        max_completion_tokens: int,
        reference_policy: Policy | None = None,
    ) -> None:
        if algorithm.kl.coefficient > 0 and reference_policy is None:
            raise ConfigError(
                f"algorithm.kl.coefficient is {algorithm.kl.coefficient}, but there is no reference policy.",
                remedy="Give the learner a reference_policy, or set algorithm.kl.coefficient to 0.",
            )
        self._policy = policy
        self._algorithm = algorithm
        self._training = training
        self._max_completion_tokens = max_completion_tokens
        self._reference = reference_policy if algorithm.kl.coefficient > 0 else None
        self._parameters = [p for p in policy.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=training.learning_rate,
            betas=training.adam_betas,
            weight_decay=training.weight_decay,
            fused=True,
        )

    def update(
        self, episodes: Sequence[Episode], advantages: Advantages, *, step: int, temperature: float
    ) -> dict[str, float]:
        """Train on one batch of episodes; the metrics of it.

        `temperature` is the one the episodes were sampled at. Without any group that has signal
        nothing is updated and the metrics hold only counts and the learning rate. An optimizer
        step whose gradient is not finite is skipped and counted in `updates/non_finite`.
        """
        rate = self._set_learning_rate(step)
        batches = minibatches(
            episodes,
            advantages,
            count=self._algorithm.minibatches,
            max_completion_tokens=self._max_completion_tokens,
            mask_truncated=self._algorithm.overlong.mask_truncated,
        )
        batches = [batch for batch in batches if batch.rows]
        passes = self._algorithm.updates_per_batch
        off_policy = passes * len(batches) > 1
        prepared = [self._prepare(batch, temperature, score_old=off_policy) for batch in batches]
        statistics = _Statistics()
        for _ in range(passes):
            for batch, micro in zip(batches, prepared, strict=True):
                self._optimizer_step(batch, micro, temperature, statistics)
        if statistics.applied:
            self._policy.version += 1
        return {
            "learning_rate": rate,
            "groups/trained": float(sum(batch.groups for batch in batches)),
            "tokens/trained": float(sum(int(row.trained_T.sum()) for b in batches for row in b.rows)),
            **statistics.metrics(),
        }

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs beside the policy's weights."""
        return {"optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])

    def _set_learning_rate(self, step: int) -> float:
        training = self._training
        rate = training.learning_rate * learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _prepare(self, batch: Minibatch, temperature: float, *, score_old: bool) -> list[_MicroBatch]:
        """Micro-batches as tensors, with the log-probabilities that stay fixed during the update.

        The policy's own are scored only if it will have moved before the last of them is used.
        """
        prepared = []
        for groups in micro_batches(batch.rows, self._training.micro_batch_sequences):
            micro = _micro_batch(groups, pad_id=self._policy.tokenizer.pad_id, device=self._policy.device)
            if score_old:
                micro = replace(micro, old_logprobs_BT=_score(self._policy, micro, temperature))
            if self._reference is not None:
                micro = replace(micro, ref_logprobs_BT=_score(self._reference, micro, temperature))
            prepared.append(micro)
        return prepared

    def _optimizer_step(
        self, batch: Minibatch, prepared: Sequence[_MicroBatch], temperature: float, statistics: _Statistics
    ) -> None:
        self._optimizer.zero_grad()
        for micro in prepared:
            scores = self._policy.completion_logprobs(micro.groups, temperature=temperature, entropy=True)
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
            )
            output.loss.backward()
            assert scores.entropy_BT is not None
            entropy = scores.entropy_BT.detach().masked_fill(~micro.mask_BT, 0.0).sum()
            statistics.add(output.loss, output.sums | {"entropy": entropy}, output.maxima, micro.mask_BT)
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self._training.max_grad_norm))
        finite = math.isfinite(norm)
        if finite:
            self._optimizer.step()
        self._optimizer.zero_grad()
        statistics.close_step(norm, applied=finite)


@dataclass(frozen=True)
class _MicroBatch:
    """Rows of one forward and backward pass, group-major, with all that the loss needs of them."""

    groups: GroupBatch
    advantages_BT: Tensor
    mask_BT: Tensor
    sampler_logprobs_BT: Tensor
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None


def _micro_batch(groups: Sequence[Sequence[Row]], *, pad_id: int, device: torch.device) -> _MicroBatch:
    batch = GroupBatch.build(
        [rows[0].turn.prompt_ids for rows in groups],
        [[row.turn.completion_ids for row in rows] for rows in groups],
        pad_id=pad_id,
        device=device,
    )
    rows = [row for sharers in groups for row in sharers]
    width = batch.completion_mask_BT.shape[1]

    def padded(arrays_T: Sequence[np.ndarray], dtype: np.dtype[Any]) -> Tensor:
        values_BT = np.zeros((len(arrays_T), width), dtype=dtype)
        for row, values_T in zip(values_BT, arrays_T, strict=True):
            row[: len(values_T)] = values_T
        return torch.from_numpy(values_BT).to(device)

    return _MicroBatch(
        groups=batch,
        advantages_BT=padded([row.advantages_T for row in rows], np.dtype(np.float32)),
        mask_BT=padded([row.trained_T for row in rows], np.dtype(np.bool_)),
        sampler_logprobs_BT=padded([row.turn.logprobs_T for row in rows], np.dtype(np.float32)),
    )


@torch.no_grad()
def _score(policy: Policy, micro: _MicroBatch, temperature: float) -> Tensor:
    return policy.completion_logprobs(micro.groups, temperature=temperature).logprobs_BT.float()


class _Statistics:
    """Sums over the micro-batches of one update; means over its trained tokens in the end."""

    def __init__(self) -> None:
        self._loss: list[Tensor] = []
        self._sums: dict[str, list[Tensor]] = {}
        self._maxima: dict[str, list[Tensor]] = {}
        self._tokens: list[Tensor] = []
        self._norms: list[float] = []
        self.applied = 0

    def add(
        self, loss: Tensor, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor], mask_BT: Tensor
    ) -> None:
        self._loss.append(loss.detach())
        self._tokens.append(mask_BT.sum())
        for name, value in sums.items():
            self._sums.setdefault(name, []).append(value)
        for name, value in maxima.items():
            self._maxima.setdefault(name, []).append(value)

    def close_step(self, norm: float, *, applied: bool) -> None:
        self._norms.append(norm)
        self.applied += applied

    def metrics(self) -> dict[str, float]:
        steps = len(self._norms)
        metrics = {"updates/applied": float(self.applied), "updates/non_finite": float(steps - self.applied)}
        if not steps:
            return metrics
        tokens = float(torch.stack(self._tokens).sum())
        finite_norms = [norm for norm in self._norms if math.isfinite(norm)]
        metrics["loss"] = float(torch.stack(self._loss).sum()) / steps
        if finite_norms:
            metrics["grad_norm"] = sum(finite_norms) / len(finite_norms)
        for name, values in self._sums.items():
            metrics[name] = float(torch.stack(values).sum()) / tokens
        for name, values in self._maxima.items():
            metrics[name] = float(torch.stack(values).max())
        return metrics
