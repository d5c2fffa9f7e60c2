"""Judges a suite's own solutions: whether its tests, and this machine, can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from greenward.config.recipe import Recipe
from greenward.recipes.build import build_grader
from greenward.recipes.evaluation_session import GradingOptions
from greenward.recipes.suites import HELD_OUT, find_suite, part_of_suite


@dataclass(frozen=True)
class CheckedReferences:
    """How many references there are, how many problems have none, and a line for each that failed."""

    suite: str
    references: int
    missing: int
    failures: tuple[str, ...]
    skipped: int = 0

    @property
    def line(self) -> str:
        """The result in one line."""
        passed = self.references - len(self.failures)
        without = f"; {self.missing} problems have none" if self.missing else ""
        skipped = f"; skipped rows of the file: {self.skipped}" if self.skipped else ""
        return f"{self.suite}: {passed}/{self.references} references pass{without}{skipped}"


def check_references(
    suite: str | None,
    recipe: Recipe | None,
    ids: Sequence[str],
    limit: int | None,
    grading: GradingOptions,
    *,
    skip_bad_rows: bool = False,
) -> CheckedReferences:
    """Judge the references of the problems that an evaluation with these settings would ask."""
    whole = find_suite(suite or HELD_OUT, recipe, skip_bad_rows=skip_bad_rows)
    problems = part_of_suite(whole, ids=ids, limit=limit)
    with build_grader(grading.sandbox) as grader:
        given = [problem for problem in grader.complete(problems) if problem.reference]
        verdicts = grader.grade([(problem, problem.reference) for problem in given])
    failures = (
        f"{problem.task_id}: {verdict.status.value}. {verdict.first_failure or verdict.error_message}"
        for problem, verdict in zip(given, verdicts, strict=True)
        if not verdict.passed
    )
    return CheckedReferences(
        problems.name, len(given), len(problems) - len(given), tuple(failures), len(whole.skipped)
    )
