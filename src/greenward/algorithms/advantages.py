"""From episodes to advantages: how much better than its baseline each token's episode was.

An estimator maps a batch of episodes to an `AdvantageBatch`. The estimators here compare rewards and give
every token of an episode the same value; the one with a critic is in `critic.py`.

Episodes whose infrastructure failed (`Episode.scored` is False) neither enter a baseline nor get an
advantage other than 0. Roles of one episode are never each other's baseline, and rewards of roles that the
trained policy did not play enter none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from greenward.environments.episode import Episode, Turn

PerToken = list[tuple[np.ndarray, ...]]
"""One float32 array of shape (T,) for each turn of each episode."""

STD_EPSILON = 1e-4
"""Added to the standard deviation of a group, as in TRL, so that both give the same numbers."""


@dataclass(frozen=True)
class AdvantageBatch:
    """The advantages of a batch of episodes and, from an estimator with a critic, what the update needs.

    `values` are the critic's before the update and `returns` what it learns. `logprobs` are the
    policy's before the update, where the estimator has computed them already. `metrics` are the
    estimator's own.
    """

    advantages: PerToken
    values: PerToken | None = None
    returns: PerToken | None = None
    logprobs: PerToken | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Estimator(Protocol):
    """Maps a batch of episodes to advantages; may have state, which checkpoints keep.

    A state holds tensors and plain Python values, not NumPy's: checkpoints are read without unpickling code.
    """

    def __call__(self, episodes: Sequence[Episode]) -> AdvantageBatch: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


def spread_over_tokens(episodes: Sequence[Episode], advantage: Callable[[int, str], float]) -> AdvantageBatch:
    """Gives every token of a turn `advantage(index of the episode, role)`."""
    return AdvantageBatch(
        [
            tuple(
                np.full(len(turn.completion_ids), advantage(index, turn.role), dtype=np.float32)
                for turn in episode.turns
            )
            for index, episode in enumerate(episodes)
        ]
    )


class BaselineEstimator:
    """Compares each reward with those that share its baseline; it has no state.

    `baseline_key` says which (episode, role) share one, `transform` maps their rewards to advantages. Equal
    rewards give exactly 0, whatever rounding would leave of r - mean.
    """

    def __init__(
        self,
        baseline_key: Callable[[Episode, str], Hashable],
        transform: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._baseline_key = baseline_key
        self._transform = transform

    def __call__(self, episodes: Sequence[Episode]) -> AdvantageBatch:
        sharers: dict[Hashable, list[tuple[int, str]]] = defaultdict(list)
        for index, episode in enumerate(episodes):
            for role in episode.trained_rewards if episode.scored else ():
                sharers[self._baseline_key(episode, role)].append((index, role))
        values: dict[tuple[int, str], float] = {}
        for places in sharers.values():
            rewards = np.array([episodes[index].rewards[role] for index, role in places], dtype=np.float64)
            advantages = self._transform(rewards) if np.ptp(rewards) else np.zeros_like(rewards)
            values.update(zip(places, advantages.tolist(), strict=True))
        return spread_over_tokens(episodes, lambda index, role: values.get((index, role), 0.0))

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        pass


def _group(episode: Episode, role: str) -> Hashable:
    return episode.group_id, role


def _batch(episode: Episode, role: str) -> Hashable:
    return role


def _centred(rewards: np.ndarray) -> np.ndarray:
    return rewards - rewards.mean()


def _standardised(rewards: np.ndarray) -> np.ndarray:
    return _centred(rewards) / (rewards.std(ddof=1) + STD_EPSILON)


def _leave_one_out(rewards: np.ndarray) -> np.ndarray:
    return _centred(rewards) * len(rewards) / (len(rewards) - 1)


grpo = BaselineEstimator(_group, _standardised)
"""(r - mean) / (std + 1e-4) within each group; std is the sample deviation (n - 1).

DeepSeekMath, arXiv 2402.03300, §4.1.2. A group in which one episode was scored gets 0.
"""

dr_grpo = BaselineEstimator(_group, _centred)
"""r - mean within each group, not divided by the deviation (arXiv 2503.20783, §3.2)."""

rloo = BaselineEstimator(_group, _leave_one_out)
"""r - mean of the *other* episodes of the group (arXiv 2402.14740, eq. 8)."""

reinforce = BaselineEstimator(_batch, _centred)
"""r - mean of the whole batch: one baseline for all prompts.

A group of equal rewards keeps its signal here: it is better or worse than the other groups.
"""

ESTIMATORS: Mapping[str, BaselineEstimator] = MappingProxyType(
    {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "reinforce": reinforce}
)


class RoleBaselineEstimator:
    """Role-conditioned advantages of self-play (SPIRAL, arXiv 2506.24119, eq. 8-10 and Algorithm 1).

    Each task and role has a running mean of its returns, b <- `decay` b + (1 - `decay`) R, which starts at 0
    and is updated once for each scored episode in order, and A = R - b with b *before* its update, as in
    the official code. With `updated_first` b is taken after it, as printed in the paper: then
    A = `decay` (R - b before), the same up to a factor. Only roles that the trained policy played count.

    The return of the k-th of n turns of a role is R = `discount`^(n - 1 - k) times its reward. With a
    discount below 1 the returns of different turns differ in scale, so each k has a baseline of its own.
    """

    def __init__(self, decay: float = 0.95, *, updated_first: bool = False, discount: float = 1.0) -> None:
        self._decay = decay
        self._updated_first = updated_first
        self._discount = discount
        self._baselines: dict[str, float] = {}

    def __call__(self, episodes: Sequence[Episode]) -> AdvantageBatch:
        advantages = [self._of_episode(episode) for episode in episodes]
        by_role: dict[str, list[float]] = defaultdict(list)
        for name, value in self._baselines.items():
            by_role["baseline/" + name.partition("#")[0]].append(value)
        metrics = {name: float(np.mean(values)) for name, values in by_role.items()}
        return AdvantageBatch(advantages, metrics=metrics)

    def _of_episode(self, episode: Episode) -> tuple[np.ndarray, ...]:
        values: dict[int, float] = {}
        if episode.scored:
            turns: dict[str, list[Turn]] = defaultdict(list)
            for turn in episode.trained_turns:
                turns[turn.role].append(turn)
            for role, of_role in turns.items():
                values |= self._of_role(f"{episode.task_id}/{role}", of_role, episode.rewards[role])
        return tuple(
            np.full(len(turn.completion_ids), values.get(id(turn), 0.0), dtype=np.float32)
            for turn in episode.turns
        )

    def _of_role(self, name: str, turns: Sequence[Turn], reward: float) -> dict[int, float]:
        """The advantage of each turn, by its id."""
        if self._discount == 1:
            advantage = self._advantage(name, reward)
            return {id(turn): advantage for turn in turns}
        last = len(turns) - 1
        return {
            id(turn): self._advantage(f"{name}#{number}", reward * self._discount ** (last - number))
            for number, turn in enumerate(turns)
        }

    def _advantage(self, name: str, value: float) -> float:
        before = self._baselines.get(name, 0.0)
        after = self._decay * before + (1 - self._decay) * value
        self._baselines[name] = after
        return value - (after if self._updated_first else before)

    def state_dict(self) -> dict[str, Any]:
        return {"baselines": dict(self._baselines)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._baselines = dict(state["baselines"])


@dataclass(frozen=True)
class GroupSignal:
    """Which groups of a batch have a learning signal, by group id, in order of first appearance.

    In `with_signal` groups the rewards of a role differ between episodes. The others are split by success:
    all scored episodes succeeded, none did, or neither holds (`constant`). In `unscored` groups the
    infrastructure failed for every episode.
    """

    with_signal: tuple[int, ...] = ()
    all_pass: tuple[int, ...] = ()
    all_fail: tuple[int, ...] = ()
    constant: tuple[int, ...] = ()
    unscored: tuple[int, ...] = ()


def group_signal(episodes: Sequence[Episode]) -> GroupSignal:
    """Sorts the groups of a batch by whether their rewards differ, and why not if they do not."""
    members: dict[int, list[Episode]] = {}
    for episode in episodes:
        scored = members.setdefault(episode.group_id, [])
        if episode.scored:
            scored.append(episode)
    kinds: dict[str, list[int]] = defaultdict(list)
    for group_id, scored in members.items():
        kinds[_kind_of_group(scored)].append(group_id)
    return GroupSignal(**{kind: tuple(ids) for kind, ids in kinds.items()})


def _kind_of_group(scored: Sequence[Episode]) -> str:
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
