"""Decoding with our decoder: a cache of prompts that whole groups share, and one of rows' own tokens.

Shape suffixes: B rows being decoded, N groups, H query heads, K key/value heads, X = H + 2K,
R query heads for each key head, D head dimension, P prompt tokens, M tokens of all prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from greenward.policies.attention import attend, padding_mask
from greenward.policies.decoder import Decoder, DecoderShape, rotate_
from greenward.policies.group_batch import Span, bucket_groups

_GROWTH = 16


class PrefillAttention:
    """Causal attention within each prompt; keeps the rotated keys and values of every layer.

    `last_N` is the index in the flat row of each prompt's last token; `members` names the prompts
    of each bucket, in order of length.
    """

    def __init__(
        self, decoder: Decoder, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int]
    ) -> None:
        device = decoder.embedding.device
        self.shape = decoder.shape
        self.members = bucket_groups([len(prompt) for prompt in prompts], group_sizes)
        self.spans: list[Span] = []
        last = np.empty(len(prompts), dtype=np.int64)
        start = 0
        for members in self.members:
            lengths = [len(prompts[n]) for n in members]
            self.spans.append(Span.of(start, lengths, device))
            last[members] = start + np.cumsum(lengths) - 1
            start += sum(lengths)
        ordered = [prompts[n] for members in self.members for n in members]
        self.token_ids_M = torch.from_numpy(np.concatenate(ordered).astype(np.int64)).to(device)
        positions_M = torch.from_numpy(np.concatenate([np.arange(len(p)) for p in ordered])).to(device)
        self.last_N = torch.from_numpy(last).to(device)
        self.lengths_N = torch.tensor([len(prompt) for prompt in prompts], device=device)
        longest = max(map(len, prompts))
        self.cos, self.sin = decoder.rotary(positions_M, longest, decoder.compute_dtype)
        self.caches: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.spans]  # [bucket][layer]

    def __call__(self, layer: int, qkv_MXD: Tensor) -> Tensor:
        H, K = self.shape.heads, self.shape.kv_heads
        rotate_(qkv_MXD[:, : H + K], self.cos, self.sin)
        out_MHD = qkv_MXD.new_empty((len(qkv_MXD), H, self.shape.head_dim))
        for span, cache in zip(self.spans, self.caches, strict=True):
            query, key, value = span.pad(qkv_MXD).transpose(1, 2).split((H, K, K), dim=1)
            key, value = key.contiguous(), value.contiguous()
            cache.append((key, value))
            out, _ = attend(query, key, value, causal=True)
            span.unpad_into(out.transpose(1, 2), out_MHD)
        return out_MHD.flatten(1)


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


@dataclass
class _Bucket:
    """Groups of similar prompt length and their rows, a slice of the batch.

    The queries of a group share its prompt, so they are laid out as (groups, width); `slots` is the
    place of each row in that grid, None when every group has `width` rows.
    """

    groups: list[int]
    cache: list[tuple[Tensor, Tensor]]  # per layer: (n, K, P, D) keys and values
    mask_nP: Tensor | None
    rows: slice
    width: int = 0
    slots: Tensor | None = None


class DecodeAttention:
    """Each row's newest token over its group's prompt and its own tokens.

    Rows are ordered by group, and groups by prompt length and size.
    """

    def __init__(
        self, decoder: Decoder, prefill: PrefillAttention, group_sizes: Sequence[int], own: OwnCache
    ) -> None:
        self.shape = decoder.shape
        self.rotary, self.dtype = decoder.rotary, decoder.compute_dtype
        self.device = prefill.last_N.device
        self.own = own
        self.groups_B = np.repeat(np.arange(len(group_sizes)), group_sizes)
        self.lengths_B = prefill.lengths_N.index_select(0, self._on_device(self.groups_B))
        self.longest = int(prefill.lengths_N.max()) + own.tokens
        self.buckets = [
            _Bucket(members, cache, padding_mask(span.lengths, span.width, self.dtype, self.device), slice(0))
            for members, span, cache in zip(prefill.members, prefill.spans, prefill.caches, strict=True)
        ]
        self._arrange()

    def advance(self, step: int) -> None:
        """Prepare to feed every row its own token number `step`."""
        self.own.advance()
        self.cos, self.sin = self.rotary(self.lengths_B + step, self.longest, self.dtype)

    def keep(self, kept: np.ndarray) -> None:
        """Go on with these rows (ascending)."""
        index = self._on_device(kept)
        self.own.keep(index)
        self.groups_B = self.groups_B[kept]
        self.lengths_B = self.lengths_B.index_select(0, index)
        self._arrange()

    def __call__(self, layer: int, qkv_BXD: Tensor) -> Tensor:
        H, K = self.shape.heads, self.shape.kv_heads
        rotate_(qkv_BXD[:, : H + K], self.cos, self.sin)
        self.own.write(layer, qkv_BXD[:, H:].unflatten(1, (2, K)))
        query_BHD = qkv_BXD[:, :H]
        over_prompt = [self._attend_prompt(bucket, layer, query_BHD[bucket.rows]) for bucket in self.buckets]
        out, lse = over_prompt[0] if len(over_prompt) == 1 else map(torch.cat, zip(*over_prompt, strict=True))
        return self.own.attend(layer, query_BHD, out, lse)

    def _attend_prompt(self, bucket: _Bucket, layer: int, query_bHD: Tensor) -> tuple[Tensor, Tensor]:
        """Attended values (b, H, D) and log-sum-exps (b, H) of a bucket's rows over their prompts."""
        if bucket.slots is not None:
            grid = query_bHD.new_zeros((len(bucket.groups) * bucket.width, *query_bHD.shape[1:]))
            query_bHD = grid.index_copy_(0, bucket.slots, query_bHD)
        query = query_bHD.unflatten(0, (-1, bucket.width)).transpose(1, 2)
        key, value = bucket.cache[layer]
        out, lse = (
            x.transpose(1, 2).flatten(0, 1) for x in attend(query, key, value, mask_BS=bucket.mask_nP)
        )
        if bucket.slots is not None:
            out, lse = out.index_select(0, bucket.slots), lse.index_select(0, bucket.slots)
        return out, lse

    def _arrange(self) -> None:
        """Drop groups without rows and place the remaining rows in their buckets' grids."""
        counts = np.bincount(self.groups_B)
        start = 0
        for bucket in self.buckets:
            alive = [i for i, group in enumerate(bucket.groups) if group < len(counts) and counts[group]]
            if len(alive) < len(bucket.groups):
                index = self._on_device(np.array(alive, dtype=np.int64))
                bucket.groups = [bucket.groups[i] for i in alive]
                bucket.cache = [(k.index_select(0, index), v.index_select(0, index)) for k, v in bucket.cache]
                if bucket.mask_nP is not None:
                    bucket.mask_nP = bucket.mask_nP.index_select(0, index)
            sizes = counts[bucket.groups]
            bucket.rows = slice(start, start + int(sizes.sum()))
            start = bucket.rows.stop
            bucket.width = int(sizes.max(initial=0))
            within = np.arange(bucket.width)[None, :] < sizes[:, None]
            bucket.slots = None if within.all() else self._on_device(np.flatnonzero(within))
        self.buckets = [bucket for bucket in self.buckets if bucket.groups]

    def _on_device(self, indices: np.ndarray) -> Tensor:
        return torch.from_numpy(indices).to(self.device)


class NativeDecoding:
    """The `Decoding` of our decoder.

    `max_cache_bytes` bounds the rows' own keys and values; their memory is kept between batches,
    because fresh pages cost more than the arithmetic of a small model.
    """

    def __init__(self, decoder: Decoder, *, max_cache_bytes: int = 1 << 30) -> None:
        self._source = self.decoder = decoder
        if decoder.compute_dtype != torch.float32:
            self.decoder = decoder.in_compute_dtype()
        self.max_positions = decoder.shape.max_positions
        self.max_cache_bytes = max_cache_bytes
        self._memory = torch.empty(0)

    def rows_at_once(self, max_tokens: int) -> int:
        row_bytes = OwnCache.numbers(self.decoder.shape, 1, max_tokens) * self.decoder.compute_dtype.itemsize
        return self.max_cache_bytes // row_bytes

    def start(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], max_tokens: int) -> Tensor:
        self._refresh()
        prefill = PrefillAttention(self.decoder, prompts, group_sizes)

        def logits_after_prompts(hidden_ME: Tensor, unembedding_VE: Tensor) -> Tensor:
            return hidden_ME.index_select(0, prefill.last_N) @ unembedding_VE.t()

        logits_NV = self.decoder(prefill.token_ids_M, prefill, logits_after_prompts)
        own = self._own_cache(sum(group_sizes), max_tokens - 1)
        self._attention = DecodeAttention(self.decoder, prefill, group_sizes, own)
        self._fed = 0
        return logits_NV.repeat_interleave(torch.tensor(group_sizes, device=logits_NV.device), dim=0)

    def step(self, token_ids_B: Tensor) -> Tensor:
        self._attention.advance(self._fed)
        self._fed += 1
        return self.decoder(
            token_ids_B, self._attention, lambda hidden_BE, weight_VE: hidden_BE @ weight_VE.t()
        )

    def keep(self, kept_B: np.ndarray) -> None:
        self._attention.keep(kept_B)

    @torch.no_grad()
    def _refresh(self) -> None:
        """Cast the weights anew for every batch.

        Whether they have changed cannot be told cheaply: fused optimizers leave a tensor's version
        counter as it is.
        """
        if self.decoder is not self._source:
            for ours, theirs in zip(self.decoder.parameters(), self._source.parameters(), strict=True):
                ours.copy_(theirs)

    def _own_cache(self, rows: int, tokens: int) -> OwnCache:
        shape, device = self.decoder.shape, self.decoder.embedding.device
        numbers = OwnCache.numbers(shape, rows, tokens)
        if self._memory.numel() < numbers or self._memory.device != device:
            self._memory = torch.zeros(numbers, dtype=self.decoder.compute_dtype, device=device)
        return OwnCache(shape, rows, tokens, self._memory)


def _logits(hidden_BE: Tensor, unembedding_VE: Tensor) -> Tensor:
    return hidden_BE @ unembedding_VE.t()
