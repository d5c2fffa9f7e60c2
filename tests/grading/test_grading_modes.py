"""Test programs, whole programs and in-process tests, in the real sandbox."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Case, Check, Comparison, InProcess, Problem, StdioCase
from greenward.sandbox.protocol import Limits

CHECK = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(-3) == 9, "negative"
    assert [candidate(x) for x in range(4)] == [0, 1, 4, 9]
"""
SQUARE = Problem("square", "", "square", tests=(Check("check(square)"),), check_setup_code=CHECK)
LIAR = """
class L(int):
    def __eq__(s, o): return True
    __hash__ = int.__hash__
def square(x): return L(5)
"""


@pytest.mark.parametrize(
    ("code", "status", "error_class"),
    [
        ("def square(x): return x * x", Status.PASSED, None),
        ("def square(x): return abs(x) * x", Status.FAILED, "AssertionError"),
        ("def square(x): return None if x else 0", Status.FAILED, "AssertionError"),
        ("def square(x): raise KeyError(x)", Status.ERROR, "KeyError"),
        ("class E(Exception): pass\ndef square(x): raise E", Status.ERROR, "AnswerError"),
        ("def square(x): return object()", Status.ERROR, "TypeError"),
        ("def square(x): raise SystemExit", Status.ERROR, "SystemExit"),
        ("import os\ndef square(x): os._exit(0)", Status.ERROR, "Exit"),
        ("def cube(x): return x", Status.NO_CODE, "NameError"),
        ("def square(x) return x", Status.SYNTAX_ERROR, "SyntaxError"),
        (LIAR, Status.FAILED, "AssertionError"),
        ("import sys\ndef check(c): pass\nsys.modules['checks'] = None\ndef square(x): return 0", Status.FAILED,
         "AssertionError"),
    ],
)  # fmt: skip
def test_a_test_program_judges_a_stand_in(grader, code, status, error_class):
    (verdict,) = grader.grade([(SQUARE, code)])
    assert (verdict.status, verdict.error_class) == (status, error_class), verdict
    assert verdict.tests_passed == (status is Status.PASSED,)


def test_an_answer_that_does_not_reply_in_time_has_timed_out(grader):
    (verdict,) = grader.grade([(SQUARE, "def square(x):\n    while x != 2: pass\n    return 4")])
    assert verdict.status is Status.TIMEOUT
    assert verdict.tests_passed == (False,)


def test_each_test_program_counts_by_itself(grader):
    problem = replace(
        SQUARE, tests=(Check("assert square(1) == 1"), Check("assert square(2) == 5"), Check("n = square(3)"))
    )
    (verdict,) = grader.grade([(problem, "def square(x): return x * x")])
    assert verdict.tests_passed == (True, False, True)
    assert verdict.first_failure.startswith("check 2: assert square(2) == 5")


def test_a_setup_that_cannot_run_is_no_fault_of_the_answer(grader):
    problem = replace(SQUARE, check_setup_code="import no_such_module")
    (verdict,) = grader.grade([(problem, "def square(x): return x * x")])
    assert verdict.status is Status.INFRASTRUCTURE
    assert "the setup of the test programs fails" in verdict.error_message


SUM = Problem(
    "sum", "", "", tests=(StdioCase("1 2\n", "3\n"), StdioCase("10 -4\n", "6"), StdioCase("0 0", "0"))
)
GOOD_SUM = "a, b = map(int, input().split())\nprint(a + b)"
COUNTING = "import json\njson.seen = getattr(json, 'seen', -1) + 1\nprint(sum(map(int, input().split())) + json.seen)"


@pytest.mark.parametrize(
    ("code", "status", "passed"),
    [
        (GOOD_SUM, Status.PASSED, 3),
        (f"def main():\n    {GOOD_SUM.replace(chr(10), chr(10) + '    ')}\nif __name__ == '__main__': main()",
         Status.PASSED, 3),
        (GOOD_SUM + "\nprint()\nprint('  ')", Status.PASSED, 3),
        (GOOD_SUM + "\nimport sys\nsys.exit()", Status.PASSED, 3),
        ("print('3')", Status.FAILED, 1),
        ("print('3', '6', '0', sep='\\n')", Status.FAILED, 0),
        ("a, b = input().split()\nif b == '-4': raise ValueError('b')\nprint(3)", Status.ERROR, 1),
        (GOOD_SUM + "\nimport sys\nsys.exit(1)", Status.ERROR, 0),
        ("print(input)", Status.FAILED, 0),
        ("input(); input()", Status.ERROR, 0),
        ("while True: pass", Status.TIMEOUT, 0),
        ("x =", Status.SYNTAX_ERROR, 0),
        ("import os\nprint(sum(map(int, os.read(0, 100).split())), flush=True)\nos._exit(0)", Status.PASSED, 3),
        ("import os\nprint(sum(map(int, os.read(0, 100).split())))\nos._exit(0)", Status.FAILED, 0),
        ("import os\nprint(sum(map(int, os.read(0, 100).split())), flush=True)\nos._exit(1)", Status.ERROR, 0),
    ],
)  # fmt: skip
def test_a_program_is_judged_by_what_it_prints(grader, code, status, passed):
    (verdict,) = grader.grade([(SUM, code)])
    assert (verdict.status, sum(verdict.tests_passed)) == (status, passed), verdict


@pytest.mark.parametrize(
    ("code", "passed"),
    [
        # Each would print something else in a process in which it has run before.
        (COUNTING, (True, True, True)),
        ("import time\na, b = map(int, input().split())\nuntil = 0.3\nis_first = time.process_time() < until\n"
         "while time.process_time() < until: pass\nprint(a + b if is_first else 'late')", (True, True, True)),
        ("a, b = map(int, input().split())\nprint(a + abs(b))", (True, False, True)),
        ("import random\na, b = map(int, input().split())\nprint(a + b + int(random.random() < 0.5))",
         (True, True, True)),
    ],
)  # fmt: skip
def test_no_program_fails_because_it_has_run_before(grader, code, passed):
    (verdict,) = grader.grade([(SUM, code)])
    assert verdict.tests_passed == passed, verdict


def test_outputs_that_nothing_checks_are_those_of_fresh_processes_too(grader):
    (result,) = grader.run_on_inputs([(SUM, COUNTING)])
    assert [one.value for one in result.results] == ["3\n", "6\n", "0\n"]


def test_output_beyond_what_is_kept_does_not_pass(grader):
    problem = Problem("p", "", "", tests=(StdioCase("", "5"),))
    spaces, hidden = (f"print('5' + ' ' * {count})" for count in (1000, 10**6))
    assert grader.grade([(problem, spaces)])[0].passed
    (verdict,) = grader.grade([(problem, hidden + "\nprint('and much more')")])
    assert verdict.status is Status.FAILED


def test_long_expected_output_is_kept_whole(grader):
    text = "".join(f"{n}\n" for n in range(60_000))
    assert len(text) > Limits().output_bytes
    problem = Problem("p", "", "", tests=(StdioCase("60000", text),))
    assert grader.grade([(problem, "for n in range(int(input())): print(n)")])[0].passed


NODE = "class Node:\n    def __init__(self, value): self.value = value\n"


def test_in_process_tests_may_use_what_the_answer_defines_and_are_counted(grader):
    problem = Problem(
        "p",
        "",
        "make",
        tests=(InProcess("assert isinstance(make(3), Node)"), InProcess("n = make(4)\nassert n.value == 4")),
    )
    before = grader.tests_by_mode["in_process"]
    good, bad = NODE + "def make(v): return Node(v)", NODE + "def make(v): return Node(3)"
    passed, failed = grader.grade([(problem, good), (problem, bad)])
    assert passed.passed
    assert (failed.status, failed.tests_passed) == (Status.FAILED, (True, False))
    assert grader.tests_by_mode["in_process"] == before + 4


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("def f(x):\n    raise ValueError(x)", Status.PASSED),
        ("def f(x):\n    raise TypeError(x)", Status.ERROR),
        ("def f(x):\n    return ValueError(x)", Status.FAILED),
        ("def f(x):\n    return None", Status.FAILED),
        ("class V(ValueError): pass\ndef f(x):\n    raise V(x)", Status.ERROR),
    ],
)
def test_an_expected_exception_must_be_raised(grader, code, status):
    problem = Problem("p", "", "f", tests=(Case((1,), None, raises="ValueError"),))
    assert grader.grade([(problem, code)])[0].status is status


@pytest.mark.parametrize(
    ("expected", "returned", "passes"),
    [
        (True, "re.match('a', 'a')", True), (True, "0", True), (True, "None", False), (True, "False", False),
        (False, "None", True), (False, "False", True), (False, "re.match('a', 'a')", False),
        (None, "None", True), ("a match", "'Found a match!'", True),
    ],
)  # fmt: skip
def test_the_rule_not_none_looks_at_nothing_else(grader, expected, returned, passes):
    problem = Problem("p", "", "f", tests=(Case((1,), expected),), comparison=Comparison(rule="not_none"))
    (verdict,) = grader.grade([(problem, f"import re\ndef f(x): return {returned}")])
    assert verdict.status is (Status.PASSED if passes else Status.FAILED)


def test_values_of_the_standard_library_go_in_and_come_back(grader):
    problem = Problem(
        "p",
        "",
        "f",
        setup_code="import datetime",
        tests=(
            Assertion("assert f(datetime.date(2024, 2, 28), 2) == datetime.date(2024, 3, 1)"),
            Assertion("assert f(datetime.datetime(2024, 2, 28, 5), 2) == datetime.datetime(2024, 3, 1, 5)"),
            Assertion("assert f(datetime.timedelta(1), 2) == datetime.timedelta(days=3)"),
        ),
    )
    code = "import datetime\ndef f(day, n): return day + datetime.timedelta(days=n)"
    (verdict,) = grader.grade([(problem, code)])
    assert verdict.passed, verdict
    (verdict,) = grader.grade([(problem, code.replace("=n", "=n + 1"))])
    assert verdict.first_failure.endswith("expected datetime.date(2024, 3, 1), got datetime.date(2024, 3, 2)")


def test_a_problem_may_allow_more_time(grader):
    slow = "def f(x):\n    import time\n    while time.process_time() < 0.6: pass\n    return x"
    problem = Problem("p", "", "f", tests=(Case((1,), 1),))
    with grader.with_limits(Limits(cpu_seconds=0.3, wall_seconds=3.0)) as strict:
        assert strict.grade([(problem, slow)])[0].status is Status.TIMEOUT
        assert strict.grade([(replace(problem, cpu_seconds=2.0), slow)])[0].passed


def test_the_layers_of_isolation_are_named(grader):
    (verdict,) = grader.grade([(SQUARE, "def square(x): return x * x")])
    assert {"landlock", "seccomp"} & set(verdict.layers)
