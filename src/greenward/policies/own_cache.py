"""Keys and values of the tokens that rows have sampled so far.

Shape suffixes: B rows, K key/value heads, R query heads for each key head, D head
dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from greenward.policies.decoder import DecoderShape

_GROWTH = 16


class OwnCache:
    """(layers, 2 for keys and values, B·K, capacity, D), moved to a larger place when it is full.

    A step reads the cache once, and memory is read fast only in one long run: a cache of full
    length is up to three times slower until it is full. So the whole of a small one is read, the
    places not yet written hidden by `mask`, and two memories take turns when it grows.
    """

    def __init__(self, shape: DecoderShape, rows: int, tokens: int, memory: Tensor) -> None:
        """`memory` has `numbers(…)` numbers, all finite."""
        self.shape = shape
        self.rows = rows
        self.tokens = tokens
        self._memories = list(memory.chunk(2))
        self._cache = self._place(min(_GROWTH, tokens))
        self._stored = 0

    @staticmethod
    def numbers(shape: DecoderShape, rows: int, tokens: int) -> int:
        """How many numbers `memory` must hold."""
        return 4 * shape.layers * rows * shape.kv_heads * shape.head_dim * tokens

    def advance(self) -> None:
        """Make room for the next token of every row."""
        capacity = self._cache.shape[3]
        if self._stored == capacity:
            larger = self._place(min(capacity + max(_GROWTH, capacity // 8), self.tokens))
            larger[:, :, :, :capacity] = self._cache
            self._cache = larger
        self._stored += 1
        self._mask = self._cache.new_zeros(self._cache.shape[3])
        self._mask[self._stored :] = float("-inf")

    def keep(self, kept_B: Tensor) -> None:
        """Go on with these rows."""
        self.rows = len(kept_B)
        by_row = self._cache.unflatten(2, (-1, self.shape.kv_heads))
        smaller = self._place(self._cache.shape[3])
        torch.index_select(
            by_row, 2, kept_B, out=smaller.view(*by_row.shape[:2], self.rows, *by_row.shape[3:])
        )
        self._cache = smaller

    def write(self, layer: int, key_value_B2KD: Tensor) -> None:
        """Store the newest token's keys and values."""
        self._cache[layer, :, :, self._stored - 1] = key_value_B2KD.transpose(0, 1).flatten(1, 2)

    def attend(self, layer: int, query_BHD: Tensor, prompt_BHD: Tensor, prompt_lse_BH: Tensor) -> Tensor:
        """Attention over a row's own tokens and its prompt (B, H·D); the prompt's part is known already.

        The prompt enters as one more key, with its log-sum-exp as score and its attended values as
        value.
        """
        K, D = self.shape.kv_heads, self.shape.head_dim
        shared = (self.rows * K, self.shape.heads // K, D)
        key, value = self._cache[layer]
        scores = torch.baddbmm(self._mask, query_BHD.reshape(shared), key.transpose(1, 2), alpha=D**-0.5)
        prompt_scores = prompt_lse_BH.reshape(*shared[:2], 1).to(scores.dtype)
        weights = torch.softmax(torch.cat((scores, prompt_scores), dim=-1), dim=-1)
        out_BRD = prompt_BHD.reshape(shared) * weights[..., -1:]
        return out_BRD.baddbmm_(weights[..., :-1], value).view(self.rows, -1)

    def _place(self, capacity: int) -> Tensor:
        """Room for the present rows in the memory that is not in use."""
        self._memories.reverse()
        layout = (self.shape.layers, 2, self.rows * self.shape.kv_heads, capacity, self.shape.head_dim)
        return self._memories[0][: self.numbers(self.shape, self.rows, capacity) // 2].view(layout)
