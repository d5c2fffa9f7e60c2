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

from greenward.problems.problem import Case, Comparison, Problem, ProblemSet, stable_hash

TESTS, HIDDEN_TESTS = 20, 20
_ALPHABET = "abcdefghijklmnopqrstuvwxyzAEIOUBX  aeiou 0"
_NAMES = {"n": "n", "ab": "a, b", "abc": "a, b, c", "xs": "xs", "s": "s", "xn": "xs, n", "sn": "s, n"}
Phrases = tuple[tuple[str, str], ...]
# What is spoken of, and the expression of it, by signature.
_VALUES: dict[str, Phrases] = {
    "n": (
        ("the number", "n"),
        ("twice the number", "n * 2"),
        ("half the number", "n // 2"),
        ("the absolute value of the number", "abs(n)"),
        ("the last digit of the number", "abs(n) % 10"),
        ("the square of the number", "n * n"),
    ),
    "ab": (
        ("the first number", "a"),
        ("the second number", "b"),
        ("the sum", "a + b"),
        ("the difference", "a - b"),
        ("the product", "a * b"),
        ("the square of the first number", "a * a"),
        ("twice the first number plus the second", "a * 2 + b"),
        ("the larger number", "max(a, b)"),
        ("the smaller number", "min(a, b)"),
        ("the distance of the numbers", "abs(a - b)"),
    ),
    "abc": (
        ("the sum of three numbers", "a + b + c"),
        ("the first number", "a"),
        ("the last number", "c"),
        ("the product of three numbers", "a * b * c"),
        ("the product of the last two numbers", "b * c"),
        ("the smaller of the first two", "min(a, b)"),
        ("the sum of the first two numbers", "a + b"),
        ("the larger of the last two", "max(b, c)"),
    ),
    "xs": (
        ("the number of values in the list", "len(xs)"),
        ("the sum of the list", "sum(xs)"),
        ("the largest value of the list", "max(xs)"),
        ("the smallest value of the list", "min(xs)"),
        ("the first value of the list", "xs[0]"),
        ("the last value of the list", "xs[-1]"),
        ("the largest minus the smallest value of the list", "max(xs) - min(xs)"),
        ("the first plus the last value of the list", "xs[0] + xs[-1]"),
    ),
    "s": (
        ("the length of the string", "len(s)"),
        ("the number of spaces in the string", "s.count(' ')"),
        ("how often the first character is in the string", "s.count(s[0])"),
    ),
}
_CHANGES: Phrases = (
    ("{}", "{}"),
    ("{} plus 1", "{} + 1"),
    ("{} minus 1", "{} - 1"),
    ("{} plus 10", "{} + 10"),
    ("{} minus 10", "{} - 10"),
    ("{} plus 2", "{} + 2"),
    ("{} minus 2", "{} - 2"),
    ("2 times {}", "2 * ({})"),
    ("10 times {}", "10 * ({})"),
    ("half of {}", "({}) // 2"),
    ("the square of {}", "({0}) * ({0})"),
    ("the absolute value of {}", "abs({})"),
    ("minus {}", "-({})"),
    ("1 minus {}", "1 - ({})"),
    ("10 minus {}", "10 - ({})"),
    ("the remainder of {} by 2", "({}) % 2"),
    ("the remainder of {} by 10", "({}) % 10"),
)
_QUESTIONS: Phrases = (
    ("{} is positive", "{} > 0"),
    ("{} is not negative", "{} >= 0"),
    ("{} is zero", "{} == 0"),
    ("{} is negative", "{} < 0"),
    ("{} is odd", "({}) % 2 == 1"),
    ("{} is even", "({}) % 2 == 0"),
    ("{} is below 10", "{} < 10"),
    ("{} is above 10", "{} > 10"),
    ("{} is at most 2", "{} <= 2"),
    ("{} is not 1", "{} != 1"),
    ("{} is a multiple of 10", "({}) % 10 == 0"),
)
_TERMS: Phrases = (
    ("x", "x"),
    ("x squared", "x * x"),
    ("twice x", "x * 2"),
    ("x plus 1", "x + 1"),
    ("the number minus x", "n - x"),
)
_RANGES: Phrases = (
    ("from 1 to the number", "range(1, n + 1)"),
    ("below the number", "range(n)"),
    ("from 2 to the number", "range(2, n + 1)"),
)
_KINDS: Phrases = (("positive", "x > 0"), ("even", "x % 2 == 0"), ("odd", "x % 2 == 1"), ("zero", "x == 0"))
_CHARACTERS: Phrases = (
    ("a space", "c == ' '"),
    ("no space", "c != ' '"),
    ("blank", "c in ' '"),
    ("in the string itself", "c in s"),
    ("its first character", "c == s[0]"),
)
_WALKS: Phrases = (
    ("of the string", "s"),
    ("of the string in lower case", "s.lower()"),
    ("of the string in upper case", "s.upper()"),
    ("but the first", "s[1:]"),
)
_OTHERS: dict[str, Phrases] = {
    "s": (
        ("the string twice", "s + s"),
        ("the string in lower case", "s.lower()"),
        ("the string in upper case", "s.upper()"),
        ("the string without its first character", "s[1:]"),
        ("the string without its last character", "s[:-1]"),
        ("the string followed by its length", "s + str(len(s))"),
        ("every other character of the string", "s[::2]"),
        ("the string reversed and in lower case", "s[::-1].lower()"),
    ),
    "xn": (
        ("the sum of the list plus the number", "sum(xs) + n"),
        ("how often the number is in the list", "xs.count(n)"),
        ("True if the number is in the list, False otherwise", "n in xs"),
        ("the largest of the list and the number", "max(max(xs), n)"),
    ),
    "sn": (
        ("the string, repeated", "s * n"),
        ("the first characters of the string", "s[:n]"),
        ("the rest of the string from there on", "s[n:]"),
    ),
    "ab": (
        ("the first number unless it is zero, else the second", "a if a else b"),
        ("0 if the numbers are equal, else 1", "0 if a == b else 1"),
        ("the first number if it is above the second, else 0", "a if a > b else 0"),
        ("1 if the first is below the second, else 2", "1 if a < b else 2"),
    ),
    "n": (
        ("1 if the number is zero, else the number", "n if n else 1"),
        ("0 if the number is negative, else the number", "0 if n < 0 else n"),
        ("the sum of all numbers up to it, by calling itself", "n + {self}(n - 1) if n > 0 else 0"),
        ("2 to the power of the number, by calling itself", "2 * {self}(n - 1) if n > 0 else 1"),
    ),
}


def _templates() -> Iterator[tuple[str, str, str]]:
    """(signature, docstring, body) of every candidate."""
    for names, values in _VALUES.items():
        for (what, value), (change, changed) in product(values, _CHANGES):
            yield names, f"Return {change.format(what)}.", f"return {changed.format(value)}"
        for (what, value), (question, asked) in product(values, _QUESTIONS):
            doc = f"Return True if {question.format(what)}, False otherwise."
            yield names, doc, f"return {asked.format(value)}"
    for names, others in _OTHERS.items():
        yield from ((names, f"Return {what}.", f"return {value}") for what, value in others)
    for (what, value), (where, numbers) in product(_TERMS, _RANGES):
        doc = f"Return the sum of {what} for all x {where}"
        yield "n", f"{doc}, by a loop.", _loop("0", numbers, f"+= {value}")
        yield "n", f"{doc}.", f"return sum({value} for x in {numbers})"
        yield "n", f"Return the product of {what} for all x {where}.", _loop("1", numbers, f"*= {value}")
    yield "n", "Return 2 to the power of the number, by a loop.", _loop("1", "range(n)", "*= 2")
    for what, value in _TERMS[:4]:
        yield "xs", f"Return 1 plus {what} for all x in the list, by a loop.", _loop("1", "xs", f"+= {value}")
        yield "xs", f"Return the product of {what} for all x in the list.", _loop("1", "xs", f"*= {value}")
        yield "xs", f"Return {what} for all x in the list.", f"return [{value} for x in xs]"
    for what, asked in _KINDS:
        yield "xs", f"Return how many values of the list are {what}.", f"return sum({asked} for x in xs)"
        yield "xs", f"Return True if all values are {what}.", f"return all({asked} for x in xs)"
        yield "xs", f"Return True if any value is {what}.", f"return any({asked} for x in xs)"
        yield "xs", f"Keep the values that are {what}.", f"return [x for x in xs if {asked}]"
    for (what, asked), (where, walked) in product(_CHARACTERS, _WALKS):
        yield "s", f"Count the characters {where} that are {what}.", f"return sum({asked} for c in {walked})"
        yield (
            "s",
            f"Return True if all characters {where} are {what}.",
            f"return all({asked} for c in {walked})",
        )
        yield (
            "s",
            f"Return True if any character {where} is {what}.",
            f"return any({asked} for c in {walked})",
        )


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
    exec(reference, namespace)  # from this file and the shipped problems
    return namespace[name]
