"""The native sampler: prompts prefilled once per group, a static cache, finished rows leave.

Shape suffixes: B rows being decoded, N groups, H query heads, K key/value heads, X = H + 2K,
D head dimension, P prompt tokens, M tokens of all prompts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from greenward.errors import GreenwardError
from greenward.policies.decode_attention import DecodeAttention, PrefillAttention
from greenward.policies.decoder import Decoder
from greenward.policies.protocol import Completion, SamplingParams
from greenward.policies.row_progress import RowProgress
from greenward.policies.token_choice import choose_tokens, row_keys, uniforms
from greenward.policies.tokenizer import Tokenizer

# Finished rows are dropped when they are this share of the batch: dropping copies the cache.
_COMPACT_BELOW = 0.75


class NativeSampler:
    """Draws completions from a `Decoder`.

    At most `max_rows` completions, and `max_cache_bytes` of their keys and values, are decoded at
    once; larger requests are worked off in parts with the same result.
    """

    def __init__(
        self, decoder: Decoder, tokenizer: Tokenizer, *, max_rows: int = 512, max_cache_bytes: int = 1 << 30
    ) -> None:
        self.decoder = decoder
        self.tokenizer = tokenizer
        self.max_rows = max_rows
        self.max_cache_bytes = max_cache_bytes
        self._cache = torch.empty(0)

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        version: int = 0,
    ) -> list[list[Completion]]:
        """As `protocol.Sampler.sample`; `version` is stamped on the completions."""
        check_prompts(prompts, params, self.decoder.shape.max_positions)
        keys_NG = row_keys(prompts, group_size, seed)
        done: dict[tuple[int, int], Completion] = {}
        for part in self._parts(prompts, group_size, params):
            rows = [(n, g) for n, samples in part for g in samples]
            keys_B = np.array([keys_NG[row] for row in rows], dtype=np.uint64)
            completions = self._sample_part(
                [prompts[n] for n, _ in part], [len(samples) for _, samples in part], params, keys_B, version
            )
            done.update(zip(rows, completions))
        return [[done[n, g] for g in range(group_size)] for n in range(len(prompts))]

    def _parts(
        self, prompts: Sequence[Sequence[int]], group_size: int, params: SamplingParams
    ) -> list[list[tuple[int, range]]]:
        """Groups (or pieces of one) in order of prompt length, so many at a time as memory allows."""
        shape, size = self.decoder.shape, self.decoder.compute_dtype.itemsize
        token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * size
        row_limit = max(1, min(self.max_rows, self.max_cache_bytes // (token_bytes * params.max_tokens)))
        parts: list[list[tuple[int, range]]] = [[]]
        rows = 0
        for n in sorted(range(len(prompts)), key=lambda n: len(prompts[n])):
            for first in range(0, group_size, row_limit):
                samples = range(first, min(first + row_limit, group_size))
                if rows + len(samples) > row_limit:
                    parts.append([])
                    rows = 0
                parts[-1].append((n, samples))
                rows += len(samples)
        return [part for part in parts if part]

    def _sample_part(
        self,
        prompts: list[Sequence[int]],
        group_sizes: list[int],
        params: SamplingParams,
        keys_B: np.ndarray,
        version: int,
    ) -> list[Completion]:
        device = self.decoder.embedding.device
        prefill = PrefillAttention(self.decoder, prompts, device)
        hidden_ME = self.decoder(prefill.token_ids_M, prefill)
        attention = DecodeAttention(self.decoder, prefill, group_sizes, params.max_tokens - 1, self._cache_of)
        progress = RowProgress(len(keys_B), params, self.tokenizer)
        uniforms_BT = uniforms(keys_B, params.max_tokens)
        first_of_row = prefill.last_N.repeat_interleave(torch.tensor(group_sizes, device=device))
        hidden_BE = hidden_ME.index_select(0, first_of_row)
        unembedding_EV = self.decoder.unembedding_VE.t()
        for step in range(params.max_tokens):
            uniforms_B = torch.from_numpy(uniforms_BT[progress.rows_B, step]).to(device)
            token_ids_B, logprobs_B = choose_tokens(hidden_BE @ unembedding_EV, params, uniforms_B)
            progress.record(step, token_ids_B, logprobs_B)
            alive = progress.alive_B.mean()
            if alive == 0 or step + 1 == params.max_tokens:
                break
            if alive <= _COMPACT_BELOW:
                kept = progress.drop_finished()
                attention.keep(kept, step)
                token_ids_B = token_ids_B.index_select(0, torch.from_numpy(kept).to(device))
            attention.advance(step)
            hidden_BE = self.decoder(token_ids_B, attention)
        return progress.completions(version)

    def _cache_of(self, *size: int) -> Tensor:
        """The cache's memory, kept between calls: fresh pages cost more than the arithmetic."""
        numbers = int(np.prod(size))
        dtype, device = self.decoder.compute_dtype, self.decoder.embedding.device
        if self._cache.numel() < numbers or self._cache.dtype != dtype or self._cache.device != device:
            self._cache = torch.empty(numbers, dtype=dtype, device=device)
        return self._cache[:numbers].view(size)


def check_prompts(prompts: Sequence[Sequence[int]], params: SamplingParams, max_positions: int) -> None:
    """Refuse empty prompts and prompts that leave no room for `max_tokens` more."""
    if params.max_tokens < 1:
        raise GreenwardError(f"expected max_tokens of at least 1, found {params.max_tokens}")
    for n, prompt in enumerate(prompts):
        if not len(prompt):
            raise GreenwardError(f"expected at least one token in every prompt, found none in prompt {n}")
        if len(prompt) + params.max_tokens > max_positions:
            raise GreenwardError(
                f"prompt {n} has {len(prompt)} tokens; with max_tokens {params.max_tokens} that is more "
                f"than the model's {max_positions} positions",
                remedy="lower sampling.max_tokens, drop long problems, or use a model with more positions",
            )
