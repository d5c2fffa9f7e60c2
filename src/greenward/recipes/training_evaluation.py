"""What is evaluated during training: the held-out problems, and the public suites that a recipe names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from greenward.algorithms.loop import Evaluator
from greenward.config.recipe import Recipe
from greenward.config.sections import EvaluationConfig, SuiteConfig
from greenward.errors import ConfigError, ProblemError
from greenward.evaluation.engine import evaluate
from greenward.evaluation.suites import stable_subset
from greenward.grading.grader import Grader
from greenward.policies.policy import Policy
from greenward.policies.tokenizer import Tokenizer
from greenward.problems.problem import Problem, ProblemSet
from greenward.recipes.build import build_renderer, build_sampling
from greenward.recipes.evaluation_session import DEFAULT_TIMEOUT, WALL_PER_CPU
from greenward.recipes.suites import examples_for, find_suite, renderer_for
from greenward.runs.trackers import tracker_name


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
        shown = {shot.task_id for shot in shots}
        whole = find_suite(config.name, recipe).filter(lambda problem: problem.task_id not in shown)  # noqa: B023
        problems = stable_subset(whole, config.num_questions or len(whole))
        shared = [problem.task_id for problem in problems if problem.task_id in trained]
        if shared:
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


def build_evaluators(
    recipe: Recipe, held_out: ProblemSet, suites: Sequence[TrackedSuite], tokenizer: Tokenizer, grader: Grader
) -> dict[str | None, Evaluator]:
    """Functions (policy, step, elapsed seconds) -> evaluation as plain data, by the name of the suite.

    None stands for the held-out problems.
    """
    renderer, sampling = build_renderer(recipe, tokenizer), build_sampling(recipe)

    def evaluate_held_out(policy: Policy, step: int, elapsed_seconds: float) -> dict[str, Any]:
        return evaluate(
            policy, held_out, renderer, grader, recipe.evaluation,
            sampling=sampling, step=step, elapsed_seconds=elapsed_seconds,
        )  # fmt: skip

    evaluators: dict[str | None, Evaluator] = {None: evaluate_held_out}
    for suite in suites:
        evaluators[suite.name] = _suite_evaluator(suite, recipe, tokenizer, grader)
    return evaluators


def _suite_evaluator(suite: TrackedSuite, recipe: Recipe, tokenizer: Tokenizer, grader: Grader) -> Evaluator:
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
    prompts = "\0".join(map(renderer.prompt_text, problems))
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
                sampling=sampling, step=step, elapsed_seconds=elapsed_seconds,
            )  # fmt: skip
        return record | facts

    return evaluate_suite
