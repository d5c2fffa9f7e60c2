"""What an evaluation asks: a suite by name, the part of it that is wanted, its prompts, its references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from greenward.config.recipe import GRPORecipe, Recipe
from greenward.config.sections import SandboxConfig, ToolsConfig
from greenward.environments.agent import AgentPrompts
from greenward.environments.prompts import PromptRenderer, PromptTokenizer, Style
from greenward.environments.tools import STOP_STRINGS
from greenward.errors import ConfigError, ProblemError
from greenward.evaluation.suites import SHOTS, SuitePrompts, stable_subset
from greenward.grading.grading_plan import demand_judgeable
from greenward.problems.catalog import BUGS, FAMILIES, SHIPPED, load_suite
from greenward.problems.families.modules import MODULES
from greenward.problems.json_rows import BadRow
from greenward.problems.placement import hole_of
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.repositories import REPOSITORY_TAG
from greenward.recipes import build

HELD_OUT = "held_out"


def find_suite(name: str, recipe: Recipe | None, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a suite. `held_out` and `families` mean those that the recipe's run never saw.

    Raises `ProblemError` naming the nearest name, and `ConfigError` for `held_out` without a recipe.
    """
    if name == HELD_OUT:
        if recipe is None:
            raise ConfigError("Which problems are held out is known of a run only; name a --suite.")
        name = recipe.problems.held_out
    load = partial(build.load_verified, name, recipe or GRPORecipe(), part="held_out")
    return usable(load, skip_bad_rows=skip_bad_rows)


def without(problems: ProblemSet, examples: Iterable[Problem]) -> ProblemSet:
    """The problems that are not shown as `examples`."""
    shown = {example.task_id for example in examples}
    return problems.filter(lambda problem: problem.task_id not in shown)


def usable(load: Callable[..., ProblemSet], *, skip_bad_rows: bool) -> ProblemSet:
    """The problems that `load` gives; with `skip_bad_rows` without those that cannot be read or judged.

    What is left out is in `ProblemSet.skipped`. An error about a bad row says that the option leaves it out.
    """
    try:
        problems = load(skip_bad_rows=skip_bad_rows)
    except BadRow as error:
        remedy = " ".join(filter(None, (error.remedy, "Or leave such rows out by --skip-bad-rows.")))
        raise ProblemError(error.message, remedy=remedy) from None
    if not skip_bad_rows:
        return problems
    kept, skipped = [], list(problems.skipped)
    for problem in problems:
        try:
            demand_judgeable(problem)
            kept.append(problem)
        except ProblemError as error:
            skipped.append(error.message)
    return ProblemSet(kept, name=problems.name, skipped=tuple(skipped))


def part_of_suite(problems: ProblemSet, *, ids: Sequence[str] = (), limit: int | None = None) -> ProblemSet:
    """The problems called `ids`, in that order, else `limit` of them (the same on every machine).

    Raises `ConfigError` for an id that is given twice, `ProblemError` for an unknown one, naming the nearest.
    """
    twice = [task_id for task_id, count in Counter(ids).items() if count > 1]
    if twice:
        raise ConfigError(f"--ids names {twice[0]!r} twice.")
    if ids:
        chosen = [problems.by_id(task_id) for task_id in ids]
        return ProblemSet(chosen, name=problems.name, skipped=problems.skipped)
    return problems if limit is None else stable_subset(problems, limit)


def examples_for(suite: str, count: int) -> tuple[Problem, ...]:
    """The first `count` of MBPP's examples (problems 2, 3 and 4). Raises `ConfigError` if there are fewer."""
    if not count:
        return ()
    if count > len(SHOTS):
        raise ConfigError(f"--fewshot {count}: MBPP has {len(SHOTS)} examples (problems 2, 3 and 4).")
    whole = load_suite(suite.partition(":")[0])
    try:
        return tuple(whole.by_id(task_id) for task_id in SHOTS[:count])
    except ProblemError:
        raise ConfigError(
            f"--fewshot: {suite} has no examples; MBPP's suites have.", remedy="Leave --fewshot out."
        ) from None


def renderer_for(
    suite: str,
    recipe: Recipe | None,
    tokenizer: PromptTokenizer,
    problems: ProblemSet,
    *,
    style: Style | None = None,
    shots: Sequence[Problem] = (),
) -> tuple[PromptRenderer, tuple[str, ...]]:
    """The prompts of a suite for one model, and what ends an answer while it is sampled.

    Shipped problems, functions to classify, and a file of functions that the recipe names are put as in
    training, others as in the published harnesses (`SuitePrompts`), and repositories to agents. What was
    trained to write edits writes edits where all problems have programs to repair.
    """
    options = build.prompt_options(recipe, style)
    if (tools := agent_tools(recipe, problems)) is not None:
        return AgentPrompts(tokenizer, **options, tool_format=tools.format), STOP_STRINGS
    answer = build.answer_form(recipe) if all(problem.buggy_code for problem in problems) else "function"
    ours = suite.startswith(BUGS) or suite in (HELD_OUT, FAMILIES, MODULES, *SHIPPED)
    if recipe is not None and all(hole_of(problem) is not None for problem in problems):
        ours |= Path(suite) in map(Path, (recipe.problems.train, recipe.problems.held_out))
    if answer == "function" and not ours and all(problem.label is None for problem in problems):
        prompts = SuitePrompts(tokenizer, **{**options, "show_failing_test": False}, shots=shots)
        return prompts, prompts.common_stops(problems)
    if shots:
        raise ConfigError(f"--fewshot: {suite} has no examples; MBPP's suites have.")
    renderer = PromptRenderer(tokenizer, **options, answer=answer)
    return renderer, recipe.sampling.stop_strings if recipe else ()


def agent_tools(recipe: Recipe | None, problems: Sequence[Problem]) -> ToolsConfig | None:
    """The tools by which these problems are solved: the recipe's, or the usual ones for repositories."""
    if not all(problem.buggy_code for problem in problems):
        return None
    usual = ToolsConfig() if all(REPOSITORY_TAG in problem.tags for problem in problems) else None
    return build.tools_of(recipe) or usual


def check_references(problems: ProblemSet, sandbox: SandboxConfig) -> tuple[str, list[str]]:
    """Judges a suite's own solutions, which shows whether its tests and this machine can be trusted.

    Returns the result in one line, and a line for each solution that failed.
    """
    with build.build_grader(sandbox) as grader:
        given = [problem for problem in grader.complete(problems) if problem.reference]
        failures = build.failing_references(given, grader)
    result = f"{problems.name}: {len(given) - len(failures)}/{len(given)} references pass"
    if len(given) < len(problems):
        result += f"; {len(problems) - len(given)} problems have none"
    if problems.skipped:
        result += f"; skipped rows of the file: {len(problems.skipped)}"
    return result, failures
