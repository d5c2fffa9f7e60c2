"""The attention of sampling: prefill that fills the prompts' cache, and decoding over two caches.

Shape suffixes: B rows being decoded, N groups, H query heads, K key/value heads, X = H + 2K,
D head dimension, P prompt tokens, M tokens of all prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from greenward.policies.attention import attend, merge, padding_mask
from greenward.policies.decoder import Decoder, rotate_
from greenward.policies.group_batch import Span, bucket_by_length


class PrefillAttention:
    """Causal attention within each prompt; keeps the rotated keys and values of every layer.

    `last_N` is the index in the flat row of each prompt's last token; `members` names the prompts
    of each bucket, in order of length.
    """

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], device: torch.device) -> None:
        self.shape = decoder.shape
        self.members = bucket_by_length([len(prompt) for prompt in prompts])
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
        for span, cache in zip(self.spans, self.caches):
            query, key, value = span.pad(qkv_MXD).transpose(1, 2).split((H, K, K), dim=1)
            key, value = key.contiguous(), value.contiguous()
            cache.append((key, value))
            out, _ = attend(query, key, value, causal=True)
            span.unpad_into(out.transpose(1, 2), out_MHD)
        return out_MHD.flatten(1)


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

    Rows are ordered by group, and groups by prompt length. `allocate` gives the memory of the rows'
    own cache.
    """

    def __init__(
        self,
        decoder: Decoder,
        prefill: PrefillAttention,
        group_sizes: Sequence[int],
        own_tokens: int,
        allocate: Callable[..., Tensor],
    ) -> None:
        self.shape = shape = decoder.shape
        self.rotary, self.dtype = decoder.rotary, decoder.compute_dtype
        self.device = prefill.last_N.device
        self.groups_B = np.repeat(np.arange(len(group_sizes)), group_sizes)
        self.lengths_B = prefill.lengths_N.index_select(0, self._on_device(self.groups_B))
        self.longest = int(prefill.lengths_N.max()) + own_tokens
        # (layers, keys and values, rows, K, own_tokens, D)
        self.own_cache = allocate(
            shape.layers, 2, len(self.groups_B), shape.kv_heads, own_tokens, shape.head_dim
        )
        self.buckets = [
            _Bucket(members, cache, padding_mask(span.lengths, span.width, self.dtype, self.device), slice(0))
            for members, span, cache in zip(prefill.members, prefill.spans, prefill.caches)
        ]
        self._arrange()

    def advance(self, step: int) -> None:
        """Prepare to feed every row its own token number `step`."""
        self.step = step
        self.cos, self.sin = self.rotary(self.lengths_B + step, self.longest, self.dtype)

    def keep(self, kept: np.ndarray, tokens: int) -> None:
        """Go on with these rows (ascending) and their first `tokens` cached tokens."""
        index = self._on_device(kept)
        for part in self.own_cache.flatten(0, 1):
            part[: len(kept), :, :tokens] = part[:, :, :tokens].index_select(0, index)
        self.own_cache = self.own_cache[:, :, : len(kept)]
        self.groups_B = self.groups_B[kept]
        self.lengths_B = self.lengths_B.index_select(0, index)
        self._arrange()

    def __call__(self, layer: int, qkv_BXD: Tensor) -> Tensor:
        H, K = self.shape.heads, self.shape.kv_heads
        rotate_(qkv_BXD[:, : H + K], self.cos, self.sin)
        query_BHD, new = qkv_BXD[:, :H], qkv_BXD[:, H:].unflatten(1, (2, K))
        cache = self.own_cache[layer]
        cache[:, :, :, self.step] = new.transpose(0, 1)
        key, value = cache[:, :, :, : self.step + 1]
        over_own = attend(query_BHD.unsqueeze(2), key, value)
        over_prompt = [self._attend_prompt(bucket, layer, query_BHD[bucket.rows]) for bucket in self.buckets]
        out, lse = over_prompt[0] if len(over_prompt) == 1 else map(torch.cat, zip(*over_prompt))
        return merge(over_own, (out.unsqueeze(2), lse.unsqueeze(2)))[0].flatten(1)

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
