"""Reads problems from files of known formats.

- HumanEval (Chen et al. 2021, arXiv:2107.03374): rows hold `task_id`, `prompt` (imports, helpers, the
  signature and its docstring), `canonical_solution` (the body, if there is one), `entry_point` and `test`, a
  program that defines `check(candidate)`. Some tests call helpers of the prompt. The Python files of MBXP
  and mxeval (Athiwaratkun et al. 2022, arXiv:2210.14868) have this form and name their `language`.
- LeetCodeDataset (arXiv:2504.14655): as HumanEval, but `entry_point` is a method (`Solution().twoSum`), and
  `prompt` holds the imports and helper classes that stand before every answer. As in the original harness,
  one instance serves all calls of a check. Instances of the helper classes (linked lists, trees) are sent
  between the processes as tables of their attributes, and the receiving process builds them again from its
  own class, so that no code of an answer comes with them.
- HumanEval-X (Zheng et al. 2023, arXiv:2303.17568), Python: as HumanEval, with a `declaration` and without an
  `entry_point`: that is the last function of `prompt`, and `test` calls its `check` itself.
- HumanEvalPack (Muennighoff et al. 2023, arXiv:2308.07124), Python: also `declaration` (the prompt without
  docstring), `buggy_solution` (the body with the bug) and `bug_type`. As in the suite's task of repair by
  tests, the problem does not show the docstring: the bug is to be found in the code and its tests.
- BigCodeBench (Zhuo et al. 2024, arXiv:2406.15877): rows hold `task_id`, `complete_prompt`, `libs`,
  `canonical_solution`, `entry_point` and `test`, a `unittest.TestCase` that patches what the function uses.
  It runs beside the answer, which is a module `solution` there, and needs the packages of `libs`.
- KodCode (Xu et al. 2025, arXiv:2503.02951): rows hold `question`, `solution`, `test` (a file for pytest
  that imports `solution`) and `test_info`, which declares the functions. See `pytest_fields`.
- AceCode (Zeng et al. 2025, arXiv:2502.01718): rows hold `id`, `question` and `test_cases` (in its second
  version `tests`), which are assert statements.
- MultiPL-E (Cassano et al. 2022, arXiv:2208.08227), Python: rows hold `name`, `language`, `prompt` and
  `tests` (a program that calls the function, usually by a `check` of its own).
- Simple JSON: one object for each problem, in a list or one on each line, such as `{"function_name": "add",
  "docstring": "Add two numbers.", "starter_code": "", "test_cases": [[2, 3, 5], {"input": [0, 0], "output":
  0}]}`. A test case is a list of the inputs and, last, the expected output, or an object. If the starter
  code or the reference takes two or more arguments, a case whose only input is a list of as many values
  (`[[2, 3], 5]`, as in older files) is spread over them; otherwise that list is the only input. Where neither
  tells, lists that all have one length of two or more are spread; an unclear case is an error. JSON has no
  tuples, so an answer may return a tuple where a list is expected.
- MBPP (Austin et al. 2021, arXiv:2108.07732), full and sanitized: rows hold `task_id`, `text` (sanitized:
  `prompt`), `code`, `test_list` and, in full, `test_setup_code` and `challenge_test_list`, sanitized,
  `test_imports`. What the files do not say: line ends are CRLF; the set-up code uses names of the solution,
  so it runs after the solution; only the tests name the function that is asked for; tests use modules that
  only the solution imports; three solutions return match objects, which cannot leave their process and are
  judged by their truth value.
- HumanEval+ and MBPP+ (Liu et al. 2023, arXiv:2305.01210), EvalPlus's own files: rows hold `task_id`,
  `prompt`, `entry_point`, `canonical_solution`, `base_input` (the original inputs), `plus_input`
  (EvalPlus's) and `atol`. Every case expects what the reference returns, which `grading.judge` computes.
  Where EvalPlus declares that this would be wrong, another rule of comparison holds (`RULES`), or, where a
  specification can be read in two ways or has many right answers, an oracle judges the value: Python source
  that defines `judge(candidate, arguments)`. One is stricter than EvalPlus's: for Mbpp/164 EvalPlus accepts
  whatever is returned. JSON lost types of the inputs: tuples, sets, complex numbers. Which arguments had
  which type is known by problem only: MBPP's own tests call the same functions with Python literals, and
  EvalPlus has a table of the same content. EvalPlus compares numbers as numpy's `allclose` does, with a
  relative tolerance of 1e-7 and the row's absolute one, 1e-6 where it is 0; both hold here for every float,
  however deep it lies, where EvalPlus compares those in nested values exactly unless an earlier input gave
  floats. Standard input is empty: `input()` raises `EOFError`, in EvalPlus `OSError`. Memory is 1 GiB, in
  EvalPlus 4 GiB. numpy needs `--package numpy`; its scalars and arrays then count as the values and nested
  lists that they hold, where EvalPlus fails an answer that returns an array of more than one element. Decimal
  and Fraction count as numbers wherever a number is expected. Of an answer that is no
  Python, the program in it is judged (`grade --extract`: without the words around it and its torn end, or
  with the indentation that it has lost), where EvalPlus runs the text as it is, unless its
  `sanitize` has changed it before.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from greenward.common.errors import ProblemError
from greenward.problems.names import KIND_TAG
from greenward.problems.problem import (
    Assertion,
    Case,
    Check,
    Comparison,
    Doctest,
    Expected,
    InProcess,
    Problem,
    ProblemSet,
    Rule,
    original_id,
)
from greenward.problems.python_source import (
    Definition,
    FunctionNode,
    FunctionSignature,
    default_parameters,
    function_named,
    in_quotes,
    parse_or_none,
    parse_prompt,
    starter_code,
)
from greenward.problems.rows import Format, Row, read_problems, read_programs
from greenward.problems.sandboxed_suites import RUNNER, run_by_runner, sandboxed
from greenward.runs.files import write_atomically


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
    return _with_docstring(row, row.name("entry_point"))


def _with_docstring(row: Row, entry_point: str, *, keep_call: bool = False) -> Problem:
    """The problem of a row whose `prompt` ends in this function, with its docstring and without its body."""
    prompt = row.text("prompt")
    solution = row.first_text("canonical_solution")
    return Problem(
        task_id=row.text("task_id"),
        prompt=docstring(row.python("prompt", parser=parse_prompt), entry_point, prompt),
        entry_point=entry_point,
        tests=(Check(_check_program(row, entry_point, keep_call=keep_call)),),
        check_setup_code=_helpers(row, entry_point),
        starter_code=prompt,
        reference=prompt + solution if solution else "",
    )


def _humaneval_x(row: Row) -> Problem:
    _demand_python_id(row)
    return _with_docstring(row, _last_function(row), keep_call=True)


def _humanevalpack(row: Row) -> Problem:
    _demand_python_id(row)
    entry_point = row.name("entry_point")
    declaration = row.text("declaration")
    kind = row.text("bug_type", default="").strip().replace(" ", "_")
    return Problem(
        task_id=row.text("task_id"),
        prompt="",
        entry_point=entry_point,
        tests=(Check(_check_program(row, entry_point, keep_call=True)),),
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
    entry_point = _last_function(row)
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
        tests=(Check(tests),),
        check_setup_code=_helpers(row, entry_point),
        starter_code=prompt,
    )


def _last_function(row: Row) -> str:
    """The function that the prompt ends in."""
    tree = row.python("prompt", parser=parse_prompt)
    names = [node.name for node in tree.body if isinstance(node, FunctionNode)]
    if not names:
        raise row.error("prompt", "does not end in the signature of a function")
    return names[-1]


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


def _demand_python_id(row: Row) -> None:
    task_id = row.text("task_id")
    if not task_id.startswith("Python/"):
        raise row.error("task_id", f"must name a problem in Python, as Python/0 does, found {task_id!r}")


HUMANEVAL = Format(
    "humaneval",
    "HumanEval, MBXP/mxeval (Python), LeetCodeDataset",
    ("task_id", "prompt", "entry_point", "test"),
    '{"task_id": …, "prompt": …, "canonical_solution": …, "entry_point": …, "test": …}',
    _humaneval,
    foreign=("base_input", "plus_input", "declaration", "buggy_solution", "complete_prompt", "reward_model"),
)
HUMANEVAL_X = Format(
    "humaneval-x",
    "HumanEval-X (Python)",
    ("task_id", "prompt", "declaration", "canonical_solution", "test"),
    '{"task_id": "Python/0", "prompt": …, "declaration": …, "canonical_solution": …, "test": …}',
    _humaneval_x,
    foreign=("entry_point", "buggy_solution"),
)
HUMANEVALPACK = Format(
    "humanevalpack",
    "HumanEvalPack",
    ("task_id", "prompt", "declaration", "canonical_solution", "buggy_solution", "entry_point", "test"),
    '{"task_id": "Python/0", "prompt": …, "declaration": …, "canonical_solution": …, "buggy_solution": …, '
    '"bug_type": …, "test": …, "entry_point": …}',
    _humanevalpack,
)
MULTIPL_E = Format(
    "multipl-e",
    "MultiPL-E (Python)",
    ("name", "prompt", "tests"),
    '{"name": …, "language": "py", "prompt": …, "tests": …, "stop_tokens": […]}',
    _multipl_e,
)


_METHOD = re.compile(r"([A-Za-z_]\w*)\(\)\.([A-Za-z_]\w*)")

# Source for both processes. Shared and circular references survive; objects within objects are not
# recursed into, because a linked list may be long.
_METHOD_PROGRAMS = read_programs("method_programs.txt")


def _method_problem(row: Row, cls: str, method: str) -> Problem:
    """The problem of a row whose `entry_point` is this method of this class."""
    preamble = row.text("prompt", default="")
    classes = [node.name for node in row.python("prompt", preamble).body if isinstance(node, ast.ClassDef)]
    names = {"cls": cls, "method": method, "classes": ", ".join(classes)}
    check_setup, setup = preamble, f"{method} = {cls}().{method}"
    if classes:
        check_setup += _METHOD_PROGRAMS["both sides"] + _METHOD_PROGRAMS["check side"].format(**names)
        setup = _METHOD_PROGRAMS["both sides"] + _METHOD_PROGRAMS["answer side"].format(**names)
    difficulty = row.values.get("difficulty")
    return Problem(
        task_id=row.text("task_id"),
        prompt=row.first_text("problem_description", "query").strip(),
        entry_point=method,
        tests=(Check(_check_program(row, "_candidate" if classes else method)),),
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


_MODULE, _TEST_MODULE = "solution", "test_solution"


def _bigcodebench(row: Row) -> Problem:
    entry_point = row.name("entry_point")
    starter = row.text("complete_prompt")
    tree = row.python("complete_prompt", parser=parse_prompt)
    if function_named(tree, entry_point) is None:
        raise row.error("complete_prompt", f"does not define the function {entry_point!r}")
    names = [
        f"{_TEST_MODULE}.{node.name}.{method.name}"
        for node in row.python("test").body
        if isinstance(node, ast.ClassDef)
        for method in _test_functions(node.body)
    ]
    if not names:
        raise row.error("test", "holds no unittest.TestCase with tests")
    # There, the tests follow the answer in one file, and use what it imports.
    test = f"from {_MODULE} import *\n{row.text('test')}\n"
    return Problem(
        task_id=row.text("task_id"),
        prompt=docstring(tree, entry_point, starter),
        entry_point=entry_point,
        path=f"{_MODULE}.py",
        test_files={RUNNER: sandboxed(RUNNER), f"{_TEST_MODULE}.py": test},
        **run_by_runner(names),
        starter_code=starter,
        reference=starter + row.text("canonical_solution"),
    )


def _kodcode(row: Row) -> Problem:
    solution, question = row.text("solution", default=""), row.text("question").strip()
    info: Any = row.values.get("test_info")
    declared = info[0].get("function_declaration") if isinstance(info, list) and info else None
    tree = (
        parse_or_none(f"{declared.strip().rstrip(':')}:\n    pass\n") if isinstance(declared, str) else None
    )
    fields = pytest_fields(row, "test", row.text("test"), solution)
    function = function_named(tree, fields["entry_point"]) if tree else None
    return Problem(
        task_id=f"KodCode/{row.values.get('question_id') or row.number - 1}",
        prompt=question,
        starter_code=starter_code(function.name, FunctionSignature.of(function).parameters, question)
        if function
        else "",
        reference=solution,
        tags=tuple(filter(None, [row.first_text("subset"), row.first_text("gpt_difficulty")])),
        **fields,
    )


def pytest_fields(row: Row, field: str, source: str, solution: str) -> dict[str, Any]:
    """The fields of a problem that a file of tests for pytest judges, which imports the module `solution`.

    Plain test functions that only use what a single function returns or raises are check programs. Others
    run beside the answer: such as need classes or more names of it, or look at what it does to their
    arguments. pytest runs those that use its fixtures, parameters or classes, beside the answer, too.
    """
    tree = row.python(field, source)
    body = [
        node for node in tree.body if not (isinstance(node, ast.If) and "__name__" in ast.unparse(node.test))
    ]
    tests = _test_functions(body)
    classes = [node for node in body if isinstance(node, ast.ClassDef) and node.name.startswith("Test")]
    if not tests and not any(_test_functions(one.body) for one in classes):
        raise row.error(field, "holds no function that is called test…")
    entry_point = _only_function(body, solution)
    if classes or any(node.decorator_list or ast.unparse(node.args) for node in tests):
        names = [node.name for node in tests]
        names += [f"{one.name}::{method.name}" for one in classes for method in _test_functions(one.body)]
        return {
            "entry_point": entry_point,
            "path": f"{_MODULE}.py",
            "test_files": {RUNNER: sandboxed(RUNNER), f"{_TEST_MODULE}.py": source},
            **run_by_runner([f"{_TEST_MODULE}.py::{name}" for name in names]),
        }
    named = {one.id for node in body for one in ast.walk(node) if isinstance(one, ast.Name)}
    is_check = bool(entry_point) and not _discards_results(tests, entry_point)
    dropped = {*([] if "pytest" in named else ["pytest"]), *([_MODULE] if is_check else [])}
    shared = [node for node in body if node not in tests and not _imported(node) & dropped]
    set_up = ast.unparse(ast.Module(shared, []))
    programs = [f"{ast.unparse(node)}\n{node.name}()\n" for node in tests]
    if is_check:
        checks = tuple(map(Check, programs))
        return {"entry_point": entry_point, "check_setup_code": set_up, "tests": checks}
    beside = tuple(InProcess(f"{set_up}\n{program}") for program in programs)
    return {"entry_point": entry_point, "path": f"{_MODULE}.py", "tests": beside}


def _test_functions(body: list[ast.stmt]) -> list[ast.FunctionDef]:
    return [node for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]


def _only_function(body: list[ast.stmt], solution: str) -> str:
    """The function that is all that a file imports of `solution`, under its name; empty for anything else."""
    inner = [one for node in body for one in ast.walk(node) if _MODULE in _imported(one)]
    match inner:
        case [ast.ImportFrom(names=[ast.alias(name, None)]) as node] if node in body:
            tree = parse_or_none(solution) if solution.strip() else None
            is_other = tree is not None and function_named(tree, name) is None
            return "" if is_other or not name.isidentifier() else name
    return ""


def _imported(node: ast.AST) -> set[str]:
    """The modules that a statement imports, or imports from."""
    if isinstance(node, ast.ImportFrom):
        return {node.module or ""}
    return {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()


def _discards_results(tests: list[ast.FunctionDef], name: str) -> bool:
    """Whether a test calls the function for what it does to its arguments; not so where it must raise."""
    nodes = [node for test in tests for node in ast.walk(test)]
    raising = {id(one) for node in nodes if isinstance(node, (ast.With, ast.Try)) for one in node.body}
    calls = [node.value for node in nodes if isinstance(node, ast.Expr) and id(node) not in raising]
    return any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == name
        for call in calls
    )


def _acecode(row: Row) -> Problem:
    question, number = row.text("question").strip(), row.values.get("id")
    if not isinstance(number, str | int) or isinstance(number, bool) or number == "":
        raise row.error("id", f"must be text or a number, found {number!r:.60}")
    problem = Problem(task_id=f"AceCode/{number}", prompt=question, entry_point="")
    field = "test_cases" if "test_cases" in row.values else "tests"
    return with_assertions(problem, row, field, row.values.get(field))


def with_assertions(problem: Problem, row: Row, field: str, tests: Any) -> Problem:
    """The problem with assert statements, and with the function that most of them call first."""
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise row.error(field, f"must be a list of assert statements, found {tests!r:.60}")
    if not tests:
        raise row.error(field, "is empty: nothing would judge an answer")
    called: Counter[str] = Counter()
    for number, test in enumerate(tests, start=1):
        tree = row.python(field, test, problem=f"is not Python in test {number}")
        if not tree.body or not all(isinstance(node, ast.Assert) for node in tree.body):
            raise row.error(field, f"holds something else than an assert statement in test {number}")
        calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
        names = (one.id for one in calls if isinstance(one, ast.Name) and not hasattr(builtins, one.id))
        called.update(set(names))
    if not called:
        raise row.error(field, "calls no function that an answer could define")
    return replace(
        problem,
        entry_point=called.most_common(1)[0][0],
        tests=tuple(map(Assertion, tests)),
        # As MBPP's: the tests alone are sure to name the function.
        starter_code=f'"""\n{in_quotes(problem.prompt)}\n{in_quotes(tests[0])}\n"""\n',
        comparison=Comparison(tolerance=0.0),
    )


BIGCODEBENCH = Format(
    "bigcodebench",
    "BigCodeBench",
    ("task_id", "complete_prompt", "canonical_solution", "entry_point", "test"),
    '{"task_id": …, "complete_prompt": …, "canonical_solution": …, "entry_point": …, "test": …}',
    _bigcodebench,
)
KODCODE = Format(
    "kodcode",
    "KodCode",
    ("question", "test", "test_info"),
    '{"question_id": …, "question": …, "solution": …, "test": "from solution import …", "test_info": […]}',
    _kodcode,
)
ACECODE = Format(
    "acecode",
    "AceCode",
    ("id", "question", "test_cases|tests"),
    '{"id": …, "question": …, "test_cases": ["assert …", …]}',
    _acecode,
)


DEFAULT_COMPARISON = Comparison(tuple_is_list=True)

_OPTIONAL_TEXTS = ("reference", "setup_code", "buggy_code", "failing_test", "path", "context")
_TESTS = {kind.plural: kind for kind in (Assertion, Doctest, InProcess)}
_FILES = ("files", "test_files", "reference_files")
SIMPLE_FIELDS: Mapping[str, str] = {
    "function_name": "required: the function that an answer must define",
    "docstring": "required: the specification in words",
    "test_cases": "required, unless there are other tests: each is a list of the positional inputs and, "
    "last, the expected output; or an object with `input` (the list of inputs), `output` and, optionally, "
    "`kwargs`; or with `raises`, the name of an exception class (compared by this name alone), instead of "
    "`output`",
    "starter_code": "the signature, with or without docstring, that an answer continues; else made from the "
    "signature of the reference, or with the parameters `a, b, c …`",
    "task_id": "unique in the file; else `function_name`",
    "tags": "a list of labels for tables and filters",
    "comparison": "how close numbers must be, and whether a tuple may stand for a list; else "
    '`{"tolerance": 1e-6, "tuple_is_list": true}`',
    "columns": "an object of further data for reward functions",
    "hidden_test_cases": "further test cases, which only `task: token_mdp` grades",
    "tests": "instead of `test_cases`: a list of `assert` statements",
    "doctests": "instead of `test_cases`: a list of texts with `>>>` examples",
    "in_process_tests": "instead of `test_cases`: a list of test programs that run beside the answer, which "
    "could forge them",
    "files": "an object of paths and texts: the program's other files. If it holds `path` itself, with the "
    "function unwritten, an answer is this function (also a method, `Class.method`), and is put into its "
    "place",
    "test_files": "an object of paths and texts: the files of the tests",
    "reference_files": "an object of paths and texts: the other files that the reference changes or adds",
    "reference": "a whole program that passes; it runs before training",
    "setup_code": "runs after the answer and before the tests",
    "buggy_code": "a whole program with a bug, which the prompt shows",
    "failing_test": "what the first failing test of `buggy_code` called, expected and got",
    "path": "the answer is the file at this path of a program of several files, whole",
    "context": "what the prompt shows of the file before `starter_code`",
}


def load_json(path: str | Path) -> ProblemSet:
    """The problems of a file, JSON or JSON Lines, in its order; the set has the name of the file.

    Raises `ProblemError` that names the file, the row, its line and the wrong field.
    """
    return read_problems(Path(path), SIMPLE_JSON)


def save_json(problems: Iterable[Problem], path: str | Path) -> None:
    """Write problems so that `load_json` returns equal ones; the whole file or nothing.

    Raises `ProblemError` for a value that JSON would change (a tuple, a set, NaN, a key that is not
    text), `RunError` when the file system refuses.
    """
    rows = [json.dumps(_to_row(problem), ensure_ascii=False) for problem in problems]
    text = "[\n" + ",\n".join(f"  {row}" for row in rows) + "\n]\n"
    write_atomically(Path(path), text.encode("utf-8", errors="backslashreplace"))


def _simple_problem(row: Row) -> Problem:
    for key in row.values:
        if key not in SIMPLE_FIELDS:
            near = get_close_matches(key, SIMPLE_FIELDS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known fields: {', '.join(SIMPLE_FIELDS)}."
            raise row.error(key, "is not known", remedy=hint)
    is_module = bool(row.text("path", default=""))  # the answer is a file, the function a part of it
    name = row.text("function_name") if is_module else row.name("function_name")
    docstring = row.text("docstring")
    starter = row.text("starter_code", default="")
    signature = None
    if not is_module:
        of_reference = _signature(row, "reference", name)
        signature = _signature(row, "starter_code", name) or of_reference or _of_lists(row, name, docstring)
    cases = _cases(row, signature)
    hidden = _cases(row, signature, "hidden_test_cases") if "hidden_test_cases" in row.values else ()
    sources = {field: row.texts(field) for field in _TESTS}
    files: dict[str, Any] = {field: _files(row, field) for field in _FILES}
    for number, test in enumerate(sources["tests"], start=1):
        row.python("tests", test, problem=f"is not Python in test {number}")
    if not cases and not any(sources.values()):
        raise row.error(
            "test_cases", "is empty: nothing would judge an answer", remedy="Add [input…, output] lists."
        )
    if not starter.strip() and not is_module:
        parameters = signature.parameters if signature else default_parameters(_common_arity(row, cases))
        starter = starter_code(name, parameters, docstring)
    texts: dict[str, Any] = {field: row.text(field, default="") for field in _OPTIONAL_TEXTS}
    task_id = row.text("task_id", default=name)
    if not task_id:
        raise row.error("task_id", "is empty")
    columns = row.values.get("columns")
    if columns is not None:
        row.typed("columns", dict, "an object of further data for reward functions")
    return Problem(
        task_id=task_id,
        prompt=docstring,
        entry_point=name,
        tests=(*cases, *(kind(text) for field, kind in _TESTS.items() for text in sources[field])),
        hidden_cases=hidden,
        starter_code=starter,
        comparison=_comparison(row),
        tags=row.texts("tags"),
        columns=columns,
        **files,
        **texts,
    )


SIMPLE_JSON = Format(
    "json",
    "the simple JSON format",
    ("function_name", "docstring"),
    '{"function_name": …, "docstring": …, "test_cases": [[input…, output], …], "starter_code": ""}',
    _simple_problem,
)


def _files(row: Row, field: str) -> Mapping[str, str] | None:
    what = "an object of paths and texts"
    files: Mapping[str, str] | None = row.typed(field, dict, what) if field in row.values else None
    if files is not None and not all(isinstance(text, str) for text in files.values()):
        raise row.error(field, f"must be {what}")
    return files


def _signature(row: Row, field: str, function_name: str) -> FunctionSignature | None:
    if not row.text(field, default="").strip():
        return None
    function = function_named(row.python(field, parser=parse_prompt), function_name)
    if function is None:
        raise row.error(field, f"does not define the function {function_name!r}")
    return FunctionSignature.of(function)


_LISTS = re.compile(r"\b(lists?|arrays?|sequences?|elements?|items?|matrix|vectors?)\b", re.IGNORECASE)


def _of_lists(row: Row, name: str, docstring: str) -> FunctionSignature | None:
    """The signature of a function whose cases hold their arguments in one list, as in `[[2, 3], 5]`.

    Lists of one length, two or more, in every case are arguments; lists of several lengths are one argument.
    Raises `BadRow` where both readings are possible: a single case does not show whether lengths vary, and
    a docstring may speak of a list.
    """
    given = [row.values.get(key) for key in ("test_cases", "hidden_test_cases")]
    cases = [case for one in given if isinstance(one, list) for case in one]
    lists = [case[0] for case in cases if isinstance(case, list) and len(case) == 2]
    lengths = {len(one) if isinstance(one, list) else 0 for one in lists}
    if len(lists) < len(cases) or len(lengths) != 1 or (length := lengths.pop()) < 2:
        return None
    parameters = default_parameters(length)
    alike = all(type(one) is type(two) for inputs in lists for one, two in itertools.pairwise(inputs))
    if alike and (len(lists) == 1 or _LISTS.search(docstring)):
        raise row.error(
            "starter_code",
            f"is empty, and the test cases can be read in two ways: {json.dumps(lists[0])[:60]} may be "
            f"{length} arguments or one list",
            remedy=f"Give 'def {name}({parameters}):\\n' or 'def {name}(values):\\n' as starter_code.",
        )
    return FunctionSignature(parameters, length, length)


def _cases(row: Row, signature: FunctionSignature | None, key: str = "test_cases") -> tuple[Case, ...]:
    if key not in row.values and any(map(row.values.get, _TESTS)):
        return ()
    example = "Example: [[2, 3, 5], [0, 0, 0]] for add(a, b)."
    values = row.typed(key, list, "a list of [input…, output] lists", remedy=example)
    return tuple(_case(row, key, number, value, signature) for number, value in enumerate(values, start=1))


def _case(row: Row, field: str, number: int, value: Any, signature: FunctionSignature | None) -> Case:
    if isinstance(value, list) and value:
        *inputs, output = value
        # In the older form `[[a, b], output]` the elements of the only input are the arguments.
        if signature is not None and signature.least > 1 and len(inputs) == 1 and isinstance(inputs[0], list):
            inputs = inputs[0] if signature.accepts(len(inputs[0])) else inputs
        case = Case(tuple(inputs), output)
    elif isinstance(value, dict) and any(
        {"input", gives} <= value.keys() <= {"input", gives, "kwargs"} for gives in ("output", "raises")
    ):
        for key, expected, what in (
            ("input", list, "a list of arguments"),
            ("kwargs", dict, "an object"),
            ("raises", str, "a class name"),
        ):
            if not isinstance(value.get(key, expected()), expected):
                raise row.error(field, f"must give {key!r} as {what} in test case {number}")
        case = Case(tuple(value["input"]), value.get("output"), value.get("kwargs", {}), value.get("raises"))
    else:
        raise row.error(
            field,
            f"must hold [input…, output] lists, found {json.dumps(value)[:60]} as test case {number}",
            remedy='The object form is {"input": [argument, …], "output": value}, or "raises": "ValueError".',
        )
    if signature is not None and not case.kwargs and not signature.accepts(len(case.args)):
        raise row.error(
            field,
            f"gives {len(case.args)} inputs in test case {number}, but the function takes {signature}",
            remedy="The last element of a test case is the expected output, all others are inputs.",
        )
    return case


def _common_arity(row: Row, cases: tuple[Case, ...]) -> int:
    arities = {len(case.args) for case in cases}
    if len(arities) != 1 or any(case.kwargs for case in cases):
        what = f"{sorted(arities)} inputs" if cases else "assert statements only"
        raise row.error(
            "starter_code",
            f"is empty, and the test cases do not tell the signature (found {what})",
            remedy="Give the signature as starter_code, for example 'def f(a, b=0):\\n', or a reference.",
        )
    return arities.pop()


def _is_tolerance(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and 0 <= value <= sys.float_info.max


_IS_VALID: Mapping[str, Callable[[Any], bool]] = {
    "tolerance": _is_tolerance,
    "relative_tolerance": lambda value: value is None or _is_tolerance(value),
    "tuple_is_list": lambda value: isinstance(value, bool) or value == "outermost",
    "rule": lambda value: value in get_args(Rule),
}


def _comparison(row: Row) -> Comparison:
    values = row.values.get("comparison", {})
    if isinstance(values, dict) and all(
        key in _IS_VALID and _IS_VALID[key](value) for key, value in values.items()
    ):
        tolerance = float(values.get("tolerance", DEFAULT_COMPARISON.tolerance))
        return replace(DEFAULT_COMPARISON, **{**values, "tolerance": tolerance})
    raise row.error(
        "comparison",
        'must be like {"tolerance": 1e-6, "tuple_is_list": true, "rule": "equal"}, '
        f"found {json.dumps(values)[:60]}",
    )


def _to_row(problem: Problem) -> dict[str, Any]:
    row: dict[str, Any] = {
        "function_name": problem.entry_point,
        "docstring": problem.prompt,
        "test_cases": [_to_test_case(case) for case in problem.cases],
        "starter_code": problem.starter_code,
    }
    if problem.task_id != problem.entry_point:
        row["task_id"] = problem.task_id
    for key in (*_OPTIONAL_TEXTS, *_TESTS, *_FILES, "tags"):
        value: Any = problem.sources(_TESTS[key]) if key in _TESTS else getattr(problem, key)
        if value:
            row[key] = dict(value) if key in _FILES else list(value) if isinstance(value, tuple) else value
    if problem.hidden_cases:
        row["hidden_test_cases"] = [_to_test_case(case) for case in problem.hidden_cases]
    if problem.columns is not None:
        row["columns"] = dict(problem.columns)
    if problem.comparison != DEFAULT_COMPARISON:
        row["comparison"] = vars(problem.comparison)
    try:
        survives = json.loads(json.dumps(row, allow_nan=False)) == row
    except (TypeError, ValueError):
        survives = False
    if not survives:
        raise ProblemError(
            f"{problem.task_id}: a test case holds a value that JSON would change or cannot hold.",
            remedy="JSON holds null, booleans, finite numbers, texts, lists and objects with text keys.",
        )
    return row


def _to_test_case(case: Case) -> list[Any] | dict[str, Any]:
    kwargs = {"kwargs": dict(case.kwargs)} if case.kwargs else {}
    if case.raises is not None:
        return {"input": list(case.args), **kwargs, "raises": case.raises}
    # A single list as input would read as the older form that spreads it over the arguments.
    if case.kwargs or (len(case.args) == 1 and isinstance(case.args[0], list)):
        return {"input": list(case.args), **kwargs, "output": case.expected}
    return [*case.args, case.expected]


# The paper's split by id.
PARTS = {
    "prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975),
}  # fmt: skip
MBPP_ID = re.compile(r"mbpp/(\d+)", re.IGNORECASE)


def part_of(task_id: str) -> str | None:
    """The part of MBPP's split to which a problem belongs; None for one that is not MBPP's.

    MBPP+ and the sanitized set have the ids of the full set.
    """
    match = MBPP_ID.fullmatch(task_id)
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
    return read_problems(Path(path), replace(MBPP, problem=lambda row: _mbpp_problem(row, challenge=True)))


def _mbpp_problem(row: Row, challenge: bool = False) -> Problem:
    row = replace(row, values={field: _with_unix_line_ends(value) for field, value in row.values.items()})
    number = row.values.get("task_id")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise row.error("task_id", f"must be a positive number, found {number!r}")
    prompt = row.text("text" if row.values.get("prompt") is None else "prompt").strip()
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
        tests=tuple(map(Assertion, tests + (row.texts("challenge_test_list") if challenge else ()))),
        setup_code="\n".join(part for part in set_up if part.strip()),
        # The docstring prompt of InCoder, which EvalPlus and bigcode also use.
        starter_code=f'"""\n{prompt}\n{tests[0]}\n"""\n',
        reference=code,
        comparison=Comparison(tolerance=0.0),  # its assert statements demand equality
        tags=(part,) if part else (),
    )


MBPP = Format(
    "mbpp",
    "MBPP",
    ("task_id", "text|prompt", "code", "test_list"),
    '{"task_id": 2, "text": …, "code": …, "test_list": ["assert …", …]}',
    _mbpp_problem,
)


def _with_unix_line_ends(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_unix_line_ends(item) for item in value]
    return value.replace("\r\n", "\n") if isinstance(value, str) else value


RELATIVE_TOLERANCE = 1e-7

_EVALPLUS_PROGRAMS = read_programs("evalplus_programs.txt")

Restore = Callable[[Any], Any]


def _evalplus_problem(row: Row) -> Problem:
    task_id = row.text("task_id")
    entry_point = row.name("entry_point")
    prompt = row.text("prompt")
    base = _inputs(row, "base_input", task_id)
    inputs = base + _inputs(row, "plus_input", task_id)
    if not inputs:
        raise row.error("base_input", "is empty: nothing would judge an answer")
    reference = prompt + row.text("canonical_solution")
    tree = row.python("canonical_solution", reference, problem="is not Python after the prompt")
    atol = row.values.get("atol")
    if isinstance(atol, bool) or not isinstance(atol, (int, float)) or not 0 <= atol < 1:
        raise row.error("atol", f"must be a number from 0 to 1, found {atol!r}")
    tolerance = float(atol) or 1e-6
    oracle = oracle_for(task_id, entry_point, tolerance)
    is_mbpp = task_id.startswith("Mbpp/")
    rule = RULES.get(entry_point, "equal") if is_mbpp else "equal"
    part = part_of(task_id)
    return Problem(
        task_id=task_id,
        prompt=prompt.strip().strip('"').strip() if is_mbpp else docstring(tree, entry_point, prompt),
        entry_point=entry_point,
        tests=tuple(
            Check(f"judge({entry_point}, {arguments!r})")
            if oracle
            else Case(arguments, Expected.FROM_REFERENCE)
            for arguments in inputs
        ),
        check_setup_code=oracle or "",
        # What is compared as a set may be anything that has elements. Iterators and views cannot leave their
        # process as they are.
        setup_code=_EVALPLUS_PROGRAMS["elements"].replace("NAME", entry_point) if rule == "same_set" else "",
        starter_code=prompt,
        reference=reference,
        comparison=Comparison(tolerance, rule=rule, relative_tolerance=RELATIVE_TOLERANCE),
        tags=(part,) if part else (),
        base_tests=len(base),
    )


EVALPLUS = Format(
    "evalplus",
    "HumanEval+, MBPP+",
    ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input", "atol"),
    '{"task_id": …, "prompt": …, "entry_point": …, "base_input": [[…], …], "plus_input": …, "atol": …}',
    _evalplus_problem,
    non_finite=True,
)


def _inputs(row: Row, field: str, task_id: str) -> list[tuple[Any, ...]]:
    if row.values.get(field) == {}:  # EvalPlus's notation for no inputs (Mbpp/793)
        return []
    values = row.typed(field, list, "a list of argument lists")
    if not all(isinstance(arguments, list) for arguments in values):
        raise row.error(field, "must be a list of argument lists, found a list of other values")
    try:
        return [with_types(task_id, arguments) for arguments in values]
    except (TypeError, ValueError, AttributeError, IndexError) as error:
        raise row.error(field, f"does not have the shape that {task_id} has in EvalPlus: {error}") from None


def with_types(task_id: str, arguments: list[Any]) -> tuple[Any, ...]:
    """The arguments of one call with the types that they had before JSON.

    Raises `TypeError`, `ValueError`, `AttributeError` or `IndexError` if the arguments do not have the shape
    that those of the problem have.
    """
    return tuple(_RESTORE.get(task_id, tuple)(arguments))


def _list_of(restore_one: Restore) -> Restore:
    return lambda values: [restore_one(value) for value in values]


def _tuple_of(restore_one: Restore) -> Restore:
    return lambda values: tuple(restore_one(value) for value in values)


def _by_position(*restore_one: Restore | None) -> Restore:
    """The first arguments each in its own way; None and the arguments after them are left as they are."""

    def restore(arguments: list[Any]) -> list[Any]:
        known = [one(value) if one else value for one, value in zip(restore_one, arguments, strict=False)]
        return known + arguments[len(restore_one) :]

    return restore


def _deep_tuple(value: Any) -> Any:
    return tuple(map(_deep_tuple, value)) if isinstance(value, list) else value


# What restores the list of arguments, and the ids of the problems of MBPP for which it does.
_MBPP_RESTORE: tuple[tuple[Restore, tuple[int, ...]], ...] = (
    (_list_of(tuple), (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424)),
    (_list_of(tuple), (429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809)),
    (_list_of(_list_of(tuple)), (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    (_list_of(_tuple_of(tuple)), (259, 401, 445)),
    (_list_of(_tuple_of(lambda value: tuple(value) if isinstance(value, list) else value)), (278,)),
    (_list_of(_deep_tuple), (580, 615, 791)),
    (_by_position(tuple), (250, 307, 405, 446, 617, 720, 763, 808)),
    (_by_position(_list_of(tuple)), (75, 413, 444, 753)),
    (_by_position(None, tuple), (106, 750)),
    (_by_position(lambda values: {key: tuple(value) for key, value in values.items()}), (722,)),
    # Mbpp/115 asks whether all are empty dictionaries; those that are not were sets.
    (_by_position(_list_of(lambda value: set(value) if isinstance(value, list) and value else {})), (115,)),
    (_by_position(float, complex), (124,)),
    (_by_position(complex), (252,)),
)
_RESTORE = {f"Mbpp/{number}": restore for restore, numbers in _MBPP_RESTORE for number in numbers}

# By entry point, MBPP+ only. The others' results cannot leave their process (match objects).
RULES: Mapping[str, Rule] = {
    "similar_elements": "same_set",  # Mbpp/2
    "find_char_long": "same_set",  # Mbpp/7
    "common_in_nested_lists": "same_set",  # Mbpp/111
    "extract_singly": "same_set",  # Mbpp/140
    "larg_nnum": "same_set",  # Mbpp/232
    "intersection_array": "same_set",  # Mbpp/249
    "find_dissimilar": "same_set",  # Mbpp/579
    "Diff": "same_set",  # Mbpp/769
    "check_str": "not_none",  # Mbpp/737
    "text_match_three": "not_none",  # Mbpp/787
    "text_starta_endb": "not_none",  # Mbpp/794
}


def oracle_for(task_id: str, entry_point: str, tolerance: float) -> str | None:
    """The source of a problem's own oracle; None when it has none.

    `tolerance` is how far numbers may lie apart; it is absolute, since what rounding leaves of a root grows
    with the numbers.
    """
    oracle = _EVALPLUS_PROGRAMS.get(f"{task_id} {entry_point}")
    if oracle is None:
        return None
    if task_id.startswith("Mbpp/"):
        oracle += _EVALPLUS_PROGRAMS["readings"]
    return oracle.replace("TOLERANCE", repr(tolerance))
