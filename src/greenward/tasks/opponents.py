"""Games against opponents: a league of earlier versions of the policy, and what tasks of such games share.

The harder a member of the league is, the more often it is met.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from greenward.common.seeding import step_seed
from greenward.problems.problem import ProblemSet
from greenward.rollouts.protocols import Episode, RolloutEngine
from greenward.runs.directory import RunDirectory
from greenward.tasks.problem_task import (
    find_tracked_suites,
    open_grader,
    suite_evaluator,
    warn_of_long_prompts,
)
from greenward.tasks.task import Say, Task
from greenward.training.protocols import Callback, Evaluator

if TYPE_CHECKING:
    from greenward.config.recipe import ReinforcementRecipe
    from greenward.models.catalog import PromptReader
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


SILENT_IN_GAMES = frozenset(
    (
        "constant-reward", "dead-groups", "diversity-loss", "dominant-answer", "flaky-grades",
        "group-signal-fades", "length-bias", "no-learning",
    )
)  # fmt: skip
"""Findings that mean nothing where an opponent decides what is earned."""


def opponents_too_late(recipe: ReinforcementRecipe) -> Iterator[str]:
    """The mistake of sampling ahead in a task of games."""
    if recipe.rollouts.max_staleness:
        yield (
            f"rollouts.max_staleness {recipe.rollouts.max_staleness} does not work with task: {recipe.task}: "
            "the opponents of a step are known only after the update before it"
        )


class OpponentTask(Task):
    """A task of games, with suites of code as further evaluations.

    It has neither problems nor reward functions of the caller's own.
    """

    asks_problems: ClassVar = False
    silent: ClassVar = SILENT_IN_GAMES
    answers: ClassVar[str]
    """The plural noun for what a policy writes in its games."""

    def __init__(
        self,
        recipe: ReinforcementRecipe,
        given: Mapping[str, ProblemSet] = MappingProxyType({}),
        functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        super().__init__(recipe)
        self._league: League | None = None
        self.suites = find_tracked_suites(recipe, ProblemSet([]))

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the grader, if the recipe names suites of code."""
        if self.suites:
            self._grader, self.suites = open_grader(self.recipe, self.suites, run, stack)

    def found(self) -> Iterator[str]:
        for suite in self.suites:
            yield f"suite {suite.name}: {len(suite.problems)} problems"

    def check_model(self, model: PromptReader, warn: Say) -> str:
        for suite in self.suites:
            warn_of_long_prompts(suite, self.recipe, model, warn)
        return f"{self.answers} of up to {self.recipe.sampling.max_tokens} tokens"

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        """Those of the suites of code."""
        return {
            one.name: suite_evaluator(
                one, self.recipe, policy.tokenizer, self._grader, progress=self.progress
            )
            for one in self.suites
        }
