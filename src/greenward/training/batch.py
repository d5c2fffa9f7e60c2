"""Turns episodes into the rows that are trained on, and rows into the tensors of one forward pass.

A row is one turn of one episode. Rows that share a prompt stay together, since a policy reads a shared
prompt once. Names carry shapes: B rows, T completion positions, right-padded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch, TokenScores
from greenward.rollouts.protocols import Episode, StopReason, Turn
from greenward.training import distributed
from greenward.training.advantages import Advantages


@dataclass(frozen=True)
class TrainingRow:
    """One turn to train on, with its advantages, log-probabilities, and what a critic adds.

    All arrays are of shape (T,).
    """

    turn: Turn
    advantages_T: np.ndarray
    values_T: np.ndarray | None = None
    returns_T: np.ndarray | None = None
    old_logprobs_T: np.ndarray | None = None
    ref_logprobs_T: np.ndarray | None = None


RowGroup = list[TrainingRow]
"""The rows of one group of episodes; empty if its infrastructure failed throughout."""


@dataclass(frozen=True)
class BatchTotals:
    """What the whole optimizer batch holds, so that its micro-batches' losses add up exactly.

    `max_completion_tokens` is the sampler's limit, not the longest answer: Dr. GRPO's constant.
    """

    sequences: int
    tokens: int
    max_completion_tokens: int


@dataclass(frozen=True)
class Minibatch:
    """The rows of one optimizer step and the totals that its loss is divided by.

    `rows` holds the groups that receive a gradient. `totals` also counts the other groups: their
    gradient is 0, so a loss that is divided by `totals` is that of the whole minibatch.
    """

    rows: tuple[TrainingRow, ...]
    totals: BatchTotals
    _micro_batches: dict[int, list[MicroBatch]] = field(default_factory=dict, repr=False, compare=False)

    def micro_batches(self, size: int, device: torch.device) -> list[MicroBatch]:
        """The `training_batches` of at most `size` rows, which are kept for further passes."""
        if size not in self._micro_batches:
            self._micro_batches.clear()
            batches = training_batches(self.rows, size, device)
            self._micro_batches[size] = [replace(one, totals=self.totals) for one in batches]
        return self._micro_batches[size]


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and backward pass as tensors (B, T): all that the losses read.

    `mask_BT` is True for the tokens that are trained on. `old_logprobs_BT` are the trainer's before the
    first update on these rows; None means that this *is* the first update. `sampler_logprobs_BT` are those
    that the rollout engine reported, `values_BT` and `returns_BT` the critic's before the update and what it
    learns. `tokens` are the same rows laid out for the policy, group-major, `rows` where they come from, and
    `temperature` is the one that all of them were sampled at. `totals` are those of the minibatch, by which
    losses are divided.
    """

    advantages_BT: Tensor
    mask_BT: Tensor
    sampler_logprobs_BT: Tensor | None = None
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    returns_BT: Tensor | None = None
    tokens: GroupBatch | None = None
    rows: Sequence[TrainingRow] = ()
    temperature: float = 1.0
    totals: BatchTotals | None = None

    @property
    def group_batch(self) -> GroupBatch:
        """`tokens`, which a batch built from rows has."""
        assert self.tokens is not None
        return self.tokens

    def scores(self, policy: Policy, **options: bool) -> TokenScores:
        """What `policy.completion_logprobs` gives for the rows at their temperature."""
        return policy.completion_logprobs(self.group_batch, temperature=self.temperature, **options)

    @classmethod
    def build(
        cls, groups: Sequence[Sequence[TrainingRow]], *, device: torch.device, trained: bool = True
    ) -> MicroBatch:
        """From rows that share a prompt in each list; optional tensors only where all rows have them.

        Without `trained` no token is trained on: loss, gradients and statistics are 0.
        """
        tokens = GroupBatch.build(
            [rows[0].turn.prompt_ids for rows in groups],
            [[row.turn.completion_ids for row in rows] for rows in groups],
            device=device,
        )
        rows = [row for sharers in groups for row in sharers]
        there_BT = tokens.completion_mask_BT.cpu().numpy()

        def padded(arrays_T: Sequence[np.ndarray], dtype: Any = np.float32) -> Tensor:
            values_BT = np.zeros(there_BT.shape, dtype=dtype)
            values_BT[there_BT] = np.concatenate(arrays_T)
            return torch.from_numpy(values_BT).to(device)

        given = {
            name: [getattr(row, f"{name}_T") for row in rows]
            for name in ("old_logprobs", "ref_logprobs", "values", "returns")
        }
        optional: dict[str, Any] = {
            f"{name}_BT": padded(arrays_T)
            for name, arrays_T in given.items()
            if all(values_T is not None for values_T in arrays_T)
        }
        return cls(
            advantages_BT=padded([row.advantages_T for row in rows]),
            mask_BT=padded([row.turn.policy_wrote_T for row in rows], np.bool_) & trained,
            sampler_logprobs_BT=padded([row.turn.logprobs_T for row in rows]),
            tokens=tokens,
            rows=rows,
            temperature=rows[0].turn.temperature or 1.0,  # greedy tokens are scored at 1, as engines do
            **optional,
        )


def row_groups(
    episodes: Sequence[Episode], advantages: Advantages, *, mask_truncated: bool
) -> tuple[list[RowGroup], list[TrainingRow]]:
    """The rows of every group, in order of first appearance, and the rows that leave the loss.

    Where the advantages do not need the groups, rows with equal prompts are the groups. Episodes that were
    not scored are in neither. With `mask_truncated`, turns that hit the token limit leave the loss.
    """
    groups: dict[Hashable, RowGroup] = {}
    masked: list[TrainingRow] = []
    for index, episode in enumerate(episodes):
        group = groups.setdefault(episode.group_id, []) if advantages.needs_groups else None
        for row in _rows(episode, index, advantages) if episode.scored else ():
            if mask_truncated and row.turn.stop_reason is StopReason.LENGTH:
                masked.append(row)
            else:
                (groups.setdefault(row.turn.prompt_ids, []) if group is None else group).append(row)
    return list(groups.values()), masked


def _rows(episode: Episode, index: int, batch: Advantages) -> list[TrainingRow]:
    given = {
        "advantages_T": batch.advantages,
        "values_T": batch.values,
        "returns_T": batch.returns,
        "old_logprobs_T": batch.logprobs,
    }
    there = {name: arrays[index] for name, arrays in given.items() if arrays is not None}
    return [
        TrainingRow(turn, **{name: arrays[number] for name, arrays in there.items()})
        for number, turn in enumerate(episode.turns)
        if turn.trained
    ]


def has_signal(group: RowGroup) -> bool:
    """Whether the surrogate or a critic has a gradient on any row of the group.

    What is counted as `groups/with_signal` is whether rewards differ (`advantages.group_signal`).
    """
    return any(row.returns_T is not None or row.advantages_T[row.turn.policy_wrote_T].any() for row in group)


def minibatches(
    groups: Sequence[RowGroup],
    *,
    count: int,
    max_completion_tokens: int,
    all_groups: bool,
    shuffle_seed: int | None = None,
) -> list[Minibatch]:
    """Splits whole groups over `count` minibatches, in order or in an order drawn from `shuffle_seed`.

    A minibatch trains on its groups with signal, or on all of them (`all_groups`: a KL or entropy term
    gives every row a gradient). A minibatch without such rows is left out.
    """
    order = np.arange(len(groups))
    if shuffle_seed is not None:
        order = np.random.default_rng(shuffle_seed).permutation(order)
    split = []
    for part in np.array_split(order, count):
        everything = [row for i in part for row in groups[i]]
        rows = [row for i in part if all_groups or has_signal(groups[i]) for row in groups[i]]
        tokens = sum(row.turn.policy_tokens for row in everything)
        split.append(Minibatch(tuple(rows), BatchTotals(len(everything), tokens, max_completion_tokens)))
    return [minibatch for minibatch in split if minibatch.rows]


def micro_batches(rows: Sequence[TrainingRow], size: int) -> Iterator[list[list[TrainingRow]]]:
    """Micro-batches of at most `size` rows, each a list of lists that share a prompt and a temperature.

    Answers of like length go together, the longest first, so that little is padded and memory
    peaks at once. Rows that share a prompt are split only when they are more than `size`.
    """
    pieces = _sharing_a_prompt(rows, size)

    def order(piece: Sequence[TrainingRow]) -> tuple[float, int, int]:
        longest = max(len(row.turn.completion_ids) for row in piece)
        return piece[0].turn.temperature, longest, len(piece[0].turn.prompt_ids)

    pieces.sort(key=order, reverse=True)
    batch: list[list[TrainingRow]] = []
    count = 0
    for piece in pieces:
        full = count + len(piece) > size
        if batch and (full or piece[0].turn.temperature != batch[0][0].turn.temperature):
            yield batch
            batch, count = [], 0
        batch.append(piece)
        count += len(piece)
    if batch:
        yield batch


def _sharing_a_prompt(rows: Sequence[TrainingRow], size: int) -> list[list[TrainingRow]]:
    """Lists of at most `size` rows that share a prompt and a temperature."""
    by_prompt: dict[tuple[float, tuple[int, ...]], list[TrainingRow]] = {}
    for row in rows:
        by_prompt.setdefault((row.turn.temperature, row.turn.prompt_ids), []).append(row)
    return [
        sharers[start : start + size]
        for sharers in by_prompt.values()
        for start in range(0, len(sharers), size)
    ]


def training_batches(rows: Sequence[TrainingRow], size: int, device: torch.device) -> Iterator[MicroBatch]:
    """The `micro_batches` of this process as tensors.

    The rows are shared out so that all processes have about as many tokens. All have as many micro-batches,
    since weights that are sharded are gathered by all at once: those of a process with fewer are followed by
    a row that is not trained on.
    """
    shares = [list(rows)]
    if distributed.size() > 1:
        pieces = _sharing_a_prompt(rows, -(-len(rows) // distributed.size()))

        def tokens(piece: Sequence[TrainingRow]) -> int:
            return len(piece[0].turn.prompt_ids) + sum(len(row.turn.completion_ids) for row in piece)

        shares = [[row for piece in share for row in piece] for share in distributed.divide(pieces, tokens)]
    batches = [list(micro_batches(share, size)) for share in shares]
    own = batches[distributed.rank()]
    for number in range(max(map(len, batches))):
        trained = number < len(own)
        yield MicroBatch.build(own[number] if trained else [[rows[0]]], device=device, trained=trained)


@torch.no_grad()
def row_scores(
    score: Callable[[MicroBatch], Mapping[str, Tensor]],
    rows: Sequence[TrainingRow],
    size: int,
    device: torch.device,
) -> list[dict[str, np.ndarray]]:
    """What `score` gives by name (B, T), for each row its part (T,); `size` rows at once."""
    place, found = {id(row): number for number, row in enumerate(rows)}, []
    for micro in training_batches(rows, size, device):
        for name, values_BT in score(micro).items():
            for row, values_T in zip(micro.rows, values_BT.float().cpu().numpy(), strict=True):
                found.append((place[id(row)], name, values_T[: len(row.advantages_T)]))
    of_rows: list[dict[str, np.ndarray]] = [{} for _ in rows]
    for number, name, values_T in distributed.all_gather_object(found):
        of_rows[number][name] = values_T
    return of_rows
