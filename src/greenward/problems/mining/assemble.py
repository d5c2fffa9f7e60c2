"""Makes problems of masked functions, and the wrong bodies that none of their tests may accept."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from greenward.problems.mining.context import context_of
from greenward.problems.mining.functions import MaskedFunction
from greenward.problems.mining.suites import (
    RUNNER,
    dependencies,
    files_for,
    helpers_for,
    run_by_runner,
    sandboxed,
)
from greenward.problems.mining.tree import SourceTree
from greenward.problems.problem import Problem
from greenward.problems.python_source import source_lines

STUB = "raise NotImplementedError"
EMPTY_BODIES = ("pass", STUB)
CONSTANTS = ("True", "False", "0", "1", "''", "[]", "{}", "()")


def doctest_problem(function: MaskedFunction, tree: SourceTree, context_chars: int) -> Problem:
    """The problem that is judged by the examples of the function's own docstring."""
    return masked_problem(function, tree, context_chars, doctests=(function.docstring,), tags=("doctest",))


def suite_problem(
    function: MaskedFunction, tree: SourceTree, suite: str, tests: Sequence[str], context_chars: int
) -> Problem:
    """The problem that is judged by single tests of a suite: the place of a file, or an installed module."""
    test_files = {RUNNER: sandboxed(RUNNER)}
    if suite in tree.by_place:
        file = tree.by_place[suite]
        test_files |= helpers_for(file, tree) | files_for(file, tree)
    return masked_problem(function, tree, context_chars, test_files, **run_by_runner(tests), tags=("suite",))


def masked_problem(
    function: MaskedFunction,
    tree: SourceTree,
    context_chars: int,
    test_files: dict[str, str] | None = None,
    *,
    tags: tuple[str, ...],
    **tests: Any,
) -> Problem:
    """The problem that asks for the body of a function, judged by `tests` (fields of `Problem`)."""
    place = function.file.place
    files = files_for(function.file, tree) | {place: in_file(function, STUB)}
    test_files = {path: text for path, text in (test_files or {}).items() if path not in files}
    known = {*(one.top for one in tree.files), *sys.stdlib_module_names, "greenward_tests"}
    used = [tree.by_place[path] for path in (*files, *test_files) if path in tree.by_place]
    needed = {*dependencies(used), *(["pytest"] if "::" in tests.get("setup_code", "") else [])}
    kind = "method" if "." in function.qualified else "function"
    return Problem(
        task_id=f"{tree.name}/{function.file.module}.{function.qualified}",
        prompt=function.said,
        entry_point=function.qualified,
        path=place,
        files=files,
        test_files=test_files or None,
        context=context_of(function, context_chars),
        starter_code=function.starter,
        reference=function.file.text,
        tags=(kind, *tags),
        columns={
            "origin": f"{tree.name} {tree.version}".strip() + f", {function.where.partition(' ')[0]}",
            "licence": tree.licence,
            "dependencies": sorted(needed - known),
        },
        **tests,
    )


def in_file(function: MaskedFunction, statement: str) -> str:
    """The function's file with one statement as the function's body."""
    lines = source_lines(function.file.text)
    return "".join(lines[: function.start]) + function.with_body(statement) + "".join(lines[function.end :])


def constant_bodies(function: MaskedFunction) -> list[str]:
    """Statements that return a constant or the first argument, as no implementation does."""
    values = (*CONSTANTS, *([function.first_parameter] if function.first_parameter else []))
    return [f"return {value}" for value in values]
