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
from greenward.policies.protocol import StopReason


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


@dataclass(frozen=True)
class Minibatch:
    """The rows of one optimizer step and the totals that its loss is divided by.

    `rows` holds only groups with signal: advantages other than 0, or returns for a critic. `totals`
    also counts the groups without: their gradient is 0, so leaving them out of the backward pass
    changes nothing but the time it takes.
    """

    rows: tuple[Row, ...]
    groups: int
    totals: BatchTotals


def minibatches(
    episodes: Sequence[Episode],
    estimate: Estimate,
    *,
    count: int,
    max_completion_tokens: int,
    mask_truncated: bool,
) -> list[Minibatch]:
    """Splits whole groups, in order, over `count` minibatches.

    Episodes that were not scored leave the batch; with `mask_truncated`, so do turns that hit the
    token limit. A group whose remaining advantages are all 0 has no signal but for a critic.
    """
    groups: dict[int, list[Row]] = {}
    for index, episode in enumerate(episodes):
        rows = groups.setdefault(episode.group_id, [])
        if episode.scored:
            rows += _trained_rows(episode, index, estimate, mask_truncated)
    parts = np.array_split(np.arange(len(groups)), count)
    members = list(groups.values())
    return [_minibatch([members[i] for i in part], max_completion_tokens) for part in parts]


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


def _trained_rows(episode: Episode, index: int, estimate: Estimate, mask_truncated: bool) -> list[Row]:
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
        if turn.policy_wrote_T.any() and not (mask_truncated and turn.stop_reason is StopReason.LENGTH)
    ]


def _has_signal(row: Row) -> bool:
    return row.returns_T is not None or bool(row.advantages_T[row.trained_T].any())


def _minibatch(groups: Sequence[Sequence[Row]], max_completion_tokens: int) -> Minibatch:
    everything = [row for group in groups for row in group]
    alive = [group for group in groups if any(_has_signal(row) for row in group)]
    return Minibatch(
        rows=tuple(row for group in alive for row in group),
        groups=len(alive),
        totals=BatchTotals(
            sequences=len(everything),
            tokens=sum(int(row.trained_T.sum()) for row in everything),
            max_completion_tokens=max_completion_tokens,
        ),
    )


def _padded_length(piece: Sequence[Row]) -> tuple[int, int]:
    return max(len(row.turn.completion_ids) for row in piece), len(piece[0].turn.prompt_ids)
