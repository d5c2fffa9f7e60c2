"""Keys and values of the tokens that rows have sampled so far.

Shape suffixes: B rows, K key/value heads, R query heads for each key head, T tokens of a block,
D head dimension.
"""

from __future__ import annotations

import torch
from torch import Tensor

from greenward.policies.decoder import DecoderShape

_FIRST_BLOCK = 16


class OwnCache:
    """Blocks of tokens, each (layers, 2 for keys and values, B·K, T, D), together `tokens` long.

    A step reads the whole cache once, and memory is read fast only in long runs. One block of full
    length would leave gaps at every row until the last step (three times slower at a quarter of the
    length); so blocks start small and grow with what is already there.
    """

    def __init__(self, shape: DecoderShape, rows: int, tokens: int, memory: Tensor) -> None:
        self.shape = shape
        self.scale = shape.head_dim**-0.5
        self.rows = rows
        self.tokens = tokens
        self.blocks: list[Tensor] = []
        self._free = memory

    @staticmethod
    def numbers(shape: DecoderShape, rows: int, tokens: int) -> int:
        """How many numbers `memory` must hold."""
        return 2 * shape.layers * rows * shape.kv_heads * shape.head_dim * tokens

    def advance(self, step: int) -> None:
        """Make room for token number `step` of every row."""
        filled = sum(block.shape[3] for block in self.blocks)
        if step == filled:
            size = min(max(_FIRST_BLOCK, filled // 2), self.tokens - filled)
            layout = (self.shape.layers, 2, self.rows * self.shape.kv_heads, size, self.shape.head_dim)
            numbers = self.numbers(self.shape, self.rows, size)
            self.blocks.append(self._free[:numbers].view(layout))
            self._free = self._free[numbers:]
            filled += size
        self._last = step - filled + self.blocks[-1].shape[3]

    def keep(self, kept_B: Tensor) -> None:
        """Go on with these rows (ascending), moved to the front of the same memory."""
        self.rows = len(kept_B)
        for n, block in enumerate(self.blocks):
            by_row = block.unflatten(2, (-1, self.shape.kv_heads))
            moved = by_row.index_select(2, kept_B).flatten(2, 3)
            self.blocks[n] = block.flatten()[: moved.numel()].view(moved.shape).copy_(moved)

    def write(self, layer: int, key_value_B2KD: Tensor) -> None:
        """Store this step's keys and values."""
        self.blocks[-1][layer, :, :, self._last] = key_value_B2KD.transpose(0, 1).flatten(1, 2)

    def attend(self, layer: int, query_BHD: Tensor, prompt_BHD: Tensor, prompt_lse_BH: Tensor) -> Tensor:
        """Attention over a row's own tokens and its prompt (B, H·D); the prompt's part is known already.

        The prompt enters as one more key, with its log-sum-exp as score and its attended values as
        value.
        """
        K, D = self.shape.kv_heads, self.shape.head_dim
        shared = (self.rows * K, self.shape.heads // K, D)
        query_BRD = (query_BHD * self.scale).view(shared)
        parts = [block[layer] for block in self.blocks[:-1]]
        parts.append(self.blocks[-1][layer][:, :, : self._last + 1])
        scores = [torch.bmm(query_BRD, key.transpose(1, 2)) for key, _ in parts]
        scores.append(prompt_lse_BH.reshape(*shared[:2], 1).to(query_BRD.dtype))
        weights = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        *own, prompt = weights.split([s.shape[-1] for s in scores], dim=-1)
        out_BRD = prompt_BHD.reshape(shared) * prompt
        for weight, (_, value) in zip(own, parts, strict=True):
            out_BRD.baddbmm_(weight, value)
        return out_BRD.view(self.rows, -1)
