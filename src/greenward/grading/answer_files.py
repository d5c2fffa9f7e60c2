"""Which files of an answer count: those of the program, never what belongs to the tests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from greenward.problems.problem import Problem
from greenward.sandbox.workspace import folders_above

# What runners of tests and the interpreter look for, wherever it lies.
_SETTINGS = re.compile(
    r"conftest\.py|\.?pytest\.(?:ini|toml)|pyproject\.toml|tox\.ini|setup\.cfg|(?:site|user)customize\.py"
    r"|.*\.pth|.*\.(?:dist|egg)-info"
)
_TEST = re.compile(r"test_.*\.py|.*_test\.py")
_CACHES = "__pycache__"  # what Python may run in place of a source


def program_changes(changes: Iterable[tuple[str, str | None]], problem: Problem) -> dict[str, str | None]:
    """The changes (path, text) that are of the program; None is the text of a file that is deleted.

    The others count for nothing: files of the problem's tests; caches; new modules that would take the place
    of a module or package of the problem, unless that is deleted; new files in place of a folder that holds
    tests only, or below a path of a test; and
    for tests that run beside the answer settings, new files with names of tests, and new files in folders
    that hold tests only.
    """
    changed, tests = dict(changes), problem.test_files or {}
    if not changed:
        return changed
    program = {*(problem.files or {}), problem.path}
    deleted = {path for path, text in changed.items() if text is None}
    only_tests = {one for test in tests for one in folders_above(test)}
    only_tests -= {one for path in program for one in folders_above(path)}
    taken = {*map(_module, (program - deleted).union(tests, only_tests)), ""}

    def counts(path: str) -> bool:
        *folders, name = path.split("/")
        is_new = path not in program
        if path in tests or _CACHES in folders:
            return False
        if is_new and name.endswith(".py") and _module(path) in taken:
            return False
        if is_new and (path in only_tests or not tests.keys().isdisjoint(folders_above(path))):
            return False  # tests and such a file cannot lie in one folder
        if not problem.in_process_tests or path == problem.path:
            return True
        if any(map(_SETTINGS.fullmatch, (*folders, name))):
            return False
        return not is_new or (
            _TEST.fullmatch(name) is None and only_tests.isdisjoint([*folders_above(path), path])
        )

    return {path: text for path, text in changed.items() if counts(path)}


def _module(path: str) -> str:
    """The same text for the files that can be a module of one name, and for their folder."""
    return f"/{path}".removesuffix(".py").removesuffix("/__init__")
