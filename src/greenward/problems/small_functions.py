"""Small functions of one to three arguments, generated from templates: each with visible and hidden tests.

They are training material beside the classic problems, and the programs from which the token prior of
`kind: dqn` is counted. None does what a given other problem asks for: what equals one of those on 40 inputs
is left out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import Any

from greenward.problems.data_files import read_table
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet, stable_hash

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
                cases=tuple(cases[:TESTS]),
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
