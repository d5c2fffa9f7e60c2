"""A problem made ready to judge answers: what to run, and what must come back.

The expected values stay here, in the trusted process. Those that are not literals are computed once,
in a process that never runs an answer (`expected_values_job`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from greenward.errors import ProblemError
from greenward.grading.assertions import Assertion, Relation, clean_test, parse_assertion
from greenward.grading.compare import COLLECTIONS
from greenward.grading.planned_test import Test
from greenward.grading.text import show
from greenward.problems.problem import Case, Expected, Problem
from greenward.sandbox.codec import PlainDataError, canonical, encode
from greenward.sandbox.protocol import MAX_RESULT_BYTES, Call, Job, Limits, Outcome, RunResult
from greenward.text import MAX_MESSAGE_CHARS, visible

_COMPUTING_LIMITS = Limits(cpu_seconds=20.0, wall_seconds=60.0)
_PRINTED_MORE_BYTES = 64 << 10  # than expected, before an output is too long to be right
_RETURNED_MORE_BYTES = 1 << 20  # than expected, before results are too long to be read
_FRAME_BYTES = 100  # around a result, at most
_NUMBER_CHARS = 24  # that a right answer may write a number longer by: 0.1 as 0.09999999999999998
_KINDS = ("cases", "tests", "checks", "stdio_cases", "in_process_tests")


@dataclass(frozen=True)
class Plan:
    """How to judge any answer to one problem.

    `job` is what to run, but for the code and the limits (`time_limits`); of the output, `most_printed`
    bytes are kept, if it matters. `tests` are in the problem's order; `places` says which of a run's
    results belongs to each.
    """

    job: Job
    tests: tuple[Test, ...]
    places: tuple[int, ...]
    most_printed: int | None = None


def expected_values_job(problem: Problem) -> Job | None:
    """The trusted job whose result `make_plan` needs to know the expected values, if there is one.

    Raises `ProblemError` for a test that is not Python.
    """
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.tests]
    expressions = _to_compute(assertions)
    if not expressions and not (problem.setup_code and None in assertions):
        return None
    stand_in = f"def {problem.entry_point}(*_, **__): raise NameError('there is no answer here')"
    return Job(
        code=stand_in,
        expressions=expressions,
        setup_code=problem.setup_code,
        limits=_COMPUTING_LIMITS,
        trusted=True,
    )


def demand_judgeable(problem: Problem) -> None:
    """Raises `ProblemError` for a problem that cannot be judged, as far as that shows before code runs."""
    is_open = any(isinstance(case.expected, Expected) for case in problem.cases)
    if expected_values_job(problem) is None and not is_open:
        make_plan(problem)


def make_plan(problem: Problem, computed: RunResult | None = None) -> Plan:
    """Prepares a problem; `computed` is the result of its `expected_values_job`, if it has one.

    Raises `ProblemError` for a problem without tests or with several kinds of tests, with an entry
    point where there should be none or none where there should be one, with test programs that are
    not Python, and with expected values that are not plain data or cannot be computed.
    """
    kinds = [kind for kind in _KINDS if getattr(problem, kind)]
    if len(kinds) != 1:
        raise ProblemError(
            f"{problem.task_id}: expected one kind of test ({', '.join(_KINDS)}), "
            f"found {' and '.join(kinds) or 'none'}.",
            remedy="Without a test every answer would pass; with several kinds it is unclear which decides.",
        )
    if (kinds[0] == "stdio_cases") is bool(problem.entry_point):
        raise ProblemError(
            f"{problem.task_id}: expected {'an empty' if problem.entry_point else 'an'} entry point "
            f"beside {kinds[0]}, found {problem.entry_point!r}.",
            remedy="Problems with stdio_cases ask for whole programs, all others for a function.",
        )
    _demand_python(problem, [problem.setup_code], "setup code")  # it would fail every answer
    plan = _plan_tests(problem, computed) if kinds[0] == "tests" else _MAKERS[kinds[0]](problem)
    return replace(plan, job=replace(plan.job, preamble=problem.preamble))


def _plan_cases(problem: Problem) -> Plan:
    calls = tuple(Call(case.args, case.kwargs) for case in problem.cases)
    pairs = zip(problem.cases, calls, strict=True)
    tests = [_case_test(problem, number, case, call) for number, (case, call) in enumerate(pairs, 1)]
    return _plan(Job("", problem.entry_point, calls, setup_code=problem.setup_code), tests)


def _case_test(problem: Problem, number: int, case: Case, call: Call) -> Test:
    if isinstance(case.expected, Expected):
        raise ProblemError(
            f"{problem.task_id}: the expected value of case {number} is not known yet.",
            remedy="`grading.expected.with_expected_values` computes it from the reference.",
        )
    try:
        call.text  # noqa: B018 (it raises what is to be told)
        expected = canonical(case.expected)
    except PlainDataError as error:
        raise ProblemError(f"{problem.task_id}: case {number} is not plain data: {error}.") from None
    arguments = [*map(show, case.args), *(f"{name}={show(value)}" for name, value in case.kwargs.items())]
    description = visible(f"{problem.entry_point}({', '.join(arguments)})", MAX_MESSAGE_CHARS)
    if case.raises is None:
        if problem.comparison.rule == "same_set" and not isinstance(expected, COLLECTIONS):
            raise ProblemError(
                f"{problem.task_id}: case {number} is compared as a set, but expects {show(expected)}."
            )
        return Test(description, Relation.EQUAL, expected, problem.comparison)
    if expected is not None or not case.raises.isidentifier():
        raise ProblemError(
            f"{problem.task_id}: case {number} expects {show(expected)} and the exception {case.raises!r}.",
            remedy="A case expects a value, or with expected None the class name of an exception.",
        )
    return Test(description, Relation.RAISES, case.raises)


def _plan_tests(problem: Problem, computed: RunResult | None) -> Plan:
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.tests]
    found = _literals(assertions) | _computed_values(problem, assertions, computed)
    tests, expressions, checks = [], list[str](), list[str]()
    for source, assertion in zip(problem.tests, assertions, strict=True):
        if assertion is None or (assertion.expected is not None and assertion.expected not in found):
            checks.append(clean_test(source))
            tests.append(Test(visible(checks[-1], MAX_MESSAGE_CHARS), Relation.COMPLETES, mode="check"))
        else:
            expressions.append(assertion.actual)
            tests.append(_assertion_test(problem, assertion, found))
    if checks and computed is not None and computed.outcome in (Outcome.LOAD_ERROR, Outcome.SYNTAX_ERROR):
        raise ProblemError(
            f"{problem.task_id}: the test {checks[0]!r} runs apart from the answer, but the setup code "
            f"fails there: {computed.error_class}: {computed.error_message}.",
            remedy="Tests that need names of the answer besides its entry point are in_process_tests.",
        )
    job = Job(
        "",
        problem.entry_point,
        expressions=tuple(expressions),
        setup_code=problem.setup_code,
        checks=tuple(checks),
        check_setup=problem.setup_code if checks else "",
    )
    apart = iter(range(len(expressions)))
    in_programs = iter(range(len(expressions), len(tests)))
    places = [next(in_programs if test.mode == "check" else apart) for test in tests]
    return _plan(job, tests, places)


def _assertion_test(problem: Problem, assertion: Assertion, found: Mapping[str, Any]) -> Test:
    expected = None if assertion.expected is None else found[assertion.expected]
    if assertion.relation in (Relation.MEMBER, Relation.NOT_MEMBER) and not isinstance(
        expected,
        (str, list, tuple),  # PlainSet and PlainDict are tuples, too
    ):
        raise ProblemError(
            f"{problem.task_id}: the test of {assertion.actual!r} looks for a member of no container."
        )
    return Test(
        description=visible(assertion.actual, MAX_MESSAGE_CHARS),
        relation=assertion.relation,
        expected=expected,
        comparison=problem.comparison,
        relative=assertion.relative,
        absolute=assertion.absolute,
    )


def _plan_checks(problem: Problem) -> Plan:
    _demand_python(problem, [problem.check_setup_code, *problem.checks])
    tests = [
        Test(f"check {number}: {visible(check, 200)}", Relation.COMPLETES, mode="check")
        for number, check in enumerate(problem.checks, 1)
    ]
    job = Job(
        "",
        problem.entry_point,
        setup_code=problem.setup_code,
        checks=problem.checks,
        check_setup=problem.check_setup_code,
    )
    return _plan(job, tests)


def _plan_stdio(problem: Problem) -> Plan:
    longest = max(len(case.stdout.encode("utf-8", "replace")) for case in problem.stdio_cases)
    most_printed = longest + _PRINTED_MORE_BYTES
    tests = [
        Test(
            f"run {number} with input {show(case.stdin)}",
            Relation.PRINTS,
            case.stdout,
            problem.comparison,
            mode="stdio",
            most_printed=most_printed,
        )
        for number, case in enumerate(problem.stdio_cases, 1)
    ]
    job = Job("", stdins=tuple(case.stdin for case in problem.stdio_cases))
    return replace(_plan(job, tests), most_printed=most_printed)


def _plan_in_process(problem: Problem) -> Plan:
    _demand_python(problem, problem.in_process_tests)
    tests = [
        Test(visible(source, MAX_MESSAGE_CHARS), Relation.COMPLETES, mode="in_process")
        for source in problem.in_process_tests
    ]
    expressions = tuple(f"exec({source!r}, globals())" for source in problem.in_process_tests)
    job = Job("", problem.entry_point, expressions=expressions, setup_code=problem.setup_code)
    return _plan(job, tests)


def _plan(job: Job, tests: Sequence[Test], places: Iterable[int] | None = None) -> Plan:
    job = replace(
        job, result_bytes=min(MAX_RESULT_BYTES, sum(map(_returned_bytes, tests), _RETURNED_MORE_BYTES))
    )
    return Plan(job, tuple(tests), tuple(range(len(tests)) if places is None else places))


def _returned_bytes(test: Test) -> int:
    """At most so much text is what a right answer returns for a test of values."""
    if test.mode != "values":
        return _FRAME_BYTES
    expected = encode(test.expected)
    return _FRAME_BYTES + 2 * len(expected) + _NUMBER_CHARS * (expected.count(",") + 1)


def _demand_python(problem: Problem, sources: Iterable[str], what: str = "test") -> None:
    for source in sources:
        try:
            ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ProblemError(
                f"{problem.task_id}: the {what} {visible(source, 80)!r} is not Python: {error}."
            ) from None


def _to_compute(assertions: Sequence[Assertion | None]) -> tuple[str, ...]:
    """The expected sides that are not literals, each once."""
    literal = _literals(assertions)
    sides = (assertion.expected for assertion in assertions if assertion is not None)
    return tuple(dict.fromkeys(side for side in sides if side is not None and side not in literal))


def _literals(assertions: Sequence[Assertion | None]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for assertion in assertions:
        if assertion is not None and assertion.expected is not None:
            try:
                found[assertion.expected] = canonical(ast.literal_eval(assertion.expected))
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, PlainDataError):
                continue  # not a literal: it will be computed
    return found


def _computed_values(
    problem: Problem, assertions: Sequence[Assertion | None], computed: RunResult | None
) -> dict[str, Any]:
    """Expected sides by their expression; without those that only a test program can compare."""
    if computed is None:
        return {}
    if computed.outcome is Outcome.INFRASTRUCTURE:
        raise ProblemError(
            f"{problem.task_id}: its expected values could not be computed: {computed.error_message}."
        )
    return {
        expression: one.value
        for expression, one in zip(_to_compute(assertions), computed.results, strict=False)
        if one.returned and one.plain
    }


_MAKERS = {
    "cases": _plan_cases,
    "checks": _plan_checks,
    "stdio_cases": _plan_stdio,
    "in_process_tests": _plan_in_process,
}
