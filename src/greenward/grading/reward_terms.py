"""The shipped reward terms that read the verdict or run the program. Formulas in docs/rewards.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from greenward.grading.code_quality import parse_bounded
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.used_code import bound_names
from greenward.grading.verdict import Status
from greenward.sandbox.protocol import Outcome, RunResult


@dataclass(frozen=True)
class Tests:
    """The fraction of tests passed, plus `bonus` when all pass. An answer that cheats gets 0."""

    name: str = "tests"
    weight: float = 1.0
    bonus: float = 1.0

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        return [
            0.0
            if answer.verdict.status is Status.CHEATING
            else answer.verdict.fraction_passed + self.bonus * answer.verdict.passed
            for answer in answers
        ]


@dataclass(frozen=True)
class AllTests:
    """1 when every test passes, else 0."""

    name: str = "all_tests"
    weight: float = 1.0

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        return [float(answer.verdict.passed) for answer in answers]


@dataclass(frozen=True)
class ExecutionLadder:
    """Whether the program runs: +1 with a result, +0.5 without, −0.5 syntax error, −1 otherwise.

    The result of a program is its output. Where the problem asks for a function, it is that function at
    top level, and output counts for nothing. Tests are not run: `def add(*_): 0` earns +1. Use it to
    teach Python, not to solve.
    """

    name: str = "execution_ladder"
    weight: float = 1.0

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        runs = iter(grader.run_programs([answer.code for answer in answers if answer.code is not None]))
        return [-0.5 if answer.code is None else self._rung(answer, next(runs)) for answer in answers]

    @staticmethod
    def _rung(answer: GradedAnswer, run: RunResult) -> float | None:
        if run.outcome is Outcome.COMPLETED:
            wanted = answer.problem.entry_point
            has_result = defines(answer.code or "", wanted) if wanted else bool(run.stdout.strip())
            return 1.0 if has_result else 0.5
        if run.outcome is Outcome.SYNTAX_ERROR:
            return -0.5
        return None if run.outcome is Outcome.INFRASTRUCTURE else -1.0


def defines(code: str, name: str) -> bool:
    """Whether the top level of a program binds `name`: by a definition, an assignment or an import."""
    tree = parse_bounded(code)
    return tree is not None and any(name in bound_names(node) for node in tree.body)


@dataclass(frozen=True)
class Format:
    """1 when the answer holds code that parses and defines the entry point at top level, else 0.

    Where no entry point is asked for, any statement will do.
    """

    name: str = "format"
    weight: float = 1.0

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        return [float(self._is_well_formed(answer)) for answer in answers]

    @staticmethod
    def _is_well_formed(answer: GradedAnswer) -> bool:
        tree = parse_bounded(answer.code or "")
        wanted = answer.problem.entry_point
        return tree is not None and any(
            not wanted or getattr(node, "name", None) == wanted for node in tree.body
        )
