"""From the rows of a file to a problem set: no id twice, and not empty."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from greenward.errors import ProblemError
from greenward.problems.json_rows import Row
from greenward.problems.problem import Problem, ProblemSet


def problem_set(problems: Iterable[tuple[Row, Problem]], path: Path, *, example: str) -> ProblemSet:
    """The problems with the rows that they came from, as a set named for the file.

    Raises `ProblemError` for an id that occurs twice and for a file without a problem.
    """
    by_id: dict[str, tuple[Row, Problem]] = {}
    for row, problem in problems:
        if problem.task_id in by_id:
            raise row.error(
                "task_id", f"gives the id {problem.task_id!r}, which {by_id[problem.task_id][0].place} has"
            )
        by_id[problem.task_id] = row, problem
    if not by_id:
        raise ProblemError(f"{path}: there is no problem in the file.", remedy=f"Expected rows of {example}.")
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    return ProblemSet((problem for _, problem in by_id.values()), name=name or path.name)
