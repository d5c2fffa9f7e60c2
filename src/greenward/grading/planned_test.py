"""One test of a problem, ready to judge what came back for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from greenward.grading.assertions import Relation
from greenward.grading.compare import close, equal, is_something, matches
from greenward.grading.printed import same_output
from greenward.grading.text import show
from greenward.grading.verdict import Status
from greenward.problems.problem import Comparison
from greenward.sandbox.codec import PlainDict, PlainSet
from greenward.sandbox.protocol import CallResult
from greenward.text import MAX_MESSAGE_CHARS, visible

# How a test is judged: by values compared here, by a test program in a process of its own, by what
# the program printed, or in the answer's own process, where the answer could forge the result.
Mode = Literal["values", "check", "stdio", "in_process"]
DEFAULT_COMPARISON = Comparison()


@dataclass(frozen=True)
class Test:
    """What one call, expression, test program or run must give.

    `expected` is a flat plain value, the name of an exception class for RAISES, a text for PRINTS;
    `relative` and `absolute` are the tolerances of CLOSE. Of what is printed, `most_printed`
    bytes are kept: a text as long as that may have been cut and does not pass.
    """

    description: str
    relation: Relation
    expected: Any = None
    comparison: Comparison = DEFAULT_COMPARISON
    mode: Mode = "values"
    relative: float = 0.0
    absolute: float = 0.0
    most_printed: int = 0

    def passes(self, result: CallResult) -> bool:
        """Whether what came back is right."""
        if self.relation is Relation.RAISES:
            return not result.returned and result.error_class == self.expected
        if not result.returned:
            return False
        if not result.plain:  # and therefore not None, and true as a match object is
            return self.relation is Relation.TRUE or (self._asks_for_anything and is_something(self.expected))
        return self._holds_for(result.value)

    def failing_status(self, result: CallResult) -> Status:
        """The status of an answer for which this test is the first to fail."""
        if not result.returned:
            if result.error_class == "MemoryError":
                return Status.MEMORY
            is_program = self.relation is Relation.COMPLETES
            return Status.FAILED if is_program and result.error_class == "AssertionError" else Status.ERROR
        if result.plain or self._asks_for_anything or self.relation is Relation.RAISES:
            return Status.FAILED
        return Status.WRONG_TYPE

    def failure(self, result: CallResult) -> str:
        """One bounded line: what was called, what was expected, what came."""
        if not result.returned:
            came = visible(f"raised {result.error_class}: {result.error_message}", MAX_MESSAGE_CHARS)
        elif not result.plain:
            came = visible(result.error_message, MAX_MESSAGE_CHARS)
        else:
            came = f"got {show(result.value)}"
        return f"{self.description}: {self._wanted()}, {came}"

    def _wanted(self) -> str:
        if self.relation is Relation.COMPLETES:
            return "expected it to pass"
        if self.relation is Relation.RAISES:
            return f"expected {visible(self.expected, MAX_MESSAGE_CHARS)} to be raised"
        if self.relation is Relation.PRINTS:
            return f"expected it to print {show(self.expected)}"
        if self.relation in (Relation.TRUE, Relation.FALSE):
            return f"expected it to be {self.relation.value}"
        if self._asks_for_anything:
            return f"expected {'anything' if is_something(self.expected) else 'nothing'}"
        if self.relation is not Relation.EQUAL:
            return f"expected {self.relation.value} {show(self.expected)}"
        order = " in any order" if self.comparison.rule == "same_set" else ""
        return f"expected {show(self.expected)}{order}"

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
            return close(value, expected, relative=self.relative, absolute=self.absolute)
        if relation is Relation.PRINTS:
            fits = len(value.encode("utf-8", "replace")) < self.most_printed
            return fits and same_output(value, expected)
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


def truth(value: Any) -> bool:
    """Python's truth of a flat plain value."""
    return bool(value[0]) if isinstance(value, (PlainSet, PlainDict)) else bool(value)


def _contains(container: Any, value: Any, comparison: Comparison) -> bool:
    if isinstance(container, str):
        return isinstance(value, str) and value in container
    if isinstance(container, PlainDict):
        return any(equal(value, key, comparison) for key, _ in container.entries)
    elements = container.elements if isinstance(container, PlainSet) else container
    return any(equal(value, element, comparison) for element in elements)
