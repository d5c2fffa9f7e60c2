"""Decides what an evaluation asks: a suite by name, the part that is wanted, its prompts and its references.

In style *completion* (base models) a prompt is the suite's own, continued up to the first stop string. For
MBPP that is the docstring with the first assertion (Fried et al. 2022, InCoder; EvalPlus); with examples,
the prompt of the paper (Austin et al. 2021, arXiv:2108.07732) with problems 2, 3 and 4. In style *chat* it
is EvalPlus's instruction with that prompt in a code block. Line ends are plain (MBPP's file has CRLF).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from greenward.common.errors import ConfigError, ProblemError
from greenward.config.recipe import GRPORecipe, ModelRecipe
from greenward.config.sections import SandboxConfig, ToolsConfig
from greenward.environments.agent import STOP_STRINGS, AgentPrompts
from greenward.environments.prompts import (
    PromptRenderer,
    PromptTokenizer,
    Style,
    answer_form,
    described_starter,
    prompt_options,
    tools_of,
)
from greenward.grading.extraction import Extracted, extract_code
from greenward.grading.judge import build_grader
from greenward.grading.verification import failing_references, load_verified
from greenward.problems.catalog import BUGS, FAMILIES, SHIPPED, load_suite
from greenward.problems.generated import MODULES
from greenward.problems.problem import Assertion, Problem, ProblemSet, hole_of
from greenward.problems.repositories import REPOSITORY_TAG

SHOTS = ("Mbpp/2", "Mbpp/3", "Mbpp/4")
DONE = "[DONE]"
# EvalPlus's. Where the prompt ends inside a function, the next definition ends the answer, too.
SCRIPT_STOPS = ('\n"""', "\nassert", "\nif __name__", "\ndef main(", "\nprint(")
BODY_STOPS = (*SCRIPT_STOPS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ")

_TASK = (
    "You are an expert Python programmer, and here is your task: {prompt} Your code should pass these "
    "tests:\n\n{tests}\n[BEGIN]\n"
)
_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown "
    "code block:\n```\n{prompt}\n```"
)


class SuitePrompts(PromptRenderer):
    """Renders the problems of a suite for one model.

    `shots` are solved examples that come before each problem (completion style, problems with
    assertions), `options` those of `PromptRenderer`. Raises `ConfigError` for examples in chat style or that
    have no assertions.
    """

    def __init__(
        self,
        tokenizer: PromptTokenizer,
        *,
        style: Literal["auto", "completion", "chat"] = "auto",
        shots: Sequence[Problem] = (),
        **options: Any,
    ) -> None:
        super().__init__(tokenizer, style="completion" if shots and style == "auto" else style, **options)
        if shots and self.style == "chat":
            raise ConfigError("Examples (--fewshot) are for base models; chat prompts have none.")
        self._shots = tuple(shots)

    def prompt_text(self, problem: Problem) -> str:
        """What is asked, as text: what the model continues, or the user message in chat style."""
        if self._shots:
            if not problem.sources(Assertion):
                raise ConfigError(
                    f"{problem.task_id}: MBPP's examples go with problems that have assertions."
                )
            examples = [f"{_task(shot)}{shot.reference.strip()}\n{DONE}\n\n" for shot in self._shots]
            return "".join((*examples, _task(problem)))
        if problem.buggy_code or hole_of(problem) is not None:
            return super().prompt_text(problem)
        own = problem.starter_code
        if '"""' not in own and "'''" not in own:  # it does not say what is asked for
            own = described_starter(problem)
        return own if self.style == "completion" else _INSTRUCTION.format(prompt=own.strip())

    def common_stops(self, problems: Iterable[Problem]) -> tuple[str, ...]:
        """The stop strings that all the problems share; the others count once the answer is drawn."""
        stops = [self.stop_strings(problem) for problem in problems]
        return tuple(stop for stop in stops[0] if all(stop in others for others in stops))

    def stop_strings(self, problem: Problem) -> tuple[str, ...]:
        """What ends an answer to this problem."""
        if self.style == "chat":
            return ()
        if self._shots:
            return (DONE,)
        return BODY_STOPS if f"def {problem.entry_point}(" in problem.starter_code else SCRIPT_STOPS

    def extracted(self, problem: Problem, text: str) -> Extracted:
        """The program that an answer amounts to, or the reason why there is none."""
        if self.style == "chat":
            return extract_code(text, problem, "chat")
        ends = [text.find(stop) for stop in self.stop_strings(problem)]
        text = text[: min((end for end in ends if end >= 0), default=len(text))]
        if not self._shots:
            return extract_code(text, problem, "completion")
        return Extracted(text) if text.strip() else Extracted(None, "the completion is empty")


def _task(problem: Problem) -> str:
    return _TASK.format(prompt=problem.prompt, tests="\n".join(problem.sources(Assertion)))


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
    shots: Sequence[Problem] = (),
) -> tuple[PromptRenderer, tuple[str, ...]]:
    """The prompts of a suite for one model, and what ends an answer while it is sampled.

    Shipped problems, functions to classify, and a file of functions that the recipe names are put as in
    training, others as in the published harnesses (`SuitePrompts`), and repositories to agents. What was
    trained to write edits writes edits where all problems have programs to repair.
    """
    options = prompt_options(recipe, style)
    if (tools := agent_tools(recipe, problems)) is not None:
        return AgentPrompts(tokenizer, **options, tool_format=tools.format), STOP_STRINGS
    answer = answer_form(recipe) if all(problem.buggy_code for problem in problems) else "function"
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
