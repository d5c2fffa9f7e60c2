"""Tells whether a program is composed of what other programs have: of which parts none of them shows the use.

The parts of a program are its productions, a symbol of the grammar with the token that expands it, and its
pairs of neighbouring tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from greenward.tasks.token_mdp.grammar import END, NEWLINE, RESULT, Grammar, Vocabulary

Part = tuple[Any, str]
"""(symbol, token) of a production, or (token, token) of neighbours."""


def parts(grammar: Grammar, vocabulary: Vocabulary, lexemes: Sequence[str]) -> set[Part]:
    """The parts of a program that the grammar accepts."""
    found: set[Part] = set(itertools.pairwise(lexemes))
    node = grammar.start
    for lexeme in lexemes:
        found.add((grammar.expanded(node, lexeme), lexeme))
        following = grammar.advance(node, vocabulary.index[lexeme])
        assert following is not None
        node = following
    return found


def missing(program: set[Part], others: Iterable[set[Part]]) -> set[Part]:
    """The parts of the program that none of the others has: empty where it is reachable by composition."""
    return program.difference(*others)


def inlined(lexemes: Sequence[str]) -> list[str]:
    """`result = …` and `return result` as `return …`, where a program has no other statements."""
    first, _, second = " ".join(lexemes).partition(f" {NEWLINE} ")
    value = first.removeprefix(f"{RESULT} = ").split()
    if first.startswith(f"{RESULT} = ") and second == f"return {RESULT} {END}" and RESULT not in value:
        return ["return", *value, END]
    return list(lexemes)
