"""What is asked of a public suite: a stable part of its problems, and the prompts of the published harnesses.

*completion* (base models): the suite's own prompt, continued up to the first stop string. For MBPP
that is the docstring with the first assertion (Fried et al. 2022, InCoder; EvalPlus); with
examples, the prompt of the paper (Austin et al. 2021, arXiv:2108.07732) with problems 2, 3 and 4.
*chat*: EvalPlus's instruction with the suite's prompt in a code block.

Line ends are plain where MBPP's own file has CRLF.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Literal

from greenward.environments.prompts import PromptRenderer, PromptTokenizer, described_starter
from greenward.errors import ConfigError
from greenward.grading.extraction import Extracted, extract_code
from greenward.problems.placement import hole_of
from greenward.problems.problem import Problem, ProblemSet

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
        base = "completion" if shots and style == "auto" else style
        super().__init__(tokenizer, style=base, **options)
        if shots and self.style == "chat":
            raise ConfigError("Examples (--fewshot) are for base models; chat prompts have none.")
        self._shots = tuple(shots)

    def prompt_text(self, problem: Problem) -> str:
        """What is asked, as text: what the model continues, or the user message in chat style."""
        if self._shots:
            if not problem.tests:
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
    return _TASK.format(prompt=problem.prompt, tests="\n".join(problem.tests))


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
