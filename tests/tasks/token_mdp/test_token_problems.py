"""Reachability and visible and hidden tests, each against an independent oracle."""

from __future__ import annotations

import ast
import math
from dataclasses import replace

import pytest

from greenward.common.errors import ConfigError, ProblemError
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Assertion, Case, Problem
from greenward.tasks.token_mdp.grammar import Vocabulary, literal_class, program, tidied
from greenward.tasks.token_mdp.mdp import TokenMDP, TokenSettings
from greenward.tasks.token_mdp.problems import token_problems


def primes_by_sieve(n: int) -> bool:
    crossed = {multiple for factor in range(2, 200) for multiple in range(2 * factor, 200, factor)}
    return 2 <= n < 200 and n not in crossed


# Written without what the references use.
ORACLES = {
    "add_numbers": lambda a, b: -(-a - b),
    "is_even": lambda n: not n & 1,
    "max_of_three": lambda *numbers: sorted(numbers)[2],
    "is_palindrome": lambda s: all(one == two for one, two in zip(s, reversed(s), strict=True)),
    "factorial": math.gamma,
    "reverse_string": lambda s: "".join(reversed(s)),
    "count_vowels": lambda s: len([c for c in s if c.casefold() in set("aeiou")]),
    "sum_list": lambda numbers: int(math.fsum(numbers)),
    "multiply": lambda a, b: int(math.copysign(1, a * 1.0) * math.copysign(1, b * 1.0)) * abs(a) * abs(b),
    "is_prime": primes_by_sieve,
    "find_min": lambda numbers: -max(-one for one in numbers),
}
CLASSICS = [one for name in ("classic_training", "classic_evaluation") for one in load_suite(name)]


@pytest.mark.parametrize("problem", CLASSICS, ids=lambda one: one.task_id)
def test_classic_problems_have_twenty_visible_and_twenty_other_hidden_tests_that_are_right(problem) -> None:
    assert len(problem.cases) >= 20
    assert len(problem.hidden_cases) >= 20
    inputs = [repr(case.args) for case in (*problem.cases, *problem.hidden_cases)]
    assert len(set(inputs)) == len(inputs)
    oracle = ORACLES[problem.task_id]
    for case in (*problem.cases, *problem.hidden_cases):
        if problem.task_id == "factorial":
            (n,) = case.args
            assert math.isclose(case.expected, math.gamma(n + 1), rel_tol=1e-9)
        else:
            assert case.expected == oracle(*case.args), case
    answers = [case.expected for case in problem.cases]
    constant = max(answers.count(one) for one in answers) / len(answers)
    assert constant <= 0.5, "a constant passes too many tests"


@pytest.mark.parametrize("problem", CLASSICS, ids=lambda one: one.task_id)
def test_every_classic_problem_can_be_written_in_the_core_vocabulary(problem) -> None:
    """The lexemes of the reachability check, written by the MDP itself, are the reference."""
    mdp = TokenMDP([problem], Vocabulary(), TokenSettings(max_steps=32))
    writing = mdp.start(mdp.problems[0])
    lexemes = mdp.references[problem.task_id]
    while not writing.outcome:
        writing.act(mdp.vocabulary.index[lexemes[len(writing.tokens)]])
    assert writing.outcome == "ended"
    namespace: dict = {}
    exec(tidied(writing.code), namespace)
    for case in (*problem.cases, *problem.hidden_cases):
        assert namespace[problem.entry_point](*case.args) == case.expected


def of_reference(body: str, *cases: Case) -> Problem:
    head = f"def f({', '.join('abcde'[: len(cases[0].args)])}):\n"
    return Problem("mine", "Do it.", "f", cases, starter_code=head, reference=f"{head}    {body}\n")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return a + 7", "needs 7, which is not among the 64 tokens"),
        ("return divmod(a, 2)[0]", "needs divmod, which"),
        ("return a if a else print(1)", "needs print, which"),
        ("while a:\n        return 1", "needs while, which"),
        ("while a:\n        return 1", "Raise environment.vocab_size to 86"),
        ("return a + 7", "Raise environment.vocab_size to 78"),
        ("return a + 12345", "Add it to environment.extra_tokens"),
        ("return lambda: a", "the grammar knows no lambda at any size"),
        ("return lambda: a", "needs lambda, which"),
        ("return a + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1", "has 23 tokens, and max_steps is 20"),
        ("return [a][0] + 1", "does not accept its reference from ']' on, after: return [ <arg0>"),
    ],
)
def test_what_keeps_a_reference_from_being_written_is_named(body, message) -> None:
    problem = of_reference(body, Case((1,), 8))
    with pytest.raises(ProblemError, match="mine: ") as error:
        TokenMDP([problem], Vocabulary(), TokenSettings(max_steps=20))
    assert message in f"{error.value.message} {error.value.remedy}"
    TokenMDP([problem], Vocabulary(), check=False)


def test_a_literal_that_is_added_makes_a_reference_reachable() -> None:
    problem = of_reference("return a + 77 if a else 0", Case((1,), 78))
    mdp = TokenMDP([problem], Vocabulary(extra=("77",)), TokenSettings(max_steps=20))
    assert mdp.references["mine"][3] == "77"


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            Problem("p", "", "f", (Case(({"a": 1},), 1),), starter_code="def f(a):\n"),
            r"expected values of one of",
        ),
        (Problem("p", "", "f", (Case((None,), 1),), starter_code="def f(a):\n"), "expected values of one of"),
        (
            Problem("p", "", "f", (Case((1,), 1), Case(("a",), 1)), starter_code="def f(a):\n"),
            "expected values",
        ),
        (
            Problem("p", "", "f", (Case((1,) * 5, 1),), starter_code="def f(a, b, c, d, e):\n"),
            "at most 4 arguments",
        ),
        (
            Problem("p", "", "f", tests=(Assertion("assert f(1) == 1"),), starter_code="def f(a):\n"),
            "needs test cases",
        ),
        (Problem("p", "", "f", (Case((1,), 1),), starter_code="nonsense"), "does not define 'f'"),
    ],
)
def test_problems_that_the_grammar_has_no_types_for_are_refused(problem, message) -> None:
    with pytest.raises(ProblemError, match=message):
        token_problems([problem], Vocabulary())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((10,), "vocab_size"),
        ((5001,), "vocab_size"),
        ((64, ("print",)), "no literal"),
        ((64, ("[1]",)), "no literal"),
    ],
)
def test_vocabularies_out_of_range_are_refused(arguments, message) -> None:
    with pytest.raises(ConfigError, match=message):
        Vocabulary(*arguments)


def test_a_large_vocabulary_holds_literals_that_python_programs_have() -> None:
    """They are distinct, of one line, and mostly no numbers; the library's most frequent ones come first."""
    literals = [one for one in Vocabulary(5000).lexemes if literal_class(one)]
    values = [ast.literal_eval(one) for one in literals]
    assert (
        len(set(map(repr, values)))
        == len(values)
        == 5000 - 109 + sum(map(bool, map(literal_class, Vocabulary(109).lexemes)))
    )
    assert sum(isinstance(value, str) for value in values) > 0.7 * len(values)
    assert {"'utf-8'", "'name'", "'\\\\'", "255"} <= {*Vocabulary(400).lexemes}


def test_larger_vocabularies_begin_with_the_smaller_ones() -> None:
    small, large = Vocabulary(), Vocabulary(5000)
    assert len(large) == 5000
    assert len(set(large.lexemes)) == 5000
    assert large.lexemes[: len(small)] == small.lexemes


def test_programs_are_laid_out_by_their_operations() -> None:
    problem = CLASSICS[0]
    body = "if <arg0> : <newline> <indent> return <arg1> <newline> <dedent> return <self> ( 1 , 2 ) <end>"
    code = program(problem, body.split())
    assert ast.unparse(ast.parse(code)) == (
        "def add_numbers(a, b):\n    if a:\n        return b\n    return add_numbers(1, 2)"
    )
    assert tidied("def f(:") == "def f(:"


def test_hidden_tests_are_kept_apart() -> None:
    (one, *_) = token_problems(CLASSICS[:1], Vocabulary())
    assert one.problem.hidden_cases == ()
    assert one.problem.cases == CLASSICS[0].cases
    assert one.hidden is not None
    assert one.hidden.cases == CLASSICS[0].hidden_cases
    assert token_problems([replace(CLASSICS[0], hidden_cases=())], Vocabulary())[0].hidden is None
