"""Implements what tasks made of problems share: training and held-out problems, public suites, rewards.

Reading a recipe imports the module of its task, so imports that only a training needs are inside of methods.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.recipe import ModelRecipe, ReinforcementRecipe, TurnSections
from greenward.config.sections import GENERATED_CORPUS, EvaluationConfig, SuiteConfig
from greenward.tasks.task import Say, Task

if TYPE_CHECKING:
    from greenward.config.sections import SupervisedConfig
    from greenward.environments.prompts import PromptRenderer, PromptTokenizer
    from greenward.grading.execution import ExecutionJudge
    from greenward.grading.judge import Grader
    from greenward.models.catalog import PromptReader
    from greenward.models.policy import Policy
    from greenward.models.tokenizer import Tokenizer
    from greenward.problems.problem import Problem, ProblemSet, PromptName
    from greenward.rollouts.protocols import Environment
    from greenward.runs.directory import RunDirectory
    from greenward.runs.progress import Progress
    from greenward.training.protocols import Evaluator, Example


@dataclass(frozen=True)
class TrackedSuite:
    """A suite with the problems that are asked, and the examples that come before each."""

    name: str
    config: SuiteConfig
    problems: ProblemSet
    shots: tuple[Problem, ...]
    data_hash: str


TRIED = 400
"""Problems of a set whose references are looked at before a training, which takes some seconds."""


def find_tracked_suites(recipe: ModelRecipe, train: ProblemSet) -> tuple[TrackedSuite, ...]:
    """The suites that the recipe names, as far as they are to be found; none when evaluation is disabled.

    Raises `ProblemError` for an unknown suite and for one that shares problems with the training set,
    `ConfigError` for two of one name.
    """
    from greenward.evaluation.suites import examples_for, find_suite, stable_subset, without
    from greenward.problems.problem import ProblemSet, first_shared, original_id, shared_problems
    from greenward.runs.trackers import tracker_name

    if not recipe.evaluation.enabled:
        return ()
    suites: dict[str, TrackedSuite] = {}
    for config in recipe.evaluation.suites:
        try:
            shots = examples_for(config.name, config.fewshot)
            whole = without(find_suite(config.name, recipe), shots)
        except ProblemError as error:
            if not config.optional:
                raise
            warnings.warn(f"{config.name} is left out of the evaluations: {error}", stacklevel=2)
            continue
        if config.optional and (shared := shared_problems(train, whole)):
            whole = ProblemSet((one for one in whole if original_id(one) not in shared), name=whole.name)
            warnings.warn(
                f"{config.name}: {len(shared)} problems that are trained on are not asked.", stacklevel=2
            )
        problems = stable_subset(whole, config.num_questions or len(whole))
        if not recipe.problems.allow_shared and (shared := shared_problems(train, problems)):
            raise ProblemError(
                f"evaluation.suites: {len(shared)} problems of {config.name} are trained on "
                f"(first: {first_shared(shared)}).",
                remedy="Name a part that is not trained on (mbpp:test), train on other problems, or set "
                "problems.allow_shared=true.",
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

    def sources(self) -> Mapping[str, str]:
        """Those of its reward functions."""
        from greenward.grading.reward_terms import kept_sources

        return kept_sources(self._reward_terms)

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
        from greenward.grading.user_rewards import CustomReward
        from greenward.grading.verification import verify_references

        for term in self._reward_terms:
            if isinstance(term, CustomReward):
                stack.callback(term.close)
        self.grader = grader = stack.enter_context(self.judge())
        run.add_provenance(sandbox=grader.isolation.to_json())
        if self.suites:  # they are judged by their tests, whatever judges the task
            if not isinstance(grader, Grader):
                self._code_grader = stack.enter_context(build_grader(self.recipe.sandbox))
            code: Any = self._code_grader or grader
            self.suites = complete_suites(self.suites, code)
        complete = (grader.complete(problems) for problems in (self.train, self.held_out))
        verified = verify_references(self.recipe, grader, *complete)
        self.train, self.held_out = verified.problem_sets
        if self.progress is not None:
            for line in verified.slow:
                self.progress.message(line)

    def texts(self) -> Iterable[str]:
        from greenward.tasks.corpus import texts_to_tokenize

        yield from texts_to_tokenize(self.train)

    def found(self) -> Iterator[str]:
        yield from self.found_problems()
        for suite in self.suites:
            yield f"suite {suite.name}: {len(suite.problems)} problems"

    def doubts(self) -> Iterator[str]:
        from greenward.grading.user_rewards import MADE_UP
        from greenward.problems.problem import first_shared, repeated_problems, shared_problems

        if repeated := repeated_problems(self.train):
            earlier, later = repeated[0]
            yield (
                f"problems.train: {len(repeated)} problems ask what an earlier one asks, in the same words "
                f"(first: {later!r} as {earlier!r}); they count twice."
            )
        evaluated = {"problems.held_out": self.held_out, **{one.name: one.problems for one in self.suites}}
        for name, problems in evaluated.items():
            if shared := shared_problems(self.train, problems):  # problems.allow_shared is set
                yield (
                    f"{len(shared)} problems of {name} are trained on (first: {first_shared(shared)}); its "
                    "evaluation does not show what was learned."
                )
        for term in self._reward_terms:
            scores = [score for score in term.tried if score is not None]
            if len(scores) > 1 and len(set(scores)) == 1:
                yield (
                    f"rewards: {term.name} gave {scores[0]:g} for all {len(scores)} made-up answers "
                    f"({MADE_UP}) that it applies to: it does not tell them apart."
                )
        yield from _contradictions(self.recipe, len(self.train))

    def check_model(self, model: PromptReader, warn: Say) -> str:
        from greenward.environments.prompts import tools_of

        recipe, renderer, sets = self.recipe, self.renderer(model.tokenizer), [("train", self.train)]
        tokens, room = recipe.sampling.max_tokens, model.max_positions
        is_asked = recipe.algorithm.name != "sft"  # a supervised training draws answers in evaluations alone
        if recipe.evaluation.enabled and self.held_out:
            sets.append(("held_out", self.held_out))
        longest = 0
        for part, problems in sets:
            lengths = {one.task_id: len(renderer.prompt_ids(one)) for one in problems}
            task_id = max(lengths, key=lambda name: lengths[name])
            if part == "train":
                longest = lengths[task_id]
            if lengths[task_id] + tokens <= room:
                continue
            many = sum(length + tokens > room for length in lengths.values())
            found = (
                f"problems.{part}: the longest prompt has {lengths[task_id]} tokens ({task_id}); with "
                f"sampling.max_tokens {tokens} that is {lengths[task_id] + tokens}, more than the {room} "
                f"positions of the model. {many} of {len(problems)} problems are too long"
            )
            if part == "train" and is_asked:
                raise ConfigError(
                    f"{found}.",
                    remedy="Lower sampling.max_tokens, leave these problems out, or use a model with more "
                    "positions.",
                )
            if part == "held_out":
                warn(f"{found}; an evaluation counts them as not solved.")
        for suite in self.suites:
            warn_of_long_prompts(suite, recipe, model, warn)
        if self.labelled or tools_of(recipe) is not None or not is_asked:
            return f"longest prompt {longest} + {tokens} tokens"
        first = [one for one in self.train[:TRIED] if one.reference]
        answers = [renderer.written(one, one.reference) for one in first]
        shortest = min((len(model.tokenizer.encode(answer)) for answer in answers), default=0)
        if shortest > tokens:
            warn(
                f"sampling.max_tokens {tokens} is less than the {shortest} tokens of the shortest reference "
                f"answer of the first {len(first)} problems: no answer can be whole."
            )
        for stop in recipe.sampling.stop_strings:
            if answers and all(stop in answer for answer in answers):
                warn(
                    f"sampling.stop_strings: {stop!r} occurs in all of the first {len(answers)} reference "
                    "answers, which would be cut there."
                )
        return f"longest prompt {longest} + {tokens} tokens"

    def try_out(self, model: PromptReader | None, most: int, warn: Say) -> Iterator[str]:
        from greenward.grading.reward_terms import try_rewards
        from greenward.grading.user_rewards import MADE_UP
        from greenward.grading.verification import verify_references
        from greenward.problems.catalog import GENERATED
        from greenward.problems.names import BUGS

        with self.judge() as judge:
            if not self.labelled:
                grader: Any = judge
                sets = (judge.complete(problems) for problems in (self.train[:most], self.held_out[:most]))
                verified = verify_references(self.recipe, judge, *sets)
                if verified.count:
                    yield f"references: {verified.count} pass their own tests"
                yield from verified.slow
                try_rewards(self._reward_terms, self.recipe, self.train, grader)
        for term in self._reward_terms:
            if term.tried and all(score is None for score in term.tried):
                warn(
                    f"rewards: {term.name} applies to none of {len(term.tried)} made-up answers ({MADE_UP})."
                )
        if self._reward_terms:
            called = {len(term.tried) for term in self._reward_terms if term.tried}
            names = ", ".join(term.name for term in self._reward_terms)
            yield f"rewards: {names}" + (f": called on {max(called)} made-up answers" if called else "")
        recipe, warm_start = self.recipe, self.recipe.warm_start
        is_own = warm_start is not None and warm_start.data not in (None, GENERATED_CORPUS)
        is_own |= recipe.problems.train.removeprefix(BUGS) not in GENERATED  # these have examples as they are
        if warm_start is not None and model is not None and is_own:
            reader: Any = model  # of a policy, examples need the tokenizer alone
            examples = self.examples(reader, warm_start)
            longest = max(len(one.prompt_ids) + len(one.completion_ids) for one in examples)
            yield f"warm start: {len(examples)} examples, the longest of {longest} tokens"
            renderer = self.renderer(reader.tokenizer)
            shown = {one.prompt_ids for one in examples}
            if recipe.model.id is None and not any(renderer.prompt_ids(one) in shown for one in self.train):
                warn(
                    "warm start: no example has the prompt of a problem to train on. Random weights write "
                    "almost nothing that passes: add examples for these problems, or set model.id."
                )

    def sample(self, model: PromptReader | None) -> str:
        assert model is not None
        renderer = self.renderer(model.tokenizer)
        first = self.train[0]
        return (
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
        from greenward.evaluation.evaluate import VerdictMemory
        from greenward.evaluation.policy_source import evaluate_policy
        from greenward.rollouts.protocols import SamplingParams

        recipe, tokenizer, grader = self.recipe, policy.tokenizer, self.grader
        renderer, sampling = self.renderer(tokenizer), SamplingParams.of(recipe)
        memory = VerdictMemory()

        def evaluate_held_out(policy: Policy, step: int, elapsed_seconds: float) -> dict[str, Any]:
            return evaluate_policy(
                policy, self.held_out, renderer, grader, recipe.evaluation,
                sampling=sampling, step=step, elapsed_seconds=elapsed_seconds, tools=tools_of(recipe),
                memory=memory, progress=self.progress,
            )  # fmt: skip

        found: dict[str | None, Evaluator] = {None: evaluate_held_out}
        code: Any = self._code_grader or grader
        for suite in self.suites:
            found[suite.name] = suite_evaluator(suite, recipe, tokenizer, code, progress=self.progress)
            if suite.config.as_trained and renderer.style == "chat" and not suite.shots:
                trained = suite_evaluator(
                    suite, recipe, tokenizer, code, prompt=renderer.prompt, progress=self.progress
                )
                found[f"{suite.name}_as_trained"] = trained
        return found


def _contradictions(recipe: ModelRecipe, problems: int) -> Iterator[str]:
    """Yield what limits of a training say against each other, with their numbers."""
    if not isinstance(recipe, ReinforcementRecipe):
        return
    training = recipe.training
    answers = training.prompts_per_step * training.num_generations
    if training.prompts_per_step > problems:
        yield (
            f"training.prompts_per_step {training.prompts_per_step} is more than the {problems} problems: "
            "a step asks some of them several times."
        )
    if training.micro_batch_sequences > answers:
        yield (
            f"training.micro_batch_sequences {training.micro_batch_sequences} is more than the {answers} "
            f"answers of a step (prompts_per_step {training.prompts_per_step} × num_generations "
            f"{training.num_generations})."
        )


def warn_of_long_prompts(suite: TrackedSuite, recipe: ModelRecipe, model: PromptReader, warn: Say) -> None:
    """Say how many problems of a suite leave no room for an answer."""
    from greenward.evaluation.suites import renderer_for

    config, problems = suite.config, suite.problems
    renderer, _ = renderer_for(config.name, recipe, model.tokenizer, problems, prompt=None, shots=suite.shots)
    tokens, lengths = config.max_tokens or recipe.sampling.max_tokens, map(renderer.prompt_ids, problems)
    if too_long := [length for ids in lengths if (length := len(ids)) + tokens > model.max_positions]:
        warn(
            f"suite {suite.name}: {len(too_long)} of {len(problems)} prompts are too long (up to "
            f"{max(too_long)} tokens; with max_tokens {tokens} more than the {model.max_positions} positions "
            "of the model); an evaluation counts them as not solved."
        )


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
    progress: Progress | None = None,
) -> Evaluator:
    """The evaluation of a suite during training, by its published prompt if no other is named.

    Its records hold what scores depend on: hashes of data and prompts, examples, token and time limits.
    """
    from greenward.evaluation.evaluate import VerdictMemory
    from greenward.evaluation.policy_source import evaluate_policy
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
                progress=progress,
            )  # fmt: skip
        return record | facts

    return evaluate_suite
