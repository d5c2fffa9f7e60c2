"""Computes attention by the compiled kernels. Shape suffixes are those of `native.py`, and N groups."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from greenward.models.attention import Attend
from greenward.models.decoder import Decoder
from greenward.models.kernels.native import LANES, Kernels, Layout, Rows
from greenward.models.products import serving
from greenward.models.scoring import GroupBatch

_QUERY_BLOCK = 8  # rows of a group whose attention one thread computes


def kernels_for(decoder: Decoder) -> Kernels | None:
    """The kernels, where they serve this decoder."""
    return serving(decoder.embedding.new_empty(0, dtype=decoder.compute_dtype), decoder.shape.head_dim)


class KernelAttention:
    """The `Attention` of training: rotates, then attends within each group."""

    def __init__(self, decoder: Decoder, batch: GroupBatch, kernels: Kernels) -> None:
        self.shape, self.kernels, self.batch = decoder.shape, kernels, batch
        self.table = decoder.rotary.grown(batch.longest)
        self.positions_M = batch.positions_M
        lengths_N, buckets = _lengths(batch), batch.buckets
        self.layout = Layout(
            len(lengths_N),
            np.concatenate([bucket.prompts.row_starts() for bucket in buckets]),
            lengths_N,
            np.append(0, np.cumsum([bucket.group_size for bucket in buckets for _ in bucket.members])),
            np.concatenate([bucket.owns.row_starts() for bucket in buckets]),
            np.concatenate([bucket.owns.lengths for bucket in buckets]),
            batch.longest,
        )
        self.layout.count = len(batch.token_ids_M)

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        return Attend.apply(qkv_MXD, self)

    def attend(self, qkv_MXD: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Attended values (M, H, D); rotated heads and log-sum-exps (M, H). Rotates its input in place."""
        H, K = self.shape.heads, self.shape.kv_heads
        self.kernels.rotate_(qkv_MXD, self.positions_M, self.table, H + K, 1.0)
        out_MHD, lse_MH = self.kernels.attention(qkv_MXD, H, K, self.layout)
        return out_MHD, [qkv_MXD, lse_MH]

    def backward(self, grad_MHD: Tensor, out_MHD: Tensor, kept: Sequence[Tensor]) -> Tensor:
        """The gradient (M, X, D) of the input of `attend`, from what that gave."""
        H, K = self.shape.heads, self.shape.kv_heads
        qkv_MXD, lse_MH = kept
        grad = self.kernels.attention_backward(grad_MHD, qkv_MXD, out_MHD, lse_MH, K, self.layout)
        self.kernels.rotate_(grad, self.positions_M, self.table, H + K, -1.0)
        return grad


class KernelPrefill(KernelAttention):
    """Causal attention within each prompt; keeps the rotated keys and values of every layer."""

    def __init__(self, decoder: Decoder, batch: GroupBatch, kernels: Kernels) -> None:
        super().__init__(decoder, batch, kernels)
        room = -(-_lengths(batch) // LANES) * LANES
        self.offsets_N = np.ascontiguousarray(np.cumsum(room) - room)
        # One block, since many small ones that live long would keep the memory between them from being used.
        numbers = int(room.sum()) * decoder.shape.kv_heads * decoder.shape.head_dim
        empty = decoder.embedding.new_zeros(
            (decoder.shape.layers, 2, numbers), dtype=decoder.compute_dtype, requires_grad=False
        )
        self.caches = [(layer[0], layer[1]) for layer in empty]

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        out_MHD, _ = self.attend(qkv_MXD)
        H, K = self.shape.heads, self.shape.kv_heads
        self.kernels.cache_prompts(qkv_MXD, H, K, self.layout, self.offsets_N, *self.caches[layer])
        return out_MHD.flatten(1)


class KernelDecodeAttention:
    """Each row's newest token over its group's prompt and its own tokens, which differ in number.

    The rows of a group follow each other. A row keeps its place in the cache when others leave or join:
    nothing is copied, and the caches of a prefill are freed with its last row.
    """

    def __init__(self, decoder: Decoder, kernels: Kernels, rows: int, tokens: int, memory: Tensor) -> None:
        """There is room for so many `rows` of so many `tokens`; `memory` has `numbers(…)` numbers."""
        self.shape, self.kernels, self.rotary = decoder.shape, kernels, decoder.rotary
        self.tokens, self.capacity = tokens, -(-tokens // LANES) * LANES
        places = (self.shape.layers, 2, rows * self.shape.kv_heads * self.capacity * self.shape.head_dim)
        self.own = memory[: np.prod(places)].view(places)
        self.own_places = [(layer[0].data_ptr(), layer[1].data_ptr()) for layer in self.own]
        self.free = np.arange(rows)
        # Of each row: the number of its group, its place in `own`, how many tokens it has there, the length
        # of its prompt, and for each layer where the keys and the values of this lie in memory.
        self.group_B, self.slot_B, self.stored_B, self.length_B = np.empty((4, 0), dtype=np.int64)
        self.places_L2B = np.empty((self.shape.layers, 2, 0), dtype=np.int64)
        self.prefill_B: list[KernelPrefill] = []
        self.groups = 0

    @staticmethod
    def numbers(decoder: Decoder, rows: int, tokens: int) -> int:
        """How many numbers `memory` must hold."""
        shape = decoder.shape
        return 2 * shape.layers * rows * shape.kv_heads * shape.head_dim * (-(-tokens // LANES) * LANES)

    def join(self, prefill: KernelPrefill, group_sizes: Sequence[int]) -> None:
        """Add the rows of groups whose prompts were computed, behind the others."""
        groups = np.repeat(np.arange(len(group_sizes)), group_sizes)
        lengths_N = _lengths(prefill.batch)
        bases = np.array([[part.data_ptr() for part in cache] for cache in prefill.caches])
        token_bytes = self.shape.kv_heads * self.shape.head_dim * prefill.caches[0][0].element_size()
        places = bases[:, :, None] + prefill.offsets_N[groups] * token_bytes
        slots, self.free = np.split(self.free, [len(groups)])
        self.table = self.rotary.grown(prefill.batch.longest + self.tokens)
        self.group_B = np.append(self.group_B, self.groups + groups)
        self.slot_B = np.append(self.slot_B, slots)
        self.stored_B = np.append(self.stored_B, np.full(len(groups), -1))
        self.length_B = np.append(self.length_B, lengths_N[groups])
        self.places_L2B = np.concatenate((self.places_L2B, places), axis=2)
        self.prefill_B += [prefill] * len(groups)
        self.groups += len(group_sizes)
        self._divide()

    def keep(self, kept: np.ndarray) -> None:
        self.free = np.append(self.free, np.delete(self.slot_B, kept))
        self.group_B, self.slot_B = self.group_B[kept], self.slot_B[kept]
        self.stored_B, self.length_B = self.stored_B[kept], self.length_B[kept]
        self.places_L2B = np.ascontiguousarray(self.places_L2B[:, :, kept])
        self.prefill_B = [self.prefill_B[b] for b in kept]
        self._divide()

    def _divide(self) -> None:
        """Cut the rows into blocks of neighbours of one group, and note where each layer's caches lie."""
        first, row = self.places_L2B.ctypes.data, 8 * len(self.group_B)
        places = [(first + 2 * layer * row, first + (2 * layer + 1) * row) for layer in range(len(self.own))]
        self.caches = [(*at, *own) for at, own in zip(places, self.own_places, strict=True)]
        self.caches_L4 = np.array(self.caches)
        starts = np.flatnonzero(np.diff(self.group_B, prepend=-1))
        ends = np.append(starts, len(self.group_B))[1:]
        blocks = [np.arange(a, b, _QUERY_BLOCK) for a, b in zip(starts, ends, strict=True)]
        self.block_row = np.concatenate([*blocks, [len(self.group_B)]])

    def advance(self, steps: int = 1) -> None:
        """Count the next tokens; `rows` is as it is after the first of them."""
        self.stored_B += 1
        position_B = self.length_B + self.stored_B
        self.rows = Rows(
            len(self.block_row) - 1,
            self.block_row,
            self.slot_B,
            position_B,
            self.stored_B,
            self.length_B,
            self.capacity,
            int(position_B.max()) + steps,
            0,
        )
        self.rows.count = len(position_B)
        if steps > 1:
            self.stored_B = self.stored_B + steps - 1

    def __call__(self, layer: int, qkv_BXD: Tensor) -> Tensor:
        H, K = self.shape.heads, self.shape.kv_heads
        return self.kernels.decode(qkv_BXD, H, K, self.table, self.rows, self.caches[layer]).flatten(1)


def _lengths(batch: GroupBatch) -> np.ndarray:
    return np.concatenate([bucket.prompts.lengths for bucket in batch.buckets])
