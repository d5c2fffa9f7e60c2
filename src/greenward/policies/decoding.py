"""Decoding with our decoder: a cache of the prompts, shared by each group, and one of the completions.

Shape suffixes: B rows being decoded, N groups, H query heads, K key/value heads, X = H + 2K,
D head dimension, M tokens of all prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from greenward.policies.adapter import fix_factors, is_adapted, shared_copy
from greenward.policies.attention import SharedPrefixAttention, attend
from greenward.policies.decoder import Decoder, DecoderShape, rotate_
from greenward.policies.flex import FlexAttention, flex_serves
from greenward.policies.graphs import StepGraph, captures
from greenward.policies.group_batch import GroupBatch, Span
from greenward.policies.kernels.attention import KernelDecodeAttention, KernelPrefill, kernels_for
from greenward.policies.products import product, products_for

# The least growth of a cache, in tokens and as the divisor of its size. Where steps are captured it grows
# seldom, since each time a graph is captured anew.
_GROWTH, _CAPTURED_GROWTH = (16, 8), (64, 1)
CACHE_BYTES = 1 << 30  # for the completions' keys and values


class PrefillAttention(SharedPrefixAttention):
    """Causal attention within each prompt; keeps the rotated keys and values of every layer."""

    def __init__(self, decoder: Decoder, batch: GroupBatch) -> None:
        super().__init__(decoder, batch)
        self.caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in batch.buckets]  # [bucket][layer]

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        out_MHD, kept = self.attend(qkv_MXD)
        self.store(kept[::2])
        return out_MHD.flatten(1)

    def store(self, prompts: Sequence[Tensor]) -> None:
        """Keep a layer's keys and values of the padded prompts of each bucket."""
        for cache, padded in zip(self.caches, prompts, strict=True):
            _, key, value = self.heads(padded)
            cache.append((key.contiguous(), value.contiguous()))


class FlexPrefill(FlexAttention, PrefillAttention):
    """The same by `flex_attention`."""

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        rotated = self.rotated(qkv_MXD)
        self.store([bucket.prompts.pad(rotated) for bucket in self.batch.buckets])
        return self.over(rotated)[: len(qkv_MXD)]


class CompletionCache:
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
        self._is_captured = captures(memory.device)
        self._cache = self._place(0)
        self._stored = 0
        self.newest = torch.full((1,), -1, device=memory.device)  # the place of the newest token

    @staticmethod
    def numbers(shape: DecoderShape, rows: int, tokens: int) -> int:
        """How many numbers `memory` must hold."""
        return 4 * shape.layers * rows * shape.kv_heads * shape.head_dim * tokens

    def make_room(self) -> bool:
        """Make room for the next token of every row; whether the cache has moved."""
        capacity = self._cache.shape[3]
        is_full = self._stored == capacity
        if is_full:
            least, share = _CAPTURED_GROWTH if self._is_captured else _GROWTH
            larger = self._place(min(capacity + max(least, capacity // share), self.tokens))
            larger[:, :, :, :capacity] = self._cache
            self._cache = larger
            self._mask = larger.new_full((larger.shape[3],), float("-inf"))
            self._mask[:capacity] = 0
        self._stored += 1
        return is_full

    def advance(self) -> None:
        self.newest += 1
        self._mask.index_fill_(0, self.newest, 0)

    def keep(self, kept_B: Tensor) -> None:
        self.rows = len(kept_B)
        by_row = self._cache.unflatten(2, (-1, self.shape.kv_heads))
        smaller = self._place(self._cache.shape[3])
        torch.index_select(by_row, 2, kept_B, out=smaller.unflatten(2, (-1, self.shape.kv_heads)))
        self._cache = smaller

    def write(self, layer: int, key_value_B2KD: Tensor) -> None:
        by_row = key_value_B2KD.transpose(0, 1).flatten(1, 2)
        if self._is_captured:  # a graph would repeat the number of the place, too
            self._cache[layer].index_copy_(2, self.newest, by_row.unsqueeze(2))
        else:
            self._cache[layer, :, :, self._stored - 1] = by_row

    def attend(self, layer: int, query_BHD: Tensor, prompt_BHD: Tensor, prompt_lse_BH: Tensor) -> Tensor:
        """Attention over a row's own tokens and its prompt (B, H·D), whose part was computed before.

        The prompt enters as one more key, with its log-sum-exp as score and its attended values as
        value.
        """
        K, D = self.shape.kv_heads, self.shape.head_dim
        shared = (self.rows * K, self.shape.heads // K, D)
        key, value = self._cache[layer]
        scores = torch.baddbmm(self._mask, query_BHD.reshape(shared), key.transpose(1, 2), alpha=D**-0.5)
        prompt_scores = prompt_lse_BH.reshape(*shared[:2], 1).to(scores.dtype)
        weights = torch.softmax(torch.cat((scores, prompt_scores), dim=-1), dim=-1)
        out = prompt_BHD.reshape(shared) * weights[..., -1:]
        return out.baddbmm_(weights[..., :-1], value).view(self.rows, -1)

    def _place(self, capacity: int) -> Tensor:
        """Room for the present rows in the memory that is not in use."""
        self._memories.reverse()
        layout = (self.shape.layers, 2, self.rows * self.shape.kv_heads, capacity, self.shape.head_dim)
        return self._memories[0][: self.numbers(self.shape, self.rows, capacity) // 2].view(layout)


@dataclass(eq=False)
class _LiveBucket:
    """Groups of similar prompt length that still have rows; `rows` lays these out in the batch."""

    groups: np.ndarray
    cache: list[tuple[Tensor, Tensor]]  # per layer: keys and values of the prompts, (groups, K, tokens, D)
    mask: Tensor | None
    rows: Span = field(init=False)

    def arrange(self, start: int, counts_N: np.ndarray, device: torch.device) -> int:
        """Drop groups without rows and lay out the others from row `start`; the first row behind them."""
        alive = np.flatnonzero(counts_N[self.groups])
        if len(alive) < len(self.groups):
            index = torch.from_numpy(alive).to(device)
            self.groups = self.groups[alive]
            self.cache = [
                (key.index_select(0, index), value.index_select(0, index)) for key, value in self.cache
            ]
            self.mask = None if self.mask is None else self.mask.index_select(0, index)
        if not len(alive):
            return start
        self.rows = Span.of(start, counts_N[self.groups], device)
        return self.rows.stop

    def attend(self, layer: int, query_BHD: Tensor) -> tuple[Tensor, Tensor]:
        """Attended values (b, H, D) and log-sum-exps (b, H) of this bucket's rows over their prompts."""
        query = self.rows.pad(query_BHD).transpose(1, 2)
        out, lse = attend(query, *self.cache[layer], mask_B11S=self.mask)
        return self.rows.unpad(out.transpose(1, 2)), self.rows.unpad(lse.transpose(1, 2))


class DecodeAttention:
    """Each row's newest token over its group's prompt and its own tokens.

    Rows are ordered by group, and groups as in the buckets of the prefill. What a step computes after
    `make_room` follows from tensors that stay in their places, so that it can be captured.
    """

    _moved: bool

    def __init__(
        self, decoder: Decoder, prefill: PrefillAttention, group_sizes: Sequence[int], own: CompletionCache
    ) -> None:
        batch = prefill.batch
        self.shape, self.dtype = decoder.shape, decoder.compute_dtype
        self.device = batch.token_ids_M.device
        self.own = own
        self.groups = len(group_sizes)
        self.groups_B = np.repeat(np.arange(self.groups), group_sizes)
        last_N = batch.positions_M.index_select(0, batch.predicting_U[batch.scored_from_S])
        self.positions_B = last_N.index_select(0, torch.from_numpy(self.groups_B).to(self.device))
        # Held here, since a graph reads it while an update in another thread may let it grow.
        self.table = decoder.rotary.grown(batch.longest + own.tokens)
        self.buckets = [
            _LiveBucket(np.array(bucket.members), cache, mask)
            for bucket, cache, mask in zip(batch.buckets, prefill.caches, prefill.masks, strict=True)
        ]
        self._arrange()

    @property
    def counters(self) -> list[Tensor]:
        """The tensors that `advance` counts up."""
        return [self.positions_B, self.own.newest]

    def make_room(self) -> bool:
        """Make room for the next token of every row; whether tensors have moved since the last."""
        moved = self.own.make_room() or self._moved
        self._moved = False
        return moved

    def advance(self) -> None:
        self.own.advance()
        self.positions_B += 1
        self.cos, self.sin = self.table.index_select(0, self.positions_B).to(self.dtype).split(1, dim=1)

    def keep(self, kept: np.ndarray) -> None:
        index = torch.from_numpy(kept).to(self.device)
        self.own.keep(index)
        self.groups_B = self.groups_B[kept]
        self.positions_B = self.positions_B.index_select(0, index)
        self._arrange()

    def __call__(self, layer: int, qkv_BXD: Tensor) -> Tensor:
        H, K = self.shape.heads, self.shape.kv_heads
        rotate_(qkv_BXD[:, : H + K], self.cos, self.sin)
        self.own.write(layer, qkv_BXD[:, H:].unflatten(1, (2, K)))
        query_BHD = qkv_BXD[:, :H]
        over_prompt = [bucket.attend(layer, query_BHD) for bucket in self.buckets]
        out, lse = over_prompt[0] if len(over_prompt) == 1 else map(torch.cat, zip(*over_prompt, strict=True))
        return self.own.attend(layer, query_BHD, out, lse)

    def _arrange(self) -> None:
        counts_N = np.bincount(self.groups_B, minlength=self.groups)
        self._moved = True
        start = 0
        for bucket in self.buckets:
            start = bucket.arrange(start, counts_N, self.device)
        self.buckets = [bucket for bucket in self.buckets if len(bucket.groups)]


class NativeDecoding:
    """The `Decoding` of our decoder.

    The memory of completions' keys and values is kept between batches, because fresh pages cost more
    than the arithmetic of a small model.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._source = self.decoder = decoder
        if is_adapted(decoder):
            self.decoder = shared_copy(decoder)
        elif decoder.compute_dtype != torch.float32:
            self.decoder = decoder.in_compute_dtype()
        self._memory = torch.empty(0)
        self._graph = StepGraph(decoder.embedding.device)

    def rows_at_once(self, max_tokens: int) -> int:
        return CACHE_BYTES // (self._numbers(1, max_tokens) * self.decoder.compute_dtype.itemsize)

    def _numbers(self, rows: int, tokens: int) -> int:
        if kernels_for(self.decoder):
            return KernelDecodeAttention.numbers(self.decoder, rows, tokens)
        return CompletionCache.numbers(self.decoder.shape, rows, tokens)

    def start(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], max_tokens: int) -> Tensor:
        self._refresh()
        decoder, device = self.decoder, self.decoder.embedding.device
        batch = GroupBatch.of_prompts(prompts, group_sizes, device)
        prefill: KernelPrefill | PrefillAttention
        if native := kernels_for(decoder):
            prefill = KernelPrefill(decoder, batch, native)
        else:
            prefill = (FlexPrefill if flex_serves(decoder) else PrefillAttention)(decoder, batch)

        def logits_after_prompts(hidden_UE: Tensor, unembedding_VE: Tensor) -> Tensor:
            return _logits(hidden_UE.index_select(0, batch.scored_from_S), unembedding_VE)

        logits_NV = decoder(batch.token_ids_M, prefill, logits_after_prompts, batch.predicting_U)
        rows, tokens = sum(group_sizes), max_tokens - 1
        numbers = self._numbers(rows, tokens)
        if self._memory.numel() < numbers or self._memory.device != device:
            self._memory = torch.zeros(numbers, dtype=decoder.compute_dtype, device=device)
        if isinstance(prefill, KernelPrefill):
            kernel = KernelDecodeAttention(decoder, prefill, group_sizes, tokens, self._memory)
            self._attention: DecodeAttention | KernelDecodeAttention = kernel
        else:
            own = CompletionCache(decoder.shape, rows, tokens, self._memory)
            self._attention = DecodeAttention(decoder, prefill, group_sizes, own)
        return logits_NV.repeat_interleave(torch.tensor(group_sizes, device=device), dim=0)

    def step(self, token_ids_B: Tensor) -> Tensor:
        attention = self._attention
        if isinstance(attention, KernelDecodeAttention):
            return self._step(token_ids_B)
        moved = attention.make_room()
        return self._graph.run(self._step, token_ids_B, attention.counters, moved=moved)

    def _step(self, token_ids_B: Tensor) -> Tensor:
        self._attention.advance()
        return self.decoder(token_ids_B, self._attention, _logits)

    def keep(self, kept_B: np.ndarray) -> None:
        self._attention.keep(kept_B)

    @torch.no_grad()
    def _refresh(self) -> None:
        """Cast the weights anew for every batch, or put together the factors of an adapter.

        Whether they have changed cannot be told cheaply: fused optimizers leave a tensor's version
        counter as it is.
        """
        if is_adapted(self._source):
            fix_factors(self._source, self.decoder)
        elif self.decoder is not self._source:
            for ours, theirs in zip(self.decoder.parameters(), self._source.parameters(), strict=True):
                ours.copy_(theirs)


def _logits(hidden_BE: Tensor, unembedding_VE: Tensor) -> Tensor:
    return product(products_for(hidden_BE, unembedding_VE), hidden_BE, unembedding_VE.t())
