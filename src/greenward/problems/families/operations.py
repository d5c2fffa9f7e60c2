"""The operations of which generated problems are composed, and the kinds of values between them.

Each operation is a phrase in English, the Python expression that computes it, and plausible wrong
expressions. Every operation is defined on every input: where a list may be empty, the phrase says what comes
then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

from greenward.problems.data_files import read_table


class Kind(str, Enum):
    """The type of a value between two operations; the member's value names the variable that holds it."""

    NUMBERS = "xs"  # list[int]
    NUMBER = "n"  # int
    TEXT = "s"  # str
    WORDS = "words"  # list[str]


@dataclass(frozen=True)
class Operation:
    """A total function from one kind to another.

    `phrase` says in words what `expression` computes from the variable of kind `takes`. Each of the
    `wrong_expressions` is a mistake that a programmer could make: it differs from `expression` on some value,
    and may raise. `template` is the name without the constant.
    """

    name: str
    template: str
    takes: Kind
    gives: Kind
    phrase: str
    expression: str
    wrong_expressions: tuple[str, ...]


@cache
def compiled(kind: Kind, expression: str) -> Callable[[Any], Any]:
    """The function of one value of `kind` that computes `expression`, which greenward ships."""
    function: Callable[[Any], Any] = eval(f"lambda {kind.value}: {expression}")
    return function


def read_operations() -> Iterator[Operation]:
    """The operations of `data/operations.txt`, in its order; one for each constant of a row that has some.

    A row holds the name and the constants, the phrase, the right expression and wrong ones. `{k}` stands for
    the constant, which is added to the name, `{less}` and `{more}` for the constant minus and plus one.
    """
    for kinds, rows in read_table("operations.txt").items():
        takes, gives = (Kind[kind] for kind in kinds.split(" to "))
        for head, *texts in rows:
            template, *constants = head.split()
            for k in map(int, constants or ["0"]):
                phrase, right, *wrong = (text.format(k=k, less=k - 1, more=k + 1) for text in texts)
                name = f"{template}_{k}" if constants else template
                yield Operation(name, template, takes, gives, phrase, right, tuple(wrong))


OPERATIONS: dict[str, Operation] = {operation.name: operation for operation in read_operations()}

OPERATIONS_TAKING: dict[Kind, tuple[Operation, ...]] = {
    kind: tuple(operation for operation in OPERATIONS.values() if operation.takes is kind) for kind in Kind
}
