"""Computes log-probabilities and entropies of answers, and lays out the batches in which they are scored.

Large [tokens, vocabulary] logits are avoided. A batch is one flat row of tokens, in which a prompt stands
once for all its completions. Groups are gathered into buckets of similar prompt length; in each bucket all
prompts come first and then all completions, so that a bucket's prompts and completions are two slices of the
flat row. The last token of a completion is never an input: nothing is predicted from it.
Shape suffixes: M input tokens of the whole batch, U those that predict scored ones, S scored tokens, E
hidden size, V vocabulary, B completions, T the longest completion, N groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenward.common.errors import GreenwardError
from greenward.common.interruption import check
from greenward.models.kernels.native import LANES
from greenward.models.products import linear, product, products_for, serving, weight_gradient

# Logits of one chunk take at most this many numbers (64 MB in float32).
CHUNK_NUMBERS = 16 * 1024 * 1024
KEPT_NUMBERS = 128 * 1024 * 1024
"""The most logits that are kept for the backward pass of an unembedding that is trained; more are computed
again."""


@dataclass(frozen=True)
class TokenScores:
    """Per completion token, 0 in the padding: log-probability and, where asked for, entropy in nats.

    `hidden_SE`, where asked for, holds the hidden states that the tokens were predicted from, unpadded.
    """

    logprobs_BT: Tensor
    entropy_BT: Tensor | None
    hidden_SE: Tensor | None = None


class _ChunkedScores(torch.autograd.Function):
    """Scores the tokens in chunks. Where the logits are too many to be kept, backward computes them again.

    Of a frozen unembedding the gradient by the hidden states is computed beside the scores: as many products,
    and no logits are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_SE: Tensor, unembedding_VE: Tensor, targets_S: Tensor, scale: float, entropy: bool
    ) -> tuple[Tensor, Tensor]:
        S, V = len(hidden_SE), len(unembedding_VE)
        scores_S, lse_S, entropy_S = hidden_SE.new_empty((3, S), dtype=torch.float32)
        native = serving(hidden_SE, LANES)
        ctx.scale, ctx.native, ctx.products = scale, native, products_for(hidden_SE, unembedding_VE)
        is_kept = ctx.needs_input_grad[1] and S * V <= KEPT_NUMBERS
        is_ahead = ctx.needs_input_grad[0] and not ctx.needs_input_grad[1]
        kept, ahead_SE = [], torch.empty_like(hidden_SE) if is_ahead else None
        for part in _chunks(S, V):
            check()
            if native:
                logits = linear(hidden_SE[part], unembedding_VE)
                native.score(logits, targets_S[part], scale, scores_S[part], lse_S[part], entropy_S[part])
            else:
                logits = _logits(hidden_SE[part], unembedding_VE, scale)
                lse_S[part] = lse = logits.logsumexp(-1)
                logprobs = logits.sub_(lse[:, None])
                scores_S[part] = logprobs.gather(-1, targets_S[part, None]).squeeze(-1)
                if entropy:
                    entropy_S[part] = -(logprobs.exp() * logprobs).sum(-1)
            if is_kept:
                kept.append(logits)
            if ahead_SE is not None:
                about = targets_S[part], lse_S[part], entropy_S[part], torch.ones_like(lse_S[part]), None
                grad = _grad_logits(ctx, logits, *about).to(hidden_SE.dtype)
                ahead_SE[part] = product(ctx.products, grad, unembedding_VE)
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing here
        ctx.save_for_backward(hidden_SE, unembedding_VE, targets_S, lse_S, entropy_S, ahead_SE, *kept)
        return scores_S, entropy_S

    @staticmethod
    def backward(ctx: Any, grad_scores_S: Tensor | None, grad_entropy_S: Tensor | None) -> tuple[Any, ...]:
        hidden_SE, unembedding_VE, targets_S, lse_S, entropy_S, ahead_SE, *kept = ctx.saved_tensors
        if grad_scores_S is None:
            grad_scores_S = torch.zeros_like(lse_S)
        if ahead_SE is not None and grad_entropy_S is None:
            return (ahead_SE * grad_scores_S[:, None].to(ahead_SE.dtype), *[None] * 4)
        grad_hidden_SE = torch.empty_like(hidden_SE)
        grad_unembedding_VE = None
        if ctx.needs_input_grad[1]:
            grad_unembedding_VE = torch.zeros_like(unembedding_VE, dtype=torch.float32)
        for number, part in enumerate(_chunks(len(hidden_SE), len(unembedding_VE))):
            check()
            if kept:
                logits = kept[number]
            elif ctx.native:
                logits = product(ctx.products, hidden_SE[part], unembedding_VE.t())
            else:
                logits = _logits(hidden_SE[part], unembedding_VE, ctx.scale).sub_(lse_S[part, None])
            above = grad_scores_S[part], None if grad_entropy_S is None else grad_entropy_S[part]
            grad = _grad_logits(ctx, logits, targets_S[part], lse_S[part], entropy_S[part], *above)
            grad = grad.to(hidden_SE.dtype)
            grad_hidden_SE[part] = product(ctx.products, grad, unembedding_VE)
            if grad_unembedding_VE is not None:
                grad_unembedding_VE += weight_gradient(ctx.products, grad, hidden_SE[part], unembedding_VE)
        if grad_unembedding_VE is not None:
            grad_unembedding_VE = grad_unembedding_VE.to(unembedding_VE.dtype)
        return grad_hidden_SE, grad_unembedding_VE, None, None, None


def _grad_logits(
    ctx: Any,
    logits_SV: Tensor,
    targets_S: Tensor,
    lse_S: Tensor,
    entropy_S: Tensor,
    grad_S: Tensor,
    grad_entropy_S: Tensor | None,
) -> Tensor:
    """The gradient of the logits before scaling; without kernels, `logits_SV` are log-probabilities."""
    if ctx.native:
        slopes = (one if one is None else one.contiguous() for one in (grad_S, grad_entropy_S))
        grad: Tensor = ctx.native.score_backward(logits_SV, targets_S, ctx.scale, lse_S, entropy_S, *slopes)
        return grad
    slope = grad_S1 = grad_S[:, None]
    if grad_entropy_S is not None:  # d entropy / d logit_i = -p_i (log p_i + entropy)
        slope = (logits_SV + entropy_S[:, None]).mul_(grad_entropy_S[:, None]).add_(grad_S1)
    grad = logits_SV.exp().mul_(slope).neg_()
    return grad.scatter_add_(1, targets_S[:, None], grad_S1).mul_(ctx.scale)


def score_tokens(
    hidden_SE: Tensor, unembedding_VE: Tensor, targets_S: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """Log-probability of each target, and entropy, under softmax(hidden · unembeddingᵀ / temperature)."""
    logprobs_S, entropy_S = _ChunkedScores.apply(
        hidden_SE, unembedding_VE, targets_S, 1.0 / temperature, entropy
    )
    return logprobs_S, entropy_S if entropy else None


def score_logits(
    logits_SV: Tensor, targets_S: Tensor, *, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor | None]:
    """The same from logits that exist already."""
    logprobs_SV = torch.log_softmax(logits_SV.float() / temperature, dim=-1)
    logprobs_S = logprobs_SV.gather(1, targets_S[:, None]).squeeze(1)
    return logprobs_S, -(logprobs_SV.exp() * logprobs_SV).sum(-1) if entropy else None


def _logits(hidden: Tensor, unembedding_VE: Tensor, scale: float) -> Tensor:
    logits = linear(hidden, unembedding_VE).float()
    return logits if scale == 1.0 else logits.mul_(scale)


def _chunks(tokens: int, vocab: int) -> list[slice]:
    size = max(1, CHUNK_NUMBERS // vocab)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


@dataclass(frozen=True)
class Span:
    """Rows of several lengths in a slice of the flat row, and how to pad them to one width."""

    start: int
    stop: int
    rows: int
    width: int
    lengths: np.ndarray
    slots: Tensor | None  # position of each flat token in (rows · width); None when nothing is padded

    @classmethod
    def of(cls, start: int, lengths: Sequence[int], device: torch.device) -> Span:
        lengths_R = np.asarray(lengths, dtype=np.int64)
        width, total = int(lengths_R.max(initial=0)), int(lengths_R.sum())
        slots = None
        if total != len(lengths) * width:
            within = np.arange(width)[None, :] < lengths_R[:, None]
            slots = torch.from_numpy(np.flatnonzero(within)).to(device)
        return cls(start, start + total, len(lengths), width, lengths_R, slots)

    def row_starts(self) -> np.ndarray:
        """The place of each row's first token in the flat row."""
        return self.start + np.cumsum(self.lengths) - self.lengths

    def pad(self, flat: Tensor) -> Tensor:
        """(M, …) to (rows, width, …), zeros in the padding."""
        part = flat[self.start : self.stop]
        if self.slots is not None:
            padded = part.new_zeros((self.rows * self.width, *part.shape[1:]))
            part = padded.index_copy_(0, self.slots, part)
        return part.reshape(self.rows, self.width, *part.shape[1:])

    def unpad(self, padded: Tensor) -> Tensor:
        """(rows, width, …) to (stop - start, …)."""
        padded = padded.flatten(0, 1)
        return padded if self.slots is None else padded.index_select(0, self.slots)

    def unpad_into(self, padded: Tensor, flat: Tensor) -> None:
        """Write (rows, width, …) back to its slice of (M, …); the inverse of `pad`."""
        part = flat[self.start : self.stop]
        if self.slots is None:
            part.copy_(padded.flatten(0, 1))
        else:
            torch.index_select(padded.flatten(0, 1), 0, self.slots, out=part)


@dataclass(frozen=True)
class Bucket:
    """Groups whose prompts are about equally long.

    `owns` has `group_size` rows for each prompt, for those of its completions that have tokens in the input.
    """

    members: tuple[int, ...]  # the numbers of the groups
    prompts: Span
    owns: Span
    group_size: int


@dataclass(frozen=True)
class GroupBatch:
    """Prompts and completions laid out for `Policy.completion_logprobs`.

    Rows are group-major: the completions of the first prompt, then those of the second, and so on.
    `completion_ids_BT` and `completion_mask_BT` (True for real tokens) are in that order.
    """

    token_ids_M: Tensor
    positions_M: Tensor
    longest: int  # positions are below this
    buckets: tuple[Bucket, ...]
    row_prompts: tuple[np.ndarray, ...]  # each row's prompt
    predicting_U: Tensor  # index into M of the tokens whose hidden states predict scored tokens, ascending
    scored_from_S: Tensor  # index into U of the one that predicts each scored token
    completion_ids_BT: Tensor
    completion_mask_BT: Tensor

    @classmethod
    def build(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[Sequence[int] | np.ndarray]],
        device: torch.device | str = "cpu",
    ) -> GroupBatch:
        """Lay out N prompts and, for each, its list of completions (any number from one up)."""
        if len(prompts) != len(completions):
            raise GreenwardError(
                f"expected one list of completions for each of {len(prompts)} prompts, "
                f"found {len(completions)} lists"
            )
        groups = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        answers = [[np.asarray(c, dtype=np.int64) for c in group] for group in completions]
        for n, (prompt, group) in enumerate(zip(groups, answers, strict=True)):
            if not len(prompt) or not group or not all(len(c) for c in group):
                raise GreenwardError(
                    "expected a prompt and completions of at least one token each, "
                    f"found an empty one in group {n}"
                )
        with_inputs = [sum(len(completion) > 1 for completion in group) for group in answers]
        return _lay_out(groups, answers, with_inputs, with_inputs, torch.device(device))

    @classmethod
    def of_prompts(
        cls, prompts: Sequence[Sequence[int]], group_sizes: Sequence[int], device: torch.device
    ) -> GroupBatch:
        """Prompts without completions, in the buckets of groups of these sizes.

        The scored tokens are those that follow the prompts.
        """
        groups = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        return _lay_out(groups, [[prompt[:1]] for prompt in groups], [0] * len(groups), group_sizes, device)

    @property
    def targets_S(self) -> Tensor:
        return self.completion_ids_BT[self.completion_mask_BT]

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:
        """Where each distinct scored token (D,) is predicted from, its id, and that of each scored one (S,).

        Equal answers to a prompt begin with the same one, which is scored once: those of games, mostly.
        """
        largest = int(self.completion_ids_BT.max()) + 1
        distinct_D, number_S = (self.scored_from_S * largest + self.targets_S).unique(return_inverse=True)
        return distinct_D // largest, distinct_D % largest, number_S

    def spread(self, values_S: Tensor) -> Tensor:
        """(S,) to (B, T), zeros in the padding."""
        return values_S.new_zeros(self.completion_mask_BT.shape).masked_scatter(
            self.completion_mask_BT, values_S
        )


def _lay_out(
    prompts: list[np.ndarray],
    answers: list[list[np.ndarray]],
    with_inputs: Sequence[int],
    group_sizes: Sequence[int],
    device: torch.device,
) -> GroupBatch:
    """`with_inputs` counts each group's completions that have tokens in the input; `group_sizes` decide which
    groups share a bucket.
    """
    rows = [completion for group in answers for completion in group]
    first_row = np.cumsum([0] + [len(group) for group in answers])
    # Of each row, where its prompt ends and its own tokens begin; of each run of tokens, its first position.
    last_of_prompt, own_start = np.empty((2, len(rows)), dtype=np.int64)
    tokens: list[np.ndarray] = []
    first_positions: list[int] = []
    buckets = []
    start = 0
    for members in bucket_groups([len(p) for p in prompts], group_sizes):
        prompt_span = Span.of(start, [len(prompts[n]) for n in members], device)
        tokens += [prompts[n] for n in members]
        first_positions += [0] * len(members)
        group_size = max(with_inputs[n] for n in members)
        own_lengths = []
        prompt_end, start = start, prompt_span.stop
        for n in members:
            prompt_end += len(prompts[n])
            for row, completion in enumerate(answers[n], first_row[n]):
                last_of_prompt[row], own_start[row] = prompt_end - 1, start
                if len(completion) > 1:
                    tokens.append(completion[:-1])
                    first_positions.append(len(prompts[n]))
                    own_lengths.append(len(completion) - 1)
                start += len(completion) - 1
            own_lengths += [0] * (group_size - with_inputs[n])
        own_span = Span.of(prompt_span.stop, own_lengths, device)
        buckets.append(Bucket(tuple(members), prompt_span, own_span, group_size))
    lengths = [len(run) for run in tokens]
    positions_M = np.repeat(first_positions, lengths) + _counted(lengths)
    lengths_B = [len(completion) for completion in rows]
    number_S = _counted(lengths_B)  # of each scored token in its row
    from_S = np.where(
        number_S == 0, np.repeat(last_of_prompt, lengths_B), np.repeat(own_start - 1, lengths_B) + number_S
    )
    predicts_M = np.zeros(len(positions_M), dtype=bool)
    predicts_M[from_S] = True
    mask = np.arange(max(lengths_B)) < np.array(lengths_B)[:, None]
    completion_ids = np.zeros(mask.shape, dtype=np.int64)
    completion_ids[mask] = np.concatenate(rows)
    return GroupBatch(
        token_ids_M=torch.from_numpy(np.concatenate(tokens)).to(device),
        positions_M=torch.from_numpy(positions_M).to(device),
        longest=int(positions_M.max()) + 1,
        buckets=tuple(buckets),
        row_prompts=tuple(prompts[n] for n in range(len(prompts)) for _ in answers[n]),
        predicting_U=torch.from_numpy(np.flatnonzero(predicts_M)).to(device),
        scored_from_S=torch.from_numpy((np.cumsum(predicts_M) - 1)[from_S]).to(device),
        completion_ids_BT=torch.from_numpy(completion_ids).to(device),
        completion_mask_BT=torch.from_numpy(mask).to(device),
    )


def _counted(lengths: Sequence[int]) -> np.ndarray:
    """0, 1, … length - 1 for each length, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def bucket_groups(lengths: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Indices in order of prompt length, cut where padding would exceed about a fifth.

    A bucket pads every group to its largest one, so groups whose sizes differ much are cut apart, too, and
    groups of size 0 from all others.
    """
    buckets: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if buckets and lengths[n] <= 1.2 * lengths[buckets[-1][0]] + 4:
            buckets[-1].append(n)
        else:
            buckets.append([n])
    parts: list[list[int]] = []
    for bucket in buckets:
        while bucket:
            smallest = min(sizes[n] for n in bucket)
            limit = 2 * smallest + 8 if smallest else 0
            parts.append([n for n in bucket if sizes[n] <= limit])
            bucket = [n for n in bucket if sizes[n] > limit]
    return parts
