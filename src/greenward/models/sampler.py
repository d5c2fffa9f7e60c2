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

import functools
import hashlib
import time
import warnings
from bisect import bisect
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from greenward.common.errors import EngineError, GreenwardError
from greenward.common.interruption import check
from greenward.models.attention import SharedPrefixAttention, attend
from greenward.models.decoder import Decoder, DecoderShape, is_adapted, pad_to_bucket, rotate_
from greenward.models.flex import FlexAttention, flex_serves
from greenward.models.heap import return_free_pages
from greenward.models.kernels.attention import KernelDecodeAttention, KernelPrefill, kernels_for
from greenward.models.kernels.build import are_switched_off
from greenward.models.kernels.native import LANES
from greenward.models.kernels.step import KernelStep
from greenward.models.lora import fix_factors, shared_copy
from greenward.models.products import linear, serving
from greenward.models.scoring import GroupBatch, Span, bucket_groups
from greenward.models.tokenizer import Tokenizer
from greenward.rollouts.protocols import (
    SECONDS_BETWEEN_COUNTS,
    Completion,
    OnGroup,
    RolloutEngine,
    SamplingParams,
    StopReason,
    per_prompt,
)

_TOLERANCE = 3e-2  # beside the largest logit: the rounding of bfloat16, with room

Replay = Callable[[], Tensor]
OnIds = Callable[[list[int]], None]
"""Called with the newest token of each unfinished row of the batch, again and again."""


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
# Finished rows are dropped when at most this share of the batch is left, where dropping copies the cache.
_COMPACT_BELOW = 0.75
_ROWS_STEP = 16
# Whether a row has ended is known on the host, and asking a GPU for its tokens lets it run idle meanwhile.
# A row that has ended is decoded for at most that many tokens less one.
_CHECKED_EVERY = {"cuda": 8}
_STEPS_OF_KERNELS = 8  # The keys and values that a step reads are still in the caches at the next one.
PREFILL_TOKENS = 1024
"""The tokens of prompts that are computed at once where rows join: products of more rows are no faster."""
_MOST_SHARING = 4  # times as many tokens are attended from at once, where prompts begin alike


def checked_every(device: torch.device) -> int:
    """After how many tokens rows that have ended are looked for."""
    return _CHECKED_EVERY.get(device.type, 1)


class Decoding(Protocol):
    """Computes the logits of a batch of rows, each of them an unfinished completion.

    The rows of a prompt follow each other. `joins` says whether rows may join while others are decoded, and
    may leave at no cost; elsewhere all of a batch begin together.
    """

    @property
    def joins(self) -> bool: ...

    def rows_at_once(self, max_tokens: int) -> int:
        """How many rows of `max_tokens` fit into the memory set aside for their caches."""

    def open(self, rows: int, max_tokens: int) -> None:
        """Begin an empty batch, with room for so many rows."""

    def add(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int]) -> Tensor:
        """Prefill; logits (b, V) of the first token of the rows of these prompts, which come behind others.

        Groups come in the order of `bucket_groups`.
        """

    def step(self, token_ids_B: Tensor) -> Tensor:
        """Feed each row its newest token; logits (B, V) of the next."""

    def steps_at_once(self, params: SamplingParams) -> int:
        """How many tokens one call of `draw` should compute. Those behind the end of a row are discarded."""

    def draw(self, token_ids_B: Tensor, params: SamplingParams, uniforms_SB: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that follow the newest ones of each row, and their log-probabilities, both (S, B)."""
        drawn = []
        for uniforms_B in uniforms_SB:
            token_ids_B, logprobs_B = choose_tokens(self.step(token_ids_B), params, uniforms_B)
            drawn.append((token_ids_B, logprobs_B))
        tokens_SB, logprobs_SB = map(torch.stack, zip(*drawn, strict=True))
        return tokens_SB, logprobs_SB

    def keep(self, kept_B: np.ndarray) -> None:
        """Continue with these rows only (ascending indices into the current batch)."""


Row = tuple[int, int]
"""The number of a prompt and that of a sample of it."""


class Sampler(RolloutEngine):
    """A rollout engine that draws token by token, through a `Decoding`.

    At most `max_rows` rows are decoded at once. Others wait for the places of those that end, or for the end
    of all where rows cannot join; the completions do not depend on it. `max_rows` is halved when the device
    runs out of memory.
    """

    tokenizer: Tokenizer
    version: int  # stamped on the completions
    deterministic = True
    max_rows = 512
    _batches = 0  # begun so far

    @property
    def _decoding(self) -> Decoding:
        raise NotImplementedError

    def check_ids(self, texts: Iterable[Sequence[int]]) -> None:
        """Raises `CheckpointError` if texts have tokens that the model has no embedding for."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
        on_ids: OnIds | None = None,
    ) -> list[list[Completion]]:
        sizes = per_prompt(group_sizes, len(prompts))
        groups: list[dict[int, Completion]] = [{} for _ in prompts]
        for (n, g), completion in self.as_they_end(prompts, sizes, params, seed=seed, on_ids=on_ids):
            groups[n][g] = completion
            if on_group is not None and len(groups[n]) == sizes[n]:
                on_group(n, _in_order(groups[n]))
        return list(map(_in_order, groups))

    def as_they_end(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_ids: OnIds | None = None,
    ) -> Generator[tuple[Row, Completion], None, None]:
        """The completions of `sample`, each when it ends; once the iterator is closed, no more are drawn.

        There is one cache: an iterator that goes on after other sampling has begun raises `EngineError`.
        """
        check_prompts(prompts, params, self.max_positions)
        self.check_ids(prompts)
        sizes = per_prompt(group_sizes, len(prompts))
        keys = row_keys(prompts, sizes, per_prompt(seed, len(prompts)))
        ended: set[Row] = set()
        while any(sizes):
            rows = max(1, min(self.max_rows, self._decoding.rows_at_once(params.max_tokens), sum(sizes)))
            try:
                with closing(self._decode(prompts, sizes, params, keys, rows, on_ids)) as drawn:
                    for row, completion in drawn:
                        if row not in ended:  # or it was drawn already, before memory ran out
                            ended.add(row)
                            yield row, completion
                return
            except torch.OutOfMemoryError as error:
                if rows == 1:
                    raise
                reason = str(error).partition("\n")[0]
            self.max_rows = rows // 2
            torch.cuda.empty_cache()
            warnings.warn(
                f"Out of memory while sampling: now at most {self.max_rows} answers at once. {reason}",
                stacklevel=2,
            )

    @torch.inference_mode()
    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        sizes: Sequence[int],
        params: SamplingParams,
        keys: Sequence[np.ndarray],
        rows: int,
        on_ids: OnIds | None,
    ) -> Generator[tuple[Row, Completion], None, None]:
        """The rows with their completions, as they end; at most `rows` are decoded at once."""
        decoding = self._decoding
        decoding.open(rows, params.max_tokens)
        self._batches += 1
        number = self._batches
        waiting = _Waiting(prompts, sizes, rows, PREFILL_TOKENS if decoding.joins else None)
        batch = CompletionBuffer(rows, params, self.tokenizer, self.version)
        told = time.monotonic()  # when `on_tokens` was called last
        token_ids_B = counts_B = torch.empty(0, dtype=torch.int64)
        uniforms_BT = torch.empty(0, params.max_tokens)
        try:
            while waiting or len(batch):
                check()
                if number != self._batches:
                    raise EngineError(
                        "expected that all answers are taken before others are sampled from the same model, "
                        "found that others were begun.",
                        remedy="Take all answers, or close their iterator, first.",
                    )
                may_join = not len(batch) or decoding.joins
                if may_join and (joining := waiting.take(rows - len(batch))):
                    logits = [decoding.step(token_ids_B)] if len(batch) else []
                    logits.append(
                        decoding.add([prompts[n] for n, _ in joining], [len(g) for _, g in joining])
                    )
                    names = [(n, g) for n, samples in joining for g in samples]
                    keys_b = np.array([keys[n][g] for n, g in names], dtype=np.uint64)
                    device = logits[-1].device
                    new_bT = torch.from_numpy(uniforms(keys_b, params.max_tokens)).to(device)
                    uniforms_BT = torch.cat((uniforms_BT.to(device), new_bT))
                    counts_B = torch.cat((counts_B.to(device), counts_B.new_zeros(len(names), device=device)))
                    batch.join(names)
                    uniforms_B = uniforms_BT.gather(1, counts_B[:, None]).squeeze(1)
                    token_ids_B, logprobs_B = choose_tokens(torch.cat(logits), params, uniforms_B)
                    drawn_SB = token_ids_B[None], logprobs_B[None]
                else:
                    steps = min(decoding.steps_at_once(params), batch.steps_left)
                    steps_S = torch.arange(steps, device=counts_B.device)
                    uniforms_SB = uniforms_BT.gather(1, counts_B[:, None] + steps_S).t().contiguous()
                    drawn_SB = decoding.draw(token_ids_B, params, uniforms_SB)
                token_ids_B = drawn_SB[0][-1]
                counts_B += len(drawn_SB[0])
                ended: list[tuple[Row, Completion]] = []
                for ids_B, logprobs_B in zip(*(one.cpu().numpy() for one in drawn_SB), strict=True):
                    if on_ids is not None and batch.alive_B.any():
                        on_ids(ids_B[batch.alive_B].tolist())
                    ended += batch.record(ids_B, logprobs_B)
                kept_B = batch.leave(at_once=decoding.joins)
                if len(kept_B) < len(token_ids_B):
                    decoding.keep(kept_B)
                    index = torch.from_numpy(kept_B).to(token_ids_B.device)
                    token_ids_B, uniforms_BT, counts_B = (
                        token_ids_B[index],
                        uniforms_BT[index],
                        counts_B[index],
                    )
                if self.on_tokens and time.monotonic() - told >= SECONDS_BETWEEN_COUNTS:
                    self.on_tokens(batch.new_tokens())
                    told = time.monotonic()
                yield from ended  # last, since meanwhile `decoding` may become that of other answers
        finally:  # at the end, or where it is closed before
            if self.on_tokens and (tokens := batch.new_tokens()):
                self.on_tokens(tokens)


class Beginnings:
    """Finds the longest beginning that a text shares with one before it."""

    def __init__(self) -> None:
        self._known: list[tuple[bytes, int]] = []  # in the order of the texts, with their numbers

    def add(self, token_ids: Sequence[int] | np.ndarray) -> tuple[int, int]:
        """The number, from 0, of an earlier text that begins most like this one, and in how many tokens."""
        text = np.asarray(token_ids).astype(">i8").tobytes()
        place = bisect(self._known, (text, len(self._known)))
        near = self._known[max(0, place - 1) : place + 1]  # none begins more like it than one of these
        self._known.insert(place, (text, len(self._known)))
        most, number = max(((_common_tokens(text, other), n) for other, n in near), default=(0, 0))
        return number, most


def _common_tokens(one: bytes, other: bytes) -> int:
    """How many tokens two texts, of 8 bytes each, begin with alike."""
    length = min(len(one), len(other)) // 8
    differ = np.frombuffer(one, np.int64, length) != np.frombuffer(other, np.int64, length)
    return int(differ.argmax()) if differ.any() else length


class _Waiting:
    """Prompts with the numbers of their samples that wait for a place, the longest prompts first.

    A group of more than `rows` is cut. Without `tokens`, all that there are places for are taken at once;
    else they have at most about so many distinct tokens.
    """

    def __init__(
        self, prompts: Sequence[Sequence[int]], sizes: Sequence[int], rows: int, tokens: int | None
    ) -> None:
        self._prompts = prompts
        self._tokens = tokens
        longest_first = sorted(range(len(prompts)), key=lambda n: -len(prompts[n]))
        self._pieces = deque(
            (n, range(first, min(first + rows, sizes[n])))
            for n in longest_first
            for first in range(0, sizes[n], rows)
        )

    def __len__(self) -> int:
        return len(self._pieces)

    def take(self, places: int) -> list[tuple[int, range]]:
        """The next ones, as far as there are places, in the order of `bucket_groups`."""
        taken: list[tuple[int, range]] = []
        total = distinct = 0
        beginnings = Beginnings()
        while self._pieces and len(self._pieces[0][1]) <= places:
            if self._tokens is not None:
                prompt = self._prompts[self._pieces[0][0]]
                total += len(prompt)
                distinct += len(prompt) - beginnings.add(prompt)[1]
                if taken and (distinct > self._tokens or total > _MOST_SHARING * self._tokens):
                    break
            taken.append(self._pieces.popleft())
            places -= len(taken[-1][1])
        lengths, sizes = [len(self._prompts[n]) for n, _ in taken], [len(samples) for _, samples in taken]
        return [taken[i] for members in bucket_groups(lengths, sizes) for i in members]


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
    """The completions being drawn, in `rows` places. `alive_B` marks the unfinished ones of the batch."""

    def __init__(self, rows: int, params: SamplingParams, tokenizer: Tokenizer, version: int) -> None:
        self._names: list[Row] = [(0, 0)] * rows
        self._free = list(range(rows))
        self._places_B = np.empty(0, dtype=np.int64)
        self._lengths_B = np.empty(0, dtype=np.int64)
        self.alive_B = np.empty(0, dtype=bool)
        self._version = version
        self._max_tokens = params.max_tokens
        self._eos_ids = np.array(tokenizer.eos_ids)
        self._token_ids_RT = np.zeros((rows, params.max_tokens), dtype=np.int64)
        self._logprobs_RT = np.zeros((rows, params.max_tokens), dtype=np.float32)
        self._stops = StopStrings(params.stop_strings, rows, tokenizer) if params.stop_strings else None
        self._new_tokens = 0

    def __len__(self) -> int:
        """The number of rows in the batch."""
        return len(self._places_B)

    @property
    def steps_left(self) -> int:
        """After how many more tokens the first row reaches the limit."""
        return self._max_tokens - int(self._lengths_B.max(initial=0))

    def join(self, names: Sequence[Row]) -> None:
        """Add rows behind those in the batch."""
        places, self._free = self._free[: len(names)], self._free[len(names) :]
        for place, name in zip(places, names, strict=True):
            self._names[place] = name
            if self._stops is not None:
                self._stops.begin(place)
        self._places_B = np.append(self._places_B, np.array(places, dtype=np.int64))
        self._lengths_B = np.append(self._lengths_B, np.zeros(len(names), dtype=np.int64))
        self.alive_B = np.append(self.alive_B, np.ones(len(names), dtype=bool))

    def new_tokens(self) -> int:
        """How many tokens of completions were recorded since the last call."""
        tokens, self._new_tokens = self._new_tokens, 0
        return tokens

    def record(self, ids_B: np.ndarray, logprobs_B: np.ndarray) -> Iterator[tuple[Row, Completion]]:
        """Note the next token of every row in the batch; the rows that end with it.

        Rows that ended before ignore theirs. Raises `EngineError` for a log-probability that is not finite.
        """
        if not np.isfinite(logprobs_B[self.alive_B]).all():
            raise EngineError(
                f"expected finite log-probabilities, found {logprobs_B[self.alive_B].sum()}: the model's "
                "logits are too large or not numbers.",
                remedy="Take another checkpoint or dtype, or a higher temperature if it is below 1e-30.",
            )
        self._token_ids_RT[self._places_B, self._lengths_B] = ids_B
        self._logprobs_RT[self._places_B, self._lengths_B] = logprobs_B
        self._lengths_B += 1
        self._new_tokens += int(self.alive_B.sum())
        return self._ended(ids_B)

    def _ended(self, ids_B: np.ndarray) -> Iterator[tuple[Row, Completion]]:
        at_end_B = (ids_B[:, None] == self._eos_ids).any(axis=1)
        at_limit_B = self._lengths_B == self._max_tokens
        may_end_B = at_end_B | at_limit_B | (self._stops is not None)
        candidates = np.flatnonzero(self.alive_B & may_end_B)
        about = (one[candidates].tolist() for one in (self._places_B, ids_B, at_end_B, at_limit_B))
        for b, place, token_id, at_end, at_limit in zip(candidates.tolist(), *about, strict=True):
            if at_end:
                reason = StopReason.END
            elif self._stops is not None and self._stops.completed(place, token_id):
                reason = StopReason.STOP_STRING
            elif at_limit:
                reason = StopReason.LENGTH
            else:
                continue
            self.alive_B[b] = False
            length = self._lengths_B[b]
            ids_T, logprobs_T = self._token_ids_RT[place, :length], self._logprobs_RT[place, :length]
            yield self._names[place], Completion(ids_T.copy(), logprobs_T.copy(), reason, self._version)

    def leave(self, *, at_once: bool) -> np.ndarray:
        """Take finished rows out of the batch; the indices, in the old batch, of those that stay.

        Unless they leave `at_once`, they leave when so many have ended that copying the others pays, and some
        stay, so that the number of rows is one that comes again (`pad_to_bucket`).
        """
        kept_B = np.flatnonzero(self.alive_B)
        if not at_once and len(kept_B):
            if len(kept_B) > _COMPACT_BELOW * len(self):
                return np.arange(len(self))
            dead = np.flatnonzero(~self.alive_B)[: -len(kept_B) % _ROWS_STEP]
            kept_B = np.sort(np.concatenate([kept_B, dead]))
        self._free += np.delete(self._places_B, kept_B).tolist()
        self._places_B, self._lengths_B = self._places_B[kept_B], self._lengths_B[kept_B]
        self.alive_B = self.alive_B[kept_B]
        return kept_B


class StopStrings:
    """Finds stop strings in the bytes of a row's text as it grows, across token boundaries."""

    def __init__(self, stop_strings: tuple[str, ...], rows: int, tokenizer: Tokenizer) -> None:
        self._stops = [stop.encode() for stop in stop_strings]
        self._token_bytes = tokenizer.token_bytes
        self._keep = max(map(len, self._stops)) - 1
        self._tails = [b""] * rows
        self._with_token = functools.lru_cache(maxsize=1 << 16)(self._grown)

    def begin(self, row: int) -> None:
        """Another text begins in this row."""
        self._tails[row] = b""

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
    if not params.filters and (native := serving(logits_BV, LANES)):
        if params.temperature == 0:
            return native.choose_most_likely(logits_BV)
        return native.choose(logits_BV, 1 / params.temperature, uniforms_B)
    logits_BV = logits_BV.float()
    if params.temperature == 0:
        chosen = logits_BV.argmax(-1, keepdim=True)
        logprobs_B1 = logits_BV.gather(1, chosen) - logits_BV.logsumexp(-1, keepdim=True)
        return chosen.squeeze(1), logprobs_B1.squeeze(1)
    if params.temperature != 1:
        logits_BV = logits_BV / params.temperature
    if params.filters:
        logits_BV = _filter(logits_BV, params)
    probs_BV = torch.softmax(logits_BV, dim=-1)
    cdf_BV = probs_BV.cumsum(dim=-1)
    chosen = torch.searchsorted(cdf_BV, uniforms_B[:, None] * cdf_BV[:, -1:], right=True)
    chosen.clamp_(max=cdf_BV.shape[1] - 1)  # of what is no number none is larger
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
# For the completions' keys and values. On a CPU, products of more rows than fit here are hardly faster.
CACHE_BYTES = {"cpu": 1 << 29, "cuda": 1 << 30}


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


class SharedBeginnings:
    """The distinct tokens of prompts, of which many may begin alike: each is computed once.

    The hidden state of a token depends on the tokens up to it alone. `first_D` has the place of each distinct
    one in the flat row of the batch, `number_M` the number of each token among them. Attention is computed
    for every prompt, since it takes little beside the matrix products.
    """

    def __init__(self, batch: GroupBatch) -> None:
        ids_M = batch.token_ids_M.cpu().numpy()
        starts = np.concatenate([bucket.prompts.row_starts() for bucket in batch.buckets]).tolist()
        lengths = np.concatenate([bucket.prompts.lengths for bucket in batch.buckets]).tolist()
        rows = [slice(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        first_M, beginnings = np.arange(len(ids_M)), Beginnings()
        for row in rows:
            number, shared = beginnings.add(ids_M[row])
            first_M[row][:shared] = first_M[rows[number]][:shared]
        first_D, number_M = np.unique(first_M, return_inverse=True)
        device = batch.token_ids_M.device
        self.first_D, self.number_M = (torch.from_numpy(one).to(device) for one in (first_D, number_M))

    def attention(self, prefill: Callable[[int, Tensor], Tensor]) -> Callable[[int, Tensor], Tensor]:
        """That of a prefill of the whole batch, for the distinct tokens and any padding behind them."""

        def attend_from(layer: int, qkv_DXD: Tensor) -> Tensor:
            attended_DF = prefill(layer, qkv_DXD.index_select(0, self.number_M)).index_select(0, self.first_D)
            return F.pad(attended_DF, (0, 0, 0, len(qkv_DXD) - len(attended_DF)))

        return attend_from


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
        """`memory` has `numbers(…)` numbers, whichever they are."""
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
            larger[:, :, :, capacity:] = 0  # what an earlier batch has left there may not be finite
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


class NativeDecoding(Decoding):
    """The `Decoding` of our decoder.

    The memory of completions' keys and values is kept between batches, because fresh pages cost more
    than the arithmetic of a small model.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._source = self.decoder = decoder
        if is_adapted(decoder):
            self.decoder = shared_copy(decoder)
            if decoder.packs:
                self.decoder.pack()
        elif not decoder.is_packed and decoder.packs:
            self.decoder = decoder.packing_twin()
        elif not decoder.is_packed and decoder.compute_dtype != torch.float32:
            self.decoder = decoder.in_compute_dtype()
        self._kernel_step: KernelStep | None = None
        self._memory = torch.empty(0)
        self._is_released = False
        self._attention: DecodeAttention | KernelDecodeAttention
        self._graph = StepGraph(decoder.embedding.device)

    @property
    def joins(self) -> bool:
        return kernels_for(self.decoder) is not None

    def rows_at_once(self, max_tokens: int) -> int:
        size = self._numbers(1, max_tokens) * self.decoder.compute_dtype.itemsize
        return CACHE_BYTES[self.decoder.embedding.device.type] // size

    def _numbers(self, rows: int, tokens: int) -> int:
        if self.joins:
            return KernelDecodeAttention.numbers(self.decoder, rows, tokens)
        return CompletionCache.numbers(self.decoder.shape, rows, tokens)

    def open(self, rows: int, max_tokens: int) -> None:
        self._refresh()
        decoder, device = self.decoder, self.decoder.embedding.device
        self._tokens = max_tokens - 1  # the last one is never fed
        numbers = self._numbers(rows, self._tokens)
        if self._memory.numel() < numbers or self._memory.device != device:
            self._memory = torch.zeros(numbers, dtype=decoder.compute_dtype, device=device)
        if native := kernels_for(decoder):
            self._attention = KernelDecodeAttention(decoder, native, rows, self._tokens, self._memory)
        self._kernel_step = KernelStep.of(decoder)

    def add(self, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int]) -> Tensor:
        decoder, device = self.decoder, self.decoder.embedding.device
        batch = GroupBatch.of_prompts(prompts, group_sizes, device)
        prefill: KernelPrefill | PrefillAttention
        if native := kernels_for(decoder):
            prefill = KernelPrefill(decoder, batch, native)
        else:
            prefill = (FlexPrefill if flex_serves(decoder) else PrefillAttention)(decoder, batch)

        def logits_after_prompts(hidden_UE: Tensor, unembedding_VE: Tensor) -> Tensor:
            return _logits(hidden_UE.index_select(0, batch.scored_from_S), unembedding_VE)

        distinct = SharedBeginnings(batch)
        logits_NV = decoder(
            batch.token_ids_M.index_select(0, distinct.first_D),
            distinct.attention(prefill),
            logits_after_prompts,
            distinct.number_M.index_select(0, batch.predicting_U),
        )
        if isinstance(prefill, KernelPrefill):
            assert isinstance(self._attention, KernelDecodeAttention)
            self._attention.join(prefill, group_sizes)
            return_free_pages()
        else:
            own = CompletionCache(decoder.shape, sum(group_sizes), self._tokens, self._memory)
            self._attention = DecodeAttention(decoder, prefill, group_sizes, own)
        return logits_NV.repeat_interleave(torch.tensor(group_sizes, device=device), dim=0)

    def step(self, token_ids_B: Tensor) -> Tensor:
        attention = self._attention
        if self._kernel_step is not None:
            assert isinstance(attention, KernelDecodeAttention)
            return self._kernel_step.logits(token_ids_B, attention)
        if isinstance(attention, KernelDecodeAttention):
            rows = len(token_ids_B)
            return self._step(_pad_rows(token_ids_B, self.decoder))[:rows]
        moved = attention.make_room()
        return self._graph.run(self._step, token_ids_B, attention.counters, moved=moved)

    def steps_at_once(self, params: SamplingParams) -> int:
        draws = self._kernel_step is not None and not params.filters
        return _STEPS_OF_KERNELS if draws else checked_every(self._memory.device)

    def draw(self, token_ids_B: Tensor, params: SamplingParams, uniforms_SB: Tensor) -> tuple[Tensor, Tensor]:
        if self._kernel_step is None or params.filters:
            return super().draw(token_ids_B, params, uniforms_SB)
        assert isinstance(self._attention, KernelDecodeAttention)
        return self._kernel_step.draw(token_ids_B, self._attention, params.temperature, uniforms_SB)

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
        if self._is_released:
            return_free_pages()  # of the update, which are not contiguous enough for packed weights
        if is_adapted(self._source):
            fix_factors(self._source, self.decoder)
            if self._is_released:
                self.decoder.pack(self._source)
        elif self.decoder is not self._source:
            weights = dict(self._source.named_parameters())
            for name, ours in self.decoder.named_parameters():
                if ours.data_ptr() != weights[name].data_ptr():
                    ours.copy_(weights[name])
            if self._source.packs:
                self.decoder.pack(self._source)
        self._is_released = False

    def release(self) -> None:
        """Give back the packed weights, as large as the model, until the next batch packs them again.

        Weights that are trained are packed anew for every batch in any case; the frozen ones of an adapted
        model need it after a release only.
        """
        if self.decoder is not self._source and self.decoder.is_packed:
            self.decoder.unpack()
            self._is_released = True
            return_free_pages()


def _pad_rows(token_ids_B: Tensor, decoder: Decoder) -> Tensor:
    """Pad to a number of rows that comes again, as `pad_to_bucket`, which has no steps for few rows."""
    rows = len(token_ids_B)
    if rows >= _ROWS_STEP or not (decoder.is_packed or decoder.compute_dtype == torch.bfloat16):
        return pad_to_bucket(token_ids_B, decoder.compute_dtype, packed=decoder.is_packed)
    return F.pad(token_ids_B, (0, (1 << (rows - 1).bit_length()) - rows))


def _logits(hidden_BE: Tensor, unembedding_VE: Tensor) -> Tensor:
    return linear(hidden_BE, unembedding_VE)
