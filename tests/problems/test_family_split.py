"""The split of generated problems by function: what is held out was never seen in another wording."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest

from greenward.config.section import BugsConfig, FamiliesConfig
from greenward.problems.catalog import load_problems
from greenward.problems.generated import (
    EDGE_INPUTS,
    NEW_FUNCTION,
    NEW_SHAPE,
    Composition,
    Kind,
    functions_of,
    shape_of,
    split,
)
from greenward.problems.problem import Problem, ProblemSet, original_id

WORDS = ("Ada", "b2", "code", "Dog", "eel", "FIVE", "go", "hi-fi", "ion", "jazz", "noon", "Rust", "x", "")


def fresh_inputs(count: int, seed: int) -> dict[Kind, list[object]]:
    """Inputs of a distribution of this test's own, the edge cases among them."""
    rng = random.Random(seed)

    def text() -> str:
        return " " * rng.randint(0, 2) + " ".join(rng.choices(WORDS, k=rng.randint(0, 6))) + rng.choice(" !a")

    draws = {
        Kind.NUMBERS: lambda: [rng.randint(-12, 30) for _ in range(rng.randint(0, 10))],
        Kind.NUMBER: lambda: rng.randint(-60, 120),
        Kind.TEXT: text,
        Kind.WORDS: lambda: rng.choices(WORDS, k=rng.randint(0, 6)),
    }
    return {kind: [*EDGE_INPUTS[kind], *(draw() for _ in range(count))] for kind, draw in draws.items()}


def behaviour(problem: Problem, inputs: dict[Kind, list[object]]) -> tuple[Kind, str]:
    """What the problem's reference gives on the inputs of its kind, computed by running it."""
    namespace: dict[str, object] = {}
    exec(problem.reference, namespace)
    kind = Composition.of(problem.task_id).takes
    return kind, repr([namespace["solve"](value) for value in inputs[kind]])


@pytest.mark.parametrize("seed", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_no_held_out_problem_computes_the_function_of_a_training_problem(
    problems: ProblemSet, seed: int
) -> None:
    train, hidden = split(problems, 0.2, seed)
    few = fresh_inputs(25, seed)  # only what agrees on these is worth comparing on more
    sides: dict[object, tuple[list[Problem], list[Problem]]] = defaultdict(lambda: ([], []))
    for side, members in enumerate((train, hidden)):
        for problem in members:
            sides[behaviour(problem, few)][side].append(problem)
    many = fresh_inputs(500, seed + 1)
    shared = []
    for seen, unseen in sides.values():
        if seen and unseen:
            known = {behaviour(problem, many) for problem in seen}
            shared += [problem.task_id for problem in unseen if behaviour(problem, many) in known]
    assert not shared


def test_reversed_pairs_that_commute_are_one_function_and_others_are_not() -> None:
    def same(first: str, second: str) -> bool:
        one, other = functions_of([Composition.of(f"families/{name}") for name in (first, second)])
        return one == other

    assert same("keep_even+reverse_list", "reverse_list+keep_even")
    assert same("upper+reverse_text", "reverse_text+upper")
    assert same("smallest", "sort_ascending+first_number")
    assert same("count_words", "count_words+floor_2")  # they differ on lists of fewer than two words alone
    assert not same("keep_even", "keep_odd")
    assert not same("add_2+multiply_3", "multiply_3+add_2")
    assert not same("first_numbers_2+reverse_list", "reverse_list+first_numbers_2")


def test_bugs_are_put_into_programs_whose_function_is_on_the_same_side() -> None:
    families, bugs = FamiliesConfig(limit=150), BugsConfig(per_problem=2)
    for part in ("train", "held_out"):
        originals = {problem.task_id for problem in load_problems("families", families, part)}
        repairs = load_problems("bugs:families", families, part, bugs=bugs)
        assert repairs and {original_id(problem) for problem in repairs} <= originals
        assert all((NEW_FUNCTION in problem.tags) == (part == "held_out") for problem in repairs)


def test_held_out_problems_are_tagged_by_what_was_never_seen(problems: ProblemSet) -> None:
    train, hidden = split(problems, 0.2, 0)

    def templates(problem: Problem) -> frozenset[tuple[str, int]]:
        """The templates without constants, counted: the shape, worked out from the id alone."""
        names = [part.rstrip("0123456789").rstrip("_") for part in problem.task_id.split("/")[1].split("+")]
        return frozenset((name, names.count(name)) for name in names)

    trained = set(map(templates, train))
    assert not any({NEW_FUNCTION, NEW_SHAPE} & set(problem.tags) for problem in train)
    assert all(NEW_FUNCTION in problem.tags for problem in hidden)
    for problem in hidden:
        assert (NEW_SHAPE in problem.tags) == (templates(problem) not in trained)
    assert 50 < sum(NEW_SHAPE in problem.tags for problem in hidden) < len(hidden)
    untagged = ProblemSet(
        replace(p, tags=tuple(t for t in p.tags if t not in (NEW_FUNCTION, NEW_SHAPE))) for p in hidden
    )
    assert all(problems.by_id(problem.task_id) == problem for problem in untagged)


def test_shapes_ignore_order_and_constants() -> None:
    first, second = (Composition.of(f"families/{name}") for name in ("add_2+multiply_3", "multiply_5+add_3"))
    assert shape_of(first) == shape_of(second) == ("add", "multiply")
