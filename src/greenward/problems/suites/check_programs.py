"""Formats whose problems are judged by a test program: HumanEval and those made in its image.

- HumanEval (Chen et al. 2021, arXiv:2107.03374): rows hold `task_id`, `prompt` (imports, helpers, the
  signature and its docstring), `canonical_solution` (the body, if there is one), `entry_point` and `test`, a
  program that defines `check(candidate)`. Some tests call helpers of the prompt. The Python files of MBXP and
  mxeval (Athiwaratkun et al. 2022, arXiv:2210.14868) have this form and name their `language`.
- LeetCodeDataset (arXiv:2504.14655): as HumanEval, but `entry_point` is a method (`Solution().twoSum`), and
  `prompt` holds the imports and helper classes that stand before every answer. As in the original harness,
  one instance serves all calls of a check. Instances of the helper classes (linked lists, trees) are sent
  between the processes as tables of their attributes, and the receiving process builds them again from its
  own class, so that no code of an answer comes with them.
- HumanEvalPack (Muennighoff et al. 2023, arXiv:2308.07124), Python: also `declaration` (the prompt without
  docstring), `buggy_solution` (the body with the bug) and `bug_type`. As in the suite's task of repair by
  tests, the problem does not show the docstring: the bug is to be found in the code and its tests.
- MultiPL-E (Cassano et al. 2022, arXiv:2208.08227), Python: rows hold `name`, `language`, `prompt` and
  `tests` (a program that calls the function, usually by a `check` of its own).
"""

from __future__ import annotations

import ast
import re

from greenward.problems.data_files import read_programs
from greenward.problems.json_rows import Format, Row
from greenward.problems.mutation.repair import KIND_TAG
from greenward.problems.problem import Problem
from greenward.problems.python_source import Definition, FunctionNode, function_named, parse_prompt


def docstring(tree: ast.Module, entry_point: str, default: str) -> str:
    """The specification in words: the docstring of the function that is asked for, else `default`."""
    function = function_named(tree, entry_point)
    for statement in function.body if function else ():
        # Not `ast.get_docstring`: HumanEval/115 has an import before its docstring.
        constant = statement.value if isinstance(statement, ast.Expr) else None
        if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
            return constant.value.strip()
    return default.strip()


def _humaneval(row: Row) -> Problem:
    _demand_python(row)
    if method := _METHOD.fullmatch(row.text("entry_point")):
        return _method_problem(row, *method.groups())
    entry_point = row.name("entry_point")
    prompt = row.text("prompt")
    solution = row.first_text("canonical_solution")
    return Problem(
        task_id=row.text("task_id"),
        prompt=docstring(row.python("prompt", parser=parse_prompt), entry_point, prompt),
        entry_point=entry_point,
        checks=(_check_program(row, entry_point),),
        check_setup_code=_helpers(row, entry_point),
        starter_code=prompt,
        reference=prompt + solution if solution else "",
    )


def _humanevalpack(row: Row) -> Problem:
    task_id = row.text("task_id")
    if not task_id.startswith("Python/"):
        raise row.error("task_id", f"must name a problem in Python, as Python/0 does, found {task_id!r}")
    entry_point = row.name("entry_point")
    declaration = row.text("declaration")
    kind = row.text("bug_type", default="").strip().replace(" ", "_")
    return Problem(
        task_id=task_id,
        prompt="",
        entry_point=entry_point,
        checks=(_check_program(row, entry_point, keep_call=True),),
        check_setup_code=_helpers(row, entry_point),
        starter_code=declaration,
        reference=declaration + row.text("canonical_solution"),
        buggy_code=declaration + row.text("buggy_solution"),
        tags=(f"{KIND_TAG}{kind}",) if kind else (),
    )


def _multipl_e(row: Row) -> Problem:
    _demand_python(row)
    prompt = row.text("prompt")
    tree = row.python("prompt", parser=parse_prompt)
    names = [node.name for node in tree.body if isinstance(node, FunctionNode)]
    if not names:
        raise row.error("prompt", "does not end in the signature of a function")
    entry_point = names[-1]
    tests = row.text("tests")
    body = row.python("tests").body
    definitions = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    if all(isinstance(node, definitions) for node in body):  # nothing is called, every answer would pass
        if not _defines_check(body):
            raise row.error("tests", "neither calls the function nor defines check(candidate)")
        tests = f"{tests}\n\ncheck({entry_point})\n"
    return Problem(
        task_id=row.text("name"),
        prompt=docstring(tree, entry_point, prompt),
        entry_point=entry_point,
        checks=(tests,),
        check_setup_code=_helpers(row, entry_point),
        starter_code=prompt,
    )


def _helpers(row: Row, entry_point: str) -> str:
    """What the prompt defines besides the function that is asked for: imports, constants, helpers."""
    body = row.python("prompt", parser=parse_prompt).body
    kept = [node for node in body if not (isinstance(node, Definition) and node.name == entry_point)]
    if len(kept) == len(body):
        raise row.error("prompt", f"does not define the function {entry_point!r}")
    return ast.unparse(ast.Module(kept, []))


def _demand_python(row: Row) -> None:
    language = row.text("language", default="python")
    if language.lower() not in ("python", "py"):
        raise row.error("language", f"is {language!r}; only Python can be judged")


HUMANEVAL = Format(
    "HumanEval, MBXP/mxeval (Python), LeetCodeDataset",
    ("entry_point", "test"),
    '{"task_id": …, "prompt": …, "canonical_solution": …, "entry_point": …, "test": …}',
    _humaneval,
)
HUMANEVALPACK = Format(
    "HumanEvalPack",
    ("buggy_solution",),
    '{"task_id": "Python/0", "prompt": …, "declaration": …, "canonical_solution": …, "buggy_solution": …, '
    '"bug_type": …, "test": …, "entry_point": …}',
    _humanevalpack,
)
MULTIPL_E = Format(
    "MultiPL-E (Python)",
    ("name", "prompt", "tests"),
    '{"name": …, "language": "py", "prompt": …, "tests": …, "stop_tokens": […]}',
    _multipl_e,
)


_METHOD = re.compile(r"([A-Za-z_]\w*)\(\)\.([A-Za-z_]\w*)")

# Source for both processes. Shared and circular references survive; objects within objects are not
# recursed into, because a linked list may be long.
_PROGRAMS = read_programs("method_programs.txt")


def _method_problem(row: Row, cls: str, method: str) -> Problem:
    """The problem of a row whose `entry_point` is this method of this class."""
    preamble = row.text("prompt", default="")
    classes = [node.name for node in row.python("prompt", preamble).body if isinstance(node, ast.ClassDef)]
    names = {"cls": cls, "method": method, "classes": ", ".join(classes)}
    check_setup, setup = preamble, f"{method} = {cls}().{method}"
    if classes:
        check_setup += _PROGRAMS["both sides"] + _PROGRAMS["check side"].format(**names)
        setup = _PROGRAMS["both sides"] + _PROGRAMS["answer side"].format(**names)
    difficulty = row.values.get("difficulty")
    return Problem(
        task_id=row.text("task_id"),
        prompt=row.first_text("problem_description", "query").strip(),
        entry_point=method,
        checks=(_check_program(row, "_candidate" if classes else method),),
        check_setup_code=check_setup,
        preamble=preamble,
        setup_code=setup,
        starter_code=row.first_text("starter_code"),
        reference=row.first_text("completion", "canonical_solution"),
        tags=(difficulty,) if isinstance(difficulty, str) and difficulty else (),
    )


def _check_program(row: Row, candidate: str, *, keep_call: bool = False) -> str:
    """The program `test` of a row, which defines `check(candidate)`, with one call of it at the end.

    A call that the program makes itself at its top level is replaced or, with `keep_call`, kept.
    """
    source = row.text("test")
    body = row.python("test").body
    if not _defines_check(body):
        raise row.error("test", "does not define check(candidate)")
    kept = [node for node in body if not _calls_check(node)]
    if len(kept) < len(body):
        if keep_call:
            return source
        source = ast.unparse(ast.Module(kept, []))
    return f"{source}\n\ncheck({candidate})\n"


def _defines_check(body: list[ast.stmt]) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body)


def _calls_check(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"
