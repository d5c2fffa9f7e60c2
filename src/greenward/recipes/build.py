"""From a recipe's sections to the objects that they describe."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from greenward.algorithms import distributed
from greenward.config.recipe import AnyRecipe, CodeRecipe, ModelRecipe, Recipe, SupervisedRecipe
from greenward.config.sections import HttpSandboxConfig, SandboxConfig, ToolsConfig
from greenward.environments.agent import AgentPrompts
from greenward.environments.prompts import PromptRenderer
from greenward.errors import ConfigError, ProblemError
from greenward.grading.bug_verification import verified_bugs, with_failing_tests
from greenward.grading.custom_reward import CustomReward, made_up_answers
from greenward.grading.edits.answers import AnswerForm
from greenward.grading.extraction import Extracted, Style
from greenward.grading.grader import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import RewardTerm
from greenward.policies.checkpoint import local_folder
from greenward.policies.engine import SamplingParams
from greenward.policies.policy import Policy
from greenward.policies.tokenizer import Tokenizer, train_tokenizer
from greenward.problems.catalog import BUGS, load_problems
from greenward.problems.families.composition import ID_PREFIX
from greenward.problems.families.modules import MODULES
from greenward.problems.mutation.repair import original_id
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.repositories import FIXED_FILES, PLANTED
from greenward.problems.suites.mbpp import refuse_test_ids
from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Executor, Limits


def build_problems(
    recipe: AnyRecipe, given: Mapping[str, ProblemSet] = MappingProxyType({})
) -> tuple[ProblemSet, ProblemSet]:
    """The problems to train on and the held-out ones; disjoint by task id, that of the original for bugs.

    `given` holds those of a caller (`train`, `held_out`), whatever the recipe names.

    Raises `ProblemError` for problems in both, and for test problems of MBPP to train on unless
    `problems.allow_test_ids` is set.
    """
    section = recipe.problems
    parts: tuple[Literal["train", "held_out"], ...] = ("train", "held_out")
    train, held_out = (
        given[part] if part in given else load_verified(getattr(section, part), recipe, part=part)
        for part in parts
    )
    if not section.allow_test_ids:
        refuse_test_ids(train, override="problems.allow_test_ids=true")
    shared = set(map(original_id, train)) & set(map(original_id, held_out))
    if shared:
        raise ProblemError(
            f"{len(shared)} problems are both trained on and held out (first: {sorted(shared)[0]!r}).",
            remedy="Give problems.train and problems.held_out different problems.",
        )
    return train, held_out


def load_verified(
    source: str, recipe: AnyRecipe, *, part: Literal["train", "held_out"], skip_bad_rows: bool = False
) -> ProblemSet:
    """The problems that `source` names, with what is told of their bugs; of `bugs:` those that a test finds.

    Both sides of a recipe are split before bugs are put in, so that no held-out program was seen with
    another bug. Raises `ProblemError`.
    """
    section = recipe.problems
    problems = load_problems(source, section.families, part, bugs=section.bugs, skip_bad_rows=skip_bad_rows)
    made = source.startswith((BUGS, PLANTED))
    if not made and not (section.bugs.show_failing_test and any(problem.buggy_code for problem in problems)):
        return problems
    with build_grader(recipe.sandbox) as grader:
        if not made:
            return with_failing_tests(grader.complete(problems), grader)
        found = verified_bugs(
            grader.complete(problems), grader, per_problem=section.bugs.per_problem
        ).problems
        if source.startswith(PLANTED) and (failing := failing_references(found[:1], grader)):
            raise ProblemError(f"{source}: the package fails its own tests without a bug: {failing[0]}")
    if not found:
        raise ProblemError(f"{source}: no test finds any of the {len(problems)} bugs that were tried.")
    return found


def failing_references(problems: Sequence[Problem], grader: Grader) -> list[str]:
    """A line for each reference solution that fails the tests of its problem, which must have one."""
    verdicts = grader.grade([(problem, reference_answer(problem)) for problem in problems])
    return [
        f"{problem.task_id}: {verdict.status.value}. "
        + ", ".join(filter(None, (verdict.error_message, verdict.first_failure)))
        for problem, verdict in zip(problems, verdicts, strict=True)
        if not verdict.passed
    ]


def reference_answer(problem: Problem) -> Extracted:
    """The reference of a problem with all files that it changes."""
    fixed: Mapping[str, str] = (problem.columns or {}).get(FIXED_FILES, {})
    return Extracted(problem.reference, files=tuple(fixed.items()))


def verify_references(recipe: AnyRecipe, grader: Grader, *problem_sets: ProblemSet) -> None:
    """Run the reference solutions of problems from files: rewards from wrong tests are wrong.

    Generated problems are verified where they are made. Raises `ProblemError` naming every reference
    that fails and why; problems without a reference are not checked.
    """
    if not recipe.problems.verify_references:
        return
    given = [
        p
        for problems in problem_sets
        for p in problems
        if p.reference and not p.task_id.startswith((ID_PREFIX, f"{MODULES}/"))
    ]
    if failing := failing_references(given, grader):
        missing = sorted({name for line in failing for name in re.findall(r"No module named '(\w+)", line)})
        first = (
            f"Allow what they import: sandbox.packages=[{','.join(missing)}]. Or fix" if missing else "Fix"
        )
        raise ProblemError(
            f"{len(failing)} of {len(given)} reference solutions fail their own tests:\n  "
            + "\n  ".join(failing[:10]),
            remedy=f"{first} the tests or the references, or set problems.verify_references=false.",
        )


def build_rewards(
    recipe: Recipe,
    problems: ProblemSet,
    functions: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
) -> tuple[RewardTerm, ...]:
    """The reward terms; none for supervised training. `functions` are the caller's, by the name of the term.

    The user's functions with TRL's signature are called once with made-up answers to the first problems.
    Raises `ConfigError` for an unknown name or option, and `RewardError` for a function that cannot be
    imported, needs data that there is not, or fails.
    """
    if not isinstance(recipe, CodeRecipe):
        return ()
    row_columns = list(dict.fromkeys(name for problem in problems for name in problem.columns or ()))
    terms = []
    for config in recipe.rewards:
        term = make_reward(
            config,
            function=functions.get(config.name),
            row_columns=row_columns,
            max_steps=recipe.training.max_steps,
            steps_per_epoch=len(problems) / recipe.training.prompts_per_step,
        )
        if isinstance(term, CustomReward):
            asked = problems[: min(2, recipe.training.prompts_per_step)]
            term.dry_run(
                [answer for one in asked for answer in made_up_answers(one, recipe.training.num_generations)]
            )
        terms.append(term)
    return tuple(terms)


def build_policy(recipe: ModelRecipe, texts: Callable[[], Iterable[str]]) -> Policy:
    """The policy at the start: a published or earlier model, or a decoder from random weights.

    The tokenizer of such a decoder is trained on `texts`. With `model.lora` the policy has a new adapter.
    """
    model = recipe.model
    if model.id is not None:
        policy = Policy.load(model)
    else:
        tokenizer = train_tokenizer(texts(), model.shape.vocab_size)
        policy = Policy.random(
            model.shape, tokenizer, seed=recipe.seed, dtype=model.dtype, device=model.device
        )
    if model.lora is not None:
        folder = None if model.id is None else local_folder(model.id)
        policy.add_adapter(model.lora, seed=recipe.seed, base=str(folder.resolve()) if folder else model.id)
    return policy


def build_renderer(recipe: ModelRecipe, tokenizer: Tokenizer) -> PromptRenderer:
    """How problems are presented to a policy with this tokenizer."""
    if (tools := tools_of(recipe)) is not None:
        return AgentPrompts(tokenizer, **prompt_options(recipe), tool_format=tools.format)
    return PromptRenderer(tokenizer, **prompt_options(recipe), answer=answer_form(recipe))


def prompt_options(recipe: ModelRecipe | None, style: Style | None = None) -> dict[str, Any]:
    """The arguments of `PromptRenderer` that a recipe decides, with another `style` if one is asked for."""
    if recipe is None:
        return {"style": style or "auto"}
    return {
        "style": style or recipe.model.prompt_style,
        "system_prompt": recipe.model.system_prompt,
        "show_failing_test": recipe.problems.bugs.show_failing_test,
    }


def answer_form(recipe: ModelRecipe | None) -> AnswerForm:
    """What answers are in a recipe."""
    return recipe.environment.answer if isinstance(recipe, CodeRecipe | SupervisedRecipe) else "function"


def tools_of(recipe: ModelRecipe | None) -> ToolsConfig | None:
    """The tools of a recipe's agent, if it has one."""
    return recipe.environment.tools if isinstance(recipe, CodeRecipe) else None


def build_limits(sandbox: SandboxConfig) -> Limits:
    """What one answer may use."""
    return Limits(
        cpu_seconds=sandbox.cpu_seconds,
        wall_seconds=sandbox.wall_seconds,
        memory_bytes=sandbox.memory_mb << 20,
        output_bytes=sandbox.output_kb << 10,
    )


def build_executor(sandbox: SandboxConfig) -> Executor:
    """Where answers run by a recipe; to be closed. Raises `ConfigError` and `SandboxError`."""
    isolated: dict[str, Any] = {"require": Level(sandbox.require), "packages": sandbox.packages}
    if sandbox.backend == "ray":
        from greenward.sandbox.ray_executor import RayExecutor

        isolated |= {"jobs_per_call": sandbox.jobs_per_call}
        return RayExecutor(sandbox.ray.address, sandbox.ray.workers_per_node, **isolated)
    if sandbox.http is not None:
        from greenward.sandbox.http_executor import HttpExecutor

        token = read_token(sandbox.http)
        return HttpExecutor(sandbox.http.urls, token, jobs_per_call=sandbox.jobs_per_call, **isolated)
    return LocalExecutor(distributed.own_share(sandbox.workers), **isolated)


def read_token(servers: HttpSandboxConfig) -> str | None:
    """The token of a recipe's sandbox servers. Raises `ConfigError` where the variable has none."""
    if servers.token_env is None:
        return None
    if not (token := os.environ.get(servers.token_env)):
        raise ConfigError(
            f"sandbox.http.token_env: the environment variable {servers.token_env} is not set.",
            remedy="Export the token that `greenward sandbox serve --token-env` was started with.",
        )
    return token


def build_grader(sandbox: SandboxConfig) -> Grader:
    """A grader with the recipe's limits and executor; to be closed."""
    return Grader(
        build_limits(sandbox),
        by_suite=sandbox.suite_times,
        executor=build_executor(sandbox),
        owns_executor=True,
    )


def build_sampling(recipe: ModelRecipe) -> SamplingParams:
    """How answers are drawn."""
    return SamplingParams(**recipe.sampling.model_dump())
