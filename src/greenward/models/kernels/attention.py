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
        self.layout = layout_of(batch)

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
        self.room = int(room.sum())
        self.caches: list[tuple[Tensor, Tensor]] = []

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        out_MHD, _ = self.attend(qkv_MXD)
        H, K = self.shape.heads, self.shape.kv_heads
        self.caches.append(self.kernels.cache_prompts(qkv_MXD, H, K, self.layout, self.offsets_N, self.room))
        return out_MHD.flatten(1)


class KernelDecodeAttention:
    """Each row's newest token over its group's prompt and its own tokens. Rows are ordered by group.

    A row keeps its place in the cache when others leave: nothing is copied.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefill: KernelPrefill,
        group_sizes: Sequence[int],
        tokens: int,
        memory: Tensor,
    ) -> None:
        batch = prefill.batch
        self.shape, self.kernels, self.caches = decoder.shape, prefill.kernels, prefill.caches
        self.table = decoder.rotary.grown(batch.longest + tokens)
        self.longest = batch.longest + tokens
        self.capacity = -(-tokens // LANES) * LANES
        rows = sum(group_sizes)
        places = (self.shape.layers, 2, rows * self.shape.kv_heads * self.capacity * self.shape.head_dim)
        self.own = memory[: np.prod(places)].view(places)
        self.stored = -1
        self.slots_B = np.arange(rows)
        self.groups_B = np.repeat(np.arange(len(group_sizes)), group_sizes)
        self.offsets_N, self.lengths_N = prefill.offsets_N, _lengths(batch)

    @staticmethod
    def numbers(decoder: Decoder, rows: int, tokens: int) -> int:
        """How many numbers `memory` must hold."""
        shape = decoder.shape
        return 2 * shape.layers * rows * shape.kv_heads * shape.head_dim * (-(-tokens // LANES) * LANES)

    def advance(self) -> None:
        self.stored += 1
        starts = np.flatnonzero(np.diff(self.groups_B, prepend=-1))
        ends = np.append(starts[1:], len(self.groups_B))
        blocks = [np.arange(a, b, _QUERY_BLOCK) for a, b in zip(starts, ends, strict=True)]
        lengths_B = self.lengths_N[self.groups_B]
        self.rows = Rows(
            sum(map(len, blocks)),
            np.append(np.concatenate(blocks), len(self.groups_B)),
            self.slots_B,
            lengths_B + self.stored,
            self.offsets_N[self.groups_B],
            lengths_B,
            self.capacity,
            self.stored,
            self.longest,
        )

    def keep(self, kept: np.ndarray) -> None:
        self.slots_B, self.groups_B = self.slots_B[kept], self.groups_B[kept]

    def __call__(self, layer: int, qkv_BXD: Tensor) -> Tensor:
        H, K = self.shape.heads, self.shape.kv_heads
        own = (self.own[layer, 0], self.own[layer, 1])
        return self.kernels.decode(qkv_BXD, H, K, self.table, self.rows, self.caches[layer], own).flatten(1)


def layout_of(batch: GroupBatch) -> Layout:
    """The groups of a batch, bucket by bucket."""
    lengths_N, buckets = _lengths(batch), batch.buckets
    return Layout(
        len(lengths_N),
        np.concatenate([bucket.prompts.row_starts() for bucket in buckets]),
        lengths_N,
        np.append(0, np.cumsum([bucket.group_size for bucket in buckets for _ in bucket.members])),
        np.concatenate([bucket.owns.row_starts() for bucket in buckets]),
        np.concatenate([bucket.owns.lengths for bucket in buckets]),
        batch.longest,
    )


def _lengths(batch: GroupBatch) -> np.ndarray:
    return np.concatenate([bucket.prompts.lengths for bucket in batch.buckets])
