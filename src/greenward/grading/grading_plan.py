"""Makes the grading plan of a problem: what to run, and which results are right.

The expected values stay here, in the trusted process. Those that are not literals are computed once,
in a process that never runs an answer (`expected_values_job`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.machinery import FrozenImporter
from typing import Any

from greenward.errors import SandboxError
from greenward.grading.assertions import Assertion, Relation, clean_test, parse_assertion
from greenward.grading.compare import COLLECTIONS
from greenward.grading.doctests import EXAMPLE_SETUP, read_examples
from greenward.grading.judging import Expectation, GradingPlan, Mode, show_value
from greenward.problems.problem import Case, Expected, Problem
from greenward.problems.python_source import UNREADABLE
from greenward.sandbox.codec import PlainDataError, canonical, encode
from greenward.sandbox.protocol import MAX_RESULT_BYTES, Call, Job, Limits, Outcome, RunResult
from greenward.text import MAX_MESSAGE_CHARS, visible

_COMPUTING_LIMITS = Limits(cpu_seconds=20.0, wall_seconds=60.0)
_EXTRA_OUTPUT_BYTES = 64 << 10  # than expected, before an output is too long to be right
_EXTRA_RESULT_BYTES = 1 << 20  # than expected, before results are too long to be read
_FRAME_BYTES = 100  # around a result, at most
_UNKNOWN = object()  # stands for an expected value that only a test program can compare
_NUMBER_CHARS = 24  # that a right answer may write a number longer by: 0.1 as 0.09999999999999998


def expected_values_job(problem: Problem) -> Job | None:
    """The trusted job whose result `make_plan` needs to know the expected values, if there is one.

    Raises `ProblemError` for a test that is not Python.
    """
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.tests]
    expressions = _to_compute(assertions)
    if not expressions and not (problem.setup_code and None in assertions):
        return None
    return Job(
        code=f"def {problem.entry_point}(*_, **__): raise NameError('there is no answer here')",
        expressions=expressions,
        setup_code=problem.setup_code,
        files={**(problem.files or {}), **(problem.test_files or {})},
        limits=_COMPUTING_LIMITS,
        trusted=True,
    )


def demand_judgeable(problem: Problem) -> None:
    """Raises `ProblemError` for a problem that cannot be judged, as far as that shows before code runs."""
    if problem.label is not None:
        return
    is_open = any(isinstance(case.expected, Expected) for case in problem.cases)
    if expected_values_job(problem) is None and not is_open:
        make_plan(problem)


def make_plan(problem: Problem, computed: RunResult | None = None) -> GradingPlan:
    """Prepares a problem; `computed` is the result of its `expected_values_job`, if it has one.

    Raises `ProblemError` for a problem without tests or with several kinds of tests, with an entry
    point where there should be none or none where there should be one, for a function of a module that
    cannot be hidden, with test programs that are not Python, and with expected values that are not plain
    data or cannot be computed.
    """
    kinds = [kind for kind in _MAKERS if getattr(problem, kind)]
    if len(kinds) != 1:
        raise problem.error(
            f"expected one kind of test ({', '.join(_MAKERS)}), found {' and '.join(kinds) or 'none'}.",
            remedy="Without a test every answer would pass; with several kinds it is unclear which decides.",
        )
    module = problem.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if problem.path in (problem.files or {}) and FrozenImporter.find_spec(module) is not None:
        raise problem.error(
            f"the module {module} is a part of the interpreter, where an answer could call its original.",
            remedy="Ask for a function of another module.",
        )
    may_be_module = problem.path and kinds[0] in ("doctests", "in_process_tests")
    if (kinds[0] == "stdio_cases") is bool(problem.entry_point) and not may_be_module:
        raise problem.error(
            f"expected {'an empty' if problem.entry_point else 'an'} entry point "
            f"beside {kinds[0]}, found {problem.entry_point!r}.",
            remedy="Problems with stdio_cases ask for whole programs, all others for a function.",
        )
    name = re.escape(problem.entry_point.rpartition(".")[2])
    if name and re.search(rf"(?m)^[ \t]*async\s+def\s+{name}\b", problem.starter_code + problem.reference):
        raise problem.error(
            f"{problem.entry_point} is an async function, and no event loop runs in the sandbox.",
            remedy="Ask for a function that is called and returns (it may drive coroutines by `send`).",
        )
    _demand_python(problem, [problem.setup_code], "setup code")  # it would fail every answer
    job = Job(
        code="",
        entry_point=None if may_be_module else problem.entry_point or None,
        setup_code="" if problem.stdio_cases else problem.setup_code,
        preamble=problem.preamble,
        files={**(problem.files or {}), **(problem.test_files or {})},
        path=problem.path,
    )
    try:
        job.check_files()
    except SandboxError as error:
        raise problem.error(error.message) from None
    job, expectations = _MAKERS[kinds[0]](problem, job, computed)
    most = min(MAX_RESULT_BYTES, sum(map(_returned_bytes, expectations), _EXTRA_RESULT_BYTES))
    tests = range(len(expectations))
    checks_last = sorted(tests, key=lambda test: expectations[test].mode == "check")  # as results come
    position = {test: at for at, test in enumerate(checks_last)}
    return GradingPlan(
        job=replace(job, result_bytes=most),
        expectations=tuple(expectations),
        positions=tuple(position[test] for test in tests),
        max_output_bytes=expectations[0].max_output_bytes or None,
    )


_Made = tuple[Job, list[Expectation]]  # the expectations in the order of the tests


def _plan_cases(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    calls = tuple(Call(case.args, case.kwargs) for case in problem.cases)
    expectations = [
        _case_expectation(problem, number, case, call)
        for number, (case, call) in enumerate(zip(problem.cases, calls, strict=True), 1)
    ]
    return replace(job, calls=calls), expectations


def _case_expectation(problem: Problem, number: int, case: Case, call: Call) -> Expectation:
    if isinstance(case.expected, Expected):
        raise problem.error(
            f"the expected value of case {number} is not known yet.",
            remedy="`Grader.complete` computes it from the reference.",
        )
    try:
        call.text  # noqa: B018 (it raises what is to be told)
        expected = canonical(case.expected)
    except PlainDataError as error:
        raise problem.error(f"case {number} is not plain data: {error}.") from None
    named = (f"{name}={show_value(value)}" for name, value in case.kwargs.items())
    arguments = ", ".join((*map(show_value, case.args), *named))
    description = visible(f"{problem.entry_point}({arguments})", MAX_MESSAGE_CHARS)
    if case.raises is None:
        if problem.comparison.rule == "same_set" and not isinstance(expected, COLLECTIONS):
            raise problem.error(f"case {number} is compared as a set, but expects {show_value(expected)}.")
        return Expectation(description, Relation.EQUAL, expected, problem.comparison)
    if case.raises == "SystemExit":
        raise problem.error(
            f"case {number} expects SystemExit, which ends the process of the answer.",
            remedy="Test what the program prints (stdio_cases), or that it raises another exception.",
        )
    if expected is not None or not case.raises.isidentifier():
        raise problem.error(
            f"case {number} expects {show_value(expected)} and the exception {case.raises!r}.",
            remedy="A case expects a value, or with expected None the class name of an exception.",
        )
    return Expectation(description, Relation.RAISES, case.raises)


def _plan_tests(problem: Problem, job: Job, computed: RunResult | None) -> _Made:
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.tests]
    results = computed.results if computed is not None else ()
    values = {
        expression: one.value
        for expression, one in zip(_to_compute(assertions), results, strict=False)
        if one.returned and one.plain
    }
    expectations, expressions, checks = [], list[str](), list[str]()
    for source, assertion in zip(problem.tests, assertions, strict=True):
        expected = None if assertion is None else _expected_value(assertion, values)
        if assertion is None or expected is _UNKNOWN:
            checks.append(clean_test(source))
            expectations.append(_completes(checks[-1], "check"))
            continue
        is_container = isinstance(expected, (str, list, tuple))  # PlainSet and PlainDict are tuples, too
        if assertion.relation in (Relation.MEMBER, Relation.NOT_MEMBER) and not is_container:
            raise problem.error(f"the test of {assertion.call!r} looks for a member of no container.")
        expressions.append(assertion.call)
        expectations.append(
            Expectation(
                visible(assertion.call, MAX_MESSAGE_CHARS),
                assertion.relation,
                expected,
                problem.comparison,
                tolerances=assertion.tolerances,
            )
        )
    if computed is not None and computed.outcome is Outcome.INFRASTRUCTURE:
        raise problem.error(f"its expected values could not be computed: {computed.error_message}.")
    if checks and computed is not None and computed.outcome in (Outcome.LOAD_ERROR, Outcome.SYNTAX_ERROR):
        raise problem.error(
            f"the test {checks[0]!r} runs apart from the answer, but the setup code fails there: "
            f"{computed.error_class}: {computed.error_message}.",
            remedy="Tests that need names of the answer besides its entry point are in_process_tests.",
        )
    check_setup = problem.setup_code if checks else ""
    job = replace(job, expressions=tuple(expressions), checks=tuple(checks), check_setup=check_setup)
    return job, expectations


def _to_compute(assertions: Sequence[Assertion | None]) -> tuple[str, ...]:
    """The expected sides that are not literals, each once."""
    unknown = (one.expected for one in assertions if one and _expected_value(one, {}) is _UNKNOWN)
    return tuple(dict.fromkeys(side for side in unknown if side is not None))


def _expected_value(assertion: Assertion, computed: Mapping[str, Any]) -> Any:
    """The expected side of an assertion, None without one: a literal, or computed, or else _UNKNOWN."""
    if assertion.expected is None:
        return None
    try:
        return canonical(ast.literal_eval(assertion.expected))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, PlainDataError):
        return computed.get(assertion.expected, _UNKNOWN)


def _plan_checks(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    _demand_python(problem, [problem.check_setup_code, *problem.checks])
    expectations = [
        _completes(f"check {number}: {visible(check, 200)}", "check")
        for number, check in enumerate(problem.checks, 1)
    ]
    return replace(job, checks=problem.checks, check_setup=problem.check_setup_code), expectations


def _plan_stdio(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    longest = max(len(case.stdout.encode("utf-8", "replace")) for case in problem.stdio_cases)
    expectations = [
        Expectation(
            f"run {number} with input {show_value(case.stdin)}",
            Relation.PRINTS,
            case.stdout,
            problem.comparison,
            mode="stdio",
            max_output_bytes=longest + _EXTRA_OUTPUT_BYTES,
        )
        for number, case in enumerate(problem.stdio_cases, 1)
    ]
    return replace(job, stdins=tuple(case.stdin for case in problem.stdio_cases)), expectations


def _plan_doctests(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    expressions, expectations = list[str](), list[Expectation]()
    for number, text in enumerate(problem.doctests):
        try:
            examples = read_examples(text)
        except ValueError as error:
            raise problem.error(f"a doctest is malformed: {error}.") from None
        expressions += (f"__example__({number}, {one.source!r})" for one in examples)
        expectations += (
            Expectation(visible(f">>> {one.source.rstrip()}", MAX_MESSAGE_CHARS), Relation.EXAMPLE, one)
            for one in examples
        )
    if not expectations:
        raise problem.error("its doctests have no example that is not skipped.")
    setup = f"{problem.setup_code}\n{EXAMPLE_SETUP}"
    return replace(job, expressions=tuple(expressions), setup_code=setup), expectations


def _plan_in_process(problem: Problem, job: Job, _: RunResult | None) -> _Made:
    _demand_python(problem, problem.in_process_tests)
    expectations = [_completes(source, "in_process") for source in problem.in_process_tests]
    expressions = tuple(f"exec({source!r}, globals())" for source in problem.in_process_tests)
    return replace(job, expressions=expressions), expectations


# By the field of the problem that holds the tests.
_MAKERS = {
    "cases": _plan_cases,
    "tests": _plan_tests,
    "checks": _plan_checks,
    "stdio_cases": _plan_stdio,
    "doctests": _plan_doctests,
    "in_process_tests": _plan_in_process,
}


def _completes(description: str, mode: Mode) -> Expectation:
    return Expectation(visible(description, MAX_MESSAGE_CHARS), Relation.COMPLETES, mode=mode)


def _returned_bytes(expectation: Expectation) -> int:
    """At most so much text is what a right answer returns for a test of values."""
    if expectation.mode != "values":
        return _FRAME_BYTES
    is_example = expectation.relation is Relation.EXAMPLE
    expected = encode(expectation.expected.want if is_example else expectation.expected)
    return _FRAME_BYTES + 2 * len(expected) + _NUMBER_CHARS * (expected.count(",") + 1)


def _demand_python(problem: Problem, sources: Iterable[str], what: str = "test") -> None:
    for source in sources:
        try:
            ast.parse(source)
        except UNREADABLE as error:
            raise problem.error(f"the {what} {visible(source, 80)!r} is not Python: {error}.") from None
