"""What a kind of recipe trains and evaluates on: the protocol of tasks, and the tasks of code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from typing import Any, Protocol

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.recipe import CodeRecipe, ModelRecipe, Recipe
from greenward.config.sections import EvaluationConfig, SuiteConfig, SupervisedConfig
from greenward.environments.agent import AgentEnvironment, AgentPrompts
from greenward.environments.code import CodeEnvironment
from greenward.environments.prompts import (
    PromptRenderer,
    PromptTokenizer,
    answer_form,
    prompt_options,
    tools_of,
)
from greenward.evaluation.evaluate import VerdictMemory, evaluate
from greenward.evaluation.session import DEFAULT_TIMEOUT, WALL_PER_CPU
from greenward.evaluation.suites import examples_for, find_suite, renderer_for, stable_subset, without
from greenward.grading.edits import editable_files, written_edits
from greenward.grading.judge import Grader, build_grader
from greenward.grading.reward_terms import build_rewards
from greenward.grading.verification import build_problems, verify_references
from greenward.models.catalog import build_sampling
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer
from greenward.problems.problem import Problem, ProblemSet
from greenward.rollouts.engine import RolloutEngine
from greenward.rollouts.episode import POLICY
from greenward.runs.directory import RunDirectory
from greenward.runs.trackers import tracker_name
from greenward.tasks.corpus import demonstration_text, supervised_examples, texts_to_tokenize
from greenward.training.collector import Environment
from greenward.training.loop import Evaluator
from greenward.training.protocols import Callback
from greenward.training.sft import Example


class Tasks(Protocol):
    """The tasks of one training.

    They are made before there is a run directory, and raise the typed errors of `greenward.common.errors` for
    a recipe that cannot be trained; `open` then starts what judges them. A kind of recipe with tasks of its
    own has a class with these methods and an entry in `recipes.run.TASKS`.
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
        """Where the episodes that train `policy` come from, once there are players."""

    def callbacks(self) -> Sequence[Callback]:
        """What has to follow the training, such as a league of opponents, once there are players."""

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        """The evaluations during training, by suite; None stands for held-out tasks."""


@dataclass(frozen=True)
class TrackedSuite:
    """A suite with the problems that are asked, and the examples that come before each."""

    name: str
    config: SuiteConfig
    problems: ProblemSet
    shots: tuple[Problem, ...]
    data_hash: str


def find_tracked_suites(recipe: Recipe, train: ProblemSet) -> tuple[TrackedSuite, ...]:
    """The suites that the recipe names; none when evaluation is disabled.

    Raises `ProblemError` for an unknown suite and for one that shares problems with the training set,
    `ConfigError` for two of one name.
    """
    if not recipe.evaluation.enabled:
        return ()
    suites: dict[str, TrackedSuite] = {}
    trained = {problem.task_id for problem in train}
    for config in recipe.evaluation.suites:
        shots = examples_for(config.name, config.fewshot)
        whole = without(find_suite(config.name, recipe), shots)
        problems = stable_subset(whole, config.num_questions or len(whole))
        if shared := [problem.task_id for problem in problems if problem.task_id in trained]:
            raise ProblemError(
                f"evaluation.suites: {len(shared)} problems of {config.name} are trained on "
                f"(first: {shared[0]!r}).",
                remedy="Name a part that is not trained on (mbpp:test), or train on other problems.",
            )
        name = tracker_name(whole.name)
        if name in suites:
            raise ConfigError(f"evaluation.suites names {name} twice.")
        suites[name] = TrackedSuite(name, config, problems, shots, problems.data_hash)
    return tuple(suites.values())


def build_renderer(recipe: ModelRecipe, tokenizer: PromptTokenizer) -> PromptRenderer:
    """How problems are presented to a policy with this tokenizer."""
    if (tools := tools_of(recipe)) is not None:
        return AgentPrompts(tokenizer, **prompt_options(recipe), tool_format=tools.format)
    return PromptRenderer(tokenizer, **prompt_options(recipe), answer=answer_form(recipe))


class CodeTasks:
    """Problems of code: those to train on, the held-out ones, public suites, and the terms of the reward."""

    def __init__(
        self, recipe: Recipe, given: Mapping[str, ProblemSet], functions: Mapping[str, Callable[..., Any]]
    ) -> None:
        self.recipe = recipe
        self.train, self.held_out = build_problems(recipe, given)
        self.suites = find_tracked_suites(recipe, self.train)
        if answer_form(recipe) != "function" or tools_of(recipe):
            for problem in (*self.train, *self.held_out):
                editable_files(problem)
        self._reward_terms = build_rewards(recipe, self.train, functions)

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the grader, and verify the references of problems from files."""
        self.grader, self.suites = open_grader(self.recipe, self.suites, run, stack)
        grader = self.grader
        self.train, self.held_out = grader.complete(self.train), grader.complete(self.held_out)
        verify_references(self.recipe, grader, self.train, self.held_out)

    def texts(self) -> Iterable[str]:
        yield from texts_to_tokenize(self.train)
        form = answer_form(self.recipe)
        if tools_of(self.recipe):
            yield from (demonstration_text(one) for one in self.train if one.reference)
        if form != "function":
            yield from (written_edits(one, one.reference, form) for one in self.train if one.reference)

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

    def callbacks(self) -> Sequence[Callback]:
        return ()

    def environment(self, policy: Policy) -> Environment:
        recipe = self.recipe
        assert isinstance(recipe, CodeRecipe)
        overlong, tools = recipe.algorithm.overlong, recipe.environment.tools
        make: Any = CodeEnvironment
        if tools is not None:
            make = partial(AgentEnvironment, executor=self.grader.executor, tools=tools)
        return make(
            self.train,
            build_renderer(recipe, policy.tokenizer),
            self.grader,
            self._reward_terms,
            sampling=build_sampling(recipe),
            group_size=recipe.training.num_generations,
            seed=recipe.seed,
            max_turns=recipe.environment.max_turns,
            penalty_buffer=overlong.penalty_buffer,
            penalty=overlong.penalty,
        )

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        recipe, tokenizer, grader = self.recipe, policy.tokenizer, self.grader
        renderer, sampling = build_renderer(recipe, tokenizer), build_sampling(recipe)
        memory = VerdictMemory()

        def evaluate_held_out(policy: Policy, step: int, elapsed_seconds: float) -> dict[str, Any]:
            return evaluate(
                policy, self.held_out, renderer, grader, recipe.evaluation,
                sampling=sampling, step=step, elapsed_seconds=elapsed_seconds, tools=tools_of(recipe),
                memory=memory,
            )  # fmt: skip

        found: dict[str | None, Evaluator] = {None: evaluate_held_out}
        return found | {one.name: suite_evaluator(one, recipe, tokenizer, grader) for one in self.suites}


def open_grader(
    recipe: Recipe, suites: Sequence[TrackedSuite], run: RunDirectory, stack: ExitStack
) -> tuple[Grader, tuple[TrackedSuite, ...]]:
    """A grader until `stack` is closed, which `run` records, and the suites with all expected values."""
    grader = stack.enter_context(build_grader(recipe.sandbox))
    run.add_provenance(sandbox=grader.isolation.to_json())
    return grader, tuple(replace(suite, problems=grader.complete(suite.problems)) for suite in suites)


def suite_evaluator(suite: TrackedSuite, recipe: Recipe, tokenizer: Tokenizer, grader: Grader) -> Evaluator:
    """The record says what moves scores: data, prompts, examples, token and time limits."""
    config, problems = suite.config, suite.problems
    renderer, stop_strings = renderer_for(config.name, recipe, tokenizer, problems, shots=suite.shots)
    usual = build_sampling(recipe)
    max_tokens = config.max_tokens or usual.max_tokens
    sampling = replace(usual, max_tokens=max_tokens, top_p=1.0, top_k=0, stop_strings=stop_strings)
    settings = EvaluationConfig(
        num_questions=len(problems),
        samples=1,
        k=(1,),
        temperature=config.temperature,
        greedy=False,
        seed=recipe.evaluation.seed,
    )
    seconds = config.timeout_seconds or DEFAULT_TIMEOUT
    limits = replace(grader.limits, cpu_seconds=seconds, wall_seconds=WALL_PER_CPU * seconds)
    prompts, memory = "\0".join(map(renderer.prompt_text, problems)), VerdictMemory()
    facts = {
        "data_hash": suite.data_hash,
        "prompt_hash": sha256(prompts.encode()).hexdigest(),
        "style": renderer.style,
        "fewshot": config.fewshot,
        "max_tokens": max_tokens,
        "timeout_seconds": config.timeout_seconds,
    }

    def evaluate_suite(policy: Policy, step: int, elapsed_seconds: float) -> dict[str, Any]:
        with grader.with_limits(limits, by_suite=config.timeout_seconds is None) as own:
            record = evaluate(
                policy, problems, renderer, own, settings,
                sampling=sampling, step=step, elapsed_seconds=elapsed_seconds, memory=memory,
            )  # fmt: skip
        return record | facts

    return evaluate_suite
