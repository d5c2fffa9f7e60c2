"""The time that an answer gets, and the parts into which long problems are split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.grading.execution import JobSet, run_unique
from greenward.grading.judge import Grader, make_jobs, with_expected_values
from greenward.grading.testcases import make_plan
from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Case, Expected, Problem, ProblemSet, StdioCase
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import CallResult, Job, Limits, Outcome, RunResult

USUAL = Limits(cpu_seconds=10.0, wall_seconds=30.0)
BUSY = """
import time
def f(n):
    end = time.process_time() + SECONDS[n]
    while time.process_time() < end: pass
    return n
SECONDS = """


def asked(*reference_seconds: float) -> Problem:
    """A problem whose reference takes so many seconds for each case."""
    cases = tuple(Case((n,), n) for n in range(len(reference_seconds)))
    return Problem(
        "p",
        "",
        "f",
        tests=cases,
        reference_seconds=reference_seconds,
        cpu_seconds=4 * sum(reference_seconds),
    )


def jobs(problem: Problem, limits: Limits = USUAL, *, by_suite: bool = True) -> tuple[Job, ...]:
    return make_jobs(make_plan(problem), problem, "", limits, by_suite=by_suite)


def test_a_test_may_take_a_second_or_four_times_the_reference():
    (job,) = jobs(asked(0.0, 0.1, 0.5, 0.25))
    assert job.call_seconds == (1.0, 1.0, 2.0, 1.0)
    assert job.limits.cpu_seconds == 5.0
    assert job.call_wall_seconds == 30.0  # as for any answer


def test_an_answer_may_take_a_minute_or_four_times_the_reference():
    (many,) = jobs(asked(*[0.0] * 500))
    assert many.limits.cpu_seconds == 60.0
    (one,) = jobs(asked(20.0))
    assert one.limits.cpu_seconds == sum(one.call_seconds) == 80.0
    assert one.call_wall_seconds == one.limits.wall_seconds == 240.0


def test_a_limit_of_the_user_is_for_the_whole_answer_and_wins():
    (job,) = jobs(asked(0.0, 0.5), by_suite=False)
    assert (job.limits, job.call_seconds) == (USUAL, ())
    (job,) = jobs(asked(5.0, 5.0), by_suite=False)
    assert (job.limits.cpu_seconds, job.call_seconds) == (40.0, ())  # the reference needs more


def test_a_limit_of_the_user_is_for_each_test_of_a_contest():
    problem = replace(asked(0.0, 0.0), reference_seconds=(), test_seconds=4.0)
    assert [(job.call_seconds, job.limits.cpu_seconds) for job in jobs(problem)] == [((4.0, 4.0), 8.0)]
    assert [job.call_seconds for job in jobs(problem, by_suite=False)] == [(10.0, 10.0)]
    program = Problem("p", "", "", tests=(StdioCase("", ""),) * 3, test_seconds=4.0)
    assert [job.limits.cpu_seconds for job in jobs(program)] == [4.0]
    assert [job.limits.cpu_seconds for job in jobs(program, by_suite=False)] == [10.0]


def test_problems_without_times_keep_the_limit_of_the_answer():
    problem = Problem("p", "", "f", tests=(Assertion("assert f(1) == 1"),))
    assert [(job.limits, job.call_seconds) for job in jobs(problem)] == [(USUAL, ())]
    cut = replace(asked(0.1, 0.1), tests=asked(0.1).cases)  # the times no longer belong to the cases
    assert [(job.limits, job.call_seconds) for job in jobs(cut)] == [(USUAL, ())]


def test_the_calls_of_long_problems_are_spread_in_order():
    problem = asked(0.5, 1.7, 0.0, 3.0, 0.0, 0.1)
    parts = jobs(problem)
    assert [[call.args[0] for call in job.calls] for job in parts] == [[0, 1], [2, 3], [4, 5]]
    assert [job.call_seconds for job in parts] == [(2.0, 6.8), (1.0, 12.0), (1.0, 1.0)]
    assert [[call.args[0] for call in job.calls] for job in jobs(asked(2.0, 2.0))] == [[0], [1]]
    assert len(jobs(problem, by_suite=False)) == 1


class OutOfOrder:
    """Runs jobs three at a time and finishes the last of them first; `outcomes` by the code of a job."""

    def __init__(self, outcomes: dict[str, Outcome]) -> None:
        self.outcomes, self.ran = outcomes, []

    def run(self, jobs):
        stream, open_ = enumerate(jobs), []
        while True:
            while len(open_) < 3 and (job := next(stream, None)) is not None:
                open_.append(job)
            if not open_:
                return
            index, job = open_.pop()
            self.ran.append(job.code)
            yield (
                index,
                RunResult(self.outcomes.get(job.code, Outcome.COMPLETED), (CallResult(True, job.code),)),
            )


@pytest.mark.parametrize(
    ("outcomes", "combined"),
    [
        ({}, "abcdef"),
        ({"a": Outcome.TIMEOUT}, "a"),
        ({"c": Outcome.TIMEOUT}, "abc"),
        ({"c": Outcome.TIMEOUT, "b": Outcome.MEMORY}, "ab"),
        ({"f": Outcome.EXITED}, "abcdef"),
    ],
)
def test_the_first_part_in_order_that_fails_ends_the_answer(outcomes, combined):
    executor = OutOfOrder(outcomes)
    run = JobSet(
        tuple(map(Job, "abcdef")), lambda results: "".join(result.results[0].value for result in results)
    )
    other = JobSet((Job("x"),), lambda results: results[0].results[0].value)
    found = dict(run_unique(executor, [run, other, run], id, lambda item: item))
    assert found == {0: combined, 1: "x", 2: combined}
    assert executor.ran.count("a") == executor.ran.count("x") == 1


def test_no_further_part_runs_after_one_that_failed():
    executor = OutOfOrder({"c": Outcome.TIMEOUT})
    run = JobSet(tuple(map(Job, "abcdef")), lambda results: len(results))
    assert dict(run_unique(executor, [run], id, lambda item: item)) == {0: 3}
    assert sorted(executor.ran) == ["a", "b", "c"]


@pytest.fixture(scope="module")
def grader():
    with Grader(Limits(wall_seconds=90.0), workers=2, by_suite=True) as grader:
        yield grader


def test_the_reference_is_measured_case_by_case(tmp_path):
    seconds = [0.1, 0.6, 0.0, 0.0, 0.4]
    cases = tuple(Case((n,), Expected.FROM_REFERENCE) for n in range(len(seconds)))
    problem = Problem("p", "", "f", tests=cases, reference=BUSY + repr(seconds))
    with LocalExecutor(1) as executor:
        (completed,) = with_expected_values(ProblemSet([problem]), executor, cache=tmp_path)
        (again,) = with_expected_values(ProblemSet([problem]), executor, cache=tmp_path)
    assert completed.reference_seconds == again.reference_seconds
    assert completed.reference_seconds == pytest.approx(seconds, abs=0.2)
    assert sum(completed.reference_seconds) == pytest.approx(sum(seconds), abs=0.2)


def test_loops_end_at_the_limit_of_their_test(grader):
    problem = asked(*[0.0] * 30)
    (verdict,) = grader.grade([(problem, "def f(n):\n    while n == 2: pass\n    return n")])
    assert (verdict.status, verdict.error_class) == (Status.TIMEOUT, "CPUTimeLimit")
    assert sum(verdict.tests_passed) == 2
    assert verdict.first_failure.startswith("f(2)")
    assert verdict.cpu_seconds < 2.0


@pytest.mark.slow
def test_slow_answers_have_the_sum_of_the_limits(grader):
    problem = asked(*[0.0] * 6)
    (verdict,) = grader.grade([(problem, BUSY + "[0.5] * 6")])  # 3 s; without times the limit would be 2 s
    assert verdict.passed, verdict
    with grader.with_limits(Limits(cpu_seconds=1.0, wall_seconds=90.0)) as strict:
        (verdict,) = strict.grade([(problem, BUSY + "[0.5] * 6")])
    assert verdict.status is Status.TIMEOUT
    with grader.with_limits(Limits(cpu_seconds=4.0, wall_seconds=90.0)) as patient:
        (verdict,) = patient.grade([(problem, BUSY + "[0, 1.5] + [0] * 4")])
    assert verdict.passed, verdict


@pytest.mark.slow
def test_the_parts_of_an_answer_make_one_verdict(grader):
    problem = asked(*[2.0] * 4)  # a job for each test
    quick = "def f(n):\n    {}\n    return n"
    good, wrong, loop, early, crash = grader.grade(
        [
            (problem, quick.format(line))
            for line in (
                "pass",
                "n += n in (1, 3)",
                "while n == 2: [] * 10",
                "if n == 1: raise SystemExit",
                "1 / (n - 3)",
            )
        ]
    )
    assert good.passed
    assert wrong.tests_passed == (True, False, True, False)
    assert (wrong.status, wrong.first_failure) == (Status.FAILED, "f(1): expected 1, got 2")
    assert (loop.status, loop.tests_passed) == (Status.TIMEOUT, (True, True, False, False))
    assert (early.status, early.tests_passed) == (Status.ERROR, (True, False, False, False))
    assert (crash.status, crash.error_class) == (Status.ERROR, "ZeroDivisionError")
    assert crash.tests_passed == (True, True, True, False)


def test_answers_that_write_frames_of_their_own_gain_no_time(grader):
    problem = asked(*[0.0] * 30)
    forging = "import os\ndef f(n):\n    while True: os.write(3, bytes(36))"
    (verdict,) = grader.grade([(problem, forging)])
    assert verdict.status in (Status.CHEATING, Status.OUTPUT_LIMIT, Status.TIMEOUT)
    assert not verdict.passed
