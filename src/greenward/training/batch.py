"""Turns episodes into the batch that is trained on, its minibatches, and the tensors of one forward pass.

A row is one turn of one episode. Rows that share a prompt stay together, since a policy reads a shared
prompt once. Names carry shapes: B rows, T completion positions, right-padded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from greenward.common.seeding import step_seed
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch, TokenScores
from greenward.rollouts.protocols import Episode, StopReason, Turn
from greenward.training import distributed
from greenward.training.advantages import Advantages

_MAX_LOG = 20.0  # beyond it a ratio says no more


@dataclass(eq=False)
class Row:
    """One turn to train on, with its advantages, log-probabilities, and what a critic adds.

    All arrays are of shape (T,).
    """

    turn: Turn
    advantages_T: np.ndarray
    values_T: np.ndarray | None = None
    returns_T: np.ndarray | None = None
    old_logprobs_T: np.ndarray | None = None
    ref_logprobs_T: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """The rows of one update, or of one optimizer step of it (a minibatch), in groups.

    A group without signal is trained on only with `every_group`: a KL or entropy term gives every row a
    gradient. The others have a gradient of 0, and losses are divided by what all groups hold, so that they
    are those of the whole batch. A group is empty if its infrastructure failed throughout. `masked` are the
    rows that leave the loss whatever their group. `max_completion_tokens` is the sampler's limit, not the
    longest answer: Dr. GRPO's constant.
    """

    groups: Sequence[Sequence[Row]]
    masked: Sequence[Row] = ()
    every_group: bool = True
    max_completion_tokens: int = 0
    _micro_batches: dict[int, list[MicroBatch]] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls, episodes: Sequence[Episode], advantages: Advantages, *, mask_truncated: bool = False, **rest: Any
    ) -> Batch:
        """The rows of every group, in order of first appearance; `rest` are fields of the batch.

        Where the advantages do not need the groups, rows with equal prompts are the groups. Episodes that
        were not scored have no rows. With `mask_truncated`, turns that hit the token limit leave the loss.
        """
        given = {
            "advantages_T": advantages.advantages,
            "values_T": advantages.values,
            "returns_T": advantages.returns,
            "old_logprobs_T": advantages.logprobs,
        }
        there = {name: arrays for name, arrays in given.items() if arrays is not None}
        groups: dict[Hashable, list[Row]] = {}
        masked: list[Row] = []
        for index, episode in enumerate(episodes):
            group = groups.setdefault(episode.group_id, []) if advantages.needs_groups else None
            for number, turn in enumerate(episode.turns if episode.scored else ()):
                if not turn.trained:
                    continue
                row = Row(turn, **{name: arrays[index][number] for name, arrays in there.items()})
                if mask_truncated and turn.stop_reason is StopReason.LENGTH:
                    masked.append(row)
                else:
                    (groups.setdefault(turn.prompt_ids, []) if group is None else group).append(row)
        return cls(list(groups.values()), masked, **rest)

    @cached_property
    def trained(self) -> list[Sequence[Row]]:
        """The groups that receive a gradient."""
        return [group for group in self.groups if group and self._is_trained(group)]

    @cached_property
    def rows(self) -> list[Row]:
        """The rows that receive a gradient."""
        return [row for group in self.trained for row in group]

    @property
    def left_out(self) -> Batch:
        """The rows that receive none."""
        without = [row for group in self.groups if not self._is_trained(group) for row in group]
        return Batch([[*self.masked, *without]])

    def _is_trained(self, group: Sequence[Row]) -> bool:
        """Whether the surrogate, a critic or another term has a gradient on any row of the group.

        What is counted as `groups/with_signal` is whether rewards differ (`advantages.group_signal`).
        """
        return self.every_group or any(
            row.returns_T is not None or row.advantages_T[row.turn.policy_wrote_T].any() for row in group
        )

    def minibatches(self, count: int, *, passes: int, seed: int, step: int) -> Iterator[tuple[int, Batch]]:
        """`count` minibatches of whole groups for each pass, with the number of the pass.

        The first pass takes the groups in order, each further one in an order that is drawn anew. Rows with
        returns for a critic take the place of groups, which are not their baseline, and their order is drawn
        for the first pass as well. One minibatch is the same for all passes; one without rows to train on is
        left out.
        """
        by_row = any(row.returns_T is not None for row in self.rows)
        groups = [[row] for row in self.rows] if by_row else self.groups
        order = np.arange(len(groups))
        batches: list[Batch] = []
        for number in range(passes):
            if count > 1 or number == 0:
                if by_row or number > 0:
                    random = np.random.default_rng(step_seed(seed, step, f"minibatches/{number}"))
                    order = random.permutation(len(groups))
                parts = np.array_split(order, count)
                batches = [replace(self, groups=[groups[i] for i in part], masked=()) for part in parts]
            for batch in batches:
                if batch.rows:
                    yield number, batch

    def micro_batches(self, size: int, device: torch.device) -> list[MicroBatch]:
        """The rows of this process as tensors, at most `size` at once, which are kept for further passes."""
        if size not in self._micro_batches:
            self._micro_batches.clear()
            self._micro_batches[size] = list(self._laid_out(size, device))
        return self._micro_batches[size]

    def _laid_out(self, size: int, device: torch.device) -> Iterator[MicroBatch]:
        """The micro-batches of this process.

        The rows are shared out so that all processes have about as many tokens. All have as many
        micro-batches, since weights that are sharded are gathered by all at once: those of a process with
        fewer are followed by a row that is not trained on.
        """

        def tokens(piece: Sequence[Row]) -> int:
            return len(piece[0].turn.prompt_ids) + sum(len(row.turn.completion_ids) for row in piece)

        pieces = _sharing_a_prompt(self.rows, -(-len(self.rows) // distributed.size()))
        batches = [list(_of_like_length(share, size)) for share in distributed.divide(pieces, tokens)]
        own = batches[distributed.rank()]
        everything = [row for group in self.groups for row in group]
        totals = {
            "total_sequences": len(everything),
            "total_tokens": sum(row.turn.policy_tokens for row in everything),
            "max_completion_tokens": self.max_completion_tokens,
        }
        for number in range(max(map(len, batches))):
            trained = number < len(own)
            yield MicroBatch.build(own[number] if trained else [[self.rows[0]]], device, trained, **totals)

    @torch.no_grad()
    def scores(
        self, score: Callable[[MicroBatch], Mapping[str, Tensor]], size: int, device: torch.device
    ) -> list[dict[str, np.ndarray]]:
        """What `score` gives by name (B, T), for each of `rows` its part (T,); `size` rows at once."""
        place, found = {row: number for number, row in enumerate(self.rows)}, []
        for micro in self._laid_out(size, device):
            for name, values_BT in score(micro).items():
                for row, values_T in zip(micro.rows, values_BT.float().cpu().numpy(), strict=True):
                    found.append((place[row], name, values_T[: len(row.advantages_T)]))
        of_rows: list[dict[str, np.ndarray]] = [{} for _ in self.rows]
        for number, name, values_T in distributed.all_gather_object(found):
            of_rows[number][name] = values_T
        return of_rows


def _of_like_length(pieces: Sequence[Sequence[Row]], size: int) -> Iterator[list[list[Row]]]:
    """At most `size` rows at once, in lists that share a prompt; all are of one temperature.

    Answers of like length go together, the longest first, so that little is padded and memory
    peaks at once. Rows that share a prompt are split only when they are more than `size`.
    """

    def order(piece: Sequence[Row]) -> tuple[float, int, int]:
        longest = max(len(row.turn.completion_ids) for row in piece)
        return piece[0].turn.temperature, longest, len(piece[0].turn.prompt_ids)

    batch: list[list[Row]] = []
    count = 0
    rows = [row for piece in pieces for row in piece]
    for piece in sorted(_sharing_a_prompt(rows, size), key=order, reverse=True):
        full = count + len(piece) > size
        if batch and (full or piece[0].turn.temperature != batch[0][0].turn.temperature):
            yield batch
            batch, count = [], 0
        batch.append(piece)
        count += len(piece)
    if batch:
        yield batch


def _sharing_a_prompt(rows: Sequence[Row], size: int) -> list[list[Row]]:
    """Lists of at most `size` rows that share a prompt and a temperature."""
    by_prompt: dict[tuple[float, tuple[int, ...]], list[Row]] = {}
    for row in rows:
        by_prompt.setdefault((row.turn.temperature, row.turn.prompt_ids), []).append(row)
    return [
        sharers[start : start + size]
        for sharers in by_prompt.values()
        for start in range(0, len(sharers), size)
    ]


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward and backward pass as tensors (B, T): all that the losses read.

    `group_batch` are the rows laid out for the policy, group-major, `rows` where they come from, and
    `temperature` is the one that all were sampled at. `mask_BT` is True for the tokens that are trained on.
    The totals are what the whole minibatch holds: losses are divided by them, so that those of micro-batches
    add up exactly. `old_logprobs_BT` are the trainer's before the first update on these rows; None means that
    this *is* the first update. `sampler_logprobs_BT` are those that the rollout engine reported, `values_BT`
    and `returns_BT` the critic's before the update and what it learns.
    """

    group_batch: GroupBatch
    advantages_BT: Tensor
    mask_BT: Tensor
    total_sequences: int
    total_tokens: int
    max_completion_tokens: int
    sampler_logprobs_BT: Tensor | None = None
    old_logprobs_BT: Tensor | None = None
    ref_logprobs_BT: Tensor | None = None
    values_BT: Tensor | None = None
    returns_BT: Tensor | None = None
    rows: Sequence[Row] = ()
    temperature: float = 1.0

    def scores(self, policy: Policy, **options: bool) -> TokenScores:
        """What `policy.completion_logprobs` gives for the rows at their temperature."""
        return policy.completion_logprobs(self.group_batch, temperature=self.temperature, **options)

    def token_scores(self, scores: TokenScores) -> dict[int, dict[str, np.ndarray]]:
        """Advantage, ratio to the sampler, entropy and KL (k3) by token (T,), of each turn by its `id`."""
        assert scores.entropy_BT is not None
        found = {}
        columns = scores.logprobs_BT.detach(), scores.entropy_BT.detach()
        columns_BT = (column.float().cpu().numpy() for column in columns)
        for row, logprobs_T, entropy_T in zip(self.rows, *columns_BT, strict=True):
            length = len(row.advantages_T)
            new_T, written_T = logprobs_T[:length], row.turn.policy_wrote_T
            of_turn = {
                "advantage": row.advantages_T,
                "ratio": np.where(written_T, np.exp(np.minimum(new_T - row.turn.logprobs_T, _MAX_LOG)), 1.0),
                "entropy": entropy_T[:length],
            }
            if row.ref_logprobs_T is not None:
                lead_T = np.minimum(row.ref_logprobs_T - new_T, _MAX_LOG)
                of_turn["kl"] = np.exp(lead_T) - lead_T - 1
            found[id(row.turn)] = of_turn
        return found

    @classmethod
    def build(
        cls, groups: Sequence[Sequence[Row]], device: torch.device, trained: bool, **totals: Any
    ) -> MicroBatch:
        """From rows that share a prompt in each list; optional tensors only where all rows have them.

        Without `trained` no token is trained on: loss, gradients and statistics are 0.
        """
        group_batch = GroupBatch.build(
            [rows[0].turn.prompt_ids for rows in groups],
            [[row.turn.completion_ids for row in rows] for rows in groups],
            device=device,
        )
        rows = [row for sharers in groups for row in sharers]
        there_BT = group_batch.completion_mask_BT.cpu().numpy()

        def padded(arrays_T: Sequence[np.ndarray], dtype: Any = np.float32) -> Tensor:
            values_BT = np.zeros(there_BT.shape, dtype=dtype)
            values_BT[there_BT] = np.concatenate(arrays_T)
            return torch.from_numpy(values_BT).to(device)

        optional: dict[str, Any] = {}
        for name in ("old_logprobs", "ref_logprobs", "values", "returns"):
            arrays_T = [getattr(row, f"{name}_T") for row in rows]
            if all(values_T is not None for values_T in arrays_T):
                optional[f"{name}_BT"] = padded(arrays_T)
        return cls(
            group_batch,
            advantages_BT=padded([row.advantages_T for row in rows]),
            mask_BT=padded([row.turn.policy_wrote_T for row in rows], np.bool_) & trained,
            sampler_logprobs_BT=padded([row.turn.logprobs_T for row in rows]),
            rows=rows,
            temperature=rows[0].turn.temperature or 1.0,  # greedy tokens are scored at 1, as engines do
            **optional,
            **totals,
        )
