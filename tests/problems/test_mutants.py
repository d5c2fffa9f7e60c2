"""Bugs put into programs: one of each kind by hand, and what holds for all of them."""

from __future__ import annotations

import ast
import random
from collections import Counter

import pytest

from greenward.problems import mutation
from greenward.problems.catalog import load_suite
from greenward.problems.mutation import KINDS, mutants, normalised, repair_candidates
from greenward.problems.names import SHIPPED
from greenward.problems.problem import Case, Problem, ProblemSet, bug_kind, original_id

# kind: (a line of a program, the same line as people get it wrong)
ONE_LINE = {
    "off_by_one_index": ("return xs[0]", "return xs[1]"),
    "off_by_one_slice": ("return xs[1:]", "return xs[2:]"),
    "off_by_one_range": ("return list(range(n))", "return list(range(n + 1))"),
    "boundary": ("return n < 3", "return n <= 3"),
    "comparison_operator": ("return n in xs", "return n not in xs"),
    "negated_condition": ("return 1 if xs else 0", "return 1 if not xs else 0"),
    "dropped_filter": ("return [x for x in xs if x > n]", "return [x for x in xs]"),
    "dropped_case": ("return xs and n > 1", "return n > 1"),
    "swapped_connective": ("return xs and n", "return xs or n"),
    "arithmetic_operator": ("return n + 3", "return n - 3"),
    "swapped_operands": ("return n % 3", "return 3 % n"),
    "wrong_function": ("return min(xs)", "return max(xs)"),
    "dropped_call": ("return abs(n)", "return n"),
    "swapped_arguments": ("return divmod(n, 3)", "return divmod(3, n)"),
    "dropped_argument": ("return sorted(xs, reverse=True)", "return sorted(xs)"),
    "dropped_sign": ("return -n", "return n"),
    "wrong_variable": ("return n", "return xs"),
    "wrong_constant": ("return n * 2", "return n * 3"),
    "missing_return": ("return xs.index(n)", "xs.index(n)"),
    "wrong_initial_value": ("total = 0", "total = 1"),
}
SEVERAL_LINES = {
    "early_return": (
        "    for x in xs:\n        n += x\n    return n\n",
        "    for x in xs:\n        n += x\n        return n\n    return n\n",
    ),
    "dropped_guard": ("    if not xs:\n        return 0\n    return xs[0]\n", "    return xs[0]\n"),
    "dropped_branch": (
        "    if n > 1:\n        xs = []\n    else:\n        n = 1\n    return (n, xs)\n",
        "    if n > 1:\n        xs = []\n    return (n, xs)\n",
    ),
    "missing_update": ("    n += 1\n    return n\n", "    return n\n"),
    "wrong_jump": (
        "    for n in xs:\n        if n:\n            break\n",
        "    for n in xs:\n        if n:\n            continue\n",
    ),
}
HEAD = "def f(xs, n):\n"
BY_HAND = {kind: (f"{HEAD}    {a}\n", f"{HEAD}    {b}\n") for kind, (a, b) in ONE_LINE.items()} | {
    kind: (HEAD + a, HEAD + b) for kind, (a, b) in SEVERAL_LINES.items()
}

PROGRAM = '''
import math

LIMIT = 10

def helper(a, b=2):
    """Sum `a` and 2."""
    return a + b  # a comment

def f(xs: list, n: int = 3) -> int:
    """Count 7 things."""
    total, i = 0, 0
    while i < len(xs) and total < LIMIT:
        if xs[i] == n or not xs[i]:
            continue
        total += helper(xs[i], 1) * 2
        i += 1
    return -total if n else math.floor(max(xs[1:], key=lambda x: x - n))
'''


def test_at_least_twelve_kinds_and_each_is_tested_by_hand():
    assert len(KINDS) >= 12
    assert BY_HAND.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind):
    right, wrong = BY_HAND[kind]
    assert wrong in [mutant.code for mutant in mutants(right) if mutant.kind == kind]


def test_mutants_are_distinct_programs_in_the_layout_of_the_original():
    found = mutants(PROGRAM)
    codes = [mutant.code for mutant in found]
    assert len(set(codes)) == len(codes) > 50
    assert normalised(PROGRAM) not in codes
    assert len(Counter(mutant.kind for mutant in found)) >= 12
    for code in codes:
        assert code == normalised(code)
        compile(code, "mutant", "exec")


def test_signatures_docstrings_and_imports_stay():
    for mutant in mutants(PROGRAM):
        text = mutant.code
        assert "import math" in text
        assert 'def helper(a, b=2):\n    """Sum `a` and 2."""' in text
        assert 'def f(xs: list, n: int=3) -> int:\n    """Count 7 things."""' in text


def test_a_bug_is_in_one_place():
    """Two programs with one change each agree in all statements but those around their changes."""
    original = normalised(PROGRAM).splitlines()
    for mutant in mutants(PROGRAM):
        lines = mutant.code.splitlines()
        start = next(i for i, (a, b) in enumerate(zip(lines, original, strict=False)) if a != b)
        same_after = 0
        while same_after < min(len(lines), len(original)) - start and (
            lines[-1 - same_after] == original[-1 - same_after]
        ):
            same_after += 1
        assert len(lines) - start - same_after <= 2
        assert len(original) - start - same_after <= 2


def test_a_variable_is_only_taken_for_one_that_is_bound_before():
    source = "def f(a):\n    b = a\n    c = b\n    return [x for x in c]\n"
    wrong = {m.code for m in mutants(source) if m.kind == "wrong_variable"}
    assert "def f(a):\n    b = a\n    c = a\n    return [x for x in c]\n" in wrong
    assert all(
        unbound not in code for code in wrong for unbound in ("b = c", "b = b", "b = x", "in x]", "c = c")
    )


@pytest.mark.parametrize("source", ["def f(:", "a\0b", "x = (" * 500])
def test_what_is_not_python_is_said_to_be(source):
    with pytest.raises((SyntaxError, ValueError)):
        mutants(source)


def test_programs_that_cannot_be_mutated_are_left_out():
    def problem(name, reference):
        return Problem(name, "", "f", tests=(Case((1,), 1),), reference=reference)

    problems = ProblemSet(
        [problem("none", ""), problem("torn", "def f(:"), problem("bare", "def f(n):\n    pass\n")]
    )
    assert len(repair_candidates(problems, per_problem=3, seed=0)) == 0


@pytest.fixture(scope="module")
def classics() -> ProblemSet:
    return ProblemSet([problem for name in SHIPPED for problem in load_suite(name)])


def test_candidates_depend_on_the_seed_and_their_own_problem_alone(classics):
    candidates = repair_candidates(classics, per_problem=3, seed=1)
    assert list(repair_candidates(classics, per_problem=3, seed=1)) == list(candidates)
    alone = repair_candidates(classics[4:5], per_problem=3, seed=1)
    assert list(alone) == [c for c in candidates if original_id(c) == classics[4].task_id]
    assert list(repair_candidates(classics, per_problem=3, seed=2)) != list(candidates)
    fewer = repair_candidates(classics, per_problem=1, seed=1)
    assert all(candidate in list(candidates) for candidate in fewer)


def test_a_candidate_is_judged_as_its_original_and_can_be_continued_to_both_programs(classics):
    for candidate in repair_candidates(classics, per_problem=4, seed=0):
        original = classics.by_id(original_id(candidate))
        assert (candidate.cases, candidate.entry_point) == (original.cases, original.entry_point)
        assert ast.dump(ast.parse(candidate.reference)) == ast.dump(ast.parse(original.reference))
        assert candidate.starter_code == original.starter_code
        assert candidate.reference.startswith(candidate.starter_code)
        assert candidate.buggy_code.startswith(candidate.starter_code)
        assert candidate.buggy_code != candidate.reference
        assert bug_kind(candidate) in KINDS


def test_kinds_take_turns(classics):
    factorial = classics.by_id("factorial")
    available = {mutant.kind for mutant in mutants(factorial.reference)}
    candidates = repair_candidates(ProblemSet([factorial]), per_problem=len(available), seed=0)
    assert {bug_kind(c) for c in candidates} == available


def test_a_bug_above_the_function_asks_for_the_whole_program():
    problem = Problem(
        "p", "Twice.", "f", tests=(Case((1,), 2),), reference="K = 2\n\ndef f(n):\n    return K * n\n"
    )
    by_place = {c.starter_code for c in repair_candidates(ProblemSet([problem]), per_problem=99, seed=0)}
    assert by_place == {"", "K = 2\n\ndef f(n):\n"}


def test_shuffled_problems_give_the_same_candidates(classics):
    shuffled = random.Random(0).sample(list(classics), len(classics))
    a = {c.task_id: c.buggy_code for c in repair_candidates(classics, per_problem=2, seed=0)}
    b = {c.task_id: c.buggy_code for c in repair_candidates(ProblemSet(shuffled), per_problem=2, seed=0)}
    assert a == b


def test_the_mutants_of_a_long_program_are_bounded(monkeypatch):
    source = "def f(n):\n" + "".join(f"    n = n + {number}\n" for number in range(50)) + "    return n\n"
    found = mutants(source)
    monkeypatch.setattr(mutation, "MAX_MUTANT_CHARS", 10 * len(source))
    few = mutants(source)
    assert 0 < len(few) <= 12 and few == found[: len(few)]
