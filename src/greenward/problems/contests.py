"""Reads contest problems in the formats of APPS, TACO and LiveCodeBench.

- APPS (arXiv:2105.09938) and TACO (arXiv:2312.14852): rows with `question`, `input_output` (`{"inputs",
  "outputs", "fn_name"?}`), `starter_code`, `solutions`, `difficulty`; APPS also as a folder for each
  problem, with `question.txt`, `input_output.json`, `solutions.json` …
- LiveCodeBench (arXiv:2403.07974): rows with `question_content`, `public_test_cases`, `private_test_cases`
  (`[{"input", "output", "testtype"}]`), `starter_code`, `metadata`.

Without a function name a problem asks for a whole program that reads and prints. With one, a method of
`class Solution` counts as the function. Answers run as the suites' own judges run them: see `_ContestSuite`.
"""

from __future__ import annotations

import ast
import base64
import pickletools
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenward.common.errors import ProblemError
from greenward.common.parsing import parse_json_text
from greenward.problems.problem import Case, Comparison, Problem, StdioCase
from greenward.problems.rows import Format, Row, read_text

MAX_TEST_BYTES = 256 << 20

# In this order: the names of `builtins` replace those of `math`, `operator` and the others before it.
_ALL_NAMES_OF = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_NUMPY = """
try:
    import numpy as np  # where answers may import it
except ImportError:
    pass
"""
# One object for all calls, as in the suites' own judges.
_CALL_METHOD = """
if "Solution" in globals():
    {name} = Solution().{name}
"""
_PICKLED_TEXT = {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "UNICODE"}
_PICKLE_FRAMING = {"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT", "STOP"}


def _preamble(*modules: str) -> str:
    stars = (f"from {name} import *" for name in _ALL_NAMES_OF)
    imports = (f"import {name}" for name in (*_ALL_NAMES_OF, *modules) if name not in ("builtins", "typing"))
    return "\n".join((*stars, *imports, "sys.setrecursionlimit(50000)", ""))


@dataclass(frozen=True)
class _ContestSuite:
    """How the judge of a suite runs an answer; the files of the suite do not say it.

    `preamble` imports the modules and names that an answer may use without importing them. `test_seconds`
    is the time limit of each test. The values that functions return are compared exactly, by `comparison`:
    LiveCodeBench accepts a tuple for a list only as the returned value itself; APPS and TACO also deeper, and
    either the expected value or a list that holds only that. What a whole program prints is compared by
    LiveCodeBench's rule in all three (`grading.compare`).
    """

    suite: str
    preamble: str
    test_seconds: float
    comparison: Comparison

    def problem(self, row: Row, number: Any, prompt: str, *, reference: str = "") -> Problem:
        """The problem without its tests."""
        return Problem(
            task_id=f"{self.suite}/{number}",
            prompt=row.text(prompt).strip(),
            entry_point="",
            starter_code=row.first_text("starter_code"),
            reference=reference,
            preamble=self.preamble,
            test_seconds=self.test_seconds,
            tags=_tags(row),
        )

    def with_function(
        self, problem: Problem, row: Row, field: str, name: Any, cases: tuple[Case, ...]
    ) -> Problem:
        """The problem with cases for a function of this name, which `field` of the row gives."""
        if not isinstance(name, str) or not name.isidentifier():
            raise row.error(field, f"must name the function that is asked for, found {name!r}")
        return replace(
            problem,
            entry_point=name,
            tests=cases,
            setup_code=_CALL_METHOD.format(name=name),
            # `operator.mul` is no answer to "write mul".
            preamble=f"{self.preamble}globals().pop({name!r}, None)\n",
            comparison=self.comparison,
        )


_IN_LIST = Comparison(tolerance=0.0, tuple_is_list=True, rule="equal_or_in_list")
_APPS_SUITE = _ContestSuite("Apps", f"{_preamble('time', 'fractions')}{_NUMPY}", 4.0, _IN_LIST)
_LIVECODEBENCH_SUITE = _ContestSuite(
    "LiveCodeBench", _preamble(), 6.0, Comparison(tolerance=0.0, tuple_is_list="outermost")
)


def apps_rows(folder: Path) -> Iterator[Row]:
    """A row for each folder in a folder, as in APPS. Raises `ProblemError`."""
    for number, entry in enumerate(sorted(entry for entry in folder.iterdir() if entry.is_dir()), start=1):
        values: dict[str, Any] = {"problem_id": entry.name}
        for name in ("question.txt", "starter_code.py", "input_output.json", "solutions.json"):
            if (entry / name).is_file():
                values[name.partition(".")[0]] = read_text(entry / name, within=folder)
        yield Row(entry, number, 1, values)


def _apps(row: Row) -> Problem:
    suite = _APPS_SUITE if "problem_id" in row.values else replace(_APPS_SUITE, suite="Taco")
    tests = _json(row, "input_output", row.values.get("input_output"))
    if not isinstance(tests, dict):
        raise row.error("input_output", "must be an object with inputs and outputs")
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise row.error("input_output", "must hold as many inputs as outputs")
    if not inputs:
        raise row.error("input_output", "is empty: nothing would judge an answer")
    solutions = _json(row, "solutions", row.values.get("solutions") or [])
    reference = solutions[0] if isinstance(solutions, list) and solutions else ""
    number = row.values.get("problem_id", row.number - 1)
    problem = suite.problem(row, number, "question", reference=reference)
    if tests.get("fn_name") is None:
        return replace(problem, tests=tuple(map(StdioCase, map(_joined, inputs), map(_joined, outputs))))
    if not all(isinstance(arguments, list) for arguments in inputs):
        raise row.error("input_output", "must give the inputs of a function as lists of arguments")
    # Most files put the value into a list of its own.
    if all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [output[0] for output in outputs]
    pairs = zip(inputs, outputs, strict=True)
    cases = tuple(Case(tuple(_with_int_keys(given)), *_with_int_keys([value])) for given, value in pairs)
    return suite.with_function(problem, row, "input_output", tests["fn_name"], cases)


def _livecodebench(row: Row) -> Problem:
    tests = [*_test_cases(row, "public_test_cases"), *_test_cases(row, "private_test_cases")]
    if not tests:
        raise row.error("public_test_cases", "is empty: nothing would judge an answer")
    problem = _LIVECODEBENCH_SUITE.problem(row, row.text("question_id"), "question_content")
    kinds = {test.get("testtype") for test in tests}
    if kinds == {"stdin"}:
        return replace(problem, tests=tuple(StdioCase(test["input"], test["output"]) for test in tests))
    if kinds != {"functional"}:
        raise row.error("public_test_cases", f"has tests of the types {sorted(map(str, kinds))}")
    metadata = _json(row, "metadata", row.values.get("metadata"))
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
    return _LIVECODEBENCH_SUITE.with_function(problem, row, "metadata", name, cases)


_EXAMPLE = '{"question": …, "input_output": {"inputs": […], "outputs": […]}, …} or a row of LiveCodeBench'
APPS = Format("APPS, TACO", ("question",), _EXAMPLE, _apps)
LIVECODEBENCH = Format("LiveCodeBench", ("question_content",), _EXAMPLE, _livecodebench)


def _with_int_keys(values: list[Any]) -> list[Any]:
    """A single dict gets back the integer keys that it had before JSON, if all of its keys are integers."""
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
            value = unpacked_tests(value)
        except ProblemError as error:
            raise row.error(field, error.message, remedy=error.remedy) from None
    tests = _json(row, field, value)
    for test in tests if isinstance(tests, list) else [None]:
        texts = [test.get(key) for key in ("input", "output")] if isinstance(test, dict) else [None]
        if not all(isinstance(text, str) for text in texts):
            raise row.error(field, "must be a list of objects with input, output and testtype")
    return tests


def unpacked_tests(packed: str) -> str:
    """The JSON text in LiveCodeBench's private tests: base64 of zlib of a pickled text.

    A pickle is a program, and unpickling a file from elsewhere runs it. The expected one puts a single text
    on the stack and stops. `pickletools` lists the instructions without running them, and any other
    instruction is refused. Raises `ProblemError` when `packed` is anything else than one pickled text.
    """
    try:
        stream = zlib.decompressobj()
        content = stream.decompress(base64.b64decode(packed, validate=True), MAX_TEST_BYTES)
    except (ValueError, zlib.error) as error:
        raise ProblemError(f"is neither JSON nor base64 of zlib: {error}") from None
    if not stream.eof:
        raise ProblemError(f"unpacks to more than {MAX_TEST_BYTES >> 20} MB, or is cut short")
    texts: list[str] = []
    try:
        for instruction, argument, _ in pickletools.genops(content):
            if instruction.name in _PICKLED_TEXT:
                texts.append(str(argument))
            elif instruction.name not in _PICKLE_FRAMING:
                raise ProblemError(
                    f"holds a pickle that does more than give a text ({instruction.name})",
                    remedy="It was not unpickled: a pickle can run any program. Do not trust this file.",
                )
    except ValueError as error:
        raise ProblemError(f"holds a pickle that cannot be read: {error}") from None
    if len(texts) != 1:
        raise ProblemError(f"holds a pickle of {len(texts)} texts, expected one")
    return texts[0]


def _json(row: Row, field: str, value: Any) -> Any:
    """A value that may be JSON within JSON."""
    try:
        return parse_json_text(value) if isinstance(value, str) else value
    except ValueError as error:
        raise row.error(field, f"is not JSON: {error}") from None


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
