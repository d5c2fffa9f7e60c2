"""Measures the gradient of each role apart. Shape suffix: P parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from greenward.models.policy import Policy
from greenward.rollouts.protocols import Episode
from greenward.training import distributed
from greenward.training.advantages import Advantages, Estimator
from greenward.training.batch import Batch, Row


def role_gradients(
    policy: Policy, episodes: Sequence[Episode], advantages: Advantages, *, micro_batch_sequences: int
) -> dict[str, Tensor]:
    """The gradient (P,) of mean(A log p) over the trained tokens of all roles, in the part of each role.

    This is the gradient of every surrogate at the policy that sampled the episodes, where the ratio is 1.
    """
    batch = Batch.of(episodes, replace(advantages, needs_groups=False))
    by_role: dict[str, list[Row]] = {}
    for row in batch.rows:
        by_role.setdefault(row.turn.role, []).append(row)
    tokens = sum(row.turn.policy_tokens for row in batch.rows)
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    gradients = {}
    for role, rows in by_role.items():
        total_P = torch.zeros(sum(p.numel() for p in parameters), device=policy.device)
        for micro in Batch([rows]).micro_batches(micro_batch_sequences, policy.device):
            values_BT = micro.scores(policy).logprobs_BT * micro.advantages_BT * micro.mask_BT
            found = torch.autograd.grad(values_BT.sum() / tokens, parameters, materialize_grads=True)
            total_P += torch.cat([gradient.flatten() for gradient in found])
        gradients[role] = distributed.all_reduce(total_P)
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
