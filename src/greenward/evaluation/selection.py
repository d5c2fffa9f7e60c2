"""Chooses one of several answers to a problem: by the tests that it passes, or by what most return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from greenward.errors import ConfigError, ProblemError
from greenward.grading.compare import matches, same_output
from greenward.grading.extraction import Extracted
from greenward.grading.grader import Grader
from greenward.grading.verdict import Family, Verdict
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Outcome, RunResult


@dataclass(frozen=True)
class Selection:
    """The answers to one problem and the position of the best one, None where no answer can be chosen.

    `verdicts` are those of `by` "tests". `votes` are those of "votes": how many answers returned the same as
    each answer, itself included; 0 for one that did not return.
    """

    answers: tuple[str | Extracted | None, ...]
    best: int | None
    verdicts: tuple[Verdict, ...] = ()
    votes: tuple[int, ...] = ()

    @property
    def answer(self) -> str | Extracted | None:
        return None if self.best is None else self.answers[self.best]

    @property
    def verdict(self) -> Verdict | None:
        return self.verdicts[self.best] if self.best is not None and self.verdicts else None


def best_of_n(
    problem: Problem,
    answers: Sequence[str | Extracted | None],
    grader: Grader,
    *,
    by: Literal["tests", "votes"] = "tests",
) -> Selection:
    """Runs the answers (programs, or what was extracted of texts; None without one) and chooses the best.

    By "tests": the one that passes, else the one that passes the largest share of the tests; among equals the
    shortest, then the first. By "votes": the answer whose results on the inputs of the problem most answers
    share (self-consistency, arXiv 2203.11171); expected values are not read, so that the tests may be those
    that the choice is measured on. Only answers that end all calls vote, an exception being a result like
    others. Raises `ConfigError` for another `by`, and `ProblemError` where nothing returned can be compared.
    """
    if isinstance(answers, str | Extracted):
        raise ConfigError("answers: expected a list, found one answer.", remedy="Put it into a list.")
    given = tuple(answers)
    if by == "tests":
        verdicts = tuple(grader.grade([(problem, code) for code in given]))
        judged = [
            position
            for position, verdict in enumerate(verdicts)
            if given[position] is not None and verdict.status.family is not Family.INFRASTRUCTURE
        ]

        def quality(position: int) -> tuple[bool, float, int, int]:
            verdict, answer = verdicts[position], given[position]
            code = answer.code if isinstance(answer, Extracted) else answer
            return verdict.passed, verdict.fraction_passed, -len(code or ""), -position

        return Selection(given, max(judged, key=quality, default=None), verdicts=verdicts)
    if by == "votes":
        if not problem.cases and not problem.tests and not problem.stdio_cases:
            raise ProblemError(
                f"{problem.task_id}: answers vote with what they return, and its tests are programs.",
                remedy="Choose by tests.",
            )
        votes = _votes(problem, grader.run_on_inputs([(problem, code) for code in given]))
        best = max(range(len(votes)), key=lambda position: (votes[position], -position), default=None)
        return Selection(given, best if best is not None and votes[best] else None, votes=votes)
    raise ConfigError(f"by: expected 'tests' or 'votes', found {by!r}.")


def _votes(problem: Problem, runs: Sequence[RunResult | None]) -> tuple[int, ...]:
    """For each answer how many returned the same; an answer joins the first that it agrees with."""
    groups: list[list[int]] = []
    for position, run in enumerate(runs):
        if run is None or run.outcome is not Outcome.COMPLETED:
            continue
        joined = next((group for group in groups if _agree(runs[group[0]], run, problem)), None)
        groups.append([position]) if joined is None else joined.append(position)
    counts = {position: len(group) for group in groups for position in group}
    return tuple(counts.get(position, 0) for position in range(len(runs)))


def _agree(one: RunResult | None, other: RunResult, problem: Problem) -> bool:
    """Whether a judge would take each of the results for the other one."""
    assert one is not None

    def same(a: Any, b: Any) -> bool:
        if problem.stdio_cases:
            return same_output(a, b)
        return matches(a, b, problem.comparison) or matches(b, a, problem.comparison)

    return len(one.results) == len(other.results) and all(
        (a.returned, a.plain, a.error_class) == (b.returned, b.plain, b.error_class)
        and (not a.returned or (a.plain and same(a.value, b.value)))
        for a, b in zip(one.results, other.results, strict=True)
    )
