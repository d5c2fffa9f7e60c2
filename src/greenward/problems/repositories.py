"""Provides repositories to repair: shipped ones, rows as SWE-bench has them, packages with planted bugs.

Each is a repair problem of several files: `buggy_code` at `path`, others in `files`, the issue in `prompt`.

- `repositories`, `repositories:train`, `repositories:test`: 25 tasks in eight small packages of five files;
  `:test` are those of two packages, which a recipe holds out. Their tests are calls whose results are
  compared outside: no answer can forge them.
- `planted:FOLDER`: any package with tests for unittest, with a bug of the shipped kinds in one of its
  modules. The tests run beside the answer.
- A file of rows as SWE-bench and SWE-Gym have them: `instance_id, repo, base_commit, problem_statement,
  patch, test_patch, FAIL_TO_PASS, PASS_TO_PASS` (lists, or JSON of lists). Local clones, called
  `owner__name`, lie beside the file; nothing of them is run. The tests run beside the answer.
- `bugs:families` and other problems to repair: repositories of one file, with the tests of the problem.

A repository may have 1,000 text files with 4 MiB in all; larger ones are bad rows (`--skip-bad-rows`).
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from greenward.common.errors import ProblemError, RepositoryError, SandboxError
from greenward.problems.names import (
    KIND_TAG,
    MUTANT_TAG,
    PLANTED,
    REPOSITORIES,
    REPOSITORY_TAG,
)
from greenward.problems.problem import Assertion, Problem, ProblemSet, stable_hash
from greenward.problems.python_source import FunctionNode, module_of, parse_or_none
from greenward.problems.rows import DATA, Format, Row
from greenward.problems.sandboxed_suites import RUNNER, run_by_runner, sandboxed
from greenward.runs.repository import MAX_FILE_BYTES, Repository
from greenward.sandbox.inside.files import check_files, module_name

_TEST_PACKAGES = ("shop", "settings")  # all tasks of a package are in one part, whose code they share
FAILING_TESTS = "failing_tests"  # a column: how many of the tests, the first ones, the bug breaks
_FIELDS = ("instance_id", "repo", "base_commit", "problem_statement", "patch", "FAIL_TO_PASS", "PASS_TO_PASS")
TEST_FILE = re.compile(r"(?:^|/)(?:tests?/|test_[^/]*\.py$|[^/]*_test\.py$|conftest\.py$)")
_UNITTEST_ID = re.compile(r"(\w+) \(([\w.]+)\)")


def shipped_repositories(name: str = REPOSITORIES) -> ProblemSet:
    """The tasks of `data/repositories.yaml`, in their order; of one part, those of its packages."""
    import yaml

    found = []
    for package in yaml.safe_load((DATA / "repositories.yaml").read_text(encoding="utf-8")):
        part = "test" if package["package"] in _TEST_PACKAGES else "train"
        if name not in (REPOSITORIES, f"{REPOSITORIES}:{part}"):
            continue
        for task in package["tasks"]:
            right = package["files"][task["path"]]
            if right.count(task["right"]) != 1:
                raise ProblemError(f"{package['package']}/{task['name']}: `right` does not occur once.")
            module, _, function = task["entry"].rpartition(".")
            found.append(
                Problem(
                    task_id=f"{package['package']}/{task['name']}",
                    prompt=task["issue"],
                    entry_point=function,
                    tests=tuple(Assertion(f"assert {call}") for call in (*task["fails"], *task["passes"])),
                    setup_code=f"from {module} import {function}",
                    path=task["path"],
                    files={path: one for path, one in package["files"].items() if path != task["path"]},
                    reference=right,
                    buggy_code=right.replace(task["right"], task["wrong"]),
                    tags=(REPOSITORY_TAG,),
                    columns={FAILING_TESTS: len(task["fails"])},
                )
            )
    return ProblemSet(found, name=name)


def _row_problem(row: Row) -> Problem:
    """The problem of one row. Clones lie in the folder of the file, as `owner__name` or `name`.

    Raises `BadRow`, among others for a clone or commit that is missing, a repository whose files the sandbox
    does not take, and a test that is no unittest's or pytest's.
    """
    repo, commit = row.text("repo"), row.text("base_commit")
    folder = row.file.parent
    names = (repo.replace("/", "__"), repo.rpartition("/")[2])
    if not all(re.fullmatch(r"\.*[\w-][\w.-]*", name) for name in names):
        raise row.error("repo", "must be owner/name")
    clones = [folder / name for name in names if (folder / name).is_dir()]
    if not clones:
        raise row.error("repo", f"needs a local clone of {repo} in {folder}, called {names[0]}")
    if clones[0].is_symlink():
        raise row.error("repo", f"needs a local clone of {repo}, but {clones[0]} is a symbolic link")
    if not re.fullmatch(r"[\w./-]*\w", commit) or commit.startswith("-"):
        raise row.error("base_commit", "must be a commit")
    patch, test_patch = row.text("patch"), str(row.values.get("test_patch") or "")
    changed, tested = _changed_paths(patch), _changed_paths(test_patch)
    try:
        with Repository(clones[0]) as repository:
            tree = repository.commit(commit)
            base = repository.files(tree)
            fixed = repository.files(repository.patched(tree, patch), changed) if changed else {}
            with_tests = repository.files(repository.patched(tree, test_patch), tested) if tested else {}
    except RepositoryError as error:
        said = f"could not be read: {error.message.rstrip('.')}"
        raise row.error("repo", said, remedy=error.remedy) from None
    own = next((path for path in changed if path.endswith(".py") and path in {*base} & {*fixed}), None)
    if own is None:
        raise row.error("patch", "changes no Python file of the repository")
    tests = {path: text for path, text in base.items() if TEST_FILE.search(path)} | with_tests
    try:
        module_name(own)
        check_files({**base, **tests}, MAX_FILE_BYTES)
    except SandboxError as error:
        raise row.error("repo", f"cannot be run: {error.message.rstrip('.')}") from None
    failing, passing = (tuple(_test_names(row, name, tests)) for name in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    if not failing:
        raise row.error("FAIL_TO_PASS", "names no test: nothing would tell a repair from none")
    return Problem(
        task_id=row.text("instance_id"),
        prompt=row.text("problem_statement"),
        entry_point="",
        **run_by_runner(tuple(dict.fromkeys((*failing, *passing)))),
        path=own,
        files={path: text for path, text in base.items() if path != own},
        test_files={**tests, RUNNER: sandboxed(RUNNER)},
        reference=fixed.pop(own),
        reference_files=fixed or None,
        buggy_code=base[own],
        tags=(REPOSITORY_TAG,),
        columns={FAILING_TESTS: len(failing), "repo": repo, "base_commit": commit},
    )


_EXAMPLE = '{"instance_id": …, "repo": "owner/name", "base_commit": …, "patch": …, "FAIL_TO_PASS": […], …}'
SWE_BENCH = Format("swe-bench", "SWE-bench and SWE-Gym", _FIELDS, _EXAMPLE, _row_problem)


def _changed_paths(patch: str) -> list[str]:
    mark = "+++ b/"
    return [line.removeprefix(mark).rstrip() for line in patch.split("\n") if line.startswith(mark)]


def _test_names(row: Row, field: str, tests: Mapping[str, str]) -> Iterator[str]:
    """Names of tests as the runner takes them; the field is a list, or JSON of one.

    Names as pytest writes them become those of unittest where the file needs no pytest.
    """
    names = row.values[field]
    if isinstance(names, str):
        try:
            names = json.loads(names)
        except ValueError:
            names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise row.error(field, "must be a list of the names of tests, or JSON of one")
    for name in names:
        if found := _UNITTEST_ID.fullmatch(name):
            yield found[2] if found[2].endswith(f".{found[1]}") else f"{found[2]}.{found[1]}"
            continue
        path, *rest = name.partition("[")[0].split("::")
        is_unittests = len(rest) == 2 and "pytest" not in tests.get(path, "pytest")
        yield ".".join((module_of(path), *rest)) if is_unittests else name.partition("[")[0]


def planted_candidates(folder: str, *, per_module: int, seed: int) -> ProblemSet:
    """Repair problems of a package with tests for unittest: a bug of a shipped kind in one of its modules.

    Which bugs a test finds, and whether the package passes without them, only its tests tell
    (`grading.verification`). Raises `ProblemError` for a folder without Python files or without such tests.
    """
    from greenward.problems.mining import read_python_files
    from greenward.problems.mutation import mutants, normalised

    root = Path(folder)
    found = sorted(read_python_files(root) if root.is_dir() else (), key=lambda one: one[0].split("/"))
    files = {path: text for path, text in found if isinstance(text, str)}
    tests = {path: text for path, text in files.items() if TEST_FILE.search(path)}
    names = tuple(name for path, text in sorted(tests.items()) for name in _unittest_names(path, text))
    if not names:
        raise ProblemError(
            f"{folder}: expected a folder of a package with tests for unittest, found {len(files)} Python "
            "files and no test.",
            remedy="Tests are methods test_… of classes in files test_*.py, or in a folder tests.",
        )
    problems = []
    for path, text in sorted(files.items()):
        if path in tests:
            continue
        try:
            reference, changes = normalised(text), mutants(text)
        except (SyntaxError, ValueError, RecursionError):
            continue
        changes.sort(key=lambda one: stable_hash(f"{seed}/{path}/{one.code}"))
        for number, mutant in enumerate(changes[:per_module], 1):
            problems.append(
                Problem(
                    task_id=f"{root.name}/{path}#{number}",
                    prompt=f"A test of this package fails since a change in {path}.",
                    entry_point="",
                    **run_by_runner(names),
                    path=path,
                    files={one: text for one, text in files.items() if one != path},
                    test_files={**tests, RUNNER: sandboxed(RUNNER)},
                    reference=reference,
                    buggy_code=mutant.code,
                    tags=(REPOSITORY_TAG, MUTANT_TAG, f"{KIND_TAG}{mutant.kind}"),
                )
            )
    return ProblemSet(problems, name=f"{PLANTED}{root.name}")


def _unittest_names(path: str, text: str) -> Iterator[str]:
    tree = parse_or_none(text)
    for owner in tree.body if tree is not None else ():
        if isinstance(owner, ast.ClassDef):
            for one in owner.body:
                if isinstance(one, FunctionNode) and one.name.startswith("test"):
                    yield f"{module_of(path)}.{owner.name}.{one.name}"
