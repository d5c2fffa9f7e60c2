"""From episodes to advantages: how much better than its baseline each token's episode was.

An estimator is any callable `(episodes) -> advantages` with, per episode and per turn, one float32
array of shape (T,) (T the turn's completion length). Those here are pure functions that give every
token of an episode the same value. One with a critic gives an `Estimate`: the advantages together
with what the critic is to learn (`critic_estimator.py`).

Episodes whose infrastructure failed (`Episode.scored` is False) neither enter a baseline nor get an
advantage other than 0. Roles of one episode are never each other's baseline.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from greenward.environments.episode import Episode

PerToken = list[tuple[np.ndarray, ...]]
"""One float32 array of shape (T,) for each turn of each episode."""

Advantages = PerToken

STD_EPSILON = 1e-4
"""Added to the standard deviation of a group, as in TRL, so that both give the same numbers."""


@dataclass(frozen=True)
class Estimate:
    """Advantages and, from an estimator with a critic, all else that the update needs of it.

    `values` are the critic's before the update and `returns` what it learns. `logprobs` are the
    policy's before the update, where the estimator has computed them already. `metrics` are the
    estimator's own.
    """

    advantages: Advantages
    values: PerToken | None = None
    returns: PerToken | None = None
    logprobs: PerToken | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


class Estimator(Protocol):
    """Advantages per episode and per turn, each of shape (T,), for a whole batch of episodes."""

    def __call__(self, episodes: Sequence[Episode]) -> Advantages | Estimate: ...


class GroupEstimator(Protocol):
    """An estimator that needs nothing but the episodes' rewards."""

    def __call__(self, episodes: Sequence[Episode]) -> Advantages: ...


def grpo(episodes: Sequence[Episode]) -> Advantages:
    """(r - mean) / (std + 1e-4) within each group; std is the sample deviation (n - 1).

    DeepSeekMath, arXiv 2402.03300, §4.1.2. A group in which one episode was scored gets 0.
    """
    return _baselined(episodes, _by_group, _standardised)


def dr_grpo(episodes: Sequence[Episode]) -> Advantages:
    """r - mean within each group, not divided by the deviation (arXiv 2503.20783, §3.2)."""
    return _baselined(episodes, _by_group, _centred)


def rloo(episodes: Sequence[Episode]) -> Advantages:
    """r - mean of the *other* episodes of the group (arXiv 2402.14740, eq. 8)."""
    return _baselined(episodes, _by_group, _leave_one_out)


def reinforce(episodes: Sequence[Episode]) -> Advantages:
    """r - mean of the whole batch: one baseline for all prompts.

    A group of equal rewards keeps its signal here: it is better or worse than the other groups.
    """
    return _baselined(episodes, lambda episode, role: role, _centred)


ESTIMATORS: Mapping[str, GroupEstimator] = MappingProxyType(
    {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo, "reinforce": reinforce}
)


@dataclass(frozen=True)
class GroupSignal:
    """Which groups of a batch can teach anything, by group id, in order of first appearance.

    `with_signal` groups have rewards that differ. The others have equal rewards and are split by
    verdict: every scored answer passed, none passed, or some did (`constant`). In `unscored`
    groups the infrastructure failed for every episode.
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
    if any(dict(episode.rewards) != dict(scored[0].rewards) for episode in scored):
        return "with_signal"
    passed = sum(episode.verdict.passed for episode in scored)
    if passed == len(scored):
        return "all_pass"
    return "constant" if passed else "all_fail"


def _by_group(episode: Episode, role: str) -> Hashable:
    return episode.group_id, role


def _baselined(
    episodes: Sequence[Episode],
    baseline_key: Callable[[Episode, str], Hashable],
    transform: Callable[[np.ndarray], np.ndarray],
) -> Advantages:
    """Applies `transform` to the rewards that share a baseline and spreads the result over tokens.

    Equal rewards give exactly 0, whatever rounding would leave of r - mean.
    """
    sharers: dict[Hashable, list[tuple[int, str]]] = defaultdict(list)
    for index, episode in enumerate(episodes):
        if episode.scored:
            for role in episode.rewards:
                sharers[baseline_key(episode, role)].append((index, role))
    values: dict[tuple[int, str], float] = {}
    for places in sharers.values():
        rewards = np.array([episodes[index].rewards[role] for index, role in places], dtype=np.float64)
        advantages = transform(rewards) if np.ptp(rewards) else np.zeros_like(rewards)
        values.update(zip(places, advantages.tolist(), strict=True))
    return [
        tuple(
            np.full(len(turn.completion_ids), values.get((index, turn.role), 0.0), dtype=np.float32)
            for turn in episode.turns
        )
        for index, episode in enumerate(episodes)
    ]


def _centred(rewards: np.ndarray) -> np.ndarray:
    return rewards - rewards.mean()


def _standardised(rewards: np.ndarray) -> np.ndarray:
    return _centred(rewards) / (rewards.std(ddof=1) + STD_EPSILON)


def _leave_one_out(rewards: np.ndarray) -> np.ndarray:
    return _centred(rewards) * len(rewards) / (len(rewards) - 1)
