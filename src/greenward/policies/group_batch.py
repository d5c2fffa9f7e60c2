"""Training rows that share a prompt: each prompt is laid down once for all its completions.

A batch is one flat row of tokens. Groups are gathered into buckets of similar prompt length; in each
bucket all prompts come first and then all completions, so that a bucket's prompts and completions
are two slices of the flat row. The last token of a completion is never an input: nothing is
predicted from it.

Shape suffixes: M input tokens of the whole batch, S scored tokens, B completions, T the longest
completion, N groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from greenward.errors import GreenwardError


@dataclass(frozen=True)
class Span:
    """Rows of several lengths in a slice of the flat row, and how to pad them to one width."""

    start: int
    stop: int
    rows: int
    width: int
    lengths: tuple[int, ...]
    slots: Tensor | None  # position of each flat token in (rows · width); None when nothing is padded

    @classmethod
    def of(cls, start: int, lengths: Sequence[int], device: torch.device) -> Span:
        lengths_R = np.asarray(lengths)
        width, total = int(lengths_R.max()), int(lengths_R.sum())
        slots = None
        if total != len(lengths) * width:
            within = np.arange(width)[None, :] < lengths_R[:, None]
            slots = torch.from_numpy(np.flatnonzero(within)).to(device)
        return cls(start, start + total, len(lengths), width, tuple(lengths), slots)

    def pad(self, flat: Tensor) -> Tensor:
        """(M, …) to (rows, width, …), zeros in the padding."""
        part = flat[self.start : self.stop]
        if self.slots is not None:
            padded = part.new_zeros((self.rows * self.width, *part.shape[1:]))
            part = padded.index_copy_(0, self.slots, part)
        return part.reshape(self.rows, self.width, *part.shape[1:])

    def unpad_into(self, padded: Tensor, flat: Tensor) -> None:
        """Write (rows, width, …) back to its slice of (M, …); the inverse of `pad`."""
        padded = padded.reshape(self.rows * self.width, *padded.shape[2:])
        part = flat[self.start : self.stop]
        if self.slots is None:
            part.copy_(padded)
        else:
            torch.index_select(padded, 0, self.slots, out=part)


@dataclass(frozen=True)
class Bucket:
    """Groups whose prompts are about equally long; `owns` has `group_size` rows for each prompt."""

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
    scored_from_S: Tensor  # index into M of the token whose hidden state predicts each scored token
    completion_ids_BT: Tensor
    completion_mask_BT: Tensor

    @classmethod
    def build(
        cls,
        prompts: Sequence[Sequence[int]],
        completions: Sequence[Sequence[Sequence[int] | np.ndarray]],
        pad_id: int = 0,
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
        return _lay_out(groups, answers, pad_id, torch.device(device))

    def padded_rows(self) -> tuple[Tensor, Tensor, Tensor]:
        """For models that cannot share prompts: each row's prompt and completion, right-padded.

        Token ids and mask, both (B, L), and, for each scored token, the index into (B · L) of the
        token that predicts it.
        """
        lengths_B = self.completion_mask_BT.sum(1).cpu().numpy()
        completions = self.completion_ids_BT.cpu().numpy()
        width = max(len(p) + n for p, n in zip(self.row_prompts, lengths_B, strict=True))
        token_ids = np.full((len(lengths_B), width), completions[0, 0])
        mask = np.zeros((len(lengths_B), width), dtype=np.int64)
        scored_from = []
        for b, (prompt, n) in enumerate(zip(self.row_prompts, lengths_B, strict=True)):
            end = len(prompt) + n
            token_ids[b, :end] = np.concatenate((prompt, completions[b, :n]))
            mask[b, :end] = 1
            scored_from.append(np.arange(b * width + len(prompt) - 1, b * width + end - 1))
        arrays = (token_ids, mask, np.concatenate(scored_from))
        token_ids_BL, mask_BL, scored_from_S = (
            torch.from_numpy(x).to(self.token_ids_M.device) for x in arrays
        )
        return token_ids_BL, mask_BL, scored_from_S


def _lay_out(
    prompts: list[np.ndarray], answers: list[list[np.ndarray]], pad_id: int, device: torch.device
) -> GroupBatch:
    first_row = np.cumsum([0] + [len(group) for group in answers])
    rows = int(first_row[-1])
    longest_answer = max(len(c) for group in answers for c in group)
    completion_ids = np.full((rows, longest_answer), pad_id, dtype=np.int64)
    lengths = np.zeros(rows, dtype=np.int64)
    scored_from: list[np.ndarray] = [np.empty(0)] * rows
    tokens: list[np.ndarray] = []
    positions: list[np.ndarray] = []
    buckets = []
    start = 0
    for members in bucket_groups([len(p) for p in prompts], [len(group) for group in answers]):
        last_of_prompt = {}
        prompt_span = Span.of(start, [len(prompts[n]) for n in members], device)
        for n in members:
            tokens.append(prompts[n])
            positions.append(np.arange(len(prompts[n])))
            start += len(prompts[n])
            last_of_prompt[n] = start - 1
        group_size = max(len(answers[n]) for n in members)
        own_lengths = []
        own_start = start
        for n in members:
            for g, completion in enumerate(answers[n]):
                row = first_row[n] + g
                inputs = len(completion) - 1
                completion_ids[row, : len(completion)] = completion
                lengths[row] = len(completion)
                tokens.append(completion[:-1])
                positions.append(np.arange(len(prompts[n]), len(prompts[n]) + inputs))
                scored_from[row] = np.concatenate(([last_of_prompt[n]], np.arange(start, start + inputs)))
                own_lengths.append(inputs)
                start += inputs
            own_lengths += [0] * (group_size - len(answers[n]))
        own_span = Span.of(own_start, own_lengths, device)
        buckets.append(Bucket(prompt_span, own_span, group_size))
    positions_M = np.concatenate(positions)
    mask = np.arange(longest_answer)[None, :] < lengths[:, None]
    return GroupBatch(
        token_ids_M=torch.from_numpy(np.concatenate(tokens)).to(device),
        positions_M=torch.from_numpy(positions_M).to(device),
        longest=int(positions_M.max()) + 1,
        buckets=tuple(buckets),
        row_prompts=tuple(prompts[n] for n in range(len(prompts)) for _ in answers[n]),
        scored_from_S=torch.from_numpy(np.concatenate(scored_from).astype(np.int64)).to(device),
        completion_ids_BT=torch.from_numpy(completion_ids).to(device),
        completion_mask_BT=torch.from_numpy(mask).to(device),
    )


def bucket_groups(lengths: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Indices in order of prompt length, cut where padding would exceed about a fifth.

    A bucket pads every group to its largest one, so groups whose sizes differ much are cut apart, too.
    """
    buckets: list[list[int]] = []
    for n in sorted(range(len(lengths)), key=lengths.__getitem__):
        if buckets and lengths[n] <= 1.2 * lengths[buckets[-1][0]] + 4:
            buckets[-1].append(n)
        else:
            buckets.append([n])
    return [part for members in buckets for part in _cut_by_size(members, sizes)]


def _cut_by_size(members: list[int], sizes: Sequence[int]) -> list[list[int]]:
    """Members in the order given, apart where a group is more than about twice as large as another."""
    parts: list[list[int]] = []
    remaining = members
    while remaining:
        limit = 2 * min(sizes[n] for n in remaining) + 8
        parts.append([n for n in remaining if sizes[n] <= limit])
        remaining = [n for n in remaining if sizes[n] > limit]
    return parts
