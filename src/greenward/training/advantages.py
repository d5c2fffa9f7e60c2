"""Computes advantages of episodes: how much better than its baseline each token's episode was.

With r the reward of an episode, they are:

- `grpo`: (r − mean) / (std + 1e-4) over its group; std with n − 1, as in TRL (DeepSeekMath, arXiv
  2402.03300, §4.1.2). A group in which one episode was scored gets 0.
- `dr_grpo`: r − mean over its group, not divided by the deviation (arXiv 2503.20783, §3.2).
- `rloo`: r − mean over the *other* episodes of its group (arXiv 2402.14740, eq. 8).
- `reinforce`: r − mean over the whole batch: one baseline for all prompts. A group of equal rewards keeps
  its signal here: it is better or worse than the other groups.

An estimator maps a batch of episodes to an `Advantages`. The estimators here compare rewards and give
every token of an episode the same value; the one with a critic is in `ppo.py`. Episodes whose infrastructure
failed (`Episode.scored` is False) neither enter a baseline nor get an advantage other than 0. Roles of one
episode are never each other's baseline, and rewards of roles that the policy did not play enter none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from greenward.common.errors import GreenwardError
from greenward.rollouts.protocols import Episode, Turn
from greenward.training.protocols import Stateful

PerToken = list[tuple[np.ndarray, ...]]
"""One float32 array of shape (T,) for each turn of each episode."""

STD_EPSILON = 1e-4
"""Added to the standard deviation of a group, as in TRL, so that both give the same numbers."""


@dataclass(frozen=True)
class Advantages:
    """The advantages of a batch of episodes and, from an estimator with a critic, what the update needs.

    `values` are the critic's before the update and `returns` what it learns. `logprobs` are the
    policy's before the update, where the estimator has computed them already. Without `needs_groups` the
    baseline is not that of the group, and minibatches may split groups into turns with equal prompts.
    `metrics` are the estimator's own.
    """

    advantages: PerToken
    values: PerToken | None = None
    returns: PerToken | None = None
    logprobs: PerToken | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    needs_groups: bool = True

    def with_negative_weight(self, weight: float) -> Advantages:
        """The same with negative advantages times `weight` (arXiv 2506.01347 weighs the two signs apart)."""
        weighted = [
            tuple(np.where(each_T < 0, weight * each_T, each_T).astype(np.float32) for each_T in turns)
            for turns in self.advantages
        ]
        return replace(self, advantages=weighted)


class Estimator(Stateful):
    """Maps a batch of episodes to advantages; may have state, which checkpoints keep."""

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        raise NotImplementedError


def per_token(episodes: Sequence[Episode], value: Callable[[int, Turn], float]) -> PerToken:
    """`value(index of the episode, turn)` for every token of a turn."""
    return [
        tuple(np.full(len(turn.completion_ids), value(index, turn), dtype=np.float32) for turn in one.turns)
        for index, one in enumerate(episodes)
    ]


def zeros(episodes: Sequence[Episode]) -> PerToken:
    """0 for every token."""
    return per_token(episodes, lambda *_: 0.0)


@dataclass(frozen=True)
class RoleTurns:
    """Where all is that the policy wrote in one role of the episode at `index`: a trajectory, T tokens."""

    index: int
    role: str
    turns: tuple[tuple[int, Turn], ...]
    reward: float

    @property
    def tokens(self) -> int:
        return sum(turn.policy_tokens for _, turn in self.turns)

    def gather(self, arrays: PerToken) -> np.ndarray:
        """The trajectory's part of the arrays (T,), float64."""
        parts = [arrays[self.index][number][turn.policy_wrote_T] for number, turn in self.turns]
        return np.concatenate(parts).astype(np.float64)

    def scatter(self, values_T: np.ndarray, arrays: PerToken) -> None:
        """The inverse of `gather`; other tokens stay as they are."""
        start = 0
        for number, turn in self.turns:
            stop = start + turn.policy_tokens
            arrays[self.index][number][turn.policy_wrote_T] = values_T[start:stop]
            start = stop


def role_turns(episodes: Sequence[Episode]) -> Iterator[RoleTurns]:
    """Yield the trajectories of the scored episodes, those of one episode by role."""
    for index, episode in enumerate(episodes):
        for role, reward in episode.trained_rewards.items() if episode.scored else ():
            turns = tuple(
                (number, turn)
                for number, turn in enumerate(episode.turns)
                if turn.role == role and turn.trained
            )
            yield RoleTurns(index, role, turns, reward)


def spread_over_tokens(episodes: Sequence[Episode], advantage: Callable[[int, str], float]) -> Advantages:
    """Gives every token of a turn `advantage(index of the episode, role)`."""
    return Advantages(per_token(episodes, lambda index, turn: advantage(index, turn.role)))


@dataclass(eq=False)
class BaselineEstimator(Estimator):
    """Compares each reward with those that share its baseline; it has no state.

    Those are the rewards of one role in a group or, without `within_group`, in the whole batch. `transform`
    maps them to advantages. Equal rewards give exactly 0, whatever rounding would leave of r - mean.
    """

    transform: Callable[[np.ndarray], np.ndarray]
    within_group: bool = True

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        sharers: dict[Hashable, list[tuple[int, str]]] = defaultdict(list)
        for index, episode in enumerate(episodes):
            for role in episode.trained_rewards if episode.scored else ():
                sharers[episode.group_id if self.within_group else None, role].append((index, role))
        values: dict[tuple[int, str], float] = {}
        for places in sharers.values():
            rewards = np.array([episodes[index].rewards[role] for index, role in places], dtype=np.float64)
            advantages = self.transform(rewards) if np.ptp(rewards) else np.zeros_like(rewards)
            values.update(zip(places, advantages.tolist(), strict=True))
        return spread_over_tokens(episodes, lambda index, role: values.get((index, role), 0.0))


def _centred(rewards: np.ndarray) -> np.ndarray:
    return rewards - rewards.mean()


def _standardised(rewards: np.ndarray) -> np.ndarray:
    return _centred(rewards) / (rewards.std(ddof=1) + STD_EPSILON)


def _leave_one_out(rewards: np.ndarray) -> np.ndarray:
    return _centred(rewards) * len(rewards) / (len(rewards) - 1)


ESTIMATORS: Mapping[str, BaselineEstimator] = MappingProxyType(
    {
        "grpo": BaselineEstimator(_standardised),
        "dr_grpo": BaselineEstimator(_centred),
        "rloo": BaselineEstimator(_leave_one_out),
        "reinforce": BaselineEstimator(_centred, within_group=False),
    }
)


@dataclass(eq=False)
class CompletionRewardEstimator(Estimator):
    """Adds to the advantages of `outcome` those of the rewards of single completions (turns) of a transcript.

    The k-th completion has the sum of the completion rewards from k on as its return, and the k-th ones of
    the group as its baseline: (return - mean) / (std + 1e-4). This is the advantage of MT-GRPO (arXiv
    2505.11821, eq. 6 and 7), for any number of turns and with later rewards counted for earlier turns.
    """

    outcome: Estimator

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        batch = self.outcome(episodes)
        sharers: dict[Hashable, list[tuple[float, np.ndarray]]] = defaultdict(list)
        for episode, advantages in zip(episodes, batch.advantages, strict=True):
            for turn, advantages_T in zip(episode.turns, advantages, strict=True):
                if turn.completion_rewards and turn.trained and episode.scored:
                    returns = np.cumsum(turn.completion_rewards[::-1])[::-1].tolist()
                    # Where each run of tokens that the policy wrote starts, and where it ends.
                    edges = np.flatnonzero(np.diff(turn.policy_wrote_T, prepend=False, append=False))
                    runs = zip(returns, edges[::2], edges[1::2], strict=True)
                    for k, (value, start, end) in enumerate(runs):
                        sharers[episode.group_id, turn.role, k].append((value, advantages_T[start:end]))
        for places in sharers.values():
            returns = np.array([value for value, _ in places])
            if np.ptp(returns):
                for advantage, (_, part) in zip(_standardised(returns), places, strict=True):
                    part += advantage
        return batch


@dataclass(eq=False)
class RoleBaselineEstimator(Estimator):
    """Advantages of self-play, R - b for each turn of a role; no length normalisation.

    The return of the k-th of n turns of a role is R = `discount`^(n - 1 - k) times its reward. `baseline` is

    - "role_baseline": SPIRAL's role-conditioned baseline (arXiv 2506.24119, eq. 8-10 and Algorithm 1). Each
      task and role has a running mean, b <- `decay` b + (1 - `decay`) R, which starts at 0 and is updated
      once for each scored episode in order. A = R - b with b *before* its update, as in the official code;
      with `updated_first` after it, as printed in the paper, which gives `decay` (R - b before).
    - "group_mean": the mean over the episodes of the same group, task and role.
    - "position_mean": the mean over the batch's turns with the same task, role and prompt. It takes away more
      variance than the others where positions come again and again; a position met once gets no advantage.
    - "none": 0. In a zero-sum game this is also what a baseline shared by both roles would be.

    With a discount below 1 the returns of different turns differ in scale, so each k has a baseline of its
    own. Only roles that the trained policy played count. The sampler's log-probabilities are taken as the
    policy's before the update: the policy plays the games itself.
    """

    baseline: Literal["role_baseline", "group_mean", "position_mean", "none"] = "role_baseline"
    _: KW_ONLY
    decay: float = 0.95
    updated_first: bool = False
    discount: float = 1.0
    _means: dict[str, float] = field(default_factory=dict, init=False)

    def __call__(self, episodes: Sequence[Episode]) -> Advantages:
        values: dict[tuple[int, int], float] = {}  # by the number of the episode and the id of the turn
        shared: dict[Hashable, list[tuple[float, list[tuple[int, int]]]]] = defaultdict(list)
        for number, episode in enumerate(episodes):
            for name, value, turns in self._returns(episode) if episode.scored else ():
                keys = [(number, id(turn)) for turn in turns]
                if self.baseline == "role_baseline":
                    before = self._means.get(name, 0.0)
                    self._means[name] = self.decay * before + (1 - self.decay) * value
                    values |= dict.fromkeys(
                        keys, value - (self._means[name] if self.updated_first else before)
                    )
                else:
                    shared[name].append((value, keys))
        for sharers in shared.values():
            total = 0.0 if self.baseline == "none" else sum(value for value, _ in sharers)
            values |= {key: value - total / len(sharers) for value, keys in sharers for key in keys}
        advantages = per_token(episodes, lambda number, turn: values.get((number, id(turn)), 0.0))
        logprobs = [tuple(turn.logprobs_T for turn in episode.turns) for episode in episodes]
        metrics = {f"baseline/{name}": mean for name, mean in self._means.items() if "#" not in name}
        return Advantages(advantages, logprobs=logprobs, metrics=metrics, needs_groups=False)

    def _returns(self, episode: Episode) -> Iterator[tuple[Any, float, list[Turn]]]:
        """The name of the baseline, the return, and the turns that have both."""
        if len(episode.rewards) < 2:
            raise GreenwardError(
                f"{episode.task_id}: role-conditioned advantages need a game of at least two roles, found "
                f"rewards for {sorted(episode.rewards)}",
                remedy="Use an estimator of ESTIMATORS, such as `dr_grpo`, for tasks of one role.",
            )
        prefix = f"{episode.group_id}:" if self.baseline == "group_mean" else ""
        for role, reward in episode.trained_rewards.items():
            name = f"{prefix}{episode.task_id}/{role}"
            turns = [turn for turn in episode.trained_turns if turn.role == role]
            by_position = self.baseline == "position_mean"
            if self.discount == 1 and not by_position:
                yield name, reward, turns
            else:
                for number, turn in enumerate(turns):
                    later = len(turns) - 1 - number
                    of_turn = (name, turn.prompt_ids) if by_position else f"{name}#{number}"
                    yield of_turn, reward * self.discount**later, [turn]

    def state_dict(self) -> dict[str, Any]:
        return {"means": dict(self._means)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._means = dict(state["means"])


def group_signal(episodes: Sequence[Episode]) -> dict[int, str]:
    """Whether each group of a batch has a learning signal, by group id, in order of first appearance.

    In a group `with_signal` the rewards of a role differ between episodes. The others are split by success:
    all scored episodes succeeded (`all_pass`), none did (`all_fail`), or neither holds (`constant`). In an
    `unscored` group the infrastructure failed for every episode. Whether a group is trained on follows from
    its advantages (`Batch.trained`).
    """
    members: dict[int, list[Episode]] = {}
    for episode in episodes:
        scored = members.setdefault(episode.group_id, [])
        if episode.scored:
            scored.append(episode)
    return {group_id: _signal_of(scored) for group_id, scored in members.items()}


def _signal_of(scored: Sequence[Episode]) -> str:
    if not scored:
        return "unscored"
    by_role: dict[str, set[float]] = defaultdict(set)
    for episode in scored:
        for role, reward in episode.trained_rewards.items():
            by_role[role].add(reward)
    if any(len(rewards) > 1 for rewards in by_role.values()):
        return "with_signal"
    successes = {episode.success for episode in scored}
    if successes == {True}:
        return "all_pass"
    return "all_fail" if successes == {False} else "constant"
