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

_CHARACTERS = "aeioubcxzABXEIZ0129 -,.!?  "


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


def _uneven_numbers(rng: random.Random) -> list[int]:
    reach = rng.choice((5, 50))
    return [rng.randint(-reach, reach) for _ in range(rng.randint(0, 9))]


def _uneven_number(rng: random.Random) -> int:
    return rng.randint(-200, 200)


def _uneven_text(rng: random.Random) -> str:
    return "".join(rng.choices(_CHARACTERS, k=rng.randint(0, 14)))


def _uneven_words(rng: random.Random) -> list[str]:
    return ["".join(rng.choices(_CHARACTERS, k=rng.randint(0, 7))) for _ in range(rng.randint(0, 6))]


_DRAW = {Kind.NUMBERS: _numbers, Kind.NUMBER: _number, Kind.TEXT: _text, Kind.WORDS: _words}
_DRAW_UNEVEN = {
    Kind.NUMBERS: _uneven_numbers,
    Kind.NUMBER: _uneven_number,
    Kind.TEXT: _uneven_text,
    Kind.WORDS: _uneven_words,
}


def input_pool(kind: Kind, seed: int, *, uneven: bool = False) -> tuple[Any, ...]:
    """`POOL_SIZE` distinct random values of `kind`, none of them an edge input.

    Those of an `uneven` pool are of any length from 0 and of characters and numbers of a wider range.
    """
    rng = random.Random(f"{seed}/{kind.value}{'/uneven' if uneven else ''}")
    draw = (_DRAW_UNEVEN if uneven else _DRAW)[kind]
    pool: list[Any] = []
    while len(pool) < POOL_SIZE:
        value = draw(rng)
        if value not in pool and value not in EDGE_INPUTS[kind]:
            pool.append(value)
    return tuple(pool)
