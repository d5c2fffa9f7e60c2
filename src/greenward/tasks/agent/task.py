"""Defines the task `agent`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from greenward.config.recipe import ToolSections, recipes_with
from greenward.tasks.problem_task import ProblemTask

if TYPE_CHECKING:
    from greenward.models.policy import Policy
    from greenward.problems.problem import Problem
    from greenward.rollouts.protocols import Environment


class Agent(ProblemTask):
    """Repositories with a bug, which an agent repairs by calls of tools."""

    recipes: ClassVar = recipes_with("agent", ToolSections)

    def check(self, problem: Problem) -> None:
        from greenward.grading.edits import editable_files

        super().check(problem)
        editable_files(problem)

    def texts(self) -> Iterable[str]:
        from greenward.tasks.corpus import demonstration_text

        yield from super().texts()
        yield from (demonstration_text(one) for one in self.train if one.reference)

    def environment(self, policy: Policy) -> Environment:
        from greenward.environments.agent import AgentEnvironment

        make = partial(AgentEnvironment, executor=self.grader.executor, tools=self.recipe.tools)
        return self.make_environment(make, policy)

    def estimator(self, policy: Policy) -> Any:
        from greenward.training.advantages import CompletionRewardEstimator

        estimator: Any = super().estimator(policy)
        return CompletionRewardEstimator(estimator) if self.recipe.tools.call_reward else estimator
