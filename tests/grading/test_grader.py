from __future__ import annotations

import math
import pickle
from dataclasses import dataclass, field, replace

import pytest

from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader
from greenward.grading.rewards import GradedAnswer
from greenward.grading.verdict import Family, Status, Verdict
from greenward.problems.problem import (
    Assertion,
    Case,
    Check,
    Comparison,
    Expected,
    InProcess,
    Problem,
    StdioCase,
)
from greenward.sandbox.protocol import CallResult, Job, Outcome, RunResult

RIGHT = "def add(a, b): return a + b"


@dataclass
class Recorder:
    """An executor that keeps the jobs it is given and answers as it is told."""

    result: RunResult
    jobs: list[Job] = field(default_factory=list)

    def run(self, jobs):
        for index, job in enumerate(jobs):
            self.jobs.append(job)
            yield index, self.result

    def close(self):
        raise AssertionError("the grader closes only an executor of its own")


def test_other_limits_hold_for_a_grader_on_the_same_workers_only(grader, add):
    slow = f"import time\nwhile time.process_time() < 0.2: pass\n{RIGHT}"
    with grader.with_limits(replace(grader.limits, cpu_seconds=0.1)) as strict:
        assert [verdict.status for verdict in strict.grade([(add, slow)])] == [Status.TIMEOUT]
    assert [verdict.status for verdict in grader.grade([(add, slow)])] == [Status.PASSED]


@pytest.mark.parametrize(
    ("code", "status", "passed"),
    [
        (RIGHT, Status.PASSED, 5), ("def add(a, b): return a - b", Status.FAILED, 1),
        ("def add(a, b): return str(a + b)", Status.FAILED, 0),
        ("def add(a, b): return object()", Status.WRONG_TYPE, 0),
        ("def add(a, b):\n    if a == 10: raise ValueError('ten')\n    return a + b", Status.ERROR, 4),
        ("def add(a, b): return 'x' * (2 << 30)", Status.MEMORY, 0),
        ("def add(a, b):\n    while a == 10: pass\n    return a + b", Status.TIMEOUT, 3),
        ("def add(a, b:", Status.SYNTAX_ERROR, 0), ("def sub(a, b): return a + b", Status.NO_CODE, 0),
        ("from operator import *", Status.PASSED, 5), ("", Status.NO_CODE, 0), (" \n", Status.NO_CODE, 0),
        (None, Status.NO_CODE, 0), ("#" * (2 << 20), Status.ERROR, 0),
        ("def add(a, b): raise SystemExit", Status.ERROR, 0),
        ("import os\ndef add(a, b): os._exit(0)", Status.ERROR, 0), ("\ud800", Status.SYNTAX_ERROR, 0),
        (RIGHT + "  # \udcff", Status.SYNTAX_ERROR, 0), (RIGHT + "\0", Status.SYNTAX_ERROR, 0),
        ("\0", Status.SYNTAX_ERROR, 0), (RIGHT + "\n#" + "é" * 10**6, Status.PASSED, 5),
        (RIGHT + "\n#" + "\U0001f600" * 10**6, Status.PASSED, 5), ("(" * 500_000, Status.SYNTAX_ERROR, 0),
        (RIGHT + "\n#" + "x" * (50 << 20), Status.ERROR, 0),
    ],
)  # fmt: skip
def test_statuses(grader, add, code, status, passed):
    (verdict,) = grader.grade([(add, code)])
    assert (verdict.status, sum(verdict.tests_passed)) == (status, passed)
    assert len(verdict.tests_passed) == 5


def test_an_empty_program_does_not_pass_by_a_builtin_of_the_same_name(grader):
    problem = Problem("sum", "", "sum", tests=(Case(([1, 2],), 3),))
    assert grader.grade([(problem, "x = 1")])[0].status is Status.NO_CODE


def test_the_first_failure_says_what_was_called_expected_and_given(grader, add):
    (verdict,) = grader.grade([(add, "def add(a, b): return 3")])
    assert verdict.first_failure == "add(0, 0): expected 0, got 3"
    (verdict,) = grader.grade([(add, "def add(a, b): raise KeyError('k')")])
    assert verdict.first_failure == "add(1, 2): expected 3, raised KeyError: 'k'"
    assert (verdict.error_class, verdict.error_message) == ("KeyError", "'k'")


def test_messages_of_a_hostile_answer_are_bounded_and_without_control_characters(grader, add):
    hostile = """
class E(Exception): pass
E.__name__ = "E\\x1b[2J" * 1000
print("\\x1b]0;title\\x07")
def add(a, b): raise E("\\x1b[31m\\u202e" * 10000)
"""
    (verdict,) = grader.grade([(add, hostile)])
    shown = verdict.error_class + verdict.error_message + verdict.first_failure + verdict.stdout
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert len(shown) < 2000


def test_equal_code_for_the_same_problem_runs_once(add):
    recorder = Recorder(RunResult(Outcome.COMPLETED, tuple(CallResult(True, c.expected) for c in add.cases)))
    other = replace(add, task_id="other")
    with Grader(executor=recorder) as grader:
        verdicts = grader.grade(
            [(add, RIGHT), (add, RIGHT), (other, RIGHT), (add, RIGHT + "\n"), (add, RIGHT)]
        )
    assert len(recorder.jobs) == 3
    assert all(verdict.passed for verdict in verdicts)


def test_a_stream_is_graded_lazily_and_completely(grader, add):
    taken = []

    def answers():
        for index in range(12):
            taken.append(index)
            yield add, f"def add(a, b): return a + b + {index % 3}"

    verdicts = {}
    for index, verdict in grader.grade_stream(answers()):
        verdicts[index] = verdict.passed
    assert verdicts == {index: index % 3 == 0 for index in range(12)}


def test_expected_values_never_enter_a_job():
    secret = 918273645546372819
    problem = Problem("p", "", "f", tests=(Case((1,), secret), Case((2,), {"deep": [secret]})))
    tested = Problem(
        "t",
        "",
        "f",
        tests=(Assertion(f"assert f(1) == {secret}"), Assertion(f"assert abs(f(2) - {secret}) < 1")),
    )
    recorder = Recorder(RunResult(Outcome.COMPLETED))
    with Grader(executor=recorder) as grader:
        grader.grade([(problem, "x"), (tested, "x")])
    assert len(recorder.jobs) == 2
    assert str(secret) not in repr(recorder.jobs)


def test_infrastructure_failure_is_a_family_of_its_own(add):
    with Grader(executor=Recorder(RunResult(Outcome.INFRASTRUCTURE, error_message="lost"))) as grader:
        (verdict,) = grader.grade([(add, RIGHT)])
    assert verdict.status is Status.INFRASTRUCTURE
    assert verdict.status.family is Family.INFRASTRUCTURE


def test_a_run_that_was_not_completed_never_passes(add):
    results = tuple(CallResult(True, case.expected) for case in add.cases)
    for outcome in Outcome:
        if outcome is not Outcome.COMPLETED:
            with Grader(executor=Recorder(RunResult(outcome, results))) as grader:
                assert not grader.grade([(add, RIGHT)])[0].passed
    with Grader(executor=Recorder(RunResult(Outcome.COMPLETED, results[:-1]))) as grader:
        assert grader.grade([(add, RIGHT)])[0].status is Status.INFRASTRUCTURE


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "found none"),
        ({"tests": (Case((1,), 1), Assertion("assert f(1)"))}, "found cases and tests"),
        ({"tests": (Check("f(1)"), InProcess("f(1)"))}, "found checks and in_process_tests"),
        ({"tests": (StdioCase("1", "1"),)}, "an empty entry point beside stdio_cases, found 'f'"),
        ({"entry_point": "", "tests": (Case((1,), 1),)}, "an entry point beside cases, found ''"),
        ({"tests": (Check("f("),)}, "not Python"),
        ({"tests": (Check("f(1)"),), "check_setup_code": "x ="}, "not Python"),
        ({"tests": (InProcess("\0"),)}, "not Python"),
        ({"tests": (Case((1,), 1, raises="ValueError"),)}, "expects 1 and the exception 'ValueError'"),
        ({"tests": (Case((1,), None, raises="a b"),)}, "the exception 'a b'"),
        ({"tests": (Case((1,), 1),), "comparison": Comparison(rule="same_set")}, "compared as a set"),
        ({"tests": (Case((1,), object()),)}, "case 1 is not plain data"),
        ({"tests": (Case((1,), 1), Case((object(),), 1))}, "case 2 is not plain data"),
        ({"tests": (Assertion("assert f("),)}, "not Python"),
        ({"tests": (Assertion("assert f(1) in 5"),)}, "member of no container"),
        ({"tests": (Assertion("assert f(1) == " + "-" * 9000 + "1"),)}, "not Python"),
        ({"tests": (Case((1,), 1),), "setup_code": "def (("}, "setup code .* is not Python"),
    ],
)
def test_a_problem_that_cannot_judge_is_an_error(grader, fields, message):
    with pytest.raises(ProblemError, match=message):
        grader.grade([(Problem(**{"task_id": "p", "prompt": "", "entry_point": "f", **fields}), "x = 1")])


UNUSUAL = {
    "lone surrogate": "\ud800",
    "null": "\0",
    "NaN as a key": {math.nan: "\udcff"},
    "NaN in a set": {(1, math.nan)},
    "minus zero": -0.0,
    "huge int": 1 << 70_000,
    "long text": "x" * (3 << 20),
    "infinity": math.inf,
}


@pytest.mark.parametrize("value", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_unusual_plain_values_go_in_and_come_back(grader, value):
    problem = Problem("p", "", "f", tests=(Case((value,), value), Case((value,), [value])))
    (verdict,) = grader.grade([(problem, "def f(x): return x")])
    assert verdict.tests_passed == (True, False)


def test_an_expected_value_that_was_not_computed_is_an_error(grader):
    problem = Problem(
        "p", "", "f", tests=(Case((1,), Expected.FROM_REFERENCE),), reference="def f(x): return x"
    )
    with pytest.raises(ProblemError, match="not known yet"):
        grader.grade([(problem, "x")])


def test_after_an_error_the_grader_goes_on(grader, add):
    for bad in (Problem("p", "", "f"), Problem("p", "", "f", tests=(Case((object(),), 1),))):
        with pytest.raises(ProblemError):
            grader.grade([(add, RIGHT), (bad, RIGHT), (add, RIGHT)])
    assert grader.grade([(add, RIGHT)])[0].passed


def test_graded_answers_reach_the_process_of_a_reward_function_as_they_are():
    verdict = Verdict(Status.FAILED, (True, False), "E", "m", "f", "o", "e", 0.5, 1.5, ("landlock",))
    problems = [
        Problem("a", "", "f", tests=(Case((1,), (2,), {"k": {3}}), Case((), None, raises="E")), tags=("t",)),
        Problem("b", "", "", tests=(StdioCase("1", "2"),), comparison=Comparison(rule="not_none")),
        Problem(
            "c", "", "f", tests=(Check("f()"),), check_setup_code="x = 1", setup_code="y = 1", base_tests=1
        ),
    ]
    answers = [
        GradedAnswer(problem, "prompt", "text", code, verdict) for problem in problems for code in ("x", None)
    ]
    back = pickle.loads(pickle.dumps(answers))
    assert back == answers
    assert repr(back) == repr(answers)


def test_the_comparison_of_the_problem_is_used(grader):
    problem = Problem(
        "p", "", "f", tests=(Case((1,), [0.5]),), comparison=Comparison(0.1, tuple_is_list=True)
    )
    assert grader.grade([(problem, "def f(x): return (0.52,)")])[0].passed
    assert not grader.grade([(replace(problem, comparison=Comparison()), "def f(x): return (0.52,)")])[
        0
    ].passed


def test_keyword_arguments_reach_the_answer(grader):
    problem = Problem("p", "", "f", tests=(Case((1,), 3, {"b": {"x": (2,)}}),))
    assert grader.grade([(problem, "def f(a, b): return a + b['x'][0]")])[0].passed


def test_programs_are_run_in_order_and_once(grader):
    runs = grader.run_programs(["print(1)", "1 / 0", "print(1)", "pass", "x ="])
    assert [run.outcome for run in runs] == [
        Outcome.COMPLETED, Outcome.LOAD_ERROR, Outcome.COMPLETED, Outcome.COMPLETED, Outcome.SYNTAX_ERROR,
    ]  # fmt: skip
    assert [run.stdout for run in runs] == ["1\n", "", "1\n", "", ""]


def test_an_object_is_not_none(grader):
    tests = ("assert add(1, 2) is not None", "assert add(1, 2) != None")
    problem = Problem("add", "", "add", tests=tuple(map(Assertion, tests)))
    assert grader.grade([(problem, "import re\ndef add(a, b): return re.match('', '')")])[0].passed
    (none,) = grader.grade([(problem, "def add(a, b): pass")])
    assert none.tests_passed == (False, False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"starter_code": "async def add(a, b):\n"}, "is an async function"),
        ({"tests": (Case((1, 2), None, raises="SystemExit"),)}, "expects SystemExit"),
    ],
)
def test_what_no_answer_can_pass_is_refused(grader, change, message):
    with pytest.raises(ProblemError, match=message):
        grader.grade(
            [
                (
                    replace(Problem("add", "", "add", tests=(Case((1, 2), 3),)), **change),
                    "def add(a, b): return a + b",
                )
            ]
        )
