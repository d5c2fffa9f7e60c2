"""Counts the short literals of Python's standard library, most frequent first.

    .venv/bin/python benchmarks/python_literals.py > src/greenward/problems/data/python_literals.txt

They are what the vocabulary of the token MDP holds beyond the lexemes that its grammar knows. A literal
counts once for each file of the library that has it, tests left out; of equals, that comes first which
occurs more often, then the shorter one. The recorded list is of CPython 3.11: it
must not change with the version, since a Q-network keeps its actions by their numbers.
"""

from __future__ import annotations

import ast
import sysconfig
import tokenize
from collections import Counter
from pathlib import Path

LITERALS, LONGEST, LARGEST = 5000, 12, 10**6
LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"}


def literals_of(file: Path) -> Counter[str]:
    """The numbers up to `LARGEST` and the texts up to `LONGEST` characters, as Python writes them."""
    found: Counter[str] = Counter()
    with tokenize.open(file) as lines:
        for token in tokenize.generate_tokens(lines.readline):
            if token.type not in (tokenize.NUMBER, tokenize.STRING):
                continue
            try:
                value = ast.literal_eval(token.string)
            except (ValueError, SyntaxError):  # an f-string
                continue
            is_number = type(value) is int and value <= LARGEST
            is_text = type(value) is str and len(value) <= LONGEST and value.isascii() and value.isprintable()
            if is_number or is_text:
                found[repr(value)] += 1
    return found


def main() -> None:
    library = Path(sysconfig.get_path("stdlib"))
    files = [
        one for one in sorted(library.rglob("*.py")) if not LEFT_OUT & set(one.relative_to(library).parts)
    ]
    in_files: Counter[str] = Counter()
    in_all: Counter[str] = Counter()
    for counts in map(literals_of, files):
        in_files.update(counts.keys())
        in_all.update(counts)
    order = sorted(
        in_files, key=lambda literal: (-in_files[literal], -in_all[literal], len(literal), literal)
    )
    print("\n".join(order[:LITERALS]))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
