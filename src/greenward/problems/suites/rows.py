"""From the rows of a file to a problem set: no id twice, and not empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from greenward.errors import ProblemError
from greenward.problems.json_rows import BadRow, Row, read_rows, refuse
from greenward.problems.problem import Problem, ProblemSet

_UNFORESEEN = (
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    MemoryError,
)


def problem_set(
    path: Path,
    make: Callable[[Row], Problem],
    *,
    example: str,
    rows: Iterable[Row] | None = None,
    non_finite: bool = False,
    skip_bad_rows: bool = False,
) -> ProblemSet:
    """The problems that `make` reads from the rows of a file (or from `rows`), as a set named for it.

    With `skip_bad_rows`, rows that cannot be used are left out, and `ProblemSet.skipped` says what is wrong
    with each. Raises `BadRow` for one without it, also for an id that occurs twice, and `ProblemError` for
    a file without a problem.
    """
    skipped: list[BadRow] = []
    on_bad = skipped.append if skip_bad_rows else refuse
    by_id: dict[str, tuple[Row, Problem]] = {}
    if rows is None:
        rows = read_rows(path, example=example, non_finite=non_finite, on_bad=on_bad)
    for row in rows:
        try:
            problem = _made(make, row)
            if problem.task_id in by_id:
                raise row.error(
                    "task_id" if "task_id" in row.values else "function_name",
                    f"gives the id {problem.task_id!r}, which {by_id[problem.task_id][0].place} has already",
                    remedy="Give one of them a task_id of its own.",
                )
            by_id[problem.task_id] = row, problem
        except BadRow as error:
            on_bad(error)
    if not by_id:
        raise ProblemError(
            skipped[0].message if skipped else f"{path}: there is no problem in the file.",
            remedy=f"Expected rows of {example}.",
        )
    name = path.name.removesuffix(".gz").rpartition(".")[0]
    return ProblemSet(
        (problem for _, problem in by_id.values()),
        name=name or path.name,
        skipped=tuple(error.message for error in skipped),
    )


def _made(make: Callable[[Row], Problem], row: Row) -> Problem:
    try:
        return make(row)
    except BadRow:
        raise
    except ProblemError as error:
        raise BadRow(f"{row.file}, {row.place}: {error.message}", remedy=error.remedy) from None
    except _UNFORESEEN as error:
        what = f"{type(error).__name__}: {error}"
        raise BadRow(f"{row.file}, {row.place}: not of the expected form ({what}).") from error
