"""A problem made ready to judge answers: what to run, and what must come back.

The expected values stay here, in the trusted process. Those that are not literals are evaluated
once, in a clean process that never runs an answer.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from greenward.errors import ProblemError
from greenward.grading.assertions import Assertion, Relation, parse_assertion
from greenward.grading.compare import close, equal
from greenward.grading.text import sanitise, show
from greenward.problems.problem import Comparison, Problem
from greenward.sandbox.codec import PlainDataError, PlainDict, PlainSet, canonical
from greenward.sandbox.protocol import Call, CallResult, Executor, Job, Limits, Outcome

_ORACLE_LIMITS = Limits(cpu_seconds=20.0, wall_seconds=60.0)


@dataclass(frozen=True)
class Test:
    """What one call or expression must give.

    `expected` is a flat plain value; `relative` and `absolute` are the tolerances of CLOSE.
    """

    description: str
    relation: Relation
    expected: Any
    comparison: Comparison
    split: bool = True
    relative: float = 0.0
    absolute: float = 0.0

    def passes(self, value: Any) -> bool:
        """Whether the flat plain value that came back is right."""
        relation, expected = self.relation, self.expected
        if relation is Relation.EQUAL:
            return equal(value, expected, self.comparison)
        if relation is Relation.CLOSE:
            return close(value, expected, relative=self.relative, absolute=self.absolute)
        if relation is Relation.NOT_EQUAL:
            return not equal(value, expected, self.comparison)
        if relation is Relation.IDENTICAL:
            return value is expected
        if relation is Relation.NOT_IDENTICAL:
            return value is not expected
        if relation is Relation.TRUE:
            return truth(value)
        if relation is Relation.FALSE:
            return not truth(value)
        if relation is Relation.COMPLETES:
            return True
        return _contains(expected, value, self.comparison) is (relation is Relation.MEMBER)

    def failure(self, result: CallResult) -> str:
        """One bounded line: what was called, what was expected, what came."""
        if not result.returned:
            came = sanitise(f"raised {result.error_class}: {result.error_message}")
        elif not result.plain:
            came = sanitise(result.error_message)
        else:
            came = f"got {show(result.value)}"
        wanted = f"expected {self.relation.value} {show(self.expected)}"
        if self.relation is Relation.EQUAL:
            wanted = f"expected {show(self.expected)}"
        elif self.relation in (Relation.TRUE, Relation.FALSE, Relation.COMPLETES):
            wanted = f"expected it to be {self.relation.value}" if self.split else "the assertion must hold"
        return f"{self.description}: {wanted}, {came}"


@dataclass(frozen=True)
class Plan:
    """How to judge any answer to one problem."""

    calls: tuple[Call, ...]
    expressions: tuple[str, ...]
    tests: tuple[Test, ...]


def truth(value: Any) -> bool:
    """Python's truth of a flat plain value."""
    return bool(value[0]) if isinstance(value, (PlainSet, PlainDict)) else bool(value)


def make_plan(problem: Problem, oracle: Callable[[], Executor]) -> Plan:
    """Prepares a problem; `oracle` gives the executor for expected sides that are not literals.

    Raises `ProblemError` for a problem without tests, with both kinds of tests, or with expected
    values that are not plain data.
    """
    if bool(problem.cases) == bool(problem.tests):
        raise ProblemError(
            f"{problem.task_id}: expected cases or tests, found {'both' if problem.cases else 'neither'}.",
            remedy="Without a test every answer would pass; with both kinds it is unclear which decides.",
        )
    return _plan_cases(problem) if problem.cases else _plan_tests(problem, oracle)


def _plan_cases(problem: Problem) -> Plan:
    tests = []
    for number, case in enumerate(problem.cases, 1):
        try:
            arguments = [show(canonical(argument)) for argument in case.args]
            arguments += [f"{name}={show(canonical(value))}" for name, value in case.kwargs.items()]
            expected = canonical(case.expected)
        except PlainDataError as error:
            raise ProblemError(f"{problem.task_id}: case {number} is not plain data: {error}.") from None
        description = sanitise(f"{problem.entry_point}({', '.join(arguments)})")
        tests.append(Test(description, Relation.EQUAL, expected, problem.comparison))
    calls = tuple(Call(case.args, case.kwargs) for case in problem.cases)
    return Plan(calls, (), tuple(tests))


def _plan_tests(problem: Problem, oracle: Callable[[], Executor]) -> Plan:
    assertions = [parse_assertion(source, problem.entry_point) for source in problem.tests]
    found = _literals(assertions)
    missing = [a.expected for a in assertions if a.expected is not None and a.expected not in found]
    if missing:
        found.update(_evaluate(problem, missing, oracle()))
    tests, expressions = [], []
    for assertion in assertions:
        if assertion.expected is not None and assertion.expected not in found:
            # Its expected side needs names of the answer: only the answer's process can judge it.
            body = ast.parse(assertion.source.replace("\r\n", "\n").strip()).body[0]
            assert isinstance(body, ast.Assert)
            assertion = Assertion(assertion.source, ast.unparse(body.test), Relation.TRUE, split=False)
        expressions.append(assertion.actual)
        tests.append(_test(assertion, found, problem))
    return Plan((), tuple(expressions), tuple(tests))


def _test(assertion: Assertion, found: dict[str, Any], problem: Problem) -> Test:
    expected = None if assertion.expected is None else found[assertion.expected]
    if assertion.relation in (Relation.MEMBER, Relation.NOT_MEMBER) and not isinstance(
        expected,
        (str, list, tuple),  # PlainSet and PlainDict are tuples, too
    ):
        raise ProblemError(
            f"{problem.task_id}: the test {assertion.source!r} looks for a member of no container."
        )
    return Test(
        description=sanitise(assertion.actual if assertion.split else assertion.source),
        relation=assertion.relation,
        expected=expected,
        comparison=problem.comparison,
        split=assertion.split,
        relative=assertion.relative,
        absolute=assertion.absolute,
    )


def _literals(assertions: Sequence[Assertion]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for assertion in assertions:
        if assertion.expected is not None:
            try:
                found[assertion.expected] = canonical(ast.literal_eval(assertion.expected))
            except (ValueError, TypeError, SyntaxError, PlainDataError):
                continue  # not a literal: it will be evaluated in a process of its own
    return found


def _evaluate(problem: Problem, expressions: list[str], executor: Executor) -> dict[str, Any]:
    """The values of expected sides, from a clean process with the setup code and no answer.

    Those that cannot be had (they use names that only an answer defines) are left out.
    """
    job = Job(code="", expressions=tuple(expressions), setup_code=problem.setup_code, limits=_ORACLE_LIMITS)
    ((_, result),) = executor.run([job])
    if result.outcome is Outcome.INFRASTRUCTURE:
        raise ProblemError(
            f"{problem.task_id}: its expected values could not be computed: {result.error_message}."
        )
    return {
        expression: one.value
        for expression, one in zip(expressions, result.results, strict=False)
        if one.returned and one.plain
    }


def _contains(container: Any, value: Any, comparison: Comparison) -> bool:
    if isinstance(container, str):
        return isinstance(value, str) and value in container
    if isinstance(container, PlainDict):
        return any(equal(key, value, comparison) for key, _ in container.entries)
    elements = container.elements if isinstance(container, PlainSet) else container
    return any(equal(element, value, comparison) for element in elements)
