"""Chooses the best of several answers to one problem, by its tests or by what most answers return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from greenward.common.errors import ConfigError, ProblemError
from greenward.grading.changes import changed_lines
from greenward.grading.compare import matches, same_output
from greenward.grading.extracted import Extracted
from greenward.grading.verdict import Family, Verdict
from greenward.problems.problem import Assertion, Case, Problem, StdioCase
from greenward.sandbox.protocol import Outcome, RunResult

if TYPE_CHECKING:
    from greenward.grading.judge import Grader


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

    By "tests", as `best_by_tests` has it. By "votes": the answer whose results on the inputs of the problem
    most answers share (self-consistency, arXiv 2203.11171); expected values are not read, so that the tests
    may be those that the choice is measured on. Only answers that end all calls vote, an exception being a
    result like others.

    Raises `ConfigError` for another `by`, and `ProblemError` where nothing returned can be compared.
    """
    if isinstance(answers, str | Extracted):
        raise ConfigError("answers: expected a list, found one answer.", remedy="Put it into a list.")
    given = tuple(answers)
    if by == "tests":
        return best_by_tests(problem, given, grader.grade([(problem, code) for code in given]))
    if by == "votes":
        if not any(map(problem.tests_of, (Case, Assertion, StdioCase))):
            raise ProblemError(
                f"{problem.task_id}: answers vote with what they return, and its tests are programs.",
                remedy="Choose by tests.",
            )
        votes = _votes(problem, grader.run_on_inputs([(problem, code) for code in given]))
        best = max(range(len(votes)), key=lambda position: (votes[position], -position), default=None)
        return Selection(given, best if best is not None and votes[best] else None, votes=votes)
    raise ConfigError(f"by: expected 'tests' or 'votes', found {by!r}.")


def best_by_tests(
    problem: Problem, answers: Sequence[str | Extracted | None], verdicts: Sequence[Verdict]
) -> Selection:
    """The answer that passes, else the one that passes the largest share of the tests.

    Among equals the one that changes the fewest lines of a program that is to be repaired, then the shortest,
    then the first.
    """
    known = {problem.path: problem.buggy_code, **(problem.files or {})}
    judged = [
        position
        for position, verdict in enumerate(verdicts)
        if answers[position] is not None and verdict.status.family is not Family.INFRASTRUCTURE
    ]

    def quality(position: int) -> tuple[bool, float, int, int, int]:
        verdict, answer = verdicts[position], answers[position]
        found = answer if isinstance(answer, Extracted) else Extracted(answer)
        texts = {problem.path: found.code, **dict(found.files)} if problem.buggy_code else {}
        changed = sum(changed_lines(known.get(path), text) for path, text in texts.items())
        return verdict.passed, verdict.fraction_passed, -changed, -len(found.code or ""), -position

    return Selection(tuple(answers), max(judged, key=quality, default=None), verdicts=tuple(verdicts))


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
        if problem.tests_of(StdioCase):
            return same_output(a, b)
        return matches(a, b, problem.comparison) or matches(b, a, problem.comparison)

    return len(one.results) == len(other.results) and all(
        (a.returned, a.plain, a.error_class) == (b.returned, b.plain, b.error_class)
        and (not a.returned or (a.plain and same(a.value, b.value)))
        for a, b in zip(one.results, other.results, strict=True)
    )
