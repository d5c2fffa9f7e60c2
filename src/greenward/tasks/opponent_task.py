"""Defines what tasks of games against opponents share: suites of code, and findings that do not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from greenward.problems.problem import ProblemSet
from greenward.runs.directory import RunDirectory
from greenward.tasks.league import League
from greenward.tasks.problem_task import (
    find_tracked_suites,
    open_grader,
    suite_evaluator,
    warn_of_long_prompts,
)
from greenward.tasks.task import Say, Task
from greenward.training.protocols import Evaluator

if TYPE_CHECKING:
    from greenward.config.recipe import ReinforcementRecipe
    from greenward.models.catalog import PromptReader
    from greenward.models.policy import Policy

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
