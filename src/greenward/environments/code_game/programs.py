"""Random short programs that print: examples of the rules and of the format, not of good play.

Every program keeps one value in `a`, a number or a word, changes it a few times and prints it. Its first
line is the prompt of the player who writes the program.
"""

from __future__ import annotations

import random
from types import MappingProxyType

MOST_CHANGES = 3
MOST_PREDICTED_CHANGES = 6
"""Of a program that a predictor is taught on: a generator soon writes more than it was shown."""

# Each change, and what `a` is after it. {n}: a number from 2 to 5, {c} and {d}: two letters.
_CHANGES = MappingProxyType(
    {
        "number": (
            ("a += {n}", "number"),
            ("a -= {n}", "number"),
            ("a = {n} - a", "number"),
            ("a = a % {n}", "number"),
            ("for i in range({n}):\n    a += i", "number"),
            ("if a > {n}:\n    a -= 3", "number"),
        ),
        "word": (
            ('a += "{c}"', "word"),
            ("a = a[::-1]", "word"),
            ("a = a[1:]", "word"),
            ("a = a.upper()", "word"),
            ('a = a.replace("{c}", "{d}")', "word"),
            ("a = len(a)", "number"),
        ),
    }
)


def random_first_line(rng: random.Random) -> str:
    """An assignment to `a`."""
    return _first_line(rng)[0]


def random_program(rng: random.Random, most_changes: int = MOST_CHANGES) -> str:
    """A program of up to `most_changes` changes; it never fails."""
    first, kind = _first_line(rng)
    lines = [first]
    for _ in range(rng.randint(1, most_changes)):
        change, kind = rng.choice(_CHANGES[kind])
        letter, other = rng.sample("ab", 2)
        lines.append(change.format(n=rng.randint(2, 5), c=letter, d=other))
    return "\n".join([*lines, "print(a)"])


def _first_line(rng: random.Random) -> tuple[str, str]:
    """An assignment, and of what."""
    if rng.random() < 0.5:
        return f"a = {rng.randint(0, 12)}", "number"
    return f'a = "{"".join(rng.choices("ab", k=3))}"', "word"
