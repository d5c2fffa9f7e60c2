"""Measures the gradient of each role apart. Shape suffix: P parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.training.advantages import Advantages, Estimator
from greenward.training.batch import MicroBatch, TrainingRow, micro_batches, row_groups


def role_gradients(
    policy: Policy, episodes: Sequence[Episode], advantages: Advantages, *, micro_batch_sequences: int
) -> dict[str, Tensor]:
    """The gradient (P,) of mean(A log p) over the trained tokens of all roles, in the part of each role.

    This is the gradient of every surrogate at the policy that sampled the episodes, where the ratio is 1.
    """
    groups, _ = row_groups(episodes, replace(advantages, needs_groups=False), mask_truncated=False)
    by_role: dict[str, list[TrainingRow]] = {}
    for row in (row for group in groups for row in group):
        by_role.setdefault(row.turn.role, []).append(row)
    tokens = sum(row.turn.policy_tokens for rows in by_role.values() for row in rows)
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    gradients = {}
    for role, rows in by_role.items():
        total_P = torch.zeros(sum(p.numel() for p in parameters), device=policy.device)
        for sharers in micro_batches(rows, micro_batch_sequences):
            batch = MicroBatch.build(sharers, device=policy.device)
            objective = (
                batch.scores(policy).logprobs_BT * batch.advantages_BT * batch.mask_BT
            ).sum() / tokens
            found = torch.autograd.grad(objective, parameters, materialize_grads=True)
            total_P += torch.cat([gradient.flatten() for gradient in found])
        gradients[role] = total_P
    return gradients


@dataclass(eq=False)
class RoleGradientNorms(Estimator):
    """An estimator that measures the norm of the gradient of each role, at every `every`-th batch."""

    estimator: Estimator
    policy: Policy
    _: KW_ONLY
    every: int
    micro_batch_sequences: int
    _batches: int = field(default=0, init=False)
    _saved: ClassVar = {"estimator": "estimator", "batches": "_batches"}

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        batch = self.estimator(episodes)
        self._batches += 1
        if (self._batches - 1) % self.every:
            return batch
        gradients = role_gradients(
            self.policy, episodes, batch, micro_batch_sequences=self.micro_batch_sequences
        )
        norms = {f"grad_norm/{role}": float(gradient_P.norm()) for role, gradient_P in gradients.items()}
        return replace(batch, metrics={**batch.metrics, **norms})
