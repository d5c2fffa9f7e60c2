"""The kinds of values that operations take and give, and the test inputs of generated problems."""

from __future__ import annotations

import random
from enum import Enum
from typing import Any


class Kind(str, Enum):
    """The type of a value between two operations; the member's value names the variable that holds it."""

    NUMBERS = "xs"  # list[int]
    NUMBER = "n"  # int
    TEXT = "s"  # str
    WORDS = "words"  # list[str]


# Every problem that takes a kind is tested on these.
EDGE_INPUTS: dict[Kind, tuple[Any, ...]] = {
    Kind.NUMBERS: ([], [0], [4], [-3], [2, 2, 2], [5, 3, 0, -1, 3]),
    Kind.NUMBER: (0, 1, -1, 7, -10),
    Kind.TEXT: ("", " ", "a", "Hi 5", "  two  words "),
    Kind.WORDS: ([], [""], ["ox"], ["fig", "fig"], ["Owl", "ant", "a"]),
}
POOL_SIZE = 60

_VOCABULARY = (
    "Apple", "Bee", "cat", "DoG", "Echo", "Fox", "go", "HAT", "ink", "Jam", "kiwi", "level", "mad2",
    "No", "otter", "pi", "Quiz", "r2d2", "sea", "to", "UP", "vine", "we", "x-ray", "yes", "zoo", "a", "I",
)  # fmt: skip
_CHARACTERS = "aeioubcxzABXEIZ0129 -,.!?  "


def input_pool(kind: Kind, seed: int, *, uneven: bool = False) -> tuple[Any, ...]:
    """`POOL_SIZE` distinct random values of `kind`, none of them an edge input.

    The values of an `uneven` pool have any length from 0 and a wider range of characters and numbers.
    """
    rng = random.Random(f"{seed}/{kind.value}{'/uneven' if uneven else ''}")
    draw = _draw_uneven if uneven else _draw
    pool: list[Any] = []
    while len(pool) < POOL_SIZE:
        value = draw(kind, rng)
        if value not in pool and value not in EDGE_INPUTS[kind]:
            pool.append(value)
    return tuple(pool)


def _draw(kind: Kind, rng: random.Random) -> Any:
    if kind is Kind.NUMBER:
        return rng.randint(-20, 47)
    if kind is Kind.NUMBERS:
        numbers = [rng.randint(-9, 12) for _ in range(rng.randint(4, 7))]
        return [*numbers, rng.choice(numbers)]
    words = rng.choices(_VOCABULARY, k=rng.randint(2, 4))
    if kind is Kind.WORDS:
        return [*words, rng.choice(words)]
    padding = " " * rng.choice((0, 0, 1, 2))
    return padding + " ".join(words) + rng.choice(("", "", "!", "  "))


def _draw_uneven(kind: Kind, rng: random.Random) -> Any:
    if kind is Kind.NUMBER:
        return rng.randint(-200, 200)
    if kind is Kind.NUMBERS:
        reach = rng.choice((5, 50))
        return [rng.randint(-reach, reach) for _ in range(rng.randint(0, 9))]
    if kind is Kind.WORDS:
        return ["".join(rng.choices(_CHARACTERS, k=rng.randint(0, 7))) for _ in range(rng.randint(0, 6))]
    return "".join(rng.choices(_CHARACTERS, k=rng.randint(0, 14)))
