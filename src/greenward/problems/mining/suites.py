"""Which files a module needs, which files of tests may concern it, and how these are run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

from greenward.problems.mining.tree import SourceFile, SourceTree, syntax_tree
from greenward.problems.python_source import UNREADABLE

_PASSES = "__import__('greenward_tests').passes"
_RUNNERS_CALL = re.compile(
    re.escape(_PASSES) + r"\((?:.*?expected it to pass, raised AssertionError: (.*)|'([^']*)'\))", re.DOTALL
)
RUNNER, TRACER = "greenward_tests.py", "greenward_trace.py"


def sandboxed(name: str) -> str:
    """The text of a program that runs in the sandbox beside a suite."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def run_by_runner(names: Sequence[str]) -> dict[str, Any]:
    """The fields of a problem that is judged by these tests, which `RUNNER` among its test files runs."""
    return {
        "setup_code": f"__import__('greenward_tests').run({list(names)!r})",
        "in_process_tests": tuple(f"{_PASSES}({name!r})" for name in names),
    }


def without_runner(failure: str) -> str:
    """What a failing test of `run_by_runner` says, without the call of the runner."""
    found = _RUNNERS_CALL.match(failure)
    return failure if found is None else found[1] or f"{found[2]}{failure[found.end() :]}"


def suites_of(file: SourceFile, tree: SourceTree) -> list[str]:
    """The tests that may call the functions of a file: places of files, or modules of the installed tests.

    Of a tree all of its tests; of the standard library those that CPython names after the module.
    """
    if tree.library is None:
        return tree.suites
    folder = tree.library / "test"
    names = dict.fromkeys((file.module.replace(".", "_"), file.module.rpartition(".")[2], file.top))
    found = [f"test.test_{name}" for name in names if (folder / f"test_{name}.py").is_file()]
    for name in names:
        found += (
            f"test.test_{name}.{one.stem}" for one in sorted((folder / f"test_{name}").glob("test_*.py"))
        )
    return found


def needs_pytest(file: SourceFile) -> bool:
    """Whether the tests of a file are for pytest: it imports that, or has tests outside of classes."""
    tree = _parsed(file)
    return any(isinstance(one, ast.FunctionDef) and one.name.startswith("test") for one in tree.body) or any(
        name.partition(".")[0] == "pytest" for name in _imported(file)
    )


def files_for(file: SourceFile, tree: SourceTree) -> dict[str, str]:
    """The files of a tree that a file imports, directly and through others, by place; itself included.

    The sandbox has the standard library itself: there only a package's own file needs the others.
    """
    if tree.library and not file.place.endswith("__init__.py"):
        return {file.place: file.text}
    found: dict[str, str] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one.place not in found:
            found[one.place] = one.text
            needed = (tree.by_place[place] for place in _needed(one) if place in tree.by_place)
            waiting += (other for other in needed if not tree.library or other.top == file.top)
    return dict(sorted(found.items()))


def helpers_for(suite: SourceFile, tree: SourceTree) -> dict[str, str]:
    """What the tests of a file may use: files of its folder and of those above it that are no suites."""
    folder = PurePosixPath(suite.shown).parent
    return {
        one.place: one.text
        for one in tree.files
        if one.is_test and not one.is_suite and folder.is_relative_to(PurePosixPath(one.shown).parent)
    }


def dependencies(files: Iterable[SourceFile]) -> set[str]:
    """The packages and modules at top level that files import."""
    return {name.partition(".")[0] for file in files for name in _imported(file)}


def _needed(file: SourceFile) -> Iterator[str]:
    """The places where imported modules may lie, with the packages that hold them."""
    for name in (*_imported(file), file.module):
        for path in accumulate(name.split("."), "{}/{}".format):
            yield from (f"{path}.py", f"{path}/__init__.py")


@lru_cache(maxsize=4096)
def _imported(file: SourceFile) -> tuple[str, ...]:
    """The absolute names of all that a file may import; of `from a import b` both `a` and `a.b`."""
    names: dict[str, None] = {}
    package = file.module.split(".")
    package = package if file.place.endswith("__init__.py") else package[:-1]
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            names.update((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            names[origin] = None
            names.update((f"{origin}.{alias.name}".lstrip("."), None) for alias in node.names)
    names.pop("", None)
    return tuple(names)


def _parsed(file: SourceFile) -> ast.Module:
    try:
        return syntax_tree(file)
    except UNREADABLE:
        return ast.Module([], [])
