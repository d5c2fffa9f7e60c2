"""An operation: one step of a generated problem, in words, in Python, and as people get it wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any


class Kind(str, Enum):
    """The type of a value between two operations; its value names the variable that holds it."""

    NUMBERS = "xs"  # list[int]
    NUMBER = "n"  # int
    TEXT = "s"  # str
    WORDS = "words"  # list[str]


@dataclass(frozen=True)
class Operation:
    """A total function from one kind to another.

    `phrase` says in words what `expression` computes from the variable of kind `takes`.
    `misconceptions` are expressions of the same style that a person could write instead: each
    differs from `expression` on some value, and may raise.
    """

    name: str
    takes: Kind
    gives: Kind
    phrase: str
    expression: str
    misconceptions: tuple[str, ...]


@dataclass(frozen=True)
class Template:
    """A family of operations over one small constant; without constants it is a single operation.

    `{k}` in the texts stands for the constant, `{less}` and `{more}` for its neighbours.
    """

    name: str
    phrase: str
    expression: str
    misconceptions: tuple[str, ...]
    constants: tuple[int, ...] = ()

    def operations(self, takes: Kind, gives: Kind) -> tuple[Operation, ...]:
        """One operation per constant, named `<name>_<k>`; or just one, under the template's name."""
        if not self.constants:
            return (Operation(self.name, takes, gives, self.phrase, self.expression, self.misconceptions),)
        return tuple(self._with_constant(k, takes, gives) for k in self.constants)

    def _with_constant(self, k: int, takes: Kind, gives: Kind) -> Operation:
        def fill(text: str) -> str:
            return text.format(k=k, less=k - 1, more=k + 1)

        return Operation(
            name=f"{self.name}_{k}",
            takes=takes,
            gives=gives,
            phrase=fill(self.phrase),
            expression=fill(self.expression),
            misconceptions=tuple(fill(text) for text in self.misconceptions),
        )


@cache
def compiled(kind: Kind, expression: str) -> Callable[[Any], Any]:
    """The function of one value of `kind` that `expression` (one of our own) computes."""
    function: Callable[[Any], Any] = eval(f"lambda {kind.value}: {expression}")
    return function
