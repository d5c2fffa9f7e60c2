"""Decides what an evaluation asks: a suite by name, the part that is wanted, its prompts and its references.

In style *completion* (`--style base`; `auto` takes it for a tokenizer without a chat template) a prompt is
the suite's own, continued up to the first stop string of EvalPlus's. For MBPP that is the docstring with the
first assertion (Fried et al. 2022, InCoder; EvalPlus); with examples (`--fewshot 3`), the prompt of the
paper (Austin et al. 2021, arXiv:2108.07732) with problems 2, 3 and 4, which are then not asked. In style
*chat* it is that of the published harness (`published_prompt`) unless `--prompt` says otherwise:

- `greenward` asks as in training. It is the default for problems that come with greenward, what a run held
  out, repairs and labels.
- `evalplus` is EvalPlus's instruction with the suite's prompt in a block; the answer is begun, but for
  servers. It is the default for HumanEval(+), MBPP(+) and files of functions.
- `livecodebench` is LiveCodeBench's system message, question and format. It is the default for LiveCodeBench
  and for programs that read standard input.
- `bigcodebench` is *complete* (as `evalplus`), the default for BigCodeBench, and `bigcodebench-instruct`
  *instruct* (in words instead of code).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.recipe import GRPORecipe, ModelRecipe
from greenward.config.section import SandboxConfig
from greenward.config.sections import ToolsConfig
from greenward.environments.agent import STOP_STRINGS, AgentPrompts
from greenward.environments.prompts import (
    PromptRenderer,
    PromptTokenizer,
    answer_form,
    prompt_options,
    reads_input,
    tools_of,
)
from greenward.grading.answers import Style
from greenward.grading.edits import AnswerForm, editable_files
from greenward.grading.judge import build_grader
from greenward.grading.verification import failing_references, load_verified
from greenward.problems.catalog import BUGS, FAMILIES, SHIPPED, load_suite, sources_in
from greenward.problems.generated import MODULES
from greenward.problems.problem import Problem, ProblemSet, PromptName, hole_of
from greenward.problems.repositories import REPOSITORY_TAG

SHOTS = ("Mbpp/2", "Mbpp/3", "Mbpp/4")


def published_prompt(problems: Sequence[Problem]) -> PromptName:
    """The prompt with which the figures of a suite are published."""
    if any(map(reads_input, problems)) or all(one.task_id.startswith("LiveCodeBench/") for one in problems):
        return "livecodebench"
    if all(one.task_id.startswith("BigCodeBench/") for one in problems):
        return "bigcodebench"
    return "evalplus"


def stable_subset(problems: ProblemSet, count: int) -> ProblemSet:
    """`count` of the problems (all, if there are no more), in their order.

    Systematic sampling by a hash of the task id, stratified by tags: every problem has the same
    chance, each combination of tags has its share, and a larger choice contains a smaller one. Versions of
    one function (`Label.pair`) come together, but for the last one where `count` is odd.
    """
    if count >= len(problems):
        return problems
    strata: dict[tuple[str, ...], list[Problem]] = defaultdict(list)
    for problem in problems:
        strata[problem.tags].append(problem)
    position: dict[str, float] = {}
    for tags, members in strata.items():
        offset = _uniform("\n".join(tags))
        ranks = sorted({_unit(member) for member in members}, key=_uniform)
        places = {unit: (rank + offset) / len(ranks) for rank, unit in enumerate(ranks)}
        position |= {member.task_id: places[_unit(member)] for member in members}
    units = {problem.task_id: _unit(problem) for problem in problems}
    chosen = sorted(position, key=lambda task_id: (position[task_id], units[task_id], task_id))[:count]
    keep = frozenset(chosen)
    return problems.filter(lambda problem: problem.task_id in keep)


def _unit(problem: Problem) -> str:
    return problem.label.pair if problem.label else problem.task_id


def _uniform(text: str) -> float:
    """A number in [0, 1) from a hash of the text."""
    return int.from_bytes(sha256(text.encode()).digest()[:8], "big") / 2**64


def find_suite(name: str, recipe: ModelRecipe | None, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a suite. `held_out` and `families` mean those that the recipe's run never saw.

    Raises `ProblemError` naming the nearest name, and `ConfigError` for `held_out` without a recipe.
    """
    if name == HELD_OUT:
        if recipe is None:
            raise ConfigError(
                "Which problems are held out is known of a run only; name a --suite.",
                remedy="A run of a task of somebody's own (module:Class) counts as a plain model; its report "
                "has the evaluations of its training.",
            )
        name = recipe.problems.held_out
    return load_verified(name, recipe or GRPORecipe(), part="held_out", skip_bad_rows=skip_bad_rows)


def without(problems: ProblemSet, examples: Iterable[Problem]) -> ProblemSet:
    """The problems that are not shown as `examples`."""
    shown = {example.task_id for example in examples}
    return problems.filter(lambda problem: problem.task_id not in shown)


def part_of_suite(problems: ProblemSet, *, ids: Sequence[str] = (), limit: int | None = None) -> ProblemSet:
    """The problems called `ids`, in that order, else `limit` of them (the same on every machine).

    Raises `ConfigError` for an id that is given twice, `ProblemError` for an unknown one, naming the nearest.
    """
    if twice := [task_id for task_id, count in Counter(ids).items() if count > 1]:
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
    recipe: ModelRecipe | None,
    tokenizer: PromptTokenizer,
    problems: ProblemSet,
    *,
    style: Style | None = None,
    prompt: PromptName | None = None,
    shots: Sequence[Problem] = (),
    answer: AnswerForm | None = None,
) -> tuple[PromptRenderer, tuple[str, ...]]:
    """The prompts of a suite for one model, and what ends an answer while it is sampled.

    Shipped problems, functions to classify, and a file of functions that the recipe names are put as in
    training, others as in the published harnesses, unless `prompt` says otherwise, and repositories to
    agents. What was trained to write edits writes edits where all problems have programs to repair; `answer`
    asks for another form. Raises `ConfigError` for a form of answers of agents, `ProblemError` for edits
    where a problem has no program to edit.
    """
    options = prompt_options(recipe, style)
    if (tools := agent_tools(recipe, problems)) is not None:
        if answer is not None:
            raise ConfigError("--answer: agents change files by tools, and have no form of answers.")
        return AgentPrompts(tokenizer, **options, tool_format=tools.format), STOP_STRINGS
    if answer is None:
        answer = answer_form(recipe) if all(problem.buggy_code for problem in problems) else "function"
    elif answer != "function":
        for problem in problems:
            editable_files(problem)
    ours = suite.startswith(BUGS) or suite in (HELD_OUT, FAMILIES, MODULES, *SHIPPED)
    if recipe is not None and all(hole_of(problem) is not None for problem in problems):
        own = (*sources_in(recipe.problems.train), *sources_in(recipe.problems.held_out))
        ours |= set(map(Path, sources_in(suite))) <= set(map(Path, own))
    if answer == "function" and not ours and all(problem.label is None for problem in problems):
        options |= {"show_failing_test": False, "prompt": prompt or published_prompt(problems)}
        prompts = PromptRenderer(tokenizer, **options, shots=shots)
        return prompts, prompts.common_stops(problems)
    if shots:
        raise ConfigError(f"--fewshot: {suite} has no examples; MBPP's suites have.")
    renderer = PromptRenderer(tokenizer, **options, answer=answer, prompt=prompt or "greenward")
    return renderer, recipe.sampling.stop_strings if recipe else ()


def agent_tools(recipe: ModelRecipe | None, problems: Sequence[Problem]) -> ToolsConfig | None:
    """The tools by which these problems are solved: the recipe's, or the usual ones for repositories."""
    if not all(problem.buggy_code for problem in problems):
        return None
    usual = ToolsConfig() if all(REPOSITORY_TAG in problem.tags for problem in problems) else None
    return tools_of(recipe) or usual


def check_references(problems: ProblemSet, sandbox: SandboxConfig) -> tuple[str, list[str]]:
    """Judges a suite's own solutions, which shows whether its tests and this machine can be trusted.

    Returns the result in one line, and a line for each solution that failed.
    """
    with build_grader(sandbox) as grader:
        given = [problem for problem in grader.complete(problems) if problem.reference]
        failures = failing_references(given, grader)
    result = f"{problems.name}: {len(given) - len(failures)}/{len(given)} references pass"
    if len(given) < len(problems):
        result += f"; {len(problems) - len(given)} problems have none"
    if problems.skipped:
        result += f"; skipped rows of the file: {len(problems.skipped)}"
    return result, failures


HELD_OUT = "held_out"
