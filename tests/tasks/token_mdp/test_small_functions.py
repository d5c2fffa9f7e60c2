"""The generated functions, against their own references and against problems that they must not solve."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.catalog import load_suite
from greenward.problems.problem import Case, Problem, ProblemSet
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.problems import check_reachable, token_problems
from greenward.tasks.token_mdp.small_functions import inputs_like, small_functions, without_solutions

CLASSICS = [one for name in ("classic_training", "classic_evaluation") for one in load_suite(name)]


def function_of(one: Problem):
    namespace: dict = {}
    exec(one.reference, namespace)
    return namespace[one.entry_point]


def passes(function, cases) -> bool:
    try:
        return all(function(*case.args) == case.expected for case in cases)
    except (TypeError, IndexError, ValueError, ZeroDivisionError, RecursionError):
        return False


@pytest.fixture(scope="module", params=[10, pytest.param(40, marks=pytest.mark.slow)])
def compositions(request) -> int:
    return request.param


@pytest.fixture(scope="module")
def functions(compositions) -> ProblemSet:
    return small_functions(compositions)


@pytest.fixture(scope="module")
def templates() -> ProblemSet:
    return small_functions()


def test_functions_are_right_and_distinct_and_can_be_written(functions, templates, compositions) -> None:
    vocabulary = Vocabulary()
    assert len({one.task_id for one in functions}) == len(functions) == len(templates) + compositions
    assert len({one.reference.partition("(")[2] for one in functions}) == len(functions)
    for one in functions:
        assert len(one.cases) == len(one.hidden_cases) == 20
        assert passes(function_of(one), one.cases + one.hidden_cases)
        assert one.prompt in one.starter_code
    for one in token_problems(functions[-compositions:], vocabulary):
        assert len(check_reachable(one, vocabulary, 32)) <= 32


def test_the_templates_come_first_and_are_the_same_with_and_without_compositions(
    functions, templates
) -> None:
    assert [one.reference for one in functions[: len(templates)]] == [one.reference for one in templates]


def test_none_of_those_that_are_kept_solves_a_problem_and_all_others_are_kept(functions) -> None:
    kept = {one.task_id for one in without_solutions(functions, CLASSICS)}
    assert 0 < len(functions) - len(kept) < 60
    for one in functions:
        function = function_of(one)
        kinds = [type(value) for value in one.cases[0].args]
        solves = [
            passes(function, cases)
            for classic in CLASSICS
            if [type(value) for value in classic.cases[0].args] == kinds
            for cases in (classic.cases, classic.hidden_cases)
        ]
        assert (one.task_id in kept) is not any(solves)


def test_a_function_that_fails_one_visible_test_alone_is_left_out(templates) -> None:
    product = load_suite("classic_evaluation").by_id("multiply")
    wrong = replace(product, tests=(*product.tests[1:], Case((2, 3), 7)))
    of_two = [one for one in templates if [type(v) for v in one.cases[0].args] == [int, int]]
    solving = [one for one in of_two if passes(function_of(one), product.hidden_cases)]
    assert solving
    assert len(without_solutions(solving, [wrong])) == 0
    elsewhere = replace(wrong, hidden_cases=(Case((2, 3), 7),))
    assert len(without_solutions(solving, [elsewhere])) == len(solving)


def test_inputs_have_the_types_of_the_problem() -> None:
    rng = random.Random(0)
    for one in CLASSICS:
        for _ in range(5):
            assert [type(value) for value in inputs_like(one, rng)] == [
                type(value) for value in one.cases[0].args
            ]
    odd = replace(CLASSICS[0], tests=(Case(({"a": 1},), 1),))
    with pytest.raises(ProblemError, match="no small function has inputs of its types"):
        inputs_like(odd, rng)
