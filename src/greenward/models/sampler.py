"""Samples groups of answers: prompts are prefilled once per group, and finished rows leave the batch.

A `Decoding` computes the logits, by our decoder (`NativeDecoding`: a cache of the prompts, shared by each
group, and one of the completions) or by a model of `transformers` (`policy.TransformersDecoding`). The
random number behind a token depends only on (seed, prompt, sample, position), so that a completion does not
depend on what else is in the batch or on when other rows finish.
On CUDA a step of decoding is a graph: one launch for each token, where Python launches hundreds of kernels.
A graph repeats what was recorded on the same memory. So it serves until the number of rows changes or the
cache of keys and values moves, and is then captured anew. The first one is compared with the step that it
was captured from. `GREENWARD_KERNELS=off` leaves graphs aside.
Shape suffixes: B rows being decoded, N prompts (groups), R all rows, T positions, V vocabulary, H query
heads, K key/value heads, X = H + 2K, D head dimension, M tokens of all prompts.
"""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from greenward.common.errors import GreenwardError
from greenward.common.interruption import check
from greenward.models.attention import SharedPrefixAttention, attend
from greenward.models.decoder import Decoder, DecoderShape, is_adapted, rotate_
from greenward.models.flex import FlexAttention, flex_serves
from greenward.models.kernels.attention import KernelDecodeAttention, KernelPrefill, kernels_for
from greenward.models.kernels.build import are_switched_off
from greenward.models.kernels.native import LANES
from greenward.models.lora import fix_factors, shared_copy
from greenward.models.products import product, products_for, serving
from greenward.models.scoring import GroupBatch, Span, bucket_groups
from greenward.models.tokenizer import Tokenizer
from greenward.rollouts.protocols import (
    Completion,
    OnGroup,
    RolloutEngine,
    SamplingParams,
    StopReason,
    per_prompt,
)

_TOLERANCE = 3e-2  # beside the largest logit: the rounding of bfloat16, with room

Replay = Callable[[], Tensor]


def captures(device: torch.device) -> bool:
    """Whether steps on this device are captured."""
    return device.type == "cuda" and not are_switched_off()


class StepGraph:
    """Runs steps by their operations, and on CUDA by a graph of these as long as no tensor moves."""

    def __init__(self, device: torch.device) -> None:
        self._captures = captures(device)
        self._is_proven = False
        self._replay: Replay | None = None

    def run(
        self, step: Callable[[Tensor], Tensor], token_ids_B: Tensor, counters: list[Tensor], *, moved: bool
    ) -> Tensor:
        """The logits (B, V) that `step` gives, which the next call may overwrite.

        `step` counts `counters` up by one and keeps nothing else that a repetition would change. `moved` says
        that it reads or writes other memory than at the last call.
        """
        if not self._captures:
            return step(token_ids_B)
        if moved or self._replay is None:
            self._replay = None  # its memory is free for the next one
            self._token_ids_B = token_ids_B.clone()
            logits_BV = step(self._token_ids_B)
            self._replay = self._captured(lambda: step(self._token_ids_B), logits_BV, counters)
            return logits_BV
        self._token_ids_B.copy_(token_ids_B)
        return self._replay()

    def _captured(self, step: Replay, logits_BV: Tensor, counters: list[Tensor]) -> Replay | None:
        """The step that gave these logits as a graph; None, from now on, where that fails."""
        try:
            replay = capture(step, logits_BV.device)
            if not self._is_proven:
                counted = [counter.clone() for counter in counters]
                torch._foreach_sub_(counters, 1)
                error = (replay() - logits_BV).abs().max() / logits_BV.abs().max()
                torch._foreach_copy_(counters, counted)
                if error > _TOLERANCE:
                    raise RuntimeError(f"logits differ by {float(error):.1e} of the largest")
                self._is_proven = True
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as failure:
            self._captures = False
            reason = str(failure).partition("\n")[0]
            warnings.warn(f"Sampling goes on without CUDA graphs, which takes longer: {reason}", stacklevel=2)
            return None
        return replay


def capture(step: Replay, device: torch.device) -> Replay:
    """Record `step`, which is not run: a function that runs it and gives the same tensor each time."""
    graph = torch.cuda.CUDAGraph()
    # An update may go on in another thread.
    recording = torch.cuda.graph(graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local")
    with torch.cuda.device(device), recording:
        out = step()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


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
    return np.split(_mix(np.repeat(bases, sizes) + samples.astype(np.uint64) * _GOLDEN), ends[:-1])


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
