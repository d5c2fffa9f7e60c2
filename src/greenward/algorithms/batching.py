"""From episodes to the rows that are trained on, and from rows to minibatches and micro-batches.

A row is one turn of one episode. Rows that share a prompt stay together, since a policy reads a
shared prompt once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from greenward.algorithms.advantages import Estimate, PerToken
from greenward.algorithms.losses import BatchTotals
from greenward.environments.episode import Episode, Turn
from greenward.policies.engine import StopReason


@dataclass(frozen=True)
class Row:
    """One turn to train on, with its advantages, the mask of its trained tokens and what `Estimate` adds.

    All arrays are of shape (T,).
    """

    turn: Turn
    advantages_T: np.ndarray
    trained_T: np.ndarray
    values_T: np.ndarray | None = None
    returns_T: np.ndarray | None = None
    old_logprobs_T: np.ndarray | None = None
    ref_logprobs_T: np.ndarray | None = None


RowGroup = list[Row]
"""The rows of one group of episodes; empty if its infrastructure failed throughout."""


@dataclass(frozen=True)
class Minibatch:
    """The rows of one optimizer step and the totals that its loss is divided by.

    `rows` holds the groups that receive a gradient. `totals` also counts the other groups: their
    gradient is 0, so a loss that is divided by `totals` is that of the whole minibatch.
    """

    rows: tuple[Row, ...]
    totals: BatchTotals


def row_groups(
    episodes: Sequence[Episode], estimate: Estimate, *, mask_truncated: bool
) -> tuple[list[RowGroup], list[Row]]:
    """The rows of every group, in order of first appearance, and the rows that leave the loss.

    Episodes that were not scored are in neither. With `mask_truncated`, turns that hit the token
    limit leave the loss.
    """
    groups: dict[int, RowGroup] = {}
    masked: list[Row] = []
    for index, episode in enumerate(episodes):
        group = groups.setdefault(episode.group_id, [])
        for row in _rows(episode, index, estimate) if episode.scored else ():
            leaves = mask_truncated and row.turn.stop_reason is StopReason.LENGTH
            (masked if leaves else group).append(row)
    return list(groups.values()), masked


def has_signal(group: RowGroup) -> bool:
    """Whether the surrogate or a critic has a gradient on any row of the group."""
    return any(row.returns_T is not None or row.advantages_T[row.trained_T].any() for row in group)


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
    split = [
        _minibatch([groups[i] for i in part], max_completion_tokens, all_groups)
        for part in np.array_split(order, count)
    ]
    return [minibatch for minibatch in split if minibatch.rows]


def micro_batches(rows: Sequence[Row], size: int) -> Iterator[list[list[Row]]]:
    """Micro-batches of at most `size` rows, each a list of lists that share a prompt.

    Answers of like length go together, the longest first, so that little is padded and memory
    peaks at once. Rows that share a prompt are split only when they are more than `size`.
    """
    by_prompt: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.turn.prompt_ids, []).append(row)
    pieces = [
        sharers[start : start + size]
        for sharers in by_prompt.values()
        for start in range(0, len(sharers), size)
    ]
    pieces.sort(key=_padded_length, reverse=True)
    batch: list[list[Row]] = []
    for piece in pieces:
        if batch and sum(map(len, batch)) + len(piece) > size:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _rows(episode: Episode, index: int, estimate: Estimate) -> list[Row]:
    def of_turn(arrays: PerToken | None, number: int) -> np.ndarray | None:
        return None if arrays is None else arrays[index][number]

    return [
        Row(
            turn,
            estimate.advantages[index][number],
            turn.policy_wrote_T,
            values_T=of_turn(estimate.values, number),
            returns_T=of_turn(estimate.returns, number),
            old_logprobs_T=of_turn(estimate.logprobs, number),
        )
        for number, turn in enumerate(episode.turns)
        if turn.policy_wrote_T.any()
    ]


def _minibatch(groups: Sequence[RowGroup], max_completion_tokens: int, all_groups: bool) -> Minibatch:
    everything = [row for group in groups for row in group]
    return Minibatch(
        rows=tuple(row for group in groups if all_groups or has_signal(group) for row in group),
        totals=BatchTotals(
            sequences=len(everything),
            tokens=sum(int(row.trained_T.sum()) for row in everything),
            max_completion_tokens=max_completion_tokens,
        ),
    )


def _padded_length(piece: Sequence[Row]) -> tuple[int, int]:
    return max(len(row.turn.completion_ids) for row in piece), len(piece[0].turn.prompt_ids)
