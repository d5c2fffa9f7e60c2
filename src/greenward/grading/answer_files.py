"""Which files of an answer count: those of the program, never what belongs to the tests."""

from __future__ import annotations

import re
from collections.abc import Iterable

from greenward.problems.problem import Problem
from greenward.sandbox.workspace import folders_above

CACHES = "__pycache__"  # what Python may run in place of a source
_SETTINGS = frozenset(
    ("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini",
     "setup.cfg", "sitecustomize.py", "usercustomize.py")
)  # fmt: skip
_TEST = re.compile(r"test_[^/]*\.py|[^/]*_test\.py|[^/]*\.pth")


def program_changes(changes: Iterable[tuple[str, str | None]], problem: Problem) -> dict[str, str | None]:
    """The changes (path, text) that are of the program; None is the text of a file that is deleted.

    The others count for nothing: files of the problem's tests and caches, and for tests that run beside the
    answer all that has a name by which runners and the interpreter find tests or settings, new files in
    folders that hold tests only, and a new `__init__.py` beside files of the problem.
    """
    tests, program = problem.test_files or {}, {*(problem.files or {}), problem.path}
    known = {path.rpartition("/")[0] for path in ("", *tests, *(problem.files or {}))}
    only_tests = {one for test in tests for one in folders_above(test)}
    only_tests -= {one for path in program for one in folders_above(path)}

    def is_of_tests(path: str) -> bool:
        folder, _, name = path.rpartition("/")
        if path in tests or CACHES in folder.split("/"):
            return True
        if not problem.in_process_tests or path == problem.path:
            return False
        return name in _SETTINGS or (
            path not in program
            and (
                _TEST.fullmatch(name) is not None
                or not only_tests.isdisjoint([*folders_above(path), path])
                or (name == "__init__.py" and folder in known)
            )
        )

    return {path: text for path, text in changes if not is_of_tests(path)}
