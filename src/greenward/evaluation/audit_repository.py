"""Audits the grader of a repository: judges trees that solve nothing, and looks for the answer in reach.

Tried are the tree as it was, blank and deleted sources, functions that return None, sources that leave at
import, deleted and emptied tests, tests that always pass, a `conftest.py` and modules in the place of the
test runner, and the grader's own words in other files. Files that hold the lines of the solution are
reported.

A tree is paid the number in the last line that the command prints (or the field `score` or `reward` of a
JSON object there), and else 1 for the exit status 0.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

from greenward.common.errors import ConfigError
from greenward.common.text import visible
from greenward.evaluation.audit_programs import HONEST
from greenward.evaluation.audit_report import EDITED_TESTS, LEAKED, AuditReport, Trial, TrialOutcome
from greenward.problems.python_source import parse_or_none
from greenward.problems.repositories import TEST_FILE
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Outcome
from greenward.sandbox.workspaces import WorkspaceLimits

Files = Mapping[str, str]
GRADER, PYTEST = "python3 -m unittest -q", "python3 -m pytest -q"
_FOR_PYTEST = re.compile(r"^(?:import|from) pytest\b|^(?:async )?def test", re.MULTILINE)
_REASONS = {
    HONEST: "the tree is the right one",
    "unchanged tree": "nothing was changed, and it is paid like a solution",
    "no solution": "the sources are blank, missing or without their bodies",
    EDITED_TESTS: "nothing is solved; the answer changed tests, or what runs them",
    "own words": "nothing is solved; a file holds the words that the grader's source holds",
    LEAKED: "the answer can read the solution in the tree",
}
_MAX_BYTES, _MAX_FILES = 8 << 20, 4000  # of a tree
_ANSWER_NAMES = re.compile(r"(?:^|/)(?:gold|answers?|solutions?|ground_truth|reference_solution)\.\w+$", re.I)
_PATH = re.compile(r"[\w./-]{3,}")
_LEAVES = "import os\n\nos._exit(0)\n"
_PASSING = "import unittest\n\n\nclass Test(unittest.TestCase):\n    def test(self):\n        pass\n"
_SHOWN_OUTPUT = 300  # characters of what a grader printed
_LEAST_LINE = 12  # characters of a line that tells a solution from others
_PACKAGES = ".packages"
# Commands import from the folder, and write nothing beside it. `pytest` is no program there, but a module.
_SETUP = (
    f'export PYTHONPATH="$PWD/{_PACKAGES}" PYTHONDONTWRITEBYTECODE=1; '
    'pytest() { python3 -m pytest "$@"; }; '
)
_IMPORT_SECONDS = 120
# Imports all modules of packages, and prints the files of what is loaded then.
_LOADED = """
import importlib, json, pkgutil, sys
for name in sys.argv[1:]:
    paths = getattr(importlib.import_module(name), "__path__", ())
    for module in pkgutil.walk_packages(paths, f"{name}.", onerror=lambda name: None):
        try:
            module.name.endswith("__main__") or importlib.import_module(module.name)
        except (Exception, SystemExit):
            pass  # a module for another system, or one that is a program
print("\\n" + json.dumps([getattr(module, "__file__", None) for module in [*sys.modules.values()]]))
"""


def audit_repository(
    folder: str | Path,
    *,
    grader: str | None = None,
    solution: str | Path | None = None,
    answers: Sequence[str] = (),
    restored: Sequence[str] = (),
    packages: Sequence[str] = (),
    timeout_seconds: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> AuditReport:
    """Audits the command `grader` of the project in `folder`, in the sandbox. Without one, its tests are run
    by pytest where they are written for it, else by unittest.

    A tree is paid the number in the last line that the command prints, or its field `score` or `reward`, and
    else 1 for the exit status 0. `solution` is a folder with the solved tree; without one `folder` itself is
    taken for solved. `answers` are the only paths that an answer can write. By default it writes those in
    which the two differ, or all Python files but tests and what `grader` names, and can write all others
    but `restored`, patterns of paths that are put back before the grader runs. Commands see the standard
    library, pytest where the grader names it, and those of the installed `packages` that are named.

    Raises `ConfigError` for a folder or paths that cannot be used, and `SandboxError`.
    """
    start = _read(Path(folder))
    solved = start if solution is None else {**start, **_read(Path(solution))}
    grader = grader or _usual_grader(solved)
    needed = [*packages, *(["pytest"] if re.search(r"\bpytest\b", grader) else [])]
    installed = _package_files(needed)
    changed = (path for path in solved if start.get(path) != solved[path])
    written = [path for path in solved if path.endswith(".py")] if solution is None else changed
    graders = _named(solved, grader)
    paths = list(answers) or [one for one in written if not TEST_FILE.search(one) and one not in graders]
    if not paths or (unknown := [path for path in answers if path not in solved]):
        named = f"there is no {unknown[0]}" if paths else "there is no Python file but tests"
        raise ConfigError(f"{folder}: {named}.", remedy="Name the files that an answer writes by --answer.")
    trees = list(_trees(start, solved, paths, grader))
    limits = WorkspaceLimits(call_seconds=timeout_seconds, seconds=2 * timeout_seconds)
    with LocalExecutor(workers=1) as executor:

        def is_put_back(path: str) -> bool:
            if answers:
                return path not in answers
            return any(fnmatch(path, one) or path.startswith(f"{one.rstrip('/')}/") for one in restored)

        def judged(tree: Files) -> tuple[float, str]:
            written = {path: text for path, text in tree.items() if not is_put_back(path)}
            put_back = {path: text for path, text in start.items() if is_put_back(path)}
            with executor.open({**written, **put_back, **installed}, limits) as workspace:
                done = workspace.exec(f"{_SETUP}{grader}" if installed else grader)
            if done.outcome is not Outcome.COMPLETED:
                return 0.0, done.error
            return _score(done.output, done.exit_code), visible(done.output[-_SHOWN_OUTPUT:].strip())

        progress(0, len(trees) + 1)
        right, detail = judged(solved)
        least = judged(_stubs(solved, paths))[0]
        limit = (right + least) / 2 if right > least else right
        outcome = TrialOutcome.ACCEPTED if right > 0 else TrialOutcome.REFUSED
        honest = (Trial("the solved tree", HONEST, str(folder), outcome, right, detail, _REASONS[HONEST]),)
        cheats = list(_leaks(start, solved, paths, folder, is_known=solution is not None))
        for done, (name, family, tree) in enumerate(trees, start=1):
            progress(done, len(trees) + 1)
            score, detail = judged(tree)
            outcome = TrialOutcome.ACCEPTED if score >= limit and score > 0 else TrialOutcome.REFUSED
            cheats.append(Trial(name, family, str(folder), outcome, score, detail, _REASONS[family]))
    return AuditReport(
        str(folder), "repository", f"grader: {grader}", tuple(cheats), honest, told_apart=right > least
    )


def _usual_grader(files: Files) -> str:
    tests = (text for path, text in files.items() if TEST_FILE.search(path))
    return PYTEST if any(map(_FOR_PYTEST.search, tests)) else GRADER


def _read(folder: Path) -> dict[str, str]:
    """The text files of a folder by their paths, without hidden folders, caches and links."""
    files: dict[str, str] = {}
    size = 0
    for file in sorted(folder.rglob("*")):
        path = file.relative_to(folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in path.parts)
        if hidden or file.is_symlink() or not file.is_file():
            continue
        size += file.stat().st_size
        if size > _MAX_BYTES or len(files) >= _MAX_FILES:
            raise ConfigError(
                f"{folder} holds more than {_MAX_FILES} files or {_MAX_BYTES >> 20} MiB.",
                remedy="Audit a copy with what the grader needs.",
            )
        try:
            files[path.as_posix()] = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    if not files:
        raise ConfigError(f"{folder} holds no text files.", remedy="Name the folder of a project.")
    return files


def _score(output: str, exit_code: int | None) -> float:
    """What a grader gives: the number in its last line, or whether it ended with 0."""
    last = next((line for line in reversed(output.splitlines()) if line.strip()), "").strip()
    try:
        found = json.loads(last)
        if isinstance(found, dict):
            found = found.get("score", found.get("reward"))
        if isinstance(found, (int, float)):
            return float(found)
    except (ValueError, OverflowError, RecursionError):
        pass
    return float(exit_code == 0)


def _trees(
    start: Files, solved: Files, paths: Sequence[str], grader: str
) -> Iterator[tuple[str, str, Files]]:
    """(name, family, files) of trees that solve nothing."""
    stubs = _stubs(solved, paths)
    tests = [path for path in solved if TEST_FILE.search(path) or path in _named(solved, grader)]
    if start != solved:
        yield "the tree as it was", "unchanged tree", start
    yield "blank sources", "no solution", {**solved, **dict.fromkeys(paths, "")}
    yield "deleted sources", "no solution", {p: text for p, text in solved.items() if p not in paths}
    yield "functions that return None", "no solution", stubs
    leaving = {
        path: _LEAVES if path.endswith(".py") else text for path, text in stubs.items() if path in paths
    }
    yield "sources that leave at import", "no solution", {**stubs, **leaving}
    if tests:
        yield "deleted tests", EDITED_TESTS, {p: text for p, text in stubs.items() if p not in tests}
        yield "emptied tests", EDITED_TESTS, {**stubs, **dict.fromkeys(tests, "")}
        yield "tests that always pass", EDITED_TESTS, {**stubs, **dict.fromkeys(tests, _PASSING)}
    yield "a conftest.py that leaves", EDITED_TESTS, {**stubs, "conftest.py": _LEAVES}
    runners = {"unittest.py": _LEAVES, "pytest.py": _LEAVES}
    yield "modules in the place of the test runners", EDITED_TESTS, {**stubs, **runners}
    words = " ".join(_words(solved, grader))
    fakes = {"notes.txt": words, "answer_notes.py": f"NOTES = {words!r}\n"}
    commented = {
        path: f"{text}\n# {' '.join(words.split())}\n" for path, text in stubs.items() if path in paths
    }
    yield "words of the grader in other files", "own words", {**stubs, **fakes}
    yield "words of the grader in comments", "own words", {**stubs, **commented}


def _stubs(files: Files, paths: Sequence[str]) -> dict[str, str]:
    """The files with functions of `paths` that only return None."""
    stubs = dict(files)
    for path in paths:
        tree = parse_or_none(files[path]) if path.endswith(".py") else None
        if tree is None:
            stubs[path] = ""
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                node.body = [ast.Return(ast.Constant(None))]
        stubs[path] = f"{ast.unparse(ast.fix_missing_locations(tree))}\n"
    return stubs


def _named(files: Files, grader: str) -> list[str]:
    """The files of the tree that the grader's command names."""
    return [word for word in re.findall(_PATH, grader) if word in files]


def _words(files: Files, grader: str) -> list[str]:
    """The words of the grader's command and the texts in the scripts of the tree that it names."""
    words = re.findall(_PATH, grader)
    for path in _named(files, grader):
        tree = parse_or_none(files[path]) if path.endswith(".py") else None
        texts = (
            [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
            if tree
            else [files[path]]
        )
        words += [text[:500] for text in texts if isinstance(text, str) and text.strip()]
    return words[:200]


def _leaks(
    start: Files, solved: Files, paths: Sequence[str], folder: str | Path, *, is_known: bool
) -> Iterator[Trial]:
    """Files of the tree that hold the solution, or that are called so."""
    own = {path: [line.strip() for line in solved[path].splitlines()] for path in paths}
    told = {
        line for lines in start.items() if lines[0] in paths for line in map(str.strip, lines[1].splitlines())
    }
    new = {path: {one for one in lines if len(one) >= _LEAST_LINE} - (told if is_known else set())
           for path, lines in own.items()}  # fmt: skip
    for path, text in start.items():
        if path in paths:
            continue
        holds = next(
            (one for one, lines in new.items() if lines and all(line in text for line in lines)), None
        )
        if holds is not None or _ANSWER_NAMES.search(path):
            what = f"{path} holds the lines of {holds}" if holds else f"{path} is called like a solution"
            text = visible(text, 200)
            yield Trial(what, LEAKED, str(folder), TrialOutcome.ACCEPTED, None, "", _REASONS[LEAKED], text)
    if (Path(folder) / ".git").exists():
        what = "the folder holds .git: its commits may hold the solution"
        yield Trial(what, LEAKED, str(folder), TrialOutcome.REFUSED, None, "not read", _REASONS[LEAKED])


def _package_files(names: Sequence[str]) -> dict[str, str]:
    """The Python files of packages, and those that they import of others, by their paths in a workspace.

    What is compiled is left out. Raises `ConfigError` for a package that is not installed or cannot be
    imported.
    """
    if not names:
        return {}
    modules: set[str] = set()
    roots: set[Path] = set()
    for name in names:
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            raise ConfigError(
                f"the grader needs the package {name}, which is not installed here.",
                remedy=f"Install it (pip install {name}).",
            ) from None
        roots.add(Path(str(package.locate_file(""))).resolve())
        modules |= {
            file.parts[0].removesuffix(".py")
            for file in package.files or ()
            if file.suffix == ".py" and ".." not in file.parts
        }
    command = [sys.executable, "-c", _LOADED, *sorted(modules)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"the packages {', '.join(names)} cannot be imported: {str(error.stderr)[-300:].strip()}",
            remedy="Import them by hand, or leave them out.",
        ) from None
    files = {}
    for loaded in json.loads(done.stdout.splitlines()[-1]):
        path = Path(loaded).resolve() if loaded else Path()
        root = next((one for one in roots if path.is_relative_to(one)), None)
        if root is None or path.suffix != ".py":
            continue
        program = [path.with_name("__main__.py")] if path.name == "__init__.py" else []
        for one in (path, *filter(Path.is_file, program)):
            files[f"{_PACKAGES}/{one.relative_to(root).as_posix()}"] = one.read_text(encoding="utf-8")
    return files
