"""Compositions of operations: the specification in words, the Python program and what it computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.families.operations import OPERATIONS, OPERATIONS_TAKING, Kind, Operation, compiled

ENTRY_POINT = "solve"
ID_PREFIX = "families/"

# What a wrong expression may raise on the values of the generated problems.
_EXCEPTIONS = (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError)


@dataclass(frozen=True)
class Composition:
    """Operations applied one after the other; each takes the kind that the one before it gives."""

    operations: tuple[Operation, ...]

    @classmethod
    def of(cls, task_id: str) -> Composition:
        """The composition that a task id such as `families/keep_even+sum` names. Raises `ProblemError`."""
        names = task_id.removeprefix(ID_PREFIX).split("+")
        if not task_id.startswith(ID_PREFIX) or not all(name in OPERATIONS for name in names):
            raise ProblemError(
                f"expected the id of a generated problem ({ID_PREFIX}<operation>+…), found {task_id!r}.",
                remedy="Only generated problems have examples; for others, set warm_start.data to a file.",
            )
        return cls(tuple(OPERATIONS[name] for name in names))

    @property
    def takes(self) -> Kind:
        return self.operations[0].takes

    @property
    def gives(self) -> Kind:
        return self.operations[-1].gives

    @property
    def task_id(self) -> str:
        return ID_PREFIX + "+".join(operation.name for operation in self.operations)

    @property
    def specification(self) -> str:
        """The phrases as one sentence: `Keep the even numbers, then add up the numbers.`"""
        sentence = ", then ".join(operation.phrase for operation in self.operations)
        return f"{sentence[0].upper()}{sentence[1:]}."

    @property
    def starter_code(self) -> str:
        return f'def {ENTRY_POINT}({self.takes.value}):\n    """{self.specification}"""\n'

    @property
    def expressions(self) -> tuple[str, ...]:
        return tuple(operation.expression for operation in self.operations)

    def wrong_variants(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """(position, expressions) for every wrong expression of one operation; all others are right."""
        right = self.expressions
        for position, operation in enumerate(self.operations):
            for wrong in operation.wrong_expressions:
                yield position, (*right[:position], wrong, *right[position + 1 :])

    def body(self, expressions: tuple[str, ...]) -> str:
        """The function body that assigns each expression but the last, which it returns."""
        targets = [*(f"{operation.gives.value} =" for operation in self.operations[:-1]), "return"]
        return "".join(f"    {target} {value}\n" for target, value in zip(targets, expressions, strict=True))

    def evaluate(self, expressions: tuple[str, ...], value: Any) -> Any:
        """What `body(expressions)` returns for `value`; raises what the body raises."""
        for operation, expression in zip(self.operations, expressions, strict=True):
            value = compiled(operation.takes, expression)(value)
        return value

    def fails(self, expressions: tuple[str, ...], value: Any, expected: Any) -> bool:
        """Whether `body(expressions)` raises for `value` or returns something else than `expected`."""
        try:
            return bool(self.evaluate(expressions, value) != expected)
        except _EXCEPTIONS:
            return True

    def shorter(self) -> Iterator[Composition]:
        """The compositions of some of the operations that take and give the same kinds as this one."""
        for kept in range(1, (1 << len(self.operations)) - 1):
            operations = tuple(op for i, op in enumerate(self.operations) if kept >> i & 1)
            fits = all(a.gives is b.takes for a, b in pairwise(operations))
            if fits and operations[0].takes is self.takes and operations[-1].gives is self.gives:
                yield Composition(operations)


def compositions(depth: int) -> Iterator[Composition]:
    """Every type-correct composition of exactly `depth` operations, in the order of the table."""
    chains: Iterator[tuple[Operation, ...]] = ((operation,) for operation in OPERATIONS.values())
    for _ in range(depth - 1):
        chains = ((*chain, operation) for chain in chains for operation in OPERATIONS_TAKING[chain[-1].gives])
    return map(Composition, chains)
