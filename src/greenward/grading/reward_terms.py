"""The shipped reward terms by name, and those that read the verdict or run the program.

Formulas in docs/rewards.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from greenward.config.sections import RewardTermConfig
from greenward.errors import ConfigError
from greenward.grading.code_quality import CodeQuality, parse_bounded
from greenward.grading.custom_reward import CustomReward
from greenward.grading.dead_code import bound_names
from greenward.grading.grader import Grader
from greenward.grading.labels import Detection, Evidence, Weakness
from greenward.grading.readability import Readability
from greenward.grading.repair_terms import (
    EditFormat,
    EditSimilarity,
    FunctionSimilarity,
    PartialFormat,
    Regression,
    StrictFormat,
    SweRl,
)
from greenward.grading.rewards import AnswerTerm, GradedAnswer, RewardTerm, ShippedTerm
from greenward.grading.verdict import Status
from greenward.problems.placement import function_in
from greenward.sandbox.protocol import Outcome, RunResult


@dataclass(frozen=True)
class Tests(AnswerTerm, name="tests"):
    """The fraction of tests passed, plus `bonus` when all pass. An answer that cheats gets 0."""

    bonus: float = 1.0

    def of_answer(self, answer: GradedAnswer) -> float:
        if answer.verdict.status is Status.CHEATING:
            return 0.0
        return answer.verdict.fraction_passed + self.bonus * answer.verdict.passed


class AllTests(AnswerTerm, name="all_tests"):
    """1 when every test passes, else 0."""

    def of_answer(self, answer: GradedAnswer) -> float:
        return float(answer.verdict.passed)


class ExecutionLadder(ShippedTerm, name="execution_ladder"):
    """Whether the program runs: +1 with a result, +0.5 without, −0.5 syntax error, −1 otherwise.

    The result of a program is its output. Where the problem asks for a function, it is that function at
    top level, and output counts for nothing. Tests are not run: `def add(*_): 0` earns +1. Use it to
    teach Python, not to solve.
    """

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        runs = iter(grader.run_programs([answer.code for answer in answers if answer.code is not None]))
        return [-0.5 if answer.code is None else self._score(answer, next(runs)) for answer in answers]

    @staticmethod
    def _score(answer: GradedAnswer, run: RunResult) -> float | None:
        if run.outcome is Outcome.COMPLETED:
            wanted = answer.problem.entry_point.partition(".")[0]
            has_result = defines(answer.code or "", wanted) if wanted else bool(run.stdout.strip())
            return 1.0 if has_result else 0.5
        if run.outcome is Outcome.SYNTAX_ERROR:
            return -0.5
        return None if run.outcome is Outcome.INFRASTRUCTURE else -1.0


def defines(code: str, name: str) -> bool:
    """Whether the top level of a program binds `name`: by a definition, an assignment or an import."""
    tree = parse_bounded(code)
    return tree is not None and any(name in bound_names(node) for node in tree.body)


class CodeFormat(AnswerTerm, name="format"):
    """1 when the answer holds code that parses and defines the entry point at top level, else 0.

    Where an answer is one function of a file, this function counts and not the rest of the file.

    Where no entry point is asked for, any statement will do.
    """

    def of_answer(self, answer: GradedAnswer) -> float:
        wanted = answer.problem.entry_point.partition(".")[0]
        function = function_in(answer.problem, answer.code or "")
        if function is not None:
            in_class = f"class File:\n{function}" if function[:1].isspace() else function
            return float(bool(function) and parse_bounded(in_class) is not None)
        tree = parse_bounded(answer.code or "")
        statements = tree.body if tree is not None else []
        return float(any(not wanted or getattr(node, "name", None) == wanted for node in statements))


@dataclass(frozen=True)
class CodeScore(ShippedTerm, name="code_score"):
    """The mean of correctness (share of tests passed, 0 for cheating) and readability, by their weights.

    Its parts are reported beside it. Raises `ConfigError` for weights that are negative or all 0.
    """

    correctness: float = 0.8
    readability: float = 0.2
    _parts: tuple[Tests, Readability] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if min(self.correctness, self.readability) < 0 or self.correctness + self.readability <= 0:
            raise ConfigError(
                "the weights of code_score must not be negative and must sum to more than 0, "
                f"found correctness {self.correctness} and readability {self.readability}."
            )
        object.__setattr__(self, "_parts", (Tests(bonus=0.0), Readability()))

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        return self.score_by_name(answers, grader)[self.name]

    def score_by_name(
        self, answers: Sequence[GradedAnswer], grader: Grader
    ) -> Mapping[str, list[float | None]]:
        correctness, readability = (part.score(answers, grader) for part in self._parts)
        means: list[float | None] = list(map(self._mean, correctness, readability))
        return {self.name: means, "correctness": correctness, "readability": readability}

    def _mean(self, correctness: float | None, readability: float | None) -> float:
        assert correctness is not None and readability is not None  # both parts apply to every answer
        weighted = self.correctness * correctness + self.readability * readability
        return weighted / (self.correctness + self.readability)


SHIPPED_TERMS: dict[str, Any] = {
    term.name: term
    for term in (
        *(Tests, AllTests, ExecutionLadder, CodeQuality, CodeFormat, Readability, CodeScore),
        *(PartialFormat, StrictFormat, EditFormat, EditSimilarity, SweRl, Regression),
        FunctionSimilarity,
        *(Detection, Weakness, Evidence),
    )
}


def make_reward(config: RewardTermConfig, **training: Any) -> RewardTerm:
    """The term that a recipe names: a shipped one, or `module:function`.

    `training` is what `CustomReward` is told of the training.

    Raises `ConfigError` for an unknown name or option (naming the nearest), `RewardError` for a
    function that cannot be imported or called.
    """
    if ":" in config.name:
        return CustomReward(config, **training)
    shipped = SHIPPED_TERMS.get(config.name)
    if shipped is None:
        raise ConfigError(
            f"there is no reward term {config.name!r}.",
            remedy=_nearest(config.name, list(SHIPPED_TERMS)) + " Your own: 'module:function'.",
        )
    options = [one.name for one in dataclasses.fields(shipped) if one.init and one.name != "weight"]
    for option in config.options:
        if option not in options:
            raise ConfigError(
                f"the reward term {config.name!r} has no option {option!r}.", remedy=_nearest(option, options)
            )
    term: RewardTerm = shipped(weight=config.weight, **config.options)
    return term


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
