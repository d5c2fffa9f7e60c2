from __future__ import annotations

import pytest

from greenward.errors import ProblemError
from greenward.grading.assertions import Relation, parse_assertion
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem


@pytest.mark.parametrize(
    ("source", "actual", "relation", "expected"),
    [
        ("assert f(1, 2) == 3", "f(1, 2)", Relation.EQUAL, "3"),
        ("assert 3 == f(1, 2)", "f(1, 2)", Relation.EQUAL, "3"),
        ("assert (f(1) == [1, 2]), 'message'", "f(1)", Relation.EQUAL, "[1, 2]"),
        ("assert set(f([1])) == set([1])", "set(f([1]))", Relation.EQUAL, "set([1])"),
        ("assert f(1) != 2", "f(1)", Relation.NOT_EQUAL, "2"),
        ("assert f(1) is True", "f(1)", Relation.IDENTICAL, "True"),
        ("assert f(1) is not None", "f(1)", Relation.NOT_IDENTICAL, "None"),
        ("assert f(1) in (1, 2)", "f(1)", Relation.MEMBER, "(1, 2)"),
        ("assert f(1)", "f(1)", Relation.TRUE, None),
        ("assert not f(1)", "f(1)", Relation.FALSE, None),
        ("assert abs(f(1) - 2.5) < 1e-6", "f(1)", Relation.CLOSE, "2.5"),
        ("assert math.isclose(f(1), 2.5, rel_tol=0.001)", "f(1)", Relation.CLOSE, "2.5"),
    ],
)
def test_the_two_sides_are_taken_apart(source, actual, relation, expected):
    found = parse_assertion(source, "f")
    assert (found.actual, found.relation, found.expected) == (actual, relation, expected)


@pytest.mark.parametrize(
    "source",
    [
        "assert f(1) == f(2)",
        "assert all(f(x) for x in range(3))",
        "assert f(1) > 3",
        "assert f(1) == 1 and f(2) == 2",
        "x = f(1)\nassert x == 1",
        "assert g(1) == 1",
        "assert f(1) is g",
    ],
)
def test_what_cannot_be_taken_apart_says_so(source):
    assert parse_assertion(source, "f") is None


@pytest.mark.parametrize("source", ["assert", "assert f(", "", "# nothing"])
def test_a_test_that_is_not_python_is_an_error(source):
    with pytest.raises(ProblemError, match="the test"):
        parse_assertion(source, "f")


def grade(grader, tests, code, **fields):
    problem = Problem("p", "", "f", tests=tuple(tests), **fields)
    (verdict,) = grader.grade([(problem, code)])
    return verdict


def test_tests_of_every_shape_pass_for_a_right_answer_and_fail_for_a_wrong_one(grader):
    tests = [
        "assert f(2) == 4",
        "assert f(2) != 5",
        "assert f(2)",
        "assert not f(0)",
        "assert f(2) in [3, 4]",
        "assert f(2) not in {5: 1}",
        "assert f(2) is not None",
        "assert set([f(1), f(2)]) == set([4, 1])",
        "assert abs(f(0.1) - 0.01) < 1e-9",
        "import math\nassert math.isclose(f(3), 9)",
        "assert f(3) == sum(range(4)) + 3",
        "assert f(2) > 3",
    ]
    right = grade(grader, tests, "def f(x): return x * x")
    assert right.status is Status.PASSED, right.first_failure
    wrong = grade(grader, tests, "def f(x): return -x - 1")
    assert wrong.tests_passed == (False, True, True, False, False, True, True, *(False,) * 5)


def test_an_object_equal_to_everything_passes_no_split_test(grader):
    liar = "class L:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return L()"
    tests = ["assert f(1) == 5", "assert 5 == f(1)", "assert f(1) is True", "assert f(1) in [5]"]
    verdict = grade(grader, tests, liar)
    assert verdict.status is Status.WRONG_TYPE
    assert not any(verdict.tests_passed)


def test_an_int_that_lies_is_taken_at_its_value(grader):
    liar = (
        "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef f(x): return I(7)"
    )
    assert grade(grader, ["assert f(1) == 5"], liar).status is Status.FAILED


def test_absolute_and_relative_tolerances_stay_what_they_are(grader):
    tests = ["assert abs(f(0) - 1000000) < 1e-3", "assert math.isclose(f(0), 1000000, rel_tol=1e-3)"]
    verdict = grade(grader, tests, "def f(x): return 1000001")
    assert verdict.tests_passed == (False, True)


def test_the_expected_side_may_use_setup_code_and_builtins(grader):
    verdict = grade(grader, ["assert f(2) == BASE ** 2"], "def f(x): return 9", setup_code="BASE = 3")
    assert verdict.passed


def test_the_expected_side_never_runs_with_the_answer(grader):
    cheat = "import builtins\nbuiltins.max = lambda *a: 0\nmax = builtins.max\ndef f(x): return 0"
    assert grade(grader, ["assert f(2) == max(1, 2)"], cheat).status is Status.FAILED


def test_tests_are_counted_by_how_they_are_judged(grader):
    before = grader.tests_by_mode.copy()
    assert grade(
        grader, ["assert f(1) > 0", "assert f(1) == 1", "assert f(1) == int('1')"], "def f(x): return 1"
    ).passed
    assert grader.tests_by_mode - before == {"check": 1, "values": 2}


def test_verdicts_stay_in_the_order_of_the_tests_however_these_are_judged(grader):
    tests = [
        "assert f(1) > 0",
        "assert f(2) == 2",
        "x = f(3)\nassert x == 3",
        "assert f(4) == 5",
        "assert f(5) < 0",
    ]
    verdict = grade(grader, tests, "def f(x): return x")
    assert verdict.tests_passed == (True, True, True, False, False)
    assert verdict.first_failure == "f(4): expected 5, got 4"
    assert verdict.status is Status.FAILED


def test_a_test_program_never_counts_for_a_test_that_was_not_reached(grader):
    tests = ["assert f(1) == 1", "assert f(2) is None", "assert f(3) is None", "x = 1"]
    verdict = grade(grader, tests, "import os\ndef f(x): return x if x == 1 else os._exit(0)")
    assert verdict.status is Status.ERROR
    assert verdict.tests_passed == (True, False, False, False)


@pytest.mark.parametrize(
    "test",
    [
        "assert type(f(1)) == int",
        "assert f(1) == f(1.0)",
        "assert isinstance(f(1), int)",
        "assert all(f(x) >= x for x in range(5))",
        "try:\n    f('a', 1)\nexcept TypeError:\n    pass\nelse:\n    raise AssertionError",
        "import math\nassert math.isclose(f(3), 9)",
    ],
)
def test_what_cannot_be_taken_apart_is_judged_where_no_object_of_the_answer_is(grader, test):
    assert grade(grader, [test], "def f(x): return x * x").passed
    liar = """
class L(str):
    def __eq__(s, o): return True
    __ge__ = __eq__
    __float__ = lambda s: 9.0
    __class__ = int
    __hash__ = None
def f(*x): return L(x)
"""
    before = grader.tests_by_mode.copy()
    assert not grade(grader, [test], liar).passed
    assert grader.tests_by_mode - before == {"check": 1}


def test_a_test_that_needs_other_names_of_the_answer_fails_as_an_error(grader):
    verdict = grade(grader, ["assert f(1) == h"], "h = 1\ndef f(x): return 1")
    assert (verdict.status, verdict.error_class) == (Status.ERROR, "NameError")


def test_setup_code_that_needs_the_answer_is_an_error_where_tests_run_apart_from_it(grader):
    fields = {"setup_code": "k = h + 1"}
    assert grade(grader, ["assert f(1) == 1"], "h = 1\ndef f(x): return x", **fields).passed
    with pytest.raises(ProblemError, match="in_process_tests"):
        grade(grader, ["assert f(1) > 0"], "h = 1\ndef f(x): return x", **fields)
