"""QuixBugs (Lin et al. 2017): programs with a bug on one line, to be repaired.

The folder is that of the upstream repository: `python_programs` (with the bug), `correct_python_programs`,
`json_testcases` (lines of `[arguments, expected]`) and `python_testcases` (pytest files, of which
those of the nine graph programs are read). A program's docstring is below its code.

- Programs that are generators are judged by the list of what they yield; `sqrt` within the tolerance
  that is its second argument.
- Three graph programs take plain data: their tests run as test programs in a process without the answer.
- Six take `Node` objects, which exist in the answer's process only: their tests run there and could be
  forged.
- Two cases (one of knapsack, one of levenshtein) take the right programs minutes to hours, the
  first also 30 GB. Upstream skips them by default, and so does this loader.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.json_rows import read_text
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet
from greenward.problems.python_source import parse
from greenward.user_files import expects
from greenward.user_text import parse_json_text

BUGGY, CORRECT = "python_programs", "correct_python_programs"
JSON_CASES, PYTEST = "json_testcases", "python_testcases"
# Except for sqrt, whose programs differ in what they accept as close enough, results are exact.
_COMPARISON = Comparison(tolerance=0.0, tuple_is_list=True)
_SLOW: Mapping[str, Callable[..., bool]] = {
    "knapsack": lambda capacity, items: capacity * len(items) > 10_000_000,
    "levenshtein": lambda source, target: len(source) * len(target) > 500,
}
# What the right program for levenshtein needs for its other cases, on a slow machine.
_CPU_SECONDS = {"levenshtein": 40.0}


@expects("QuixBugs", ProblemError)
def load_quixbugs(folder: str | Path) -> ProblemSet:
    """The 40 programs. `starter_code` is empty: the program in `buggy_code` is to be written anew.

    The programs that have JSON cases are tagged `json`, the graph programs `graph`. Raises
    `ProblemError`.
    """
    folder = Path(folder)
    for part in (BUGGY, CORRECT, JSON_CASES, PYTEST):
        if not (folder / part).is_dir():
            raise ProblemError(
                f"{folder}: expected the folder {part!r} of QuixBugs, found none.",
                remedy="Give the path of a copy of github.com/jkoppel/QuixBugs.",
            )
    tests = sorted(path.stem.removeprefix("test_") for path in (folder / PYTEST).glob("test_*.py"))
    if not tests:
        raise ProblemError(f"{folder / PYTEST}: there is no test file.")
    return ProblemSet((_problem(folder, name) for name in tests), name="quixbugs")


def _problem(folder: Path, name: str) -> Problem:
    reference = read_text(folder / CORRECT / f"{name}.py", within=folder)
    problem = Problem(
        task_id=f"QuixBugs/{name}",
        prompt="One line of this program is wrong.",
        entry_point=name,
        reference=reference,
        buggy_code=read_text(folder / BUGGY / f"{name}.py", within=folder),
    )
    cases = folder / JSON_CASES / f"{name}.json"
    if cases.is_file():
        rows = _json_cases(cases)
        in_time = [row for row in rows if name not in _SLOW or not _SLOW[name](*row[0])]
        tests = _assertions(name, reference, in_time)
        return replace(
            problem,
            cases=() if tests else tuple(Case(arguments, value) for arguments, value in in_time),
            tests=tests,
            comparison=_COMPARISON,
            tags=("json",),
            tests_left_out=len(rows) - len(in_time),
            cpu_seconds=_CPU_SECONDS.get(name, 0.0),
        )
    module = parse(read_text(folder / PYTEST / f"test_{name}.py", within=folder))
    set_up, programs = _split_pytest_file(module)
    if any(isinstance(node, ast.Name) and node.id == "Node" for node in ast.walk(module)):
        return replace(
            problem,
            in_process_tests=tuple(f"{set_up}\n{program}" for program in programs),
            setup_code=read_text(folder / PYTEST / "node.py", within=folder),
            tags=("graph",),
        )
    return replace(problem, checks=programs, check_setup_code=set_up, tags=("graph",))


def _json_cases(path: Path) -> list[tuple[tuple[Any, ...], Any]]:
    rows = []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if line.strip():
            try:
                arguments, expected = parse_json_text(line)
            except (ValueError, TypeError) as error:
                raise ProblemError(
                    f"{path}, line {number}: expected [arguments, expected]: {error}."
                ) from None
            # Upstream: what is no list is the only argument.
            rows.append((tuple(arguments) if isinstance(arguments, list) else (arguments,), expected))
    return rows


def _assertions(name: str, reference: str, rows: list[tuple[tuple[Any, ...], Any]]) -> tuple[str, ...]:
    """The cases as assert statements where a call must not be compared as it is; else nothing."""
    calls = [(f"{name}({', '.join(map(repr, arguments))})", arguments, value) for arguments, value in rows]
    if name == "sqrt":
        return tuple(
            f"assert abs({call} - {value!r}) <= {arguments[-1]!r}" for call, arguments, value in calls
        )
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in ast.walk(parse(reference))):
        return tuple(f"assert list({call}) == {value!r}" for call, _, value in calls)
    return ()


def _split_pytest_file(module: ast.Module) -> tuple[str, tuple[str, ...]]:
    """(what the tests share, a program for each test that calls it)."""
    shared, programs = [], []
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            programs.append(f"{ast.unparse(node)}\n{node.name}()\n")
        # Some statements choose which program is imported: the buggy or the correct one.
        elif not any(isinstance(inner, (ast.Import, ast.ImportFrom)) for inner in ast.walk(node)):
            shared.append(node)
    return ast.unparse(ast.Module(shared, [])), tuple(programs)
