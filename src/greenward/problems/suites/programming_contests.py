"""Contest problems in the forms of APPS, TACO and LiveCodeBench.

- APPS (arXiv:2105.09938) and TACO (arXiv:2312.14852): rows with `question`, `input_output`
  (`{"inputs", "outputs", "fn_name"?}`), `starter_code`, `solutions`, `difficulty`; APPS also as a
  folder for each problem, with `question.txt`, `input_output.json`, `solutions.json` …
- LiveCodeBench (arXiv:2403.07974): rows with `question_content`, `public_test_cases`,
  `private_test_cases` (`[{"input", "output", "testtype"}]`), `starter_code`, `metadata`.

Without a function name a problem is a whole program that reads and prints. With one, a method of
`class Solution` counts as the function. Answers are judged as `contest_rules` says.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.json_rows import Row, read_text
from greenward.problems.problem import Case, Problem, ProblemSet, StdioCase
from greenward.problems.suites.contest_rules import COMPARISONS, TEST_SECONDS, Suite, preamble_for
from greenward.problems.suites.packed_tests import unpack
from greenward.problems.suites.rows import problem_set
from greenward.user_text import parse_json_text

EXAMPLE = '{"question": …, "input_output": {"inputs": […], "outputs": […]}, …} or a row of LiveCodeBench'
# One object for all calls, as the suites' own judges have it.
_CALL_METHOD = """
if "Solution" in globals():
    {name} = Solution().{name}
"""


def load_programming_contests(path: str | Path, *, skip_bad_rows: bool = False) -> ProblemSet:
    """The problems of a file of rows, or of a folder with one folder for each problem as in APPS.

    Raises `ProblemError`.
    """
    path = Path(path)
    rows = _folder_rows(path) if path.is_dir() else None
    return problem_set(path, _problem, example=EXAMPLE, rows=rows, skip_bad_rows=skip_bad_rows)


def _folder_rows(folder: Path) -> Iterator[Row]:
    for number, entry in enumerate(sorted(entry for entry in folder.iterdir() if entry.is_dir()), start=1):
        values: dict[str, Any] = {"problem_id": entry.name}
        for field, name in (
            ("question", "question.txt"),
            ("starter_code", "starter_code.py"),
            ("input_output", "input_output.json"),
            ("solutions", "solutions.json"),
        ):
            if (entry / name).is_file():
                values[field] = read_text(entry / name)
        yield Row(entry, number, 1, values)


def _problem(row: Row) -> Problem:
    return _livecodebench(row) if "question_content" in row.values else _apps(row)


def _apps(row: Row) -> Problem:
    suite: Suite = "Apps" if "problem_id" in row.values else "Taco"
    number = row.values.get("problem_id", row.number - 1)
    tests = _json(row, "input_output")
    if not isinstance(tests, dict):
        raise row.error("input_output", "must be an object with inputs and outputs")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise row.error("input_output", "must hold as many inputs as outputs")
    if not inputs:
        raise row.error("input_output", "is empty: nothing would judge an answer")
    solutions = _json(row, "solutions") if row.values.get("solutions") else []
    problem = Problem(
        task_id=f"{suite}/{number}",
        prompt=row.text("question").strip(),
        entry_point="",
        starter_code=_source(row, "starter_code"),
        reference=solutions[0] if isinstance(solutions, list) and solutions else "",
        preamble=preamble_for(suite, ""),
        test_seconds=TEST_SECONDS[suite],
        tags=_tags(row),
    )
    if tests.get("fn_name") is None:
        runs = zip(map(_joined, inputs), map(_joined, outputs), strict=True)
        return replace(problem, stdio_cases=tuple(StdioCase(*run) for run in runs))
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise row.error("input_output", "must give the inputs of a function as lists of arguments")
    # Most files put the value into a list of its own.
    if all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [output[0] for output in outputs]
    cases = tuple(
        Case(tuple(_with_int_keys(arguments)), *_with_int_keys([value]))
        for arguments, value in zip(inputs, outputs, strict=True)
    )
    return _with_function(problem, row, "input_output", tests["fn_name"], cases, suite)


def _livecodebench(row: Row) -> Problem:
    tests = [*_test_cases(row, "public_test_cases"), *_test_cases(row, "private_test_cases")]
    if not tests:
        raise row.error("public_test_cases", "is empty: nothing would judge an answer")
    problem = Problem(
        task_id=f"LiveCodeBench/{row.text('question_id')}",
        prompt=row.text("question_content").strip(),
        entry_point="",
        starter_code=_source(row, "starter_code"),
        preamble=preamble_for("LiveCodeBench", ""),
        test_seconds=TEST_SECONDS["LiveCodeBench"],
        tags=_tags(row),
    )
    kinds = {test.get("testtype") for test in tests}
    if kinds == {"stdin"}:
        runs = tuple(StdioCase(test["input"], test["output"]) for test in tests)
        return replace(problem, stdio_cases=runs)
    if kinds != {"functional"}:
        raise row.error("public_test_cases", f"has tests of the types {sorted(map(str, kinds))}")
    metadata = _json(row, "metadata")
    name = metadata.get("func_name") if isinstance(metadata, dict) else None
    try:
        cases = tuple(
            Case(
                tuple(map(parse_json_text, test["input"].strip("\n").split("\n"))),
                parse_json_text(test["output"]),
            )
            for test in tests
        )
    except ValueError as error:
        raise row.error("public_test_cases", f"holds a test that is not JSON: {error}") from None
    return _with_function(problem, row, "metadata", name, cases, "LiveCodeBench")


def _with_function(
    problem: Problem, row: Row, field: str, name: Any, cases: tuple[Case, ...], suite: Suite
) -> Problem:
    if not isinstance(name, str) or not name.isidentifier():
        raise row.error(field, f"must name the function that is asked for, found {name!r}")
    return replace(
        problem,
        entry_point=name,
        cases=cases,
        setup_code=_CALL_METHOD.format(name=name),
        preamble=preamble_for(suite, name),
        comparison=COMPARISONS[suite],
    )


def _with_int_keys(values: list[Any]) -> list[Any]:
    """A single dict with its keys as the integers that they were before JSON, if all of them are."""
    if len(values) == 1 and isinstance(values[0], dict):
        try:
            return [{int(key): value for key, value in values[0].items()}]
        except ValueError:
            return values
    return values


def _test_cases(row: Row, field: str) -> list[dict[str, str]]:
    value = row.values.get(field) or "[]"
    if isinstance(value, str) and not value.lstrip().startswith("["):
        try:
            value = unpack(value)
        except ProblemError as error:
            raise row.error(field, error.message, remedy=error.remedy) from None
    tests = value if isinstance(value, list) else _parsed(row, field, value)
    for test in tests if isinstance(tests, list) else [None]:
        if not isinstance(test, dict) or not all(
            isinstance(test.get(key), str) for key in ("input", "output")
        ):
            raise row.error(field, "must be a list of objects with input, output and testtype")
    return tests


def _json(row: Row, field: str) -> Any:
    value = row.values.get(field)
    return _parsed(row, field, value) if isinstance(value, str) else value


def _parsed(row: Row, field: str, text: str) -> Any:
    try:
        return parse_json_text(text)
    except ValueError as error:
        raise row.error(field, f"is not JSON: {error}") from None


def _source(row: Row, field: str) -> str:
    return row.text(field, default="") if row.values.get(field) is not None else ""


def _joined(text: Any) -> str:
    """What a program reads or prints; some files have its lines in a list."""
    return "\n".join(map(str, text)) if isinstance(text, list) else str(text)


def _tags(row: Row) -> tuple[str, ...]:
    """The difficulty, the platform and the topics."""
    tags = [row.values.get(field) for field in ("difficulty", "platform")]
    topics = row.values.get("tags") or []
    if isinstance(topics, str):  # TACO writes Python lists
        try:
            topics = ast.literal_eval(topics)
        except (ValueError, SyntaxError):
            topics = [topics]
    tags += topics if isinstance(topics, list) else []
    return tuple(str(tag) for tag in tags if tag)
