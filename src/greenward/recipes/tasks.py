"""What a kind of recipe trains and evaluates on: the protocol of tasks, and the tasks of code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

from greenward.algorithms.collection import Environment
from greenward.algorithms.loop import Evaluator
from greenward.algorithms.supervised import Example
from greenward.config.recipe import Recipe, ReinforcementRecipe
from greenward.config.sections import SupervisedConfig
from greenward.environments.code import CodeEnvironment
from greenward.environments.episode import POLICY
from greenward.policies.engine import RolloutEngine
from greenward.policies.policy import Policy
from greenward.problems.families.supervised import tokenizer_texts
from greenward.problems.problem import ProblemSet
from greenward.recipes.build import (
    build_grader,
    build_problems,
    build_renderer,
    build_rewards,
    build_sampling,
    verify_references,
)
from greenward.recipes.supervised_data import supervised_examples
from greenward.recipes.training_evaluation import build_evaluators, find_tracked_suites
from greenward.runs.directory import RunDirectory


class Tasks(Protocol):
    """The tasks of one training.

    They are made before there is a run directory, and raise the typed errors of `greenward.errors` for a
    recipe that cannot be trained; `open` then starts what judges them. A kind of recipe with tasks of its
    own has a class with these methods and an entry in `train.TASKS`.
    """

    def __init__(
        self, recipe: Any, given: Mapping[str, ProblemSet], functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        """`given` and `functions` are the caller's own problems and reward functions (`train.train`)."""

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Prepare to collect and evaluate episodes, until `stack` is closed; `run` gets facts on it."""

    def texts(self) -> Iterable[str]:
        """Texts to train a tokenizer on, where the recipe starts from random weights."""

    def sample(self, policy: Policy) -> str:
        """What a dry run shows of the tasks: how many there are, and a prompt of `policy`."""

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        """The pairs of supervised training, as token ids of `policy`."""

    def players(self, policy: Policy) -> Mapping[str, RolloutEngine]:
        """The players of the environment by name; `policy` is one of them."""

    def environment(self, policy: Policy) -> Environment:
        """Where the episodes that train `policy` come from."""

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        """The evaluations during training, by suite; None stands for held-out tasks."""


class CodeTasks:
    """Problems of code: those to train on, the held-out ones, public suites, and the terms of the reward."""

    def __init__(
        self, recipe: Recipe, given: Mapping[str, ProblemSet], functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.recipe = recipe
        self.train, self.held_out = build_problems(recipe, given)
        self._suites = find_tracked_suites(recipe, self.train)
        self._reward_terms = build_rewards(recipe, self.train, functions)

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the grader, and verify the references of problems from files."""
        self._grader = grader = stack.enter_context(build_grader(self.recipe.sandbox))
        run.add_provenance(sandbox=grader.isolation.to_json())
        self.train, self.held_out = grader.complete(self.train), grader.complete(self.held_out)
        verify_references(self.recipe, grader, self.train, self.held_out)
        self._suites = tuple(
            replace(suite, problems=grader.complete(suite.problems)) for suite in self._suites
        )

    def texts(self) -> Iterable[str]:
        return tokenizer_texts(self.train)

    def sample(self, policy: Policy) -> str:
        renderer = build_renderer(self.recipe, policy.tokenizer)
        first = self.train[0]
        return (
            f"# {len(self.train)} problems to train on, {len(self.held_out)} held out\n"
            f"# first prompt ({len(renderer.prompt_ids(first))} tokens, {renderer.style} style):\n"
            f"{renderer.prompt_text(first)}"
        )

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        renderer = build_renderer(self.recipe, policy.tokenizer)
        return supervised_examples(config, self.train, policy, renderer, seed=self.recipe.seed)

    def players(self, policy: Policy) -> Mapping[str, RolloutEngine]:
        return {POLICY: policy}

    def environment(self, policy: Policy) -> Environment:
        recipe = self.recipe
        assert isinstance(recipe, ReinforcementRecipe)
        overlong = recipe.algorithm.overlong
        return CodeEnvironment(
            self.train,
            build_renderer(recipe, policy.tokenizer),
            self._grader,
            self._reward_terms,
            sampling=build_sampling(recipe),
            group_size=recipe.training.num_generations,
            seed=recipe.seed,
            max_turns=recipe.environment.max_turns,
            penalty_buffer=overlong.penalty_buffer,
            penalty=overlong.penalty,
        )

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        return build_evaluators(self.recipe, self.held_out, self._suites, policy.tokenizer, self._grader)
