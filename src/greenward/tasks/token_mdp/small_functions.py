"""Generates small functions of one to three arguments, with docstrings and visible and hidden tests.

They are training material beside the classic problems: demonstrations, and the programs from which the token
prior is counted. The first ones come from templates; further ones are compositions of their
parts, drawn at random.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import Any, NamedTuple

from greenward.common.errors import ProblemError
from greenward.problems.problem import Case, Comparison, Problem, ProblemSet, stable_hash
from greenward.problems.rows import read_table
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.problems import TokenProblem, check_reachable, signature_of

TESTS, HIDDEN_TESTS = 20, 20
MOST_TEMPLATES = 10_000
"""Numbers of compositions begin here."""
BRANCHES = 0.15
"""The share of compositions that choose one of two values."""
LONGEST = 32
"""Tokens of a composition."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyzAEIOUBX  aeiou 0"
_NAMES = {"n": "n", "ab": "a, b", "abc": "a, b, c", "xs": "xs", "s": "s", "xn": "xs, n", "sn": "s, n"}
_OF_KINDS = {"n": "n", "nn": "ab", "nnn": "abc", "x": "xs", "s": "s", "xn": "xn", "sn": "sn"}
# What is spoken of in a docstring, and the expression of it, by kind and signature.
_PHRASES = read_table("small_functions.txt")


class Part(NamedTuple):
    """An expression and what a docstring says of it."""

    words: str
    code: str


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


@cache
def _parts(kind: str, names: str) -> list[tuple[str, ...]]:
    """The expressions of a type and signature; those of a number also by a walk through a range."""
    found = [*_PHRASES.get(f"{kind} of {names}", ())]
    if kind == "number":
        found += _PHRASES.get(f"values of {names}", ())
    if names == "n" and kind in ("number", "truth"):
        ranges = [*_PHRASES["ranges"], *_PHRASES["further ranges"]]
        for (what, asked), (where, numbers) in product(_PHRASES["tests of x"], ranges):
            if kind == "number":
                found.append(
                    (f"how many x {where} there are that {what}", f"sum({asked} for x in {numbers})")
                )
                continue
            for word in ("all", "any"):
                found.append((f"{word} x {where} {what}", f"{word}({asked} for x in {numbers})"))
        if kind == "number":
            for (what, value), (where, numbers) in product(_PHRASES["terms"], ranges):
                found.append((f"the sum of {what} for all x {where}", f"sum({value} for x in {numbers})"))
    return found


def _composition(rng: random.Random) -> tuple[str, str, str]:
    """(signature, docstring, body) of parts that are combined, each in the place of any other."""
    names = rng.choice(("n", "n", "ab", "ab", "abc", "xs", "xs", "xs", "s", "s", "xn", "sn"))
    kinds = {"number": 4.0, "truth": 2.0, "text": 3.0, "numbers": 2.0}
    kinds = {kind: weight for kind, weight in kinds.items() if kind == "truth" or _parts(kind, names)}
    (kind,) = rng.choices(list(kinds), list(kinds.values()))
    if kind == "truth":
        said = rng.choice(("Return True if {}, False otherwise", "Return True if {}", "Check whether {}"))
        words, code = _truth(rng, names, joined=True)
        words = said.format(words)
    elif rng.random() < BRANCHES:
        asked = _truth(rng, names)
        first, second = (_of_kind(rng, kind, names, 0) for _ in range(2))
        words = f"Return {first.words} if {asked.words}, else {second.words}"
        code = f"{first.code} if {asked.code} else {second.code}"
    else:
        words, code = _of_kind(rng, kind, names, rng.choice((0, 1, 1, 2)))
        words = f"Return {words}"
    return names, f"{_reworded(rng, words)}.", f"return {code}"


def _of_kind(rng: random.Random, kind: str, names: str, depth: int) -> Part:
    """An expression of a type; its depth is the number of changes and combinations on the way to a part."""
    if not depth:
        return Part(*rng.choice(_parts(kind, names)))
    first = _of_kind(rng, kind, names, depth - 1)
    if kind == "text" or (kind == "number" and rng.random() < 0.5):
        what, code = rng.choice(_PHRASES[f"combinations of {kind}"])
        second = _of_kind(rng, kind, names, 0)
        return Part(what.format(first.words, second.words), code.format(first.code, second.code))
    what, code = rng.choice(_PHRASES["changes" if kind == "number" else f"changes of {kind}"])
    return Part(what.format(first.words), code.format(first.code))


def _truth(rng: random.Random, names: str, *, joined: bool = False) -> Part:
    """A truth value: a part, a comparison or a question; `joined` ones may be two of these."""
    if joined and rng.random() < 0.4:
        first, second = (_truth(rng, names) for _ in range(2))
        word = rng.choice(("and", "or"))
        return Part(f"{first.words} {word} {second.words}", f"{first.code} {word} {second.code}")
    way = rng.choice(("part", "comparison", "question"))
    if way == "part" and (whole := _parts("truth", names)):
        return Part(*rng.choice(whole))
    if way == "comparison":
        kind = rng.choice([one for one in ("number", "text", "numbers") if _parts(one, names)])
        what, code = rng.choice(_PHRASES["comparisons" if kind == "number" else "comparisons of others"])
        first, second = (_of_kind(rng, kind, names, 0) for _ in range(2))
        return Part(what.format(first.words, second.words), code.format(first.code, second.code))
    what, code = rng.choice([*_PHRASES["questions"], *_PHRASES["further questions"]])
    part = _of_kind(rng, "number", names, 0)
    return Part(what.format(part.words), code.format(part.code))


def _reworded(rng: random.Random, words: str) -> str:
    """The words with some of them replaced by others of one meaning."""
    for first, *others in _PHRASES["synonyms"]:
        if rng.random() < 0.5:
            words = re.sub(rf"\b{first}\b", rng.choice(others), words)
    return words


def _inputs(names: str, rng: random.Random) -> tuple[Any, ...]:
    def number() -> int:
        return rng.randint(-20, 20) if rng.random() < 0.7 else rng.randint(-100, 100)

    if names in ("n", "ab", "abc"):
        return tuple(number() for _ in names)
    numbers = [number() for _ in range(rng.randint(1, 6))]
    text = "".join(rng.choice(_ALPHABET) for _ in range(rng.randint(1, 10)))
    return {"xs": (numbers,), "s": (text,), "xn": (numbers, rng.choice([*numbers, number()])),
            "sn": (text, rng.randint(0, 6))}[names]  # fmt: skip


@lru_cache(maxsize=4)
def small_functions(compositions: int = 0) -> ProblemSet:
    """Small functions that differ from each other on 40 inputs: all templates, and so many compositions.

    A composition has at most `LONGEST` tokens, all of them of the smallest vocabulary. The same everywhere:
    inputs follow from a stable hash of the program.
    """
    vocabulary = Vocabulary()

    def writable(problem: Problem) -> bool:
        signature = signature_of(problem)
        try:
            one = TokenProblem(problem, signature, vocabulary.grammar(signature), None)
            check_reachable(one, vocabulary, LONGEST)
        except ProblemError:
            return False
        return True

    known: set[tuple[str, ...]] = set()
    made = (_problem(index, *one, known) for index, one in enumerate(_templates()))
    found = [one for one in made if one is not None]
    number, rng = len(found), random.Random(0)
    numbers = itertools.count(MOST_TEMPLATES)
    while len(found) < number + compositions:
        one = _problem(next(numbers), *_composition(rng), known)
        if one is not None and writable(one):
            found.append(one)
    return ProblemSet(found, name="small_functions")


def without_solutions(functions: Iterable[Problem], problems: Sequence[Problem]) -> ProblemSet:
    """The small functions that pass neither all visible nor all hidden tests of any of the problems.

    Only what greenward ships is run: the small functions, on the problems' inputs.
    """
    asked: dict[str, list[Sequence[Case]]] = {}
    for problem in problems:
        if not problem.cases:
            continue  # it has no values to compare
        tests = [part for part in (problem.cases, problem.hidden_cases) if part]
        asked.setdefault(_signature(problem), []).extend(tests)
    return ProblemSet(
        (one for one in functions if not any(_solves(one, part) for part in asked.get(_signature(one), ()))),
        name="small_functions",
    )


def inputs_like(problem: Problem, rng: random.Random) -> tuple[Any, ...]:
    """Inputs as those of small functions, of the types that the problem's have.

    Raises `ProblemError` where no small function has these types.
    """
    if (kinds := _signature(problem)) not in _OF_KINDS:
        raise ProblemError(f"{problem.task_id}: no small function has inputs of its types.")
    return _inputs(_OF_KINDS[kinds], rng)


def _solves(one: Problem, cases: Sequence[Case]) -> bool:
    function = _function(one.reference, one.entry_point)
    return all(_value(function, case.args) == case.expected for case in cases)


def _problem(
    index: int, names: str, docstring: str, body: str, known: set[tuple[str, ...]]
) -> Problem | None:
    """The function, unless it behaves like one that is known, or has no value somewhere."""
    name = f"small_{index}"
    head = f'def {name}({_NAMES[names]}):\n    """{docstring}"""\n'
    reference = f"{head}    {body.format(self=name)}\n"
    behaviour = _behaviour(names, reference, name)
    if behaviour in known or len(set(behaviour)) < 3:
        return None
    function = _function(reference, name)
    rng = random.Random(stable_hash(reference))
    inputs = [_inputs(names, rng) for _ in range(TESTS + HIDDEN_TESTS)]
    try:
        cases = [Case(one, function(*one)) for one in inputs]
    except (ZeroDivisionError, IndexError, TypeError):
        return None
    known.add(behaviour)
    return Problem(
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


def _signature(problem: Problem) -> str:
    """The types of the arguments in the problem's first case, a letter for each."""
    letters = {bool: "b", int: "n", float: "n", str: "s", list: "x", tuple: "x"}
    return "".join(letters.get(type(one), "?") for one in problem.cases[0].args)


@cache
def _usual_inputs(names: str) -> tuple[tuple[Any, ...], ...]:
    rng = random.Random(names)
    return tuple(_inputs(names, rng) for _ in range(40))


def _behaviour(names: str, reference: str, name: str) -> tuple[str, ...]:
    """What the program gives on inputs that are the same for all programs of a signature."""
    function = _function(reference, name)
    return (names, *(repr(_value(function, one)) for one in _usual_inputs(names)))


def _value(function: Any, arguments: Sequence[Any]) -> Any:
    try:
        return function(*arguments)
    except (RecursionError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        return type(error).__name__


def _function(reference: str, name: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(reference, namespace)  # what greenward ships
    return namespace[name]
