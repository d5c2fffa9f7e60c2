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

_LENGTH = "a = len(a)"  # makes a number of a word
# The changes of each kind of value. {n}: a number from 2 to 5, {c} and {d}: two letters.
_CHANGES = MappingProxyType(
    {
        "number": (
            "a += {n}", "a -= {n}", "a = {n} - a", "a = a % {n}", "for i in range({n}):\n    a += i",
            "if a > {n}:\n    a -= 3",
        ),
        "word": (
            'a += "{c}"', "a = a[::-1]", "a = a[1:]", "a = a.upper()", 'a = a.replace("{c}", "{d}")', _LENGTH,
        ),
    }
)  # fmt: skip


def random_program(rng: random.Random, most_changes: int = MOST_CHANGES) -> str:
    """A program of up to `most_changes` changes; it never fails."""
    first, kind = random_first_line(rng)
    lines = [first]
    for _ in range(rng.randint(1, most_changes)):
        change = rng.choice(_CHANGES[kind])
        kind = "number" if change == _LENGTH else kind
        letter, other = rng.sample("ab", 2)
        lines.append(change.format(n=rng.randint(2, 5), c=letter, d=other))
    return "\n".join([*lines, "print(a)"])


def random_first_line(rng: random.Random) -> tuple[str, str]:
    """An assignment to `a`, and of what."""
    if rng.random() < 0.5:
        return f"a = {rng.randint(0, 12)}", "number"
    return f'a = "{"".join(rng.choices("ab", k=3))}"', "word"
