"""The incremental grammar against Python's own parser and interpreter."""

from __future__ import annotations

import ast
import cProfile
import pstats
import random

import numpy as np
import pytest

from greenward.problems.problem import Case, Problem
from greenward.tasks.token_mdp.grammar import NEVER, Grammar, Signature, Vocabulary, program
from greenward.tasks.token_mdp.problems import accepted

VALUES = {"number": 3, "text": "ab", "numbers": [4, 2], "texts": ["a", "bc"]}
WRONG = {"number": "text", "truth": 0.5, "text": 1, "numbers": "text"}  # what no program of the type returns
SIGNATURES = [
    Signature(("number", "number"), "number"),
    Signature(("number",), "truth"),
    Signature(("text",), "text"),
    Signature(("numbers",), "number"),
    Signature(("numbers",), "numbers"),
    Signature(("texts", "number"), "text"),
    Signature(("number",), "numbers"),
]
MISTAKES = ("NameError", "UnboundLocalError", "TypeError", "AttributeError", "SyntaxError")


def problem(signature: Signature) -> Problem:
    names = ", ".join("abcd"[: len(signature.arguments)])
    case = Case(tuple(VALUES[one] for one in signature.arguments), WRONG[signature.result])
    return Problem("p", "", "f", (case,), starter_code=f"def f({names}):\n")


@pytest.mark.parametrize(
    ("signature", "size"),
    [
        *((one, 64) for one in SIGNATURES),
        (SIGNATURES[0], 300),
        *(pytest.param(one, 300, marks=pytest.mark.slow) for one in SIGNATURES[1:]),
    ],
    ids=str,
)
def test_random_legal_programs_are_python_without_errors_of_names_and_types(signature, size, grader) -> None:
    """What the mask allows parses, ends within the budget, and fails for its values alone."""
    vocabulary = Vocabulary(size)
    grammar = Grammar(signature, vocabulary)
    weights = np.array(vocabulary.weights)
    rng, lengths = np.random.default_rng(1), random.Random(1)
    asked, codes = problem(signature), []
    for _ in range(60):
        limit, node, tokens = lengths.randint(8, 40), grammar.start, []
        while node.stack is not None:
            legal = node.extra_V <= limit - len(tokens) - node.cost
            assert legal.any(), f"no way to finish: {tokens}"
            chances = np.where(legal, weights, 0)
            action = int(rng.choice(len(chances), p=chances / chances.sum()))
            tokens.append(vocabulary.lexemes[action])
            following = grammar.advance(node, action)
            assert following is not None
            node = following
        assert len(tokens) <= limit
        codes.append(program(asked, tokens))
        ast.parse(codes[-1])
    for code, verdict in zip(codes, grader.grade([(asked, code) for code in codes]), strict=True):
        assert verdict.error_class not in MISTAKES, f"{code}\n{verdict.error_message}"


@pytest.mark.parametrize(
    ("signature", "body", "stops_at"),
    [
        (("number",), "return <arg0> <end>", None),
        (("number",), "return <arg0> . ", "."),
        (("number",), "return x <end>", "x"),
        (("number",), "return sum ( x for x in range ( <arg0> ) if x ) <end>", None),
        (("number",), "return sum ( x for c", "c"),
        (("number",), "return sum ( x for x in range ( x", "x"),
        (("number",), "result += 1", "+="),
        (("number",), "result = 1 <newline> result += 1 <newline> return result <end>", None),
        (("number",), "return <arg0> <end> <end>", None),
        (("text",), "return len ( <arg0> [ : : - 1 ] ) <end>", None),
        (("text",), "return <arg0> <end>", "<end>"),
        (("numbers",), "for x in <arg0> : <newline> <indent> return x <newline> <dedent> return x", "x"),
        (("numbers",), "return min ( <arg0> ) <end>", None),
        (("number",), "return min ( <arg0> ) <end>", ")"),
        (("number",), "if <arg0> : <newline> <indent> return 1 <newline> <dedent> <end>", "<end>"),
        (("number",), "return <self> ( <arg0> - 1 ) if <arg0> else 1 <end>", None),
    ],
)
def test_programs_are_accepted_up_to_what_python_or_its_types_forbid(signature, body, stops_at) -> None:
    vocabulary = Vocabulary()
    grammar = Grammar(Signature(signature, "number"), vocabulary)
    lexemes = body.split()
    reached = accepted(grammar, vocabulary, lexemes)
    if stops_at is None:
        lexemes = lexemes[: lexemes.index("<end>") + 1]
        assert reached == len(lexemes)
    else:
        assert lexemes[reached] == stops_at


def test_the_least_number_of_tokens_is_that_of_the_shortest_program() -> None:
    """Breadth-first search over all programs, against the costs of the grammar's fixed point."""
    vocabulary = Vocabulary()
    for signature in SIGNATURES:
        grammar = Grammar(signature, vocabulary)
        reached, depth = [grammar.start], 0
        while not any(node.stack is None for node in reached):
            depth += 1
            reached = [
                following
                for node in reached
                for action in np.flatnonzero(node.extra_V < NEVER)
                if (following := grammar.advance(node, int(action))) is not None and following.cost < 4
            ][:4000]
        assert depth == grammar.start.cost, signature


@pytest.mark.parametrize(
    ("arguments", "result", "body"),
    [
        (
            "number",
            "numbers",
            "result = [ ] ; for x in range ( <arg0> ) : ; > result . append ( x ) ; < return result",
        ),
        ("number", "number", "result = 1 ; while result < <arg0> : ; > result *= 2 ; < return result"),
        ("number", "text", "if <arg0> < 0 : ; > return '-' ; < elif <arg0> : ; > return '+' ; < return '0'"),
        ("texts", "text", "return ',' . join ( <arg0> )"),
        ("text", "truth", "return <arg0> . startswith ( 'utf-8' ) or <arg0> . isupper ( )"),
        ("text", "text", "return <arg0> . title ( ) . zfill ( 500 )"),
        ("text", "texts", "return list ( <arg0> )"),
        ("number", "number", "result = <arg0> ; result %= 60 ; return round ( result )"),
    ],
)
def test_a_larger_vocabulary_writes_what_the_core_cannot(arguments, result, body) -> None:
    """These bodies need lexemes of the larger one, are accepted by it, and are Python."""
    names = {";": "<newline>", ">": "<indent>", "<": "<dedent>"}
    words = body.split()
    lexemes = [names[one] if one == ";" or (one in names and words[place - 1] == ";") else one
               for place, one in enumerate(words)]  # fmt: skip
    vocabulary = Vocabulary(2000)
    grammar = Grammar(Signature((arguments,), result), vocabulary)
    assert accepted(grammar, vocabulary, [*lexemes, "<end>"]) == len(lexemes) + 1
    assert not {*lexemes} <= {*Vocabulary().lexemes}
    code = program(problem(Signature((arguments,), result)) if result in WRONG else text_problem(), lexemes)
    ast.parse(code)


def text_problem() -> Problem:
    return Problem("p", "", "f", (Case(("ab",), 1),), starter_code="def f(a):\n")


def test_literals_of_a_type_are_one_class_with_equal_masks() -> None:
    vocabulary = Vocabulary(5000)
    grammar = Grammar(Signature(("number",), "number"), vocabulary)
    small = Grammar(Signature(("number",), "number"), Vocabulary(109))
    assert len(grammar.start.extra_C) == len(small.start.extra_C)
    node = grammar.advance(grammar.start, vocabulary.index["return"])
    numbers = [place for place, lexeme in enumerate(vocabulary.lexemes) if lexeme.isdigit()]
    assert len(numbers) > 1000
    assert set(node.extra_V[numbers]) == {node.extra_V[vocabulary.index["1"]]}
    followers = {id(grammar.advance(node, place)) for place in numbers}
    assert len(followers) == 1


def test_equal_states_are_one_object() -> None:
    vocabulary = Vocabulary()
    grammar = Grammar(Signature(("number",), "number"), vocabulary)

    def after(body: str):
        node = grammar.start
        for lexeme in body.split():
            node = grammar.advance(node, vocabulary.index[lexeme])
        return node

    assert after("return <arg0> + <arg0>") is after("return <arg0> - 1")
    assert after("return <arg0>") is not after("result = <arg0>")


def test_the_cost_of_a_signature_hardly_grows_with_the_vocabulary() -> None:
    """Literals of one class share their rows: counted in calls of functions, which do not depend on a machine."""

    def calls(vocabulary: Vocabulary) -> int:
        profile = cProfile.Profile()
        profile.runcall(Grammar, SIGNATURES[0], vocabulary)
        return pstats.Stats(profile).total_calls

    assert calls(Vocabulary(5000)) < 3 * calls(Vocabulary(109))
