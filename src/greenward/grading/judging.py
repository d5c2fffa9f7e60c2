"""Computes the verdict on an answer from the results of its run: pure functions of the trusted process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from greenward.grading.assertions import Relation
from greenward.grading.compare import close, elements_of, equal, is_something, matches, same_output
from greenward.grading.doctests import is_met
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Comparison
from greenward.sandbox.codec import PlainDict, PlainSet
from greenward.sandbox.protocol import CallResult, Job, Outcome, RunResult
from greenward.text import MAX_MESSAGE_CHARS, visible

# How a test is judged: by values compared here, by a test program in a process of its own, by what
# the program printed, or in the answer's own process, where the answer could forge the result.
Mode = Literal["values", "check", "stdio", "in_process"]
DEFAULT_COMPARISON = Comparison()
MAX_VALUE_CHARS = 120

# Other outcomes but `COMPLETED` have a status of their name.
_STATUS = {
    Outcome.LOAD_ERROR: Status.ERROR,
    Outcome.NO_ENTRY_POINT: Status.NO_CODE,
    Outcome.EXITED: Status.ERROR,
}
_WANTED = {
    Relation.COMPLETES: "it to pass",
    Relation.RAISES: "{} to be raised",
    Relation.PRINTS: "it to print {}",
    Relation.TRUE: "it to be true",
    Relation.FALSE: "it to be false",
    Relation.EQUAL: "{}",
}


@dataclass(frozen=True)
class Expectation:
    """What one call, expression, test program or run of an answer must give.

    `expected` is a flat plain value, the name of an exception class for RAISES, a text for PRINTS, a
    `doctest.Example` for EXAMPLE; `tolerances` are the relative and the absolute one of CLOSE. Of what is
    printed, `max_output_bytes` are kept: a text as long as that may have been cut and does not pass.
    """

    description: str
    relation: Relation
    expected: Any = None
    comparison: Comparison = DEFAULT_COMPARISON
    mode: Mode = "values"
    tolerances: tuple[float, float] = (0.0, 0.0)
    max_output_bytes: int = 0

    def is_met_by(self, result: CallResult) -> bool:
        """Whether the result is right."""
        if self.relation is Relation.RAISES:
            return not result.returned and result.error_class == self.expected
        if not result.returned:
            return False
        if not result.plain:  # and therefore not None, and true as a match object is
            is_not_none = self.relation is Relation.NOT_EQUAL and self.expected is None
            if is_not_none or self.relation in (Relation.TRUE, Relation.NOT_IDENTICAL):
                return True
            return self._asks_for_anything and is_something(self.expected)
        return self._holds_for(result.value)

    def failing_status(self, result: CallResult) -> Status:
        """The status of an answer for which this expectation is the first that is not met."""
        if not result.returned:
            if result.error_class == "MemoryError":
                return Status.MEMORY
            is_program = self.relation is Relation.COMPLETES
            return Status.FAILED if is_program and result.error_class == "AssertionError" else Status.ERROR
        if result.plain or self._asks_for_anything or self.relation is Relation.RAISES:
            return Status.FAILED
        return Status.WRONG_TYPE

    def failure(self, result: CallResult) -> str:
        """One bounded line: what was called, what was expected, what the result was."""
        if not result.returned:
            came = visible(f"raised {result.error_class}: {result.error_message}", MAX_MESSAGE_CHARS)
        elif not result.plain:
            came = visible(result.error_message, MAX_MESSAGE_CHARS)
        else:
            came = f"got {show_value(self._shown(result.value))}"
        return f"{self.description}: expected {self._wanted()}, {came}"

    def _wanted(self) -> str:
        if self._asks_for_anything:
            return "anything" if is_something(self.expected) else "nothing"
        if self.relation is Relation.EXAMPLE:
            return show_value(self.expected.want if self.expected.exc_msg is None else self.expected.exc_msg)
        wanted = self.expected if self.relation is Relation.RAISES else show_value(self.expected)
        if self.relation is Relation.EQUAL and self.comparison.rule == "same_set":
            return f"{wanted} in any order"
        return _WANTED.get(self.relation, f"{self.relation.value} {{}}").format(wanted)

    def _shown(self, value: Any) -> Any:
        match value:
            case [printed, raised] if self.relation is Relation.EXAMPLE:
                return printed if raised is None else raised
        return value

    @property
    def _asks_for_anything(self) -> bool:
        return self.relation is Relation.EQUAL and self.comparison.rule == "not_none"

    def _holds_for(self, value: Any) -> bool:
        relation, expected = self.relation, self.expected
        if relation is Relation.EQUAL:
            return matches(value, expected, self.comparison)
        if relation is Relation.NOT_EQUAL:
            return not equal(value, expected, self.comparison)
        if relation is Relation.CLOSE:
            relative, absolute = self.tolerances
            return close(value, expected, relative=relative, absolute=absolute)
        if relation is Relation.PRINTS:
            is_whole = len(value.encode("utf-8", "replace")) < self.max_output_bytes
            return is_whole and same_output(value, expected)
        if relation in (Relation.IDENTICAL, Relation.NOT_IDENTICAL):
            return (value is expected) is (relation is Relation.IDENTICAL)
        if relation in (Relation.TRUE, Relation.FALSE):
            inner = value[0] if isinstance(value, (PlainSet, PlainDict)) else value
            return bool(inner) is (relation is Relation.TRUE)
        if relation is Relation.COMPLETES:
            return True
        if relation is Relation.EXAMPLE:
            return is_met(expected, value)
        if isinstance(expected, str):
            is_member = isinstance(value, str) and value in expected
        else:
            is_member = any(equal(value, element, self.comparison) for element in elements_of(expected))
        return is_member is (relation is Relation.MEMBER)


@dataclass(frozen=True)
class GradingPlan:
    """How to judge any answer to one problem.

    `job` is what to run, but for the code and the limits (`time_limits`); of the output,
    `max_output_bytes` are kept, if it matters. `expectations` are in the order of the problem's tests;
    `positions` says which of a run's results belongs to each.
    """

    job: Job
    expectations: tuple[Expectation, ...]
    positions: tuple[int, ...]
    max_output_bytes: int | None = None


def judge(plan: GradingPlan, result: RunResult) -> Verdict:
    """The verdict: every test that was reached is compared; all must pass and the run complete.

    What an answer returned may be what no test foresaw: a value that breaks its comparison is that
    answer's failure, and costs no other answer its verdict.
    """
    verdict = partial(
        Verdict, cpu_seconds=result.cpu_seconds, wall_seconds=result.wall_seconds, layers=result.layers
    )
    try:
        return _judge(plan, result, verdict)
    except Exception as error:
        message = f"what the answer returned cannot be judged: {error}"
        return verdict(
            status=Status.WRONG_TYPE,
            tests_passed=(False,) * len(plan.expectations),
            error_class=type(error).__name__,
            error_message=visible(message, MAX_MESSAGE_CHARS),
        )


def _judge(plan: GradingPlan, result: RunResult, verdict: partial[Verdict]) -> Verdict:
    results = [result.results[at] if at < len(result.results) else None for at in plan.positions]
    passed = tuple(
        one is not None and expectation.is_met_by(one)
        for expectation, one in zip(plan.expectations, results, strict=True)
    )
    error_class, error_message, first_failure = result.error_class, result.error_message, ""
    # What a test found tells more than that another was not reached.
    failing = min(
        (i for i, ok in enumerate(passed) if not ok), key=lambda i: results[i] is None, default=None
    )
    if failing is not None:
        expectation, failed = plan.expectations[failing], results[failing]
        not_reached = f"{expectation.description}: not reached or not finished"
        first_failure = not_reached if failed is None else expectation.failure(failed)
    if result.outcome is not Outcome.COMPLETED:
        status = _STATUS.get(result.outcome) or Status(result.outcome.value)
    elif len(result.results) != len(passed):
        status = Status.INFRASTRUCTURE
        error_message = f"the sandbox reported {len(result.results)} results for {len(passed)} tests"
    elif failing is None:
        status = Status.PASSED
    else:
        assert failed is not None  # as many results as tests: every test was reached
        status = expectation.failing_status(failed)
        error_class, error_message = failed.error_class, failed.error_message
    return verdict(
        status=status,
        tests_passed=passed,
        error_class=None if error_class is None else visible(error_class, 100),
        error_message=visible(error_message, MAX_MESSAGE_CHARS),
        first_failure=first_failure,
        stdout=visible(result.stdout),
        stderr=visible(result.stderr),
    )


def show_value(value: Any) -> str:
    """A plain value, flat or not, as Python would write it, bounded whatever its size."""
    return visible(_written(value, MAX_VALUE_CHARS), MAX_VALUE_CHARS)


def _written(value: Any, budget: int) -> str:
    match value:
        case int() if value.bit_length() > 400:
            return f"<an int of {value.bit_length()} bits>"
        case str() | bytes() | bytearray():
            return repr(value[: max(0, budget)])
        case PlainDict(entries):
            return _joined("{", entries, "}", budget, ": ")
        case dict():
            return _joined("{", value.items(), "}", budget, ": ")
        case PlainSet(elements):
            return _joined("{", elements, "}", budget) if elements else "set()"
        case set() | frozenset():
            return _joined("{", value, "}", budget) if value else "set()"
        case list():
            return _joined("[", value, "]", budget)
        case deque():
            return _joined("deque([", value, "])", budget)
        case range():
            return _joined("range(", (value.start, value.stop, value.step), ")", budget)
        case tuple():
            return _joined("(", value, ",)" if len(value) == 1 else ")", budget)
    return repr(value)


def _joined(start: str, values: Iterable[Any], end: str, budget: int, between: str = "") -> str:
    """The values between brackets; with `between`, each value is a pair."""
    parts: list[str] = []
    for value in values:
        if budget <= 0:
            parts.append("…")
            break
        written = _written(value[0] if between else value, budget)
        if between:
            written += between + _written(value[1], budget - len(written))
        parts.append(written)
        budget -= len(written) + 2
    return start + ", ".join(parts) + end
