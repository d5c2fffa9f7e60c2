"""The simple JSON format: one object for each problem, in a list or one on each line.

    [{"function_name": "add", "docstring": "Add two numbers.", "starter_code": "",
      "test_cases": [[2, 3, 5], {"input": [0, 0], "output": 0}]}, …]

A test case is a list of the inputs and, last, the expected output, or an object. If the starter
code or the reference takes two or more arguments, a case whose only input is a list of as many
values (`[[2, 3], 5]`, as in older files) is spread over them; otherwise that list is the only input.
JSON has no tuples, so an answer may return a tuple where a list is expected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from greenward.errors import ProblemError
from greenward.problems.json_rows import Format, Row, read_problems
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet, Rule
from greenward.problems.python_source import (
    FunctionSignature,
    default_parameters,
    function_named,
    parse_prompt,
    starter_code,
)
from greenward.runs.files import write_atomically

DEFAULT_COMPARISON = Comparison(tuple_is_list=True)

_OPTIONAL_TEXTS = ("reference", "setup_code", "buggy_code", "failing_test", "path", "context")
_TESTS = ("tests", "doctests", "in_process_tests")
_FILES = ("files", "test_files")
_KEYS = (
    "function_name", "docstring", "test_cases", "starter_code", "task_id", "tags", "comparison", "columns",
    "hidden_test_cases", *_TESTS, *_FILES, *_OPTIONAL_TEXTS,
)  # fmt: skip


def load_json(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a file, JSON or JSON Lines, in its order; the set has the name of the file.

    Raises `ProblemError` that names the file, the row, its line and the wrong field.
    """
    return read_problems(Path(path), SIMPLE_JSON, skip_bad_rows=skip_bad_rows)


def save_json(problems: Iterable[Problem], path: str | Path) -> None:
    """Write problems so that `load_json` returns equal ones; the whole file or nothing.

    Raises `ProblemError` for a value that JSON would change (a tuple, a set, NaN, a key that is not
    text), `RunError` when the file system refuses.
    """
    rows = [json.dumps(_to_row(problem), ensure_ascii=False) for problem in problems]
    text = "[\n" + ",\n".join(f"  {row}" for row in rows) + "\n]\n"
    write_atomically(Path(path), text.encode("utf-8", errors="backslashreplace"))


def _problem(row: Row) -> Problem:
    for key in row.values:
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known fields: {', '.join(_KEYS)}."
            raise row.error(key, "is not known", remedy=hint)
    is_module = bool(row.text("path", default=""))  # the answer is a file, the function a part of it
    name = row.text("function_name") if is_module else row.name("function_name")
    docstring = row.text("docstring")
    starter = row.text("starter_code", default="")
    signature = None
    if not is_module:
        of_reference = _signature(row, "reference", name)
        signature = _signature(row, "starter_code", name) or of_reference
    cases = _cases(row, signature)
    hidden = _cases(row, signature, "hidden_test_cases") if "hidden_test_cases" in row.values else ()
    tests: dict[str, Any] = {field: row.texts(field) for field in _TESTS}
    files: dict[str, Any] = {field: _files(row, field) for field in _FILES}
    for number, test in enumerate(tests["tests"], start=1):
        row.python("tests", test, problem=f"is not Python in test {number}")
    if not cases and not any(tests.values()):
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
        cases=cases,
        hidden_cases=hidden,
        starter_code=starter,
        comparison=_comparison(row),
        tags=row.texts("tags"),
        columns=columns,
        **files,
        **tests,
        **texts,
    )


SIMPLE_JSON = Format(
    "the simple JSON format",
    ("function_name",),
    '{"function_name": …, "docstring": …, "test_cases": [[input…, output], …], "starter_code": ""}',
    _problem,
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
        if value := getattr(problem, key):
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
