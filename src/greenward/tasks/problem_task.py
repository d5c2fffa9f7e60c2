"""Implements what tasks made of problems share: training and held-out problems, public suites, rewards.

Reading a recipe imports the module of its task, so imports that only a training needs are inside of methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.recipe import ModelRecipe, TurnSections
from greenward.config.sections import EvaluationConfig, SuiteConfig
from greenward.tasks.task import Task

if TYPE_CHECKING:
    from greenward.config.sections import SupervisedConfig
    from greenward.environments.prompts import PromptRenderer, PromptTokenizer
    from greenward.grading.execution import ExecutionJudge
    from greenward.grading.judge import Grader
    from greenward.models.policy import Policy
    from greenward.models.tokenizer import Tokenizer
    from greenward.problems.problem import Problem, ProblemSet, PromptName
    from greenward.rollouts.protocols import Environment
    from greenward.runs.directory import RunDirectory
    from greenward.training.protocols import Evaluator, Example


@dataclass(frozen=True)
class TrackedSuite:
    """A suite with the problems that are asked, and the examples that come before each."""

    name: str
    config: SuiteConfig
    problems: ProblemSet
    shots: tuple[Problem, ...]
    data_hash: str


def find_tracked_suites(recipe: ModelRecipe, train: ProblemSet) -> tuple[TrackedSuite, ...]:
    """The suites that the recipe names; none when evaluation is disabled.

    Raises `ProblemError` for an unknown suite and for one that shares problems with the training set,
    `ConfigError` for two of one name.
    """
    from greenward.evaluation.suites import examples_for, find_suite, stable_subset, without
    from greenward.problems.problem import shared_problems
    from greenward.runs.trackers import tracker_name

    if not recipe.evaluation.enabled:
        return ()
    suites: dict[str, TrackedSuite] = {}
    for config in recipe.evaluation.suites:
        shots = examples_for(config.name, config.fewshot)
        whole = without(find_suite(config.name, recipe), shots)
        problems = stable_subset(whole, config.num_questions or len(whole))
        if shared := shared_problems(train, problems):
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
    from greenward.environments.agent import AgentPrompts
    from greenward.environments.prompts import PromptRenderer, answer_form, prompt_options, tools_of

    if (tools := tools_of(recipe)) is not None:
        return AgentPrompts(tokenizer, **prompt_options(recipe), tool_format=tools.format)
    return PromptRenderer(tokenizer, **prompt_options(recipe), answer=answer_form(recipe))


class ProblemTask(Task):
    """A task with problems to train on, held-out problems, public suites and reward terms."""

    labelled: ClassVar[bool] = False
    """Whether its problems are functions with a label, which no tests judge."""
    _code_grader: Any = None

    def __init__(
        self,
        recipe: Any,
        given: Mapping[str, ProblemSet] = MappingProxyType({}),
        functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        from greenward.grading.reward_terms import build_rewards

        super().__init__(recipe)
        self.train, self.held_out = self.load(given)
        for problem in (*self.train, *self.held_out):
            self.check(problem)
        self.suites = find_tracked_suites(recipe, self.train)
        self._reward_terms = build_rewards(recipe, self.train, functions, own=self.rewards)

    def load(self, given: Mapping[str, ProblemSet]) -> tuple[ProblemSet, ProblemSet]:
        """The problems to train on and the held-out ones; `given` holds those of a caller."""
        from greenward.grading.verification import build_problems

        return build_problems(self.recipe, given)

    def judge(self) -> ExecutionJudge:
        """What judges answers to its problems, until it is closed."""
        from greenward.grading.judge import build_grader

        return build_grader(self.recipe.sandbox)

    def renderer(self, tokenizer: PromptTokenizer) -> PromptRenderer:
        """How its problems are put to a policy with this tokenizer, and its answers read."""
        return build_renderer(self.recipe, tokenizer)

    def check(self, problem: Problem) -> None:
        """Raises `ProblemError` for a problem that the task does not ask."""
        if self.labelled is (problem.label is not None):
            return
        raise ProblemError(
            f"{problem.task_id} has {'no' if self.labelled else 'a'} label, and this recipe has task: "
            f"{self.recipe.task}.",
            remedy="Set task to what its problems are: labelled functions are those of vulnerability.",
        )

    def open(self, run: RunDirectory, stack: ExitStack) -> None:
        """Start the grader, and verify the references of problems from files."""
        from greenward.grading.judge import Grader, build_grader
        from greenward.grading.verification import verify_references

        self.grader = grader = stack.enter_context(self.judge())
        run.add_provenance(sandbox=grader.isolation.to_json())
        if self.suites:  # they are judged by their tests, whatever judges the task
            if not isinstance(grader, Grader):
                self._code_grader = stack.enter_context(build_grader(self.recipe.sandbox))
            code: Any = self._code_grader or grader
            self.suites = complete_suites(self.suites, code)
        self.train, self.held_out = grader.complete(self.train), grader.complete(self.held_out)
        verify_references(self.recipe, grader, self.train, self.held_out)

    def texts(self) -> Iterable[str]:
        from greenward.tasks.corpus import texts_to_tokenize

        yield from texts_to_tokenize(self.train)

    def sample(self, policy: Policy | None) -> str:
        assert policy is not None
        renderer = self.renderer(policy.tokenizer)
        first = self.train[0]
        return (
            f"# {len(self.train)} problems to train on, {len(self.held_out)} held out\n"
            f"# first prompt ({len(renderer.prompt_ids(first))} tokens, {renderer.style} style):\n"
            f"{renderer.prompt_text(first)}"
        )

    def examples(self, policy: Policy, config: SupervisedConfig) -> Sequence[Example]:
        from greenward.tasks.corpus import supervised_examples

        renderer = self.renderer(policy.tokenizer)
        return supervised_examples(config, self.train, policy, renderer, seed=self.recipe.seed)

    def longest_prompt(self, policy: Policy) -> int:
        renderer = self.renderer(policy.tokenizer)
        return max(len(renderer.prompt_ids(problem)) for problem in self.train)

    def environment(self, policy: Policy) -> Environment:
        from greenward.environments.code import CodeEnvironment

        return self.make_environment(CodeEnvironment, policy)

    def make_environment(self, make: Callable[..., Environment], policy: Policy) -> Environment:
        """What `make` gives for the problems, the rewards and the settings of the recipe."""
        from greenward.rollouts.protocols import SamplingParams

        recipe = self.recipe
        overlong = recipe.algorithm.overlong
        return make(
            self.train,
            self.renderer(policy.tokenizer),
            self.grader,
            self._reward_terms,
            sampling=SamplingParams.of(recipe),
            group_size=recipe.training.num_generations,
            seed=recipe.seed,
            max_turns=recipe.environment.max_turns if isinstance(recipe, TurnSections) else 1,
            penalty_buffer=overlong.penalty_buffer,
            penalty=overlong.penalty,
        )

    def evaluators(self, policy: Policy) -> Mapping[str | None, Evaluator]:
        from greenward.environments.prompts import tools_of
        from greenward.evaluation.evaluate import VerdictMemory, evaluate_policy
        from greenward.rollouts.protocols import SamplingParams

        recipe, tokenizer, grader = self.recipe, policy.tokenizer, self.grader
        renderer, sampling = self.renderer(tokenizer), SamplingParams.of(recipe)
        memory = VerdictMemory()

        def evaluate_held_out(policy: Policy, step: int, elapsed_seconds: float) -> dict[str, Any]:
            return evaluate_policy(
                policy, self.held_out, renderer, grader, recipe.evaluation,
                sampling=sampling, step=step, elapsed_seconds=elapsed_seconds, tools=tools_of(recipe),
                memory=memory,
            )  # fmt: skip

        found: dict[str | None, Evaluator] = {None: evaluate_held_out}
        code: Any = self._code_grader or grader
        for suite in self.suites:
            found[suite.name] = suite_evaluator(suite, recipe, tokenizer, code)
            if suite.config.as_trained and renderer.style == "chat" and not suite.shots:
                trained = suite_evaluator(suite, recipe, tokenizer, code, prompt=renderer.prompt)
                found[f"{suite.name}_as_trained"] = trained
        return found


class EditTask(ProblemTask):
    """Problems that are answered by a whole function or program, or by edits of the one that there is."""

    def check(self, problem: Problem) -> None:
        from greenward.environments.prompts import answer_form
        from greenward.grading.edits import editable_files

        super().check(problem)
        if answer_form(self.recipe) != "function":
            editable_files(problem)

    def texts(self) -> Iterable[str]:
        from greenward.environments.prompts import answer_form
        from greenward.grading.edits import written_edits

        yield from super().texts()
        if (form := answer_form(self.recipe)) != "function":
            yield from (written_edits(one, one.reference, form) for one in self.train if one.reference)


def open_grader(
    recipe: ModelRecipe, suites: Sequence[TrackedSuite], run: RunDirectory, stack: ExitStack
) -> tuple[Grader, tuple[TrackedSuite, ...]]:
    """A grader until `stack` is closed, which `run` records, and the suites with all expected values."""
    from greenward.grading.judge import build_grader

    grader = stack.enter_context(build_grader(recipe.sandbox))
    run.add_provenance(sandbox=grader.isolation.to_json())
    return grader, complete_suites(suites, grader)


def complete_suites(suites: Sequence[TrackedSuite], grader: Grader) -> tuple[TrackedSuite, ...]:
    """The suites with all expected values."""
    return tuple(replace(suite, problems=grader.complete(suite.problems)) for suite in suites)


def suite_evaluator(
    suite: TrackedSuite,
    recipe: ModelRecipe,
    tokenizer: Tokenizer,
    grader: Grader,
    *,
    prompt: PromptName | None = None,
) -> Evaluator:
    """The evaluation of a suite during training, by its published prompt if no other is named.

    Its records hold what scores depend on: hashes of data and prompts, examples, token and time limits.
    """
    from greenward.evaluation.evaluate import VerdictMemory, evaluate_policy
    from greenward.evaluation.suites import renderer_for
    from greenward.grading.judge import DEFAULT_TIMEOUT, WALL_PER_CPU
    from greenward.rollouts.protocols import SamplingParams

    config, problems = suite.config, suite.problems
    renderer, stop_strings = renderer_for(
        config.name, recipe, tokenizer, problems, prompt=prompt, shots=suite.shots
    )
    usual = SamplingParams.of(recipe)
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
            record = evaluate_policy(
                policy, problems, renderer, own, settings,
                sampling=sampling, step=step, elapsed_seconds=elapsed_seconds, memory=memory,
            )  # fmt: skip
        return record | facts

    return evaluate_suite
