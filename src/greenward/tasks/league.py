"""A league: earlier versions of the policy as opponents, the harder ones more often."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, cast

from greenward.common.seeding import step_seed
from greenward.rollouts.protocols import Episode, RolloutEngine
from greenward.training.protocols import Callback

if TYPE_CHECKING:
    from greenward.models.policy import Policy

LEAGUE, SELF = "league", "self"  # as recipes name these opponents
_NEWEST_GAMES = 0.9  # decay of the score of a member, per group of games
_SMALLEST_WEIGHT = 0.05  # a member that always loses is still met now and then


@dataclass(eq=False)
class League:
    """Frozen copies of `policy`, the start among them, each a player of its own in `players`.

    A member is drawn with a probability in proportion to (1 - s)^`hardness`, where s is the running mean of
    what the policy scores against it (1 for a win, 1/2 for a draw); the prioritised fictitious self-play of
    AlphaStar (Vinyals et al. 2019, methods). All games of a group meet the same member, so that they share
    its forward passes.
    """

    policy: Policy
    players: MutableMapping[str, RolloutEngine]
    _: KW_ONLY
    size: int
    hardness: float
    seed: int

    def __post_init__(self) -> None:
        self._scores: dict[str, float] = {}
        self._joined = 0
        self.add()

    def add(self) -> None:
        """Let the policy as it is now join; the oldest member leaves where there are too many."""
        name = f"{LEAGUE}/{self._joined}"
        self._joined += 1
        self.players[name] = self.policy.frozen_copy()
        self._scores[name] = 0.5
        if len(self._scores) > self.size:
            oldest = next(iter(self._scores))
            del self._scores[oldest], self.players[oldest]

    @property
    def newest(self) -> str:
        return next(reversed(self._scores))

    def member(self, group_id: int) -> str:
        weights = [(1 - score) ** self.hardness + _SMALLEST_WEIGHT for score in self._scores.values()]
        return random.Random(step_seed(self.seed, group_id, LEAGUE)).choices(list(self._scores), weights)[0]

    def record(self, episodes: Sequence[Episode]) -> None:
        results: dict[tuple[int, str], list[float]] = {}
        for episode in episodes:
            member = episode.extra.get("opponent")
            if member in self._scores and episode.scored:
                result = episode.reward
                scored = 0.5 if not result else float(result > 0)
                results.setdefault((episode.group_id, member), []).append(scored)
        for (_, member), scores in results.items():
            mean = sum(scores) / len(scores)
            self._scores[member] = _NEWEST_GAMES * self._scores[member] + (1 - _NEWEST_GAMES) * mean

    def state_dict(self) -> dict[str, Any]:
        members = {name: cast("Policy", self.players[name]) for name in self._scores}
        weights = {name: member.state_dict() for name, member in members.items()}
        versions = {name: member.version for name, member in members.items()}
        return {"scores": self._scores, "weights": weights, "versions": versions, "joined": self._joined}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name in self._scores:
            del self.players[name]
        self._scores, self._joined = dict(state["scores"]), state["joined"]
        for name, weights in state["weights"].items():
            member = self.policy.frozen_copy()
            member.load_state_dict(weights)
            member.version = state["versions"][name]
            self.players[name] = member


@dataclass(eq=False)
class LeagueCallback(Callback):
    """Tells a league the results of each step, and lets the policy join it.

    `joins` says after how many steps.
    """

    name = LEAGUE

    league: League
    joins: Callable[[int], bool]

    def on_episodes(self, episodes: Sequence[Episode]) -> Sequence[Episode]:
        self.league.record(episodes)
        return episodes

    def on_step_begin(self, step: int) -> None:
        if step > 1 and self.joins(step - 1):
            self.league.add()

    def state_dict(self) -> dict[str, Any]:
        return self.league.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.league.load_state_dict(state)
