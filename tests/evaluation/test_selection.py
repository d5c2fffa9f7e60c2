"""Best of n: by tests, and by votes, which must not read expected values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from greenward.common.errors import ConfigError, ProblemError
from greenward.evaluation.selection import best_of_n
from greenward.grading.judge import Grader
from greenward.problems.problem import Assertion, Case, Check, Comparison, Problem, StdioCase
from greenward.sandbox.protocol import Limits


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(Limits(cpu_seconds=1.0, wall_seconds=3.0), workers=1) as grader:
        yield grader


SQUARE = Problem("square", "", "square", tests=tuple(Case((n,), n * n) for n in (0, 1, 2, 3)))
RIGHT = "def square(x):\n    return x * x\n"
LONGER = "def square(x):\n    result = x * x\n    return result\n"
DOUBLES = "def square(x):\n    return 2 * x\n"  # right for 0 and 2
ADDS = "def square(x):\n    return x + x\n"
FAILS = "def square(x):\n    raise ValueError\n"


def test_by_tests_the_shortest_that_passes_is_chosen(grader: Grader) -> None:
    found = best_of_n(SQUARE, [None, DOUBLES, LONGER, RIGHT], grader)
    assert (found.best, found.answer) == (3, RIGHT)
    assert found.verdict is not None and found.verdict.passed


def test_by_tests_the_share_decides_where_none_passes(grader: Grader) -> None:
    found = best_of_n(SQUARE, [FAILS, DOUBLES, "no python", None], grader)
    assert found.best == 1 and found.verdicts[1].fraction_passed == 0.5


def test_without_an_answer_none_is_chosen(grader: Grader) -> None:
    for by in ("tests", "votes"):
        found = best_of_n(SQUARE, [None, None], grader, by=by)
        assert found.best is None and found.answer is None and found.verdict is None


def test_by_votes_the_majority_wins_even_where_it_is_wrong(grader: Grader) -> None:
    answers = [RIGHT, DOUBLES, ADDS, None, "import sys; sys.exit(0)", LONGER, DOUBLES + "\n"]
    found = best_of_n(SQUARE, answers, grader, by="votes")
    assert found.votes == (2, 3, 3, 0, 0, 2, 3)
    assert found.best == 1 and not found.verdicts
    unknown = replace(SQUARE, tests=tuple(replace(case, expected=None) for case in SQUARE.cases))
    assert best_of_n(unknown, answers, grader, by="votes").votes == found.votes


def test_sets_and_floats_agree_as_they_do_when_judged(grader: Grader) -> None:
    problem = Problem("parts", "", "parts", tests=(Case((), None),))
    answers = [
        "def parts():\n    return {'a', 'b', 'c'}, 0.1 + 0.2\n",
        "def parts():\n    return {'c', 'b', 'a'}, 0.3\n",
        "def parts():\n    return {'c', 'b'}, 0.3\n",
    ]
    assert best_of_n(problem, answers, grader, by="votes").votes == (2, 2, 1)


def test_assertions_and_whole_programs_vote_with_what_they_give(grader: Grader) -> None:
    asserted = Problem(
        "square", "", "square", tests=(Assertion("assert square(2) == 4"), Assertion("assert square(3) == 9"))
    )
    assert best_of_n(asserted, [DOUBLES, ADDS, RIGHT], grader, by="votes").votes == (2, 2, 1)
    program = Problem("echo", "", "", tests=(StdioCase("a\n", "a\n"), StdioCase("b\n", "b\n")))
    answers = ["print(input())", "print('a')", "import sys; print(sys.stdin.read(), end='')"]
    assert best_of_n(program, answers, grader, by="votes").votes == (2, 1, 2)


def test_answers_agree_by_the_rule_of_the_problem(grader: Grader) -> None:
    program = Problem("square", "", "", tests=(StdioCase("4\n", "16\n"),))
    answers = ["print(int(input())**2)", "import sys\nsys.stdout.write(str(int(input())**2))",
               "print(int(input())**2, '')", "print(7)", "n = input()\nprint(7)"]  # fmt: skip
    assert best_of_n(program, answers, grader, by="votes").votes == (3, 3, 3, 2, 2)
    values = ("[1, 2, 3]", "[3, 2, 1]", "{1, 2, 3}", "[7]")
    answers = [f"def f():\n    return {value}\n" for value in values]
    sets = Problem("f", "", "f", tests=(Case((), [1, 2, 3]),), comparison=Comparison(rule="same_set"))
    assert best_of_n(sets, answers, grader, by="votes").votes == (3, 3, 3, 1)


def test_what_cannot_vote_is_refused(grader: Grader) -> None:
    checked = Problem("square", "", "square", tests=(Check("assert square(2) == 4"),))
    with pytest.raises(ProblemError, match="its tests are programs"):
        best_of_n(checked, [RIGHT], grader, by="votes")
    with pytest.raises(ConfigError, match="'tests' or 'votes'"):
        best_of_n(SQUARE, [RIGHT], grader, by="luck")  # type: ignore[arg-type]
