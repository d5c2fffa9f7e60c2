"""The encoder of `environment.embedding: learned`, trained with the Q-network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from greenward.environments.token_mdp import features
from greenward.environments.token_mdp.embeddings import WORDS


class TokenEncoder(nn.Module):
    """From the numbers of words and tokens to the 520 entries of a hashed observation.

    Words are averaged; the newest tokens go through a recurrent layer. What is no number stays as it is.
    """

    def __init__(self, tokens: int, *, width: int = 32, newest: int = 32) -> None:
        super().__init__()
        self.newest = newest
        self.words = nn.EmbeddingBag(WORDS + 1, features.WORDS, mode="mean", padding_idx=0)
        self.tokens = nn.Embedding(tokens + 1, width, padding_idx=0)
        self.reader = nn.GRU(width, features.CODE, batch_first=True)

    def forward(self, observations_BD: Tensor) -> Tensor:
        problem, code = features.PROBLEM, features.PROBLEM + features.CODE
        words_B = self.words(observations_BD[:, : features.WORDS].long())
        numbers_BT = observations_BD[:, code - self.newest : code].long()
        _, read_1BC = self.reader(self.tokens(numbers_BT))
        facts_B = observations_BD[:, features.WORDS : problem]
        return torch.cat([words_B, facts_B, read_1BC[0], observations_BD[:, code:]], dim=1)
