"""A head that reads how an answer ended up in a model's hidden states and says whether it will pass.

Shape suffixes: S completion tokens of all rows, B rows, E hidden size, F = 2E features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def answer_features(hidden_SE: Tensor, mask_BT: Tensor) -> Tensor:
    """What the head reads of each answer (B, F): the mean of its normalised hidden states and the last one.

    `hidden_SE` are the states of `Policy.completion_hidden`, row by row; `mask_BT` says whose they are.
    """
    states_SE = nn.functional.layer_norm(hidden_SE.float(), hidden_SE.shape[-1:])
    lengths_B = mask_BT.sum(1)
    row_S = torch.repeat_interleave(torch.arange(len(mask_BT), device=mask_BT.device), lengths_B)
    sums_BE = states_SE.new_zeros(len(mask_BT), states_SE.shape[-1]).index_add_(0, row_S, states_SE)
    last_BE = states_SE[lengths_B.cumsum(0) - 1]
    return torch.cat((sums_BE / lengths_B[:, None], last_BE), dim=1)


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
        hidden = nn.functional.gelu(self.hidden(features_BF))
        logit_B: Tensor = self.logit(hidden).squeeze(-1)
        return logit_B
