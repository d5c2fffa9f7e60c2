"""The inputs on which generated problems are tested: edge cases for all, a random draw for each."""

from __future__ import annotations

import random
from typing import Any

from greenward.problems.families.operation import Kind

EDGE_INPUTS: dict[Kind, tuple[Any, ...]] = {
    Kind.NUMBERS: ([], [0], [4], [-3], [2, 2, 2], [5, 3, 0, -1, 3]),
    Kind.NUMBER: (0, 1, -1, 7, -10),
    Kind.TEXT: ("", " ", "a", "Hi 5", "  two  words "),
    Kind.WORDS: ([], [""], ["ox"], ["fig", "fig"], ["Owl", "ant", "a"]),
}

RANDOM_INPUTS = 7  # drawn for each problem, from a pool of POOL_SIZE for its kind
POOL_SIZE = 60

_VOCABULARY = (
    "Apple", "Bee", "cat", "DoG", "Echo", "Fox", "go", "HAT", "ink", "Jam", "kiwi", "level", "mad2",
    "No", "otter", "pi", "Quiz", "r2d2", "sea", "to", "UP", "vine", "we", "x-ray", "yes", "zoo", "a", "I",
)  # fmt: skip


def _numbers(rng: random.Random) -> list[int]:
    numbers = [rng.randint(-9, 12) for _ in range(rng.randint(4, 7))]
    return [*numbers, rng.choice(numbers)]


def _number(rng: random.Random) -> int:
    return rng.randint(-20, 47)


def _words(rng: random.Random) -> list[str]:
    words = rng.choices(_VOCABULARY, k=rng.randint(2, 4))
    return [*words, rng.choice(words)]


def _text(rng: random.Random) -> str:
    words = rng.choices(_VOCABULARY, k=rng.randint(2, 4))
    padding = " " * rng.choice((0, 0, 1, 2))
    return padding + " ".join(words) + rng.choice(("", "", "!", "  "))


_DRAW = {Kind.NUMBERS: _numbers, Kind.NUMBER: _number, Kind.TEXT: _text, Kind.WORDS: _words}


def input_pool(kind: Kind, seed: int) -> tuple[Any, ...]:
    """`POOL_SIZE` distinct random values of `kind`, none of them an edge input."""
    rng = random.Random(f"{seed}/{kind.value}")
    pool: list[Any] = []
    while len(pool) < POOL_SIZE:
        value = _DRAW[kind](rng)
        if value not in pool and value not in EDGE_INPUTS[kind]:
            pool.append(value)
    return tuple(pool)
