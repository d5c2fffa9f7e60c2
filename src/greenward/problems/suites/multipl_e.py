"""Python problems in the form of MultiPL-E (Cassano et al. 2022, arXiv:2208.08227).

Rows hold `name`, `language`, `prompt` (imports, the signature and its docstring), `tests` (a program that
calls the function, mostly by a `check` of its own) and `stop_tokens`, at which the harness cuts completions
before it grades them; files of samples hold them cut.
"""

from __future__ import annotations

import ast
from pathlib import Path

from greenward.problems.json_rows import Row
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.python_source import parse
from greenward.problems.suites.humaneval import demand_python, docstring, helpers
from greenward.problems.suites.rows import problem_set

EXAMPLE = '{"name": …, "language": "py", "prompt": …, "tests": …, "stop_tokens": […]}'


def load_multipl_e(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a file of rows in Python, each with its `tests` as a test program.

    Raises `ProblemError`, also for rows in other languages.
    """
    return problem_set(Path(path), _problem, example=EXAMPLE, skip_bad_rows=skip_bad_rows)


def _problem(row: Row) -> Problem:
    demand_python(row)
    prompt = row.text("prompt")
    name = _entry_point(row)
    tests = row.text("tests")
    try:
        tree = parse(tests)
    except (SyntaxError, ValueError) as error:
        raise row.error("tests", f"is not Python: {error}") from None
    definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    if all(isinstance(node, definitions) for node in tree.body):  # nothing runs, every answer would pass
        if not any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
            raise row.error("tests", "neither calls the function nor defines check(candidate)")
        tests = f"{tests}\n\ncheck({name})\n"
    return Problem(
        task_id=row.text("name"),
        prompt=docstring(row, name),
        entry_point=name,
        checks=(tests,),
        check_setup_code=helpers(row, name),
        starter_code=prompt,
    )


def _entry_point(row: Row) -> str:
    """The function that is asked for: the last that the prompt defines."""
    prompt = row.text("prompt")
    for source in (prompt, prompt.rstrip() + "\n    pass\n"):  # a signature without a docstring
        try:
            tree = parse(source)
        except (SyntaxError, ValueError):
            continue
        names = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
        if names:
            return names[-1]
    raise row.error("prompt", "does not end in the signature of a function")
