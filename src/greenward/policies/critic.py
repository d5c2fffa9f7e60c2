"""The critic: how much reward is still to come, told from the hidden states of a decoder.

Shape suffixes: S completion tokens, E hidden size, B completions, T the longest completion.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from greenward.policies.group_batch import GroupBatch
from greenward.policies.policy import Policy, spread


class Critic(nn.Module):
    """V(s_t) of the state before each completion token: a linear head on final hidden states.

    Without a trunk of its own it reads the policy's hidden states, and its gradient flows into them.
    With one (`separate_trunk`) it reads those of a trainable copy of the policy, made here, and leaves
    the policy alone. The head starts at 0, so that all values do. Weights are float32; the trunk
    computes in the policy's type, the head in float32.

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
        self.trunk = copy.deepcopy(policy.model).requires_grad_() if separate_trunk else None
        self._trunk_policy = (
            None if self.trunk is None else type(policy)(self.trunk, policy.tokenizer, dtype=policy.dtype)
        )

    @property
    def reads_policy(self) -> bool:
        """Whether the values come from the policy's own hidden states."""
        return self._trunk_policy is None

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
        values_S: Tensor = self.head(hidden_SE.to(torch.float32)).squeeze(-1)
        return spread(values_S, batch.completion_mask_BT)
