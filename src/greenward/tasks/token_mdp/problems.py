"""Provides the problems of the token MDP: types, visible tests, and the proof that they can be solved.

Small functions of one to three arguments are generated from templates, each with visible and hidden tests.
They are training material beside the classic problems, and the programs from which the token prior of `kind:
dqn` is counted. None equals a given other problem: what agrees with one on 40 inputs is left out.
"""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import product
from typing import Any

from greenward.common.errors import ProblemError
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet, stable_hash
from greenward.problems.rows import read_table
from greenward.tasks.token_mdp.grammar import (
    ARGUMENTS,
    LN,
    LS,
    TYPES,
    VARIABLES,
    B,
    Grammar,
    N,
    S,
    Signature,
    Vocabulary,
    parameters,
    reference_lexemes,
)

TESTS, HIDDEN_TESTS = 20, 20
_ALPHABET = "abcdefghijklmnopqrstuvwxyzAEIOUBX  aeiou 0"
_NAMES = {"n": "n", "ab": "a, b", "abc": "a, b, c", "xs": "xs", "s": "s", "xn": "xs, n", "sn": "s, n"}
# What is spoken of in a docstring, and the expression of it, by kind and signature.
_PHRASES = read_table("small_functions.txt")


def _templates() -> Iterator[tuple[str, str, str]]:
    """(signature, docstring, body) of every candidate."""
    for names in ("n", "ab", "abc", "xs", "s"):
        values = _PHRASES[f"values of {names}"]
        for (what, value), (change, changed) in product(values, _PHRASES["changes"]):
            yield names, f"Return {change.format(what)}.", f"return {changed.format(value)}"
        for (what, value), (question, asked) in product(values, _PHRASES["questions"]):
            doc = f"Return True if {question.format(what)}, False otherwise."
            yield names, doc, f"return {asked.format(value)}"
    for names in ("s", "xn", "sn", "ab", "n"):
        for what, value in _PHRASES[f"others of {names}"]:
            yield names, f"Return {what}.", f"return {value}"
    for (what, value), (where, numbers) in product(_PHRASES["terms"], _PHRASES["ranges"]):
        doc = f"Return the sum of {what} for all x {where}"
        yield "n", f"{doc}, by a loop.", _loop("0", numbers, f"+= {value}")
        yield "n", f"{doc}.", f"return sum({value} for x in {numbers})"
        yield "n", f"Return the product of {what} for all x {where}.", _loop("1", numbers, f"*= {value}")
    yield "n", "Return 2 to the power of the number, by a loop.", _loop("1", "range(n)", "*= 2")
    for what, value in _PHRASES["terms"][:4]:
        yield "xs", f"Return 1 plus {what} for all x in the list, by a loop.", _loop("1", "xs", f"+= {value}")
        yield "xs", f"Return the product of {what} for all x in the list.", _loop("1", "xs", f"*= {value}")
        yield "xs", f"Return {what} for all x in the list.", f"return [{value} for x in xs]"
    for what, asked in _PHRASES["kinds"]:
        yield "xs", f"Return how many values of the list are {what}.", f"return sum({asked} for x in xs)"
        yield "xs", f"Return True if all values are {what}.", f"return all({asked} for x in xs)"
        yield "xs", f"Return True if any value is {what}.", f"return any({asked} for x in xs)"
        yield "xs", f"Keep the values that are {what}.", f"return [x for x in xs if {asked}]"
    for (what, asked), (where, walked) in product(_PHRASES["characters"], _PHRASES["walks"]):
        for said, function in (
            ("Count the characters {} that are {}.", "sum"),
            ("Return True if all characters {} are {}.", "all"),
            ("Return True if any character {} is {}.", "any"),
        ):
            yield "s", said.format(where, what), f"return {function}({asked} for c in {walked})"


def _loop(start: str, numbers: str, change: str) -> str:
    return f"result = {start}\n    for x in {numbers}:\n        result {change}\n    return result"


def _inputs(names: str, rng: random.Random) -> tuple[Any, ...]:
    def number() -> int:
        return rng.randint(-20, 20) if rng.random() < 0.7 else rng.randint(-100, 100)

    numbers = [number() for _ in range(rng.randint(1, 6))]
    text = "".join(rng.choice(_ALPHABET) for _ in range(rng.randint(1, 10)))
    drawn = {"xs": (numbers,), "s": (text,), "xn": (numbers, rng.choice([*numbers, number()])),
             "sn": (text, rng.randint(0, 6))}  # fmt: skip
    return drawn.get(names, tuple(number() for _ in names))


@lru_cache(maxsize=4)
def small_functions(others: ProblemSet) -> ProblemSet:
    """All small functions that differ from each other and from the problems `others` on their tests.

    The same everywhere: inputs follow from a stable hash of the program.
    """
    known = {_behaviour(_parameters_of(one), one.reference, one.entry_point) for one in others}
    found = []
    for index, (names, docstring, body) in enumerate(_templates()):
        name = f"small_{index}"
        head = f'def {name}({_NAMES[names]}):\n    """{docstring}"""\n'
        reference = f"{head}    {body.format(self=name)}\n"
        behaviour = _behaviour(names, reference, name)
        if behaviour in known or len(set(behaviour)) < 3:
            continue
        known.add(behaviour)
        function = _function(reference, name)
        rng = random.Random(stable_hash(reference))
        inputs = [_inputs(names, rng) for _ in range(TESTS + HIDDEN_TESTS)]
        cases = [Case(one, function(*one)) for one in inputs]
        found.append(
            Problem(
                task_id=f"small/{index}",
                prompt=docstring,
                entry_point=name,
                tests=tuple(cases[:TESTS]),
                hidden_cases=tuple(cases[TESTS:]),
                starter_code=head,
                reference=reference,
                comparison=Comparison(tolerance=0.0),
                tags=("small",),
            )
        )
    return ProblemSet(found, name="small_functions")


def _parameters_of(problem: Problem) -> str:
    """The signature, as in `_NAMES`, whose inputs have the types of the problem's."""
    arguments = problem.cases[0].args
    if len(arguments) == 1:
        return "s" if isinstance(arguments[0], str) else "xs" if isinstance(arguments[0], list) else "n"
    return "abc"[: len(arguments)]


def _behaviour(names: str, reference: str, name: str) -> tuple[str, ...]:
    """What the program gives on inputs that are the same for all programs of a signature."""
    function, rng = _function(reference, name), random.Random(names)
    return (names, *(repr(_value(function, _inputs(names, rng))) for _ in range(40)))


def _value(function: Any, arguments: Sequence[Any]) -> Any:
    try:
        return function(*arguments)
    except (RecursionError, TypeError, ValueError, IndexError) as error:
        return type(error).__name__


def _function(reference: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(reference, namespace)  # what greenward ships
    return namespace[name]


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
    grammar_of = cache(lambda signature: Grammar(signature, vocabulary))
    found = []
    for problem in problems:
        signature, visible = signature_of(problem), replace(problem, hidden_cases=())
        hidden = replace(visible, tests=problem.hidden_cases) if problem.hidden_cases else None
        found.append(TokenProblem(visible, signature, grammar_of(signature), hidden))
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
        raise ProblemError(
            f"{one.task_id}: its reference needs {missing}, which is not among the {len(vocabulary)} "
            "tokens of the vocabulary.",
            remedy="Raise environment.vocab_size, add a literal to environment.extra_tokens, or give a "
            "simpler reference.",
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
