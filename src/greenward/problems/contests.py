"""Reads contest problems and what trainers with verifiable rewards made of them.

- APPS (arXiv:2105.09938) and TACO (arXiv:2312.14852): rows with `question`, `input_output` (`{"inputs",
  "outputs", "fn_name"?}`), `starter_code`, `solutions`, `difficulty`; APPS also as a folder for each
  problem, with `question.txt`, `input_output.json`, `solutions.json` …
- LiveCodeBench (arXiv:2403.07974): rows with `question_content`, `public_test_cases`, `private_test_cases`
  (`[{"input", "output", "testtype"}]`), `starter_code`, `metadata`.
- CodeContests (arXiv:2203.07814): rows with `description`, `public_tests`, `private_tests`, `generated_tests`
  (`{"input": […], "output": […]}`), `solutions` (language 3 is Python 3), `time_limit`. There are no
  checkers, although some problems have several right outputs; interactive problems and files are bad rows.
- DeepCoder-Preview-Dataset: rows with `problem`, `tests` in the form of APPS, of LiveCodeBench or of
  SYNTHETIC-1 (`[{"type": "function_call", "fn_name", "input", "output"}]`), `solutions`, `starter_code`,
  `metadata`.
- open-r1 (verifiable-coding-problems) and SYNTHETIC-1: rows with `verification_info` (`{"language",
  "test_cases"}`), `problem` or `prompt`, `gold_standard_solution`.
- open-r1/codeforces: rows with `description`, `official_tests`, `time_limit`. Problems that are interactive,
  read a file or have a checker of their own are bad rows: no comparison of outputs can judge them.
- verl: rows with `data_source`, `prompt` (messages) and `reward_model`, whose `ground_truth` holds tests,
  often as JSON in a text: any of the forms above, a list of assert statements (also as `assert_case`),
  `{"pytest": …}`, or `{"functional": …}`, a program that calls the function (Code-R1). Rows without tests
  (mathematics) are bad rows.

Without a function name a problem asks for a whole program that reads and prints. With one, a method of
`class Solution` counts as the function. Where the inputs of a function are text, each line is an argument in
JSON. Answers run as the suites' own judges run them:

- Before the answer, the names that the authors' judges import are defined (for APPS and TACO with `--package
  numpy` also `np`), and the recursion limit is 50,000; for CodeContests and Codeforces nothing is defined.
- What a whole program prints is compared by LiveCodeBench's rule in all of them (`grading.compare`). Nearly
  equal numbers and words in another order, which the judges of APPS and TACO accept, do not pass. The exit
  status does not count.
- What functions return is compared exactly, floats included; tuples count as lists, in LiveCodeBench only as
  the returned value itself. APPS and TACO also accept a list that holds only the expected value. Methods of
  `class Solution` are called on one object.
- DeepCoder, open-r1 and verl's rows are judged as APPS.
"""

from __future__ import annotations

import ast
import base64
import builtins
import re
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from greenward.common.errors import ProblemError
from greenward.common.parsing import parse_json_text
from greenward.problems.formats import pytest_fields, with_assertions
from greenward.problems.problem import Case, Check, Comparison, Problem, StdioCase
from greenward.problems.python_source import UNREADABLE, loaded_names, parse_or_none
from greenward.problems.rows import Format, Row, read_text

MAX_TEST_BYTES = 256 << 20
_MOST_SECONDS = 300.0  # of a test
_MOST_LITERAL_CHARS = 1 << 18  # of a text that is no JSON
_MOST_SOLUTIONS = 5  # that are looked at to find one in Python

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
    is the time limit of each test. `comparison` is that of the values that functions return.
    """

    suite: str
    preamble: str
    test_seconds: float
    comparison: Comparison

    def problem(self, row: Row, number: Any, prompt: str, *, reference: str = "") -> Problem:
        """The problem without its tests."""
        return Problem(
            task_id=f"{self.suite}/{number}",
            prompt=prompt.strip(),
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
_PLAIN_SUITE = _ContestSuite("CodeContests", "", 4.0, _IN_LIST)


def apps_rows(folder: Path) -> Iterator[Row]:
    """A row for each folder in a folder, as in APPS. Raises `ProblemError`."""
    for number, entry in enumerate(sorted(entry for entry in folder.iterdir() if entry.is_dir()), start=1):
        values: dict[str, Any] = {"problem_id": entry.name}
        for name in ("question.txt", "starter_code.py", "input_output.json", "solutions.json"):
            if (entry / name).is_file():
                values[name.partition(".")[0]] = read_text(entry / name, within=folder)
        yield Row(entry, number, 1, values)


def _apps(row: Row) -> Problem:
    number = row.values.get("problem_id")
    suite = replace(_APPS_SUITE, suite="Taco") if number is None else _APPS_SUITE
    number = row.number - 1 if number is None else number
    problem = suite.problem(row, number, row.text("question"), reference=_reference(row, "solutions"))
    return _with_tests(suite, problem, row, "input_output", row.values.get("input_output"))


def _livecodebench(row: Row) -> Problem:
    suite = _LIVECODEBENCH_SUITE
    problem = suite.problem(row, row.text("question_id"), row.text("question_content"))
    tests = [*_test_cases(row, "public_test_cases"), *_test_cases(row, "private_test_cases")]
    return _with_tests(suite, problem, row, "public_test_cases", tests)


def _deepcoder(row: Row) -> Problem:
    tests = _tests_in(row, "tests", row.values.get("tests"))
    suite = _suite_of(tests, "DeepCoder")
    reference = _reference(row, "solutions")
    problem = suite.problem(row, row.number - 1, row.text("problem"), reference=reference)
    return _with_tests(suite, problem, row, "tests", tests)


def _open_r1(row: Row) -> Problem:
    field, suite = "verification_info", replace(_APPS_SUITE, suite="OpenR1")
    info = _json(row, field, row.values.get(field))
    if not isinstance(info, dict) or "test_cases" not in info:
        raise row.error(field, "must be an object with language and test_cases")
    if (language := str(info.get("language") or "python")).lower() not in ("python", "python3"):
        raise row.error(field, f"asks for {language!r}; only Python can be judged")
    reference = _reference(row, "gold_standard_solution")
    words = row.first_text("problem", "prompt") or row.text("problem")
    number = row.values.get("problem_id") or row.number - 1
    problem = suite.problem(row, number, words, reference=reference)
    return _with_tests(suite, problem, row, field, info["test_cases"])


_CODEFORCES_SECTIONS = (
    ("", "title"), ("", "description"), ("Input\n", "input_format"), ("Output\n", "output_format"),
    ("Note\n", "note"),
)  # fmt: skip


def _codeforces(row: Row) -> Problem:
    for field, what in (
        ("generated_checker", "is a program that judges answers, which greenward does not run"),
        ("interaction_format", "asks for a program that talks with a judge, which greenward does not have"),
    ):
        if row.first_text(field).strip():
            raise row.error(field, what)
    if (mode := row.first_text("input_mode")) not in ("", "stdio"):
        raise row.error("input_mode", f"is {mode!r}; programs read standard input here")
    row.text("description")
    parts = [title + row.text(field) for title, field in _CODEFORCES_SECTIONS if row.values.get(field)]
    shown = row.values.get("examples")
    for one in _pairs(row, "examples", shown) if shown else ():
        parts.append(f"Example input\n{one['input'].strip()}\n\nExample output\n{one['output'].strip()}")
    suite = replace(_PLAIN_SUITE, suite="Codeforces", test_seconds=_seconds(row))
    problem = suite.problem(row, row.text("id"), "\n\n".join(part.strip() for part in parts))
    return _with_tests(suite, problem, row, "official_tests", row.values.get("official_tests"))


def _code_contests(row: Row) -> Problem:
    for field in ("input_file", "output_file"):
        if name := row.first_text(field):
            raise row.error(field, f"is {name!r}; programs read and write the standard streams here")
    suite = replace(_PLAIN_SUITE, test_seconds=_seconds(row))
    solutions = _table(row, "solutions", ("language", "solution"), row.values.get("solutions"))
    ours = [one["solution"] for one in solutions if one["language"] in (3, "3", "PYTHON3")]
    reference = _first_in_python(ours)
    problem = suite.problem(row, row.text("name"), row.text("description"), reference=reference)
    fields = ("public_tests", "private_tests", "generated_tests")
    tests = [test for field in fields for test in _pairs(row, field, row.values.get(field))]
    return _with_tests(suite, problem, row, "public_tests", tests)


def _verl(row: Row) -> Problem:
    field = "reward_model"
    model, messages = row.typed(field, dict, "an object with ground_truth"), row.values.get("prompt")
    if isinstance(messages, list):
        asked = [
            one.get("content") for one in messages if isinstance(one, dict) and one.get("role") == "user"
        ]
        messages = asked[-1] if asked else None
    if not isinstance(messages, str):
        raise row.error("prompt", "must be text, or messages of which one is the user's")
    tests = _tests_in(row, field, model.get("ground_truth"))
    extra = row.values.get("extra_info")
    reference = extra.get("reference") if isinstance(extra, dict) else None
    suite = _suite_of(tests, row.text("data_source"))
    problem = suite.problem(row, row.number - 1, messages, reference=_first_in_python([reference]))
    if isinstance(tests, dict) and isinstance(tests.get("pytest"), str):
        return replace(problem, preamble="", **pytest_fields(row, field, tests["pytest"], problem.reference))
    if isinstance(tests, dict) and isinstance(tests.get("functional"), str):
        return replace(problem, preamble="", **_functional_fields(row, field, tests["functional"]))
    assertions = tests.get("assert_case") if isinstance(tests, dict) else tests
    if assertions and all(isinstance(one, str) for one in assertions):
        return with_assertions(replace(problem, preamble=""), row, field, assertions)
    if isinstance(tests, dict) and not tests.keys() >= {"inputs", "outputs"}:
        known = "inputs and outputs, assert_case, functional, or pytest"
        raise row.error(field, f"must have a ground_truth of {known}, found {', '.join(tests):.100}")
    return _with_tests(suite, problem, row, field, tests)


class _Methods(ast.NodeTransformer):
    """Replaces `Solution().add` by `add`, and notes the names of the methods."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        match node.value:
            case ast.Call(ast.Name("Solution"), [], []):
                self.names.add(node.attr)
                return ast.Name(node.attr, ast.Load())
        return self.generic_visit(node)


def _functional_fields(row: Row, field: str, source: str) -> dict[str, Any]:
    """The fields of a problem that a program judges (Code-R1), which calls one function or one method."""
    methods = _Methods()
    program = methods.visit(row.python(field, source))
    nodes = list(ast.walk(program))
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    aliases = [node for node in nodes if isinstance(node, ast.alias)]
    bound |= {alias.asname or alias.name.partition(".")[0] for alias in aliases}
    names = methods.names or loaded_names(program) - bound - vars(builtins).keys()
    if len(names) != 1:
        found = ", ".join(sorted(names)) or "none"
        raise row.error(field, f"must call one function of the answer, found {found:.100}")
    (name,) = names
    return {
        "entry_point": name,
        "tests": (Check(ast.unparse(program)),),
        "setup_code": _CALL_METHOD.format(name=name),
    }


_EXAMPLE = '{"question": …, "input_output": {"inputs": […], "outputs": […]}, …}'
_NOT_APPS = ("test_info", "test_cases", "question_content", "reward_model")
APPS = Format("apps", "APPS, TACO", ("question", "input_output"), _EXAMPLE, _apps, foreign=_NOT_APPS)
LIVECODEBENCH = Format(
    "livecodebench",
    "LiveCodeBench",
    ("question_id", "question_content", "public_test_cases"),
    '{"question_id": …, "question_content": …, "public_test_cases": …, "private_test_cases": …, …}',
    _livecodebench,
)
CODE_CONTESTS = Format(
    "code-contests",
    "CodeContests",
    ("name", "description", "public_tests", "private_tests", "generated_tests"),
    '{"name": …, "description": …, "public_tests": {"input": […], "output": […]}, …}',
    _code_contests,
)
DEEPCODER = Format(
    "deepcoder",
    "DeepCoder-Preview-Dataset",
    ("problem", "tests"),
    '{"problem": …, "tests": [{"input": …, "output": …, "testtype": "stdin"}], "solutions": […]}',
    _deepcoder,
    foreign=("verification_info", "reward_model"),
)
OPEN_R1 = Format(
    "open-r1",
    "open-r1 verifiable-coding-problems, SYNTHETIC-1",
    ("problem|prompt", "verification_info"),
    '{"problem_id": …, "problem": …, "verification_info": {"language": "python", "test_cases": […]}}',
    _open_r1,
)
CODEFORCES = Format(
    "codeforces",
    "open-r1/codeforces",
    ("id", "description", "official_tests"),
    '{"id": "852/A", "description": …, "official_tests": [{"input": …, "output": …}], "time_limit": 2.0}',
    _codeforces,
)
VERL = Format(
    "verl",
    "verl",
    ("data_source", "prompt", "reward_model"),
    '{"data_source": …, "prompt": [{"role": "user", "content": …}], "reward_model": {"ground_truth": …}}',
    _verl,
)


def _with_tests(suite: _ContestSuite, problem: Problem, row: Row, field: str, value: Any) -> Problem:
    """The problem with tests as `{"inputs", "outputs", "fn_name"?}` or as `[{"input", "output", …}]`."""
    tests = _tests_in(row, field, value)
    if isinstance(tests, dict):
        return _with_inputs_and_outputs(suite, problem, row, field, tests)
    kinds = {one.get("testtype") or one.get("type") for one in tests if isinstance(one, dict)}
    if kinds == {"function_call"}:
        names = {str(one.get("fn_name")): one.get("fn_name") for one in tests}
        if len(names) != 1:
            raise row.error(field, f"has tests of several functions: {', '.join(names)[:80]}")
        table = {f"{key}s": [one.get(key) for one in tests] for key in ("input", "output")}
        (name,) = names.values()
        return _with_inputs_and_outputs(suite, problem, row, field, {**table, "fn_name": name or ""})
    pairs = _pairs(row, field, tests)
    if kinds <= {"stdin", "stdin_stdout", None}:
        return replace(problem, tests=tuple(StdioCase(one["input"], one["output"]) for one in pairs))
    if kinds != {"functional"}:
        raise row.error(field, f"has tests of the types {sorted(map(str, kinds))}")
    name = next((found for one in tests if (found := _function_of(row, one))), _function_of(row, row.values))
    cases = [Case(_arguments(row, field, one["input"]), _json(row, field, one["output"])) for one in pairs]
    return suite.with_function(problem, row, "metadata", name, tuple(cases))


def _suite_of(tests: Any, name: str) -> _ContestSuite:
    """The suite by whose rules tests of this form are judged, under another name."""
    live = isinstance(tests, list) and any(isinstance(one, dict) and "testtype" in one for one in tests)
    return replace(_LIVECODEBENCH_SUITE if live else _APPS_SUITE, suite=name)


def _tests_in(row: Row, field: str, value: Any) -> Any:
    tests = None if isinstance(value, str) and not value.strip() else _json(row, field, value)
    if tests is None or tests in ([], {}):
        raise row.error(field, "is empty: nothing would judge an answer")
    if not isinstance(tests, (dict, list)):
        raise row.error(field, f"holds no tests, but {tests!r:.60}")
    return tests


def _with_inputs_and_outputs(
    suite: _ContestSuite, problem: Problem, row: Row, field: str, tests: dict[str, Any]
) -> Problem:
    inputs, outputs = tests.get("inputs"), tests.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise row.error(field, "must hold as many inputs as outputs")
    if not inputs:
        raise row.error(field, "is empty: nothing would judge an answer")
    if tests.get("fn_name") is None:
        return replace(problem, tests=tuple(map(StdioCase, map(_joined, inputs), map(_joined, outputs))))
    arguments = [_arguments(row, field, given) for given in inputs]
    if any(isinstance(given, str) for given in inputs):
        outputs = [_json(row, field, output) for output in outputs]
    # Most files put the value into a list of its own.
    if all(isinstance(output, list) and len(output) == 1 for output in outputs):
        outputs = [output[0] for output in outputs]
    pairs = zip(arguments, outputs, strict=True)
    cases = tuple(
        Case(tuple(_with_int_keys(list(given))), *_with_int_keys([value])) for given, value in pairs
    )
    return suite.with_function(problem, row, field, tests["fn_name"], cases)


def _arguments(row: Row, field: str, given: Any) -> tuple[Any, ...]:
    """The arguments of a call, from a list of them or from lines of JSON."""
    if isinstance(given, str):
        return tuple(_json(row, field, line) for line in given.strip("\n").split("\n"))
    if not isinstance(given, list):
        raise row.error(field, "must give the inputs of a function as lists of arguments")
    return tuple(given)


def _function_of(row: Row, values: dict[str, Any]) -> Any:
    """The name of the function in the `metadata` of a row or of a test."""
    metadata = _json(row, "metadata", values.get("metadata") or {})
    return metadata.get("func_name") if isinstance(metadata, dict) else None


def _table(row: Row, field: str, keys: tuple[str, str], value: Any) -> list[dict[str, Any]]:
    """The objects with these keys in a list of them, or in an object of two lists of the same length."""
    if isinstance(value, dict) and all(isinstance(value.get(key), list) for key in keys):
        first, second = (value[key] for key in keys)
        if len(first) == len(second):
            return [dict(zip(keys, pair, strict=True)) for pair in zip(first, second, strict=True)]
    if isinstance(value, list) and all(isinstance(one, dict) and one.keys() >= set(keys) for one in value):
        return value
    if not value:
        return []
    raise row.error(field, f"must be a list of objects with {', '.join(keys)}")


def _pairs(row: Row, field: str, value: Any) -> list[dict[str, Any]]:
    """Tests with texts for input and output."""
    tests = _table(row, field, ("input", "output"), value)
    if not all(isinstance(one[key], str) for one in tests for key in ("input", "output")):
        raise row.error(field, "must be a list of objects with input, output, which are texts")
    return tests


def _seconds(row: Row) -> float:
    """The time limit of a test that a row gives: seconds, or `{"seconds", "nanos"}`; else the usual one."""
    value = row.values.get("time_limit")
    if value is None:
        return _PLAIN_SUITE.test_seconds
    if isinstance(value, dict):
        value = (value.get("seconds") or 0) + (value.get("nanos") or 0) / 1e9
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST_SECONDS:
        raise row.error("time_limit", f"must be seconds from 0 to {_MOST_SECONDS:g}, found {value!r:.60}")
    return float(value)


_FENCED = re.compile(r"\s*```[^\n]*\n(.*?)\n?```\s*", re.DOTALL)


def _reference(row: Row, field: str) -> str:
    """The first solution in Python of a field that holds one or several, as text or in code fences."""
    value = row.values.get(field) or []
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _json(row, field, value)
    return _first_in_python([value] if isinstance(value, str) else value)


def _first_in_python(solutions: Any) -> str:
    texts = [one for one in solutions if isinstance(one, str)] if isinstance(solutions, list) else []
    for text in texts[:_MOST_SOLUTIONS]:
        program = fenced[1] if (fenced := _FENCED.fullmatch(text)) else text
        if program.strip() and "\0" not in program and parse_or_none(program) is not None:
            return program
    return ""


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
    return _pairs(row, field, _json(row, field, value))


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
    import pickletools  # few files hold a pickle

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
    """A value that may be JSON within JSON, or an object or list as Python writes it."""
    if not isinstance(value, str):
        return value
    try:
        return parse_json_text(value)
    except ValueError as error:
        if value.lstrip()[:2] in ("{'", "[{") and len(value) <= _MOST_LITERAL_CHARS:
            with suppress(*UNREADABLE):
                return ast.literal_eval(value.strip())
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
