"""Templates of vulnerable functions, each with its fix.

A template is one misuse of an interface. In `data/vulnerabilities.txt`, lines after `-` are those of the
vulnerable version alone, lines after `+` those of the fixed one. `$f` stands for the name of the function,
`$x` for the value that comes from outside, `$r` for a result, `$w` for a word, `$n` for a number. Of every
weakness at least one template is held out: a policy that only knows the misuses that it has seen does not
recognise it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import resources

_HEADING = re.compile(r"^## (CWE-\d+) (.+?)( \(held out\))?$", re.MULTILINE)


@dataclass(frozen=True)
class Template:
    """A function with a weakness and the same function without it."""

    name: str
    cwe: str
    vulnerable: str
    fixed: str
    held_out: bool


@cache
def templates() -> tuple[Template, ...]:
    """All templates, in the order of the file."""
    text = (resources.files("greenward.problems") / "data" / "vulnerabilities.txt").read_text("utf-8")
    return tuple(_read(text))


def _read(text: str) -> Iterator[Template]:
    headings = list(_HEADING.finditer(text))
    ends = [*(heading.start() for heading in headings[1:]), len(text)]
    for heading, end in zip(headings, ends, strict=True):
        lines = text[heading.end() : end].strip("\n").split("\n")
        vulnerable, fixed = ("\n".join(line[1:] for line in lines if line[:1] != other) for other in "+-")
        yield Template(heading[2], heading[1], vulnerable, fixed, heading[3] is not None)
