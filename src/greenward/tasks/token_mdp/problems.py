"""Provides the problems of the token MDP: types, visible tests, and the proof that they can be solved."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from greenward.common.errors import ProblemError
from greenward.problems.problem import Problem
from greenward.tasks.token_mdp.grammar import (
    ARGUMENTS,
    LN,
    LS,
    MOST_TOKENS,
    TYPES,
    VARIABLES,
    B,
    Grammar,
    N,
    S,
    Signature,
    Vocabulary,
    literal_class,
    parameters,
    reference_lexemes,
)


@dataclass(frozen=True, eq=False)
class TokenProblem:
    """A problem with the grammar of its signature. `hidden` is the same problem with its hidden tests."""

    problem: Problem
    signature: Signature
    grammar: Grammar
    hidden: Problem | None

    @property
    def task_id(self) -> str:
        return self.problem.task_id


def token_problems(problems: Iterable[Problem], vocabulary: Vocabulary) -> list[TokenProblem]:
    """The problems with their grammars; equal signatures share one. Raises `ProblemError` for other types."""
    found = []
    for problem in problems:
        signature, visible = signature_of(problem), replace(problem, hidden_cases=())
        hidden = replace(visible, tests=problem.hidden_cases) if problem.hidden_cases else None
        found.append(TokenProblem(visible, signature, vocabulary.grammar(signature), hidden))
    return found


def signature_of(problem: Problem) -> Signature:
    """The types of arguments and result, from the test cases.

    Raises `ProblemError` where the grammar has no such type.
    """
    names = parameters(problem)
    cases = [one for one in problem.cases if one.raises is None and not one.kwargs]
    if not cases or len(cases) < len(problem.tests):
        raise ProblemError(
            f"{problem.task_id}: the token MDP needs test cases of inputs and outputs, and no other tests."
        )
    if len(names) > len(ARGUMENTS):
        raise ProblemError(f"{problem.task_id}: at most {len(ARGUMENTS)} arguments, found {len(names)}.")
    columns = list(zip(*(one.args for one in cases), strict=True))
    if len(columns) != len(names):
        raise ProblemError(f"{problem.task_id}: the tests give {len(columns)} of {len(names)} arguments.")
    kinds = [_kind(values, f"{problem.task_id}: {name}") for name, values in zip(names, columns, strict=True)]
    return Signature(tuple(kinds), _kind([one.expected for one in cases], f"{problem.task_id}: the result"))


def _kind(values: Sequence[Any], what: str) -> str:
    kinds = {_kind_of(value) for value in values} - {"empty"}
    if not kinds:
        return LN
    if len(kinds) == 1 and (kind := kinds.pop()):
        return kind
    shown = next((value for value in values if not _kind_of(value)), values[0])
    raise ProblemError(
        f"{what}: expected values of one of the types {', '.join(TYPES)}, found {shown!r:.80}.",
        remedy="The grammar of the token MDP knows no others.",
    )


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return B
    if isinstance(value, int | float):
        return N
    if isinstance(value, str):
        return S
    if isinstance(value, list | tuple):
        inner = {_kind_of(one) for one in value}
        return "empty" if not inner else {N: LN, S: LS}.get(inner.pop(), "") if len(inner) == 1 else ""
    return ""


def check_reachable(one: TokenProblem, vocabulary: Vocabulary, max_steps: int) -> list[str]:
    """The reference as lexemes of the vocabulary, which the grammar accepts within `max_steps`.

    Variables of the reference may have any names. Raises `ProblemError` that names the lexeme that is
    missing, or where the grammar stops.
    """
    lexemes = reference_lexemes(one.problem)
    own = sorted({node.id for node in ast.walk(ast.parse(one.problem.reference))
                  if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)})  # fmt: skip
    missing = next((name for name in lexemes if name not in vocabulary.index and name not in own), None)
    if missing is not None:
        place = Vocabulary(MOST_TOKENS).index.get(missing)
        remedy = (
            f"Raise environment.vocab_size to {place + 1}, or give a simpler reference."
            if place is not None
            else "Add it to environment.extra_tokens."
            if literal_class(missing)
            else f"Give a simpler reference: the grammar knows no {missing} at any size."
        )
        raise ProblemError(
            f"{one.task_id}: its reference needs {missing}, which is not among the {len(vocabulary)} "
            "tokens of the vocabulary.",
            remedy=remedy,
        )
    if len(lexemes) > max_steps:
        raise ProblemError(
            f"{one.task_id}: its reference has {len(lexemes)} tokens, and max_steps is {max_steps}.",
            remedy="Raise environment.max_steps.",
        )
    furthest = 0
    for names in itertools.product(VARIABLES, repeat=len(own)):
        renamed = [dict(zip(own, names, strict=True)).get(lexeme, lexeme) for lexeme in lexemes]
        reached = accepted(one.grammar, vocabulary, renamed)
        if reached == len(lexemes):
            return renamed
        furthest = max(furthest, reached)
    raise ProblemError(
        f"{one.task_id}: the grammar does not accept its reference from {lexemes[furthest]!r} on, after: "
        f"{' '.join(lexemes[:furthest])}.",
        remedy="Give a reference of simple statements (docs/dqn.md), or set "
        "environment.check_reachability=false.",
    )


def accepted(grammar: Grammar, vocabulary: Vocabulary, lexemes: Sequence[str]) -> int:
    """How many lexemes the grammar accepts from the start."""
    node = grammar.start
    for position, lexeme in enumerate(lexemes):
        if (following := grammar.advance(node, vocabulary.index[lexeme])) is None:
            return position
        node = following
    return len(lexemes)
