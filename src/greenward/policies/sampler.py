"""Sampling: prompts prefilled once per group, rows decoded side by side, finished rows leave.

What computes the logits is behind `DecodingEngine`: our decoder (`native_engine.py`) or any
model of `transformers` (`hf_fallback.py`).

Shape suffixes: B rows being decoded, N prompts, T positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from greenward.errors import GreenwardError
from greenward.policies.protocol import Completion, OnGroup, SamplingParams
from greenward.policies.row_progress import RowProgress
from greenward.policies.token_choice import choose_tokens, row_keys, uniforms
from greenward.policies.tokenizer import Tokenizer

# Finished rows are dropped when so few are left of the batch: dropping copies the cache.
_COMPACT_BELOW = 0.75


class DecodingEngine(Protocol):
    """One batch of rows at a time, each row a completion in the making. Rows are group-major."""

    max_positions: int

    def rows_at_once(self, max_tokens: int) -> int:
        """How many rows of `max_tokens` fit into the memory set aside for their caches."""
        ...

    def start(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], max_tokens: int) -> Tensor:
        """Prefill; logits (B, V) of every row's first token, B the sum of `group_sizes`."""
        ...

    def step(self, token_ids_B: Tensor) -> Tensor:
        """Feed each row its newest token; logits (B, V) of the next."""
        ...

    def keep(self, kept_B: np.ndarray) -> None:
        """Go on with these rows only (ascending places in the current batch)."""
        ...


class GroupSampler:
    """Draws completions from an engine, at most `max_rows` at once.

    Larger requests are worked off in parts; the completions do not depend on the parts.
    """

    def __init__(self, engine: DecodingEngine, tokenizer: Tokenizer, *, max_rows: int = 512) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.max_rows = max_rows

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        version: int = 0,
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        """As `protocol.Sampler.sample`; `version` is stamped on the completions."""
        check_prompts(prompts, params, self.engine.max_positions)
        keys_NG = row_keys(prompts, group_size, seed)
        groups: list[dict[int, Completion]] = [{} for _ in prompts]
        for part in self._parts(prompts, group_size, params):
            rows = [(n, g) for n, samples in part for g in samples]
            sampled = self._sample_part(
                [prompts[n] for n, _ in part],
                [len(samples) for _, samples in part],
                params,
                uniforms(np.array([keys_NG[row] for row in rows]), params.max_tokens),
                version,
            )
            for row, completion in sampled:
                n, g = rows[row]
                groups[n][g] = completion
                if on_group is not None and len(groups[n]) == group_size:
                    on_group(n, _in_order(groups[n]))
        return [_in_order(group) for group in groups]

    def _parts(
        self, prompts: Sequence[Sequence[int]], group_size: int, params: SamplingParams
    ) -> list[list[tuple[int, range]]]:
        """Groups (or pieces of one) in order of prompt length, so many at a time as memory allows."""
        limit = max(1, min(self.max_rows, self.engine.rows_at_once(params.max_tokens)))
        parts: list[list[tuple[int, range]]] = [[]]
        rows = 0
        for n in sorted(range(len(prompts)), key=lambda n: len(prompts[n])):
            for first in range(0, group_size, limit):
                samples = range(first, min(first + limit, group_size))
                if rows + len(samples) > limit:
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
        uniforms_BT: np.ndarray,
        version: int,
    ) -> Iterator[tuple[int, Completion]]:
        """Rows with their completions, as they end."""
        progress = RowProgress(len(uniforms_BT), params, self.tokenizer)
        logits_BV = self.engine.start(prompts, group_sizes, params.max_tokens)
        for step in range(params.max_tokens):
            uniforms_B = torch.from_numpy(uniforms_BT[progress.rows_B, step]).to(logits_BV.device)
            token_ids_B, logprobs_B = choose_tokens(logits_BV, params, uniforms_B)
            for row in progress.record(step, token_ids_B, logprobs_B):
                yield row, progress.completion(row, version)
            alive = progress.alive_B.mean()
            if alive == 0 or step + 1 == params.max_tokens:
                break
            if alive <= _COMPACT_BELOW:
                kept_B = progress.drop_finished()
                self.engine.keep(kept_B)
                token_ids_B = token_ids_B[torch.from_numpy(kept_B)]
            logits_BV = self.engine.step(token_ids_B)
        for row in progress.rows_B[progress.alive_B]:
            yield int(row), progress.completion(row, version)


def _in_order(group: dict[int, Completion]) -> list[Completion]:
    return [group[g] for g in range(len(group))]


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
