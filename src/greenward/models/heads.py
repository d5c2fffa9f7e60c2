"""Implements the heads on the hidden states of a policy: the critic, and that of a learned reward model.

Shape suffixes: S completion tokens, E hidden size, B completions, T the longest completion, F = 2E features.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch


class Critic(nn.Module):
    """V(s_t) of the state before each completion token: a linear head on final hidden states.

    Without a trunk of its own it reads the policy's hidden states, and its gradient flows into them.
    With one (`separate_trunk`) it reads those of a trainable copy of the policy, made here, and leaves
    the policy alone; of an adapted policy the copy has an adapter of its own and shares the frozen weights.
    The head starts at 0, so that all values do. Weights are float32; the trunk computes in the policy's
    type, the head in float32.

    `reward_scale` is saved with the weights: the number of batches that the critic has judged and the mean
    variance of their rewards.
    """

    reward_scale: Tensor

    def __init__(self, policy: Policy, *, separate_trunk: bool) -> None:
        super().__init__()
        self.head = nn.Linear(policy.hidden_size, 1, device=policy.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.register_buffer("reward_scale", torch.zeros(2, dtype=torch.float64))
        self._trunk_policy = policy.trainable_copy() if separate_trunk else None
        self.trunk = None if self._trunk_policy is None else self._trunk_policy.model

    @property
    def reads_policy(self) -> bool:
        """Whether the values come from the policy's own hidden states."""
        return self._trunk_policy is None

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        """What is trained, and the reward scale: not the frozen weights that an adapter's trunk shares."""
        state = super().state_dict(*args, **kwargs)
        return {name: tensor for name, tensor in state.items() if name not in self._frozen()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        return super().load_state_dict({**self._frozen(), **state_dict}, *args, **kwargs)

    def _frozen(self) -> dict[str, Tensor]:
        named = self.named_parameters(remove_duplicate=False)
        return {name: parameter for name, parameter in named if not parameter.requires_grad}

    def forward(self, batch: GroupBatch, policy_hidden_SE: Tensor | None) -> Tensor:
        """Values (B, T), 0 in the padding; differentiable.

        `policy_hidden_SE` is `Policy.completion_hidden(batch)`, which a critic with its own trunk
        does not need.
        """
        if self._trunk_policy is None:
            assert policy_hidden_SE is not None, "a critic without a trunk reads the policy's hidden states"
            hidden_SE = policy_hidden_SE
        else:
            hidden_SE = self._trunk_policy.completion_hidden(batch)
        return batch.spread(self.head(hidden_SE.to(torch.float32)).squeeze(-1))


def answer_features(hidden_SE: Tensor, mask_BT: Tensor) -> Tensor:
    """What the head reads of each answer (B, F): the mean of its normalised hidden states and the last one.

    `hidden_SE` are the states of `Policy.completion_hidden`, row by row; `mask_BT` says whose they are.
    """
    states_SE = nn.functional.layer_norm(hidden_SE.float(), hidden_SE.shape[-1:])
    lengths_B = mask_BT.sum(1)
    row_S = torch.repeat_interleave(torch.arange(len(mask_BT), device=mask_BT.device), lengths_B)
    sums_BE = states_SE.new_zeros(len(mask_BT), states_SE.shape[-1]).index_add_(0, row_S, states_SE)
    return torch.cat((sums_BE / lengths_B[:, None], states_SE[lengths_B.cumsum(0) - 1]), dim=1)


class RewardHead(nn.Module):
    """Logits of passing (B,) from features (B, F): one hidden layer. Before training every logit is 0."""

    def __init__(self, features: int, hidden_size: int, *, generator: torch.Generator) -> None:
        super().__init__()
        self.hidden = nn.Linear(features, hidden_size)
        self.logit = nn.Linear(hidden_size, 1)
        with torch.no_grad():
            self.hidden.weight.normal_(std=features**-0.5, generator=generator)
            self.hidden.bias.zero_()
            self.logit.weight.zero_()
            self.logit.bias.zero_()

    def forward(self, features_BF: Tensor) -> Tensor:
        return self.logit(nn.functional.gelu(self.hidden(features_BF))).squeeze(-1)
