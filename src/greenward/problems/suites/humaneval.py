"""HumanEval (Chen et al. 2021, arXiv:2107.03374) and files of its form.

Rows hold `task_id`, `prompt` (imports, helpers, the signature and its docstring),
`canonical_solution` (the body, if there is one), `entry_point` and `test`, a program that defines
`check(candidate)`. Some tests call helpers of the prompt. The Python files of MBXP and mxeval
(Athiwaratkun et al. 2022, arXiv:2210.14868) have this form and name their `language`. Where the entry
point is a method, see `class_checks`.
"""

from __future__ import annotations

import ast
from pathlib import Path

from greenward.problems.json_rows import Row
from greenward.problems.problem import Problem, ProblemSet
from greenward.problems.python_source import parse
from greenward.problems.suites.class_checks import METHOD, check_program, class_problem
from greenward.problems.suites.rows import problem_set

EXAMPLE = '{"task_id": …, "prompt": …, "canonical_solution": …, "entry_point": …, "test": …}'


def load_humaneval(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of `HumanEval.jsonl.gz`, each with its `check` as a test program.

    Raises `ProblemError`.
    """
    return problem_set(Path(path), _problem, example=EXAMPLE, skip_bad_rows=skip_bad_rows)


def helpers(row: Row, entry_point: str) -> str:
    """What the prompt defines beside the function that is asked for: imports, constants, helpers."""
    prompt = row.text("prompt")
    try:
        try:
            tree = parse(prompt)
        except SyntaxError:  # a signature without a docstring
            tree = parse(prompt.rstrip() + "\n    pass\n")
    except (SyntaxError, ValueError) as error:
        raise row.error("prompt", f"is not Python: {error}") from None
    is_asked_for = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    kept = [node for node in tree.body if not (isinstance(node, is_asked_for) and node.name == entry_point)]
    if len(kept) == len(tree.body):
        raise row.error("prompt", f"does not define the function {entry_point!r}")
    return ast.unparse(ast.Module(kept, []))


def docstring(row: Row, entry_point: str) -> str:
    """The specification in words: the docstring of the function in the prompt, else the prompt."""
    prompt = row.text("prompt")
    try:
        for node in parse(prompt).body:
            if isinstance(node, ast.FunctionDef) and node.name == entry_point:
                strings = (
                    statement.value.value
                    for statement in node.body
                    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                )
                # Not `ast.get_docstring`: HumanEval/115 imports something first.
                text = next((string for string in strings if isinstance(string, str)), None)
                if text is not None:
                    return text.strip()
    except SyntaxError:
        pass
    return prompt.strip()


def demand_python(row: Row) -> None:
    """Raises `BadRow` for a row that names another language than Python."""
    language = row.text("language", default="python")
    if language.lower() not in ("python", "py"):
        raise row.error("language", f"is {language!r}; only Python can be judged")


def _problem(row: Row) -> Problem:
    demand_python(row)
    if METHOD.fullmatch(row.text("entry_point")):
        return class_problem(row)
    entry_point = row.name("entry_point")
    prompt = row.text("prompt")
    return Problem(
        task_id=row.text("task_id"),
        prompt=docstring(row, entry_point),
        entry_point=entry_point,
        checks=(check_program(row, "test", entry_point),),
        check_setup_code=helpers(row, entry_point),
        starter_code=prompt,
        reference=prompt + row.text("canonical_solution") if row.values.get("canonical_solution") else "",
    )
