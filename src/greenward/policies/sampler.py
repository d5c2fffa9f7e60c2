"""Sampling: prompts prefilled once per group, rows decoded side by side, finished rows leave.

A `Decoding` computes the logits: that of our decoder (`decoding.py`) or of any model of `transformers`
(`transformers_policy.py`). The random number behind a token depends only on (seed,
prompt, sample, position), so that a completion does not depend on what else is in the batch or on
when other rows finish.

Shape suffixes: B rows being decoded, N prompts, R all rows, T positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from greenward.errors import GreenwardError
from greenward.interruption import check
from greenward.policies.engine import Completion, OnGroup, RolloutEngine, SamplingParams, StopReason
from greenward.policies.group_batch import bucket_groups
from greenward.policies.kernels.native import LANES
from greenward.policies.products import serving
from greenward.policies.tokenizer import Tokenizer

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Finished rows are dropped when at most this share of the batch is left: dropping copies the cache.
_COMPACT_BELOW = 0.75
_ROWS_STEP = 16
# Whether a row has ended is known on the host, and asking a GPU for its tokens lets it run idle meanwhile.
# A row that has ended is decoded for at most that many tokens less one.
_CHECKED_EVERY = {"cuda": 8}


class Decoding(Protocol):
    """Computes the logits of a batch of rows, each of them an unfinished completion. Rows are group-major."""

    def rows_at_once(self, max_tokens: int) -> int:
        """How many rows of `max_tokens` fit into the memory set aside for their caches."""

    def start(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], max_tokens: int) -> Tensor:
        """Prefill; logits (B, V) of every row's first token, B the sum of `group_sizes`.

        Groups come in the order of `bucket_groups`.
        """

    def step(self, token_ids_B: Tensor) -> Tensor:
        """Feed each row its newest token; logits (B, V) of the next."""

    def keep(self, kept_B: np.ndarray) -> None:
        """Continue with these rows only (ascending indices into the current batch)."""


class Sampler(RolloutEngine):
    """A rollout engine that draws token by token, through a `Decoding`.

    At most `max_rows` rows are decoded at once; larger requests are sampled in parts, and the completions
    do not depend on the parts. `max_rows` is halved when the device runs out of memory.
    """

    tokenizer: Tokenizer
    version: int  # stamped on the completions
    deterministic = True
    max_rows = 512

    @property
    def _decoding(self) -> Decoding:
        raise NotImplementedError

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        check_prompts(prompts, params, self.max_positions)
        sizes = per_prompt(group_sizes, len(prompts))
        keys = row_keys(prompts, sizes, per_prompt(seed, len(prompts)))
        groups: list[dict[int, Completion]] = [{} for _ in prompts]
        while True:
            try:
                for part in self._parts(prompts, sizes, params):
                    rows = [(n, g) for n, samples in part for g in samples]
                    row_keys_B = np.array([keys[n][g] for n, g in rows], dtype=np.uint64)
                    part_prompts = [prompts[n] for n, _ in part]
                    part_sizes = [len(samples) for _, samples in part]
                    for ended in self._decode(part_prompts, part_sizes, params, row_keys_B):
                        for row, completion in ended:
                            n, g = rows[row]
                            if g in groups[n]:  # drawn already, before memory ran out
                                continue
                            groups[n][g] = completion
                            if on_group is not None and len(groups[n]) == sizes[n]:
                                on_group(n, _in_order(groups[n]))
                return list(map(_in_order, groups))
            except torch.OutOfMemoryError as error:
                if len(rows) == 1:
                    raise
                reason = str(error).partition("\n")[0]
            self.max_rows = len(rows) // 2
            torch.cuda.empty_cache()
            warnings.warn(
                f"Out of memory while sampling: now at most {self.max_rows} answers at once. {reason}",
                stacklevel=2,
            )

    def _parts(
        self, prompts: Sequence[Sequence[int]], sizes: Sequence[int], params: SamplingParams
    ) -> Iterator[list[tuple[int, range]]]:
        """Groups (or pieces of one), the shortest prompts first, so many at a time as memory allows."""
        limit = max(1, min(self.max_rows, self._decoding.rows_at_once(params.max_tokens)))
        parts: list[list[tuple[int, range]]] = [[]]
        rows = 0
        for n in sorted(range(len(prompts)), key=lambda n: len(prompts[n])):
            for first in range(0, sizes[n], limit):
                samples = range(first, min(first + limit, sizes[n]))
                if rows + len(samples) > limit:
                    parts.append([])
                    rows = 0
                parts[-1].append((n, samples))
                rows += len(samples)
        for part in filter(None, parts):
            buckets = bucket_groups([len(prompts[n]) for n, _ in part], [len(samples) for _, samples in part])
            yield [part[i] for members in buckets for i in members]

    @torch.inference_mode()
    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: Sequence[int],
        params: SamplingParams,
        row_keys_B: np.ndarray,
    ) -> Iterator[list[tuple[int, Completion]]]:
        """Rows with their completions, as they end."""
        decoding = self._decoding
        buffer = CompletionBuffer(len(row_keys_B), params, self.tokenizer, self.version)
        logits_BV = decoding.start(prompts, group_sizes, params.max_tokens)
        uniforms_TB = torch.from_numpy(uniforms(row_keys_B, params.max_tokens)).t().to(logits_BV.device)
        checked_every = _CHECKED_EVERY.get(logits_BV.device.type, 1)
        drawn: list[tuple[Tensor, Tensor]] = []  # since the last check
        for step in range(params.max_tokens):
            check()
            token_ids_B, logprobs_B = choose_tokens(logits_BV, params, uniforms_TB[step].contiguous())
            drawn.append((token_ids_B, logprobs_B))
            if len(drawn) == checked_every or step == params.max_tokens - 1:
                yield buffer.record(step + 1 - len(drawn), *map(torch.stack, zip(*drawn, strict=True)))
                drawn = []
                alive = buffer.alive_B.mean()
                if alive == 0:
                    break
                if alive <= _COMPACT_BELOW and len(kept_B := buffer.drop_finished()) < len(token_ids_B):
                    decoding.keep(kept_B)
                    index = torch.from_numpy(kept_B).to(token_ids_B.device)
                    token_ids_B, uniforms_TB = token_ids_B[index], uniforms_TB[:, index]
            logits_BV = decoding.step(token_ids_B)


def per_prompt(value: int | Sequence[int], prompts: int) -> Sequence[int]:
    """One number for each prompt, from one for all or from as many as there are prompts."""
    return [value] * prompts if isinstance(value, int) else value


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


class CompletionBuffer:
    """The completions being drawn: `rows_B` numbers the rows in the batch; `alive_B` marks the unfinished."""

    def __init__(self, rows: int, params: SamplingParams, tokenizer: Tokenizer, version: int) -> None:
        self.rows_B = np.arange(rows)
        self.alive_B = np.ones(rows, dtype=bool)
        self._version = version
        self._last_step = params.max_tokens - 1
        self._eos_ids = np.array(tokenizer.eos_ids)
        self._token_ids_RT = np.zeros((rows, params.max_tokens), dtype=np.int64)
        self._logprobs_RT = np.zeros((rows, params.max_tokens), dtype=np.float32)
        self._stops = StopStrings(params.stop_strings, rows, tokenizer) if params.stop_strings else None

    def record(
        self, first_step: int, token_ids_SB: Tensor, logprobs_SB: Tensor
    ) -> list[tuple[int, Completion]]:
        """Note the tokens from number `first_step` on of every row in the batch; the rows that end with them.

        Rows that ended before ignore theirs.
        """
        drawn = zip(token_ids_SB.cpu().numpy(), logprobs_SB.cpu().numpy(), strict=True)
        ended: list[tuple[int, Completion]] = []
        for step, (ids_B, logprobs_B) in enumerate(drawn, first_step):
            self._token_ids_RT[self.rows_B, step] = ids_B
            self._logprobs_RT[self.rows_B, step] = logprobs_B
            ended += self._ended(step, ids_B)
        return ended

    def _ended(self, step: int, ids_B: np.ndarray) -> Iterator[tuple[int, Completion]]:
        at_end_B = (ids_B[:, None] == self._eos_ids).any(axis=1)
        may_end = self._stops is not None or step == self._last_step
        candidates = np.flatnonzero(self.alive_B & (at_end_B | may_end))
        about = self.rows_B[candidates], ids_B[candidates], at_end_B[candidates]
        for b, row, token_id, at_end in zip(candidates.tolist(), *(a.tolist() for a in about), strict=True):
            if at_end:
                reason = StopReason.END
            elif self._stops is not None and self._stops.completed(row, token_id):
                reason = StopReason.STOP_STRING
            elif step == self._last_step:
                reason = StopReason.LENGTH
            else:
                continue
            self.alive_B[b] = False
            ids_T, logprobs_T = self._token_ids_RT[row, : step + 1], self._logprobs_RT[row, : step + 1]
            yield row, Completion(ids_T.copy(), logprobs_T.copy(), reason, self._version)

    def drop_finished(self) -> np.ndarray:
        """Take finished rows out of the batch; the indices, in the old batch, of those that stay.

        Some finished ones stay, so that the number of rows is one that comes again (`pad_to_bucket`).
        """
        dead = np.flatnonzero(~self.alive_B)[: -int(self.alive_B.sum()) % _ROWS_STEP]
        kept = np.sort(np.concatenate([np.flatnonzero(self.alive_B), dead]))
        self.rows_B, self.alive_B = self.rows_B[kept], self.alive_B[kept]
        return kept


class StopStrings:
    """Finds stop strings in the bytes of a row's text as it grows, across token boundaries."""

    def __init__(self, stop_strings: tuple[str, ...], rows: int, tokenizer: Tokenizer) -> None:
        self._stops = [stop.encode() for stop in stop_strings]
        self._token_bytes = tokenizer.token_bytes
        self._keep = max(map(len, self._stops)) - 1
        self._tails = [b""] * rows
        self._with_token = lru_cache(maxsize=1 << 16)(self._grown)

    def completed(self, row: int, token_id: int) -> bool:
        """Whether the row's text, with this token added, now holds a stop string."""
        self._tails[row], completed = self._with_token(self._tails[row], token_id)
        return completed

    def _grown(self, tail: bytes, token_id: int) -> tuple[bytes, bool]:
        """What has to be kept of a text that a token is added to, and whether it holds a stop string."""
        text = tail + (self._token_bytes[token_id] if token_id < len(self._token_bytes) else b"")
        kept = text[len(text) - self._keep :] if self._keep < len(text) else text
        return kept, any(stop in text for stop in self._stops)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def row_keys(
    prompts: Sequence[Sequence[int]], sizes: Sequence[int], seeds: Sequence[int]
) -> list[np.ndarray]:
    """One key for each completion of each prompt; a prompt that comes again with its seed gets others."""
    seen: Counter[tuple[int, bytes]] = Counter()
    bases = np.empty(len(prompts), dtype=np.uint64)
    for n, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
        ids = np.asarray(prompt, dtype=np.int64).tobytes()
        digest = hashlib.blake2b(f"{seed}:{seen[seed, ids]}:".encode() + ids, digest_size=8).digest()
        seen[seed, ids] += 1
        bases[n] = int.from_bytes(digest, "little")
    if not len(prompts):
        return []
    ends = np.cumsum(sizes)
    samples = np.arange(1, ends[-1] + 1) - np.repeat(ends - sizes, sizes)  # from 1 in every group
    keys = _mix(np.repeat(bases, sizes) + samples.astype(np.uint64) * _GOLDEN)
    return np.split(keys, ends[:-1])


def uniforms(row_keys_B: np.ndarray, length: int) -> np.ndarray:
    """(B, T) float32 numbers in [0, 1), with 23 random bits: u · x < x holds in float32 for x > 0."""
    steps = np.arange(1, length + 1, dtype=np.uint64) * _GOLDEN
    bits = _mix(row_keys_B[:, None] + steps[None, :]) >> np.uint64(41)
    return bits.astype(np.float32) * np.float32(2.0**-23)


def choose_tokens(logits_BV: Tensor, params: SamplingParams, uniforms_B: Tensor) -> tuple[Tensor, Tensor]:
    """One token for each row and its log-probability, both (B,).

    At temperature 0 the most likely token and its log-probability at temperature 1; else a draw
    from the distribution after temperature, top-k and top-p (in this order), and its
    log-probability under that distribution.
    """
    filtered = bool(params.top_k) or params.top_p < 1
    if params.temperature > 0 and not filtered and (native := serving(logits_BV, LANES)):
        return native.choose(logits_BV, 1 / params.temperature, uniforms_B)
    logits_BV = logits_BV.float()
    if params.temperature == 0:
        chosen = logits_BV.argmax(-1, keepdim=True)
        logprobs_B1 = logits_BV.gather(1, chosen) - logits_BV.logsumexp(-1, keepdim=True)
        return chosen.squeeze(1), logprobs_B1.squeeze(1)
    if params.temperature != 1:
        logits_BV = logits_BV / params.temperature
    if filtered:
        logits_BV = _filter(logits_BV, params)
    probs_BV = torch.softmax(logits_BV, dim=-1)
    cdf_BV = probs_BV.cumsum(dim=-1)
    chosen = torch.searchsorted(cdf_BV, uniforms_B[:, None] * cdf_BV[:, -1:], right=True)
    return chosen.squeeze(1), probs_BV.gather(1, chosen).log_().squeeze(1)


def _filter(logits_BV: Tensor, params: SamplingParams) -> Tensor:
    """-inf for every token outside the top k and outside the smallest set of probability top_p."""
    if params.top_k and params.top_k < logits_BV.shape[1]:
        lowest_kept = logits_BV.topk(params.top_k, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < lowest_kept, float("-inf"))
    if params.top_p < 1:
        ordered, order = logits_BV.sort(dim=-1, descending=True)
        probs = torch.softmax(ordered, dim=-1)
        outside = probs.cumsum(-1) - probs >= params.top_p
        outside = torch.zeros_like(outside).scatter_(1, order, outside)
        logits_BV = logits_BV.masked_fill(outside, float("-inf"))
    return logits_BV
