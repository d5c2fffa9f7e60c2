"""MBPP (Austin et al. 2021, arXiv:2108.07732), in full and sanitized.

Rows hold `task_id`, `text` (sanitized: `prompt`), `code`, `test_list` and, in full,
`test_setup_code` and `challenge_test_list`, sanitized, `test_imports`. What the files do not say: line
ends are CRLF; the set-up code uses names of the solution, so that it runs after the solution; only the tests
name the function that is asked for; tests use modules that only the solution imports; three
solutions return match objects, which cannot leave their process and are judged by their truth value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.json_rows import Format, Row, read_problems
from greenward.problems.mutation.repair import original_id
from greenward.problems.problem import Comparison, Problem, ProblemSet
from greenward.problems.python_source import Definition

# The paper's split by id.
PARTS = {
    "prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975),
}  # fmt: skip
_TASK_ID = re.compile(r"mbpp/(\d+)", re.IGNORECASE)


def part_of(task_id: str) -> str | None:
    """The part of MBPP's split to which a problem belongs; None for one that is not MBPP's.

    MBPP+ and the sanitized set have the ids of the full set.
    """
    match = _TASK_ID.fullmatch(task_id)
    number = int(match[1]) if match else 0
    return next((part for part, ids in PARTS.items() if number in ids), None)


def refuse_test_ids(problems: Iterable[Problem], *, override: str) -> None:
    """Raises `ProblemError` if there are test problems of MBPP (ids 11 to 510) among those to train on.

    `override` is the setting by which the user trains on them nevertheless.
    """
    test = [problem.task_id for problem in problems if part_of(original_id(problem)) == "test"]
    if test:
        raise ProblemError(
            f"{len(test)} of the problems to train on are test problems of MBPP, ids 11 to 510"
            f" (first: {test[0]}).",
            remedy=f"Train on mbpp:train (ids 601 to 974), or set {override}: no MBPP score of the"
            " trained model means anything then.",
        )


def load_challenge_tests(path: str | Path) -> ProblemSet:
    """The problems of `mbpp.jsonl`; eleven of them also have the harder tests of `challenge_test_list`."""
    return read_problems(Path(path), replace(MBPP, problem=lambda row: _problem(row, challenge=True)))


def _problem(row: Row, challenge: bool = False) -> Problem:
    row = replace(row, values={field: _with_unix_line_ends(value) for field, value in row.values.items()})
    number = row.values.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise row.error("task_id", f"must be a positive number, found {number!r}")
    prompt = row.text("prompt" if "prompt" in row.values else "text").strip()
    code = row.text("code")
    tests = row.texts("test_list")
    if not tests:
        raise row.error("test_list", "is empty: nothing would judge an answer")
    solution = row.python("code", code)
    calls = row.python("test_list", "\n".join(tests))
    # The function that is asked for is the first that the tests call and the solution defines.
    defined = {node.name for node in solution.body if isinstance(node, Definition)}
    called = (node.func for test in calls.body for node in ast.walk(test) if isinstance(node, ast.Call))
    name = next((one.id for one in called if isinstance(one, ast.Name) and one.id in defined), None)
    if name is None:
        raise row.error("test_list", "calls no function that 'code' defines")
    set_up = [*row.texts("test_imports"), row.text("test_setup_code", default="")]
    row.python("test_setup_code", "\n".join(set_up), problem="or test_imports is not Python")
    names = {node.id for node in ast.walk(calls) if isinstance(node, ast.Name)}
    for node in solution.body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):  # what the tests use (`sys` in Mbpp/596)
            bound = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            set_up += [ast.unparse(node)] if bound & names else []
    task_id = f"Mbpp/{number}"
    part = part_of(task_id)
    return Problem(
        task_id=task_id,
        prompt=prompt,
        entry_point=name,
        tests=tests + (row.texts("challenge_test_list") if challenge else ()),
        setup_code="\n".join(part for part in set_up if part.strip()),
        # The docstring prompt of InCoder, which EvalPlus and bigcode also use.
        starter_code=f'"""\n{prompt}\n{tests[0]}\n"""\n',
        reference=code,
        comparison=Comparison(tolerance=0.0),  # its assert statements demand equality
        tags=(part,) if part else (),
    )


MBPP = Format(
    "MBPP", ("test_list",), '{"task_id": 2, "text": …, "code": …, "test_list": ["assert …", …]}', _problem
)


def _with_unix_line_ends(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_unix_line_ends(item) for item in value]
    return value.replace("\r\n", "\n") if isinstance(value, str) else value
