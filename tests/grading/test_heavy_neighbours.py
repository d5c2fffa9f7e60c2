"""Answers whose results are costly to read: they are bounded before they are read, and harm no other answer."""

from __future__ import annotations

import time

import pytest

from greenward.grading.judge import Grader
from greenward.grading.testcases import make_plan
from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Case, Check, InProcess, Problem, StdioCase
from greenward.sandbox import workers
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import MAX_RESULT_BYTES, Call, Job, Limits, Outcome
from greenward.sandbox.workers import Attempt

LIMITS = Limits(cpu_seconds=3.0, wall_seconds=6.0, memory_bytes=512 << 20)
PROBLEMS = {
    "cases": Problem("cases", "", "f", tests=tuple(Case((n,), n) for n in range(2))),
    "tests": Problem(
        "tests",
        "",
        "f",
        tests=(
            Assertion("assert f(1) == 1"),
            Assertion("assert f(2) + 1 == 3"),
            Assertion("assert f(0) == 0"),
        ),
    ),
    "checks": Problem(
        "checks", "", "f", tests=(Check("assert f(1) == 1"), Check("assert [*map(f, [1, 2])] == [1, 2]"))
    ),
    "in_process_tests": Problem("in_process", "", "f", tests=(InProcess("assert f(3) == 3"),)),
    "stdio": Problem("stdio", "", "", tests=(StdioCase("1\n", "1\n"), StdioCase("2\n", "2\n"))),
}
INNOCENT, PROGRAM = "def f(x): return x", "print(input())"
HEAVY = {
    "values": "value = [[]] * 600_000\ndef f(x): return value",
    "text": "def f(x): return '[' * 4_000_000",
    "a flood of frames": "import os\nfor _ in range(256):\n    os.write(3, b'[],' * 21_000)\ndef f(x): return x",
    "replies": "import os, struct\ntext = b'[\"value\",[' + b'[],' * 400_000 + b'0]]'\ndef f(x):\n"
    "    view = memoryview(struct.pack('!I', len(text)) + text)\n    while view: view = view[os.write(4, view):]",
}
HEAVY_PROGRAMS = {
    "output": "print('[],' * 20_000_000)",
    "endless output": "while True: print('1e9 ' * 100_000)",
}


@pytest.fixture
def sizes(monkeypatch):
    """The number of bytes of each report that was read."""
    seen: list[int] = []
    read = Attempt.read_report

    def recording(attempt, is_of_checks, report, blobs, layers):
        seen.append(len(blobs))
        return read(attempt, is_of_checks, report, blobs, layers)

    monkeypatch.setattr(Attempt, "read_report", recording)
    return seen


@pytest.mark.slow
def test_no_innocent_answer_suffers_from_heavy_neighbours(monkeypatch, sizes):
    monkeypatch.setattr(workers, "GRACE_SECONDS", 1.5)
    answers = []
    for kind, problem in PROBLEMS.items():
        heavy, innocent = (HEAVY_PROGRAMS, PROGRAM) if kind == "stdio" else (HEAVY, INNOCENT)
        for name, code in heavy.items():
            innocents = [(problem, f"{innocent}  # beside {name}, {number}") for number in range(2)]
            answers += [(problem, code), *innocents]
    with Grader(LIMITS, workers=4) as grader:
        verdicts = grader.grade(answers)
    innocents = [verdict for (_, code), verdict in zip(answers, verdicts, strict=True) if "# beside" in code]
    assert [verdict for verdict in innocents if not verdict.passed] == []
    assert len(innocents) == 36
    assert not any(verdict.passed for verdict in verdicts if verdict not in innocents)
    assert not {verdict.status for verdict in verdicts} & {Status.INFRASTRUCTURE}
    assert max(sizes) < 1.3 * (1 << 20)  # results, and what was printed


@pytest.mark.slow
def test_a_report_that_came_while_others_were_read_is_not_late(monkeypatch):
    """Reading takes longer than all workers may be silent for; every report is there in time."""
    monkeypatch.setattr(workers, "GRACE_SECONDS", 0.2)
    read = Attempt.read_report

    def slowly(*arguments):
        time.sleep(0.6)
        return read(*arguments)

    monkeypatch.setattr(Attempt, "read_report", slowly)
    limits = Limits(cpu_seconds=1.0, wall_seconds=0.9, memory_bytes=256 << 20)
    job = Job("def f(x): return x", "f", (Call((3,)),), limits=limits)
    checked = Job("def f(x): return x", "f", checks=("assert f(1) == 1",), limits=limits)
    with LocalExecutor(6) as executor:
        started = set(executor.worker_pids)
        results = dict(executor.run([job, checked] * 5))
        assert started <= set(executor.worker_pids)  # none was lost
    assert {result.outcome for result in results.values()} == {Outcome.COMPLETED}


@pytest.mark.parametrize(
    ("expected", "returned"),
    [
        ([0.5] * 2000, "[0.5000000000000001] * 2000"),
        ([1] * 2000, "[1.0] * 2000"),
        ([True] * 2000, "[Fraction(1)] * 2000"),
        ("x" * 30_000, "'x' * 30_000"),
        ([[1, (2,)]] * 2000, "[[1, (2,)]] * 2000"),
        ({n: {n} for n in range(2000)}, "{n: {n} for n in range(2000)}"),
        ([frozenset([1])] * 2000, "[frozenset([1])] * 2000"),
    ],
    ids=["floats", "whole floats", "fractions", "text", "tuples", "dict", "sets"],
)
def test_large_values_pass_where_large_values_are_expected(grader, monkeypatch, expected, returned):
    monkeypatch.setattr("greenward.grading.testcases._EXTRA_RESULT_BYTES", 0)
    problem = Problem("p", "", "f", tests=(Case((1,), expected), Case((2,), expected)))
    code = f"from fractions import Fraction\ndef f(x): return {returned}"
    (verdict,) = grader.grade([(problem, code)])
    assert verdict.passed, verdict.first_failure


def test_the_bound_follows_what_is_expected():
    def bound(*expected: object) -> int:
        return make_plan(
            Problem("p", "", "f", tests=tuple(Case((1,), one) for one in expected))
        ).job.result_bytes

    assert 1 << 20 <= bound(1) < (1 << 20) + 1000
    assert bound(1) < bound([1] * 1000) < bound([1] * 1000, [2] * 1000) < (1 << 20) + 200_000
    assert bound("x" * 4_000_000, "x" * 4_000_000) == MAX_RESULT_BYTES


def test_a_value_beyond_the_bound_is_no_plain_data_and_says_so(grader):
    (verdict,) = grader.grade([(PROBLEMS["cases"], "def f(x): return 'x' * (1 << 21)")])
    assert verdict.status is Status.WRONG_TYPE
    assert "characters; at most" in verdict.first_failure
