"""MBPP (Austin et al. 2021, arXiv:2108.07732), in full and sanitized.

Rows hold `task_id`, `text` (sanitized: `prompt`), `code`, `test_list` and, in full,
`test_setup_code` and `challenge_test_list`, sanitized, `test_imports`. What the files hide: line
ends are CRLF; the set-up code uses names of the solution, so that it runs after it; nothing names
the function that is asked for but its tests; tests use modules that only the solution imports; three
solutions return match objects, which cannot leave their process and are judged by their truth.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

from greenward.errors import ProblemError
from greenward.problems.bugs.repair import original_id
from greenward.problems.json_rows import Row
from greenward.problems.problem import Comparison, Problem, ProblemSet
from greenward.problems.python_source import parse
from greenward.problems.suites.rows import problem_set

EXAMPLE = '{"task_id": 2, "text": …, "code": …, "test_list": ["assert …", …]}'
# The paper's split by id.
PARTS = {
    "prompt": range(1, 11),
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
}
_TASK_ID = re.compile(r"mbpp/(\d+)", re.IGNORECASE)


def load_mbpp(path: str | Path, *, challenge: bool = False, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of `mbpp.jsonl` or `sanitized-mbpp.json`, tagged with their part of the split.

    With `challenge`, the harder tests that eleven problems have are added to theirs. Raises
    `ProblemError`.
    """
    return problem_set(
        Path(path), lambda row: _problem(row, challenge), example=EXAMPLE, skip_bad_rows=skip_bad_rows
    )


def part_of(task_id: str) -> str | None:
    """The part of MBPP's split in which a problem lies; None for one that is not MBPP's.

    MBPP+ and the sanitized set have the ids of the full set.
    """
    match = _TASK_ID.fullmatch(task_id)
    number = int(match[1]) if match else 0
    return next((part for part, ids in PARTS.items() if number in ids), None)


def refuse_test_ids(problems: Iterable[Problem], *, override: str) -> None:
    """Raises `ProblemError` if MBPP's test problems (ids 11 to 510) are among those to train on.

    `override` is what the user sets to train on them all the same.
    """
    test = [problem.task_id for problem in problems if part_of(original_id(problem)) == "test"]
    if test:
        raise ProblemError(
            f"{len(test)} of the problems to train on are test problems of MBPP, ids 11 to 510"
            f" (first: {test[0]}).",
            remedy=f"Train on mbpp:train (ids 601 to 974), or set {override}: no MBPP score of the"
            " trained model means anything then.",
        )


def entry_point(tests: Iterable[str], code: str) -> str | None:
    """The function that is asked for: the first that the tests call and the solution defines."""
    defined = {
        node.name
        for node in parse(code).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    for test in tests:
        for node in ast.walk(parse(test)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
                return node.func.id
    return None


def _problem(row: Row, challenge: bool) -> Problem:
    number = row.values.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise row.error("task_id", f"must be a positive number, found {number!r}")
    prompt = row.text("prompt" if "prompt" in row.values else "text").strip()
    code = _with_plain_line_ends(row.text("code"))
    tests = _tests(row, "test_list")
    if not tests:
        raise row.error("test_list", "is empty: nothing would judge an answer")
    try:
        name = entry_point(tests, code)
    except (SyntaxError, ValueError) as error:
        raise row.error("code", f"or a test is not Python: {error}") from None
    if name is None:
        raise row.error("test_list", "calls no function that 'code' defines")
    set_up = [*row.texts("test_imports"), row.text("test_setup_code", default="")]
    try:
        parse("\n".join(set_up))
    except (SyntaxError, ValueError) as error:
        raise row.error("test_setup_code", f"or test_imports is not Python: {error}") from None
    set_up += _imports_that_tests_use(code, tests)
    challenge_tests = _tests(row, "challenge_test_list") if challenge else ()
    task_id = f"Mbpp/{number}"
    part = part_of(task_id)
    return Problem(
        task_id=task_id,
        prompt=prompt,
        entry_point=name,
        tests=(*tests, *challenge_tests),
        setup_code=_with_plain_line_ends("\n".join(part for part in set_up if part.strip())),
        # The docstring prompt of InCoder, which EvalPlus and bigcode use, too.
        starter_code=f'"""\n{prompt}\n{tests[0]}\n"""\n',
        reference=code,
        comparison=Comparison(tolerance=0.0),  # its assert statements mean equality
        tags=(part,) if part else (),
    )


def _tests(row: Row, field: str) -> tuple[str, ...]:
    return tuple(_with_plain_line_ends(test) for test in row.texts(field))


def _imports_that_tests_use(code: str, tests: Iterable[str]) -> list[str]:
    """Import statements of the solution whose names the tests use (`sys` in Mbpp/596)."""
    used = {node.id for test in tests for node in ast.walk(parse(test)) if isinstance(node, ast.Name)}
    return [
        ast.unparse(node)
        for node in parse(code).body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        and any((alias.asname or alias.name.partition(".")[0]) in used for alias in node.names)
    ]


def _with_plain_line_ends(source: str) -> str:
    return source.replace("\r\n", "\n")
