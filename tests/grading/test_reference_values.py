"""Expected values from references: computed in the sandbox, kept on disk, verified when read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader, with_expected_values
from greenward.problems.problem import Assertion, Case, Comparison, Expected, Problem, ProblemSet
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import CallResult, Outcome, RunResult

UNKNOWN = Expected.FROM_REFERENCE
SQUARE = Problem(
    "square",
    "Square.",
    "f",
    tests=(Case((3,), UNKNOWN), Case((2,), 5)),
    reference="def f(x):\n    return x * x",
)


class Counting:
    """An executor that counts the jobs that it passes on."""

    def __init__(self, executor):
        self.executor = executor
        self.jobs = []

    def run(self, jobs):
        self.jobs += (kept := list(jobs))
        return self.executor.run(kept)

    def close(self):
        pass


@pytest.fixture(scope="module")
def pool():
    with LocalExecutor(1) as executor:
        yield executor


@pytest.fixture
def executor(pool):
    return Counting(pool)


def values(problem, executor, cache):
    (completed,) = with_expected_values(ProblemSet([problem]), executor, cache=cache)
    return [case.expected for case in completed.cases]


def test_only_unknown_values_are_filled_in(executor, tmp_path):
    assert values(SQUARE, executor, tmp_path) == [9, 5]
    assert [job.trusted for job in executor.jobs] == [True]


def test_tests_of_other_kinds_stay(executor, tmp_path):
    """A set with two kinds of tests is refused where it is judged: neither kind may be left out before."""
    other = Assertion("assert f(2) == 5")
    problem = replace(SQUARE, tests=(other, *SQUARE.tests))
    (completed,) = with_expected_values(ProblemSet([problem]), executor, cache=tmp_path)
    assert completed.tests == (Case((3,), 9), Case((2,), 5), other)


def test_known_problems_come_back_as_they_are(executor, tmp_path):
    problem = replace(SQUARE, tests=(Case((2,), 5),))
    assert next(iter(with_expected_values(ProblemSet([problem]), executor, cache=tmp_path))) is problem
    assert not executor.jobs


@pytest.mark.parametrize(
    "expression",
    [
        "(1, [2.0, None], {'a': {1, 2}}, {3: (True,)})",
        "{frozenset({1, 2}), frozenset()}",
        "[float('inf'), -0.0, 1j, b'x', 10 ** 30]",
        "{(1, 'é'): [], None: '\\ud800'}",
    ],
)
def test_values_survive_sandbox_and_cache(executor, tmp_path, expression):
    problem = Problem(
        "p", "", "f", tests=(Case((), UNKNOWN),), reference=f"def f():\n    return {expression}"
    )
    expected = eval(expression)
    for _ in range(2):
        (value,) = values(problem, executor, tmp_path)
        assert value == expected
        assert type(value) is type(expected) or type(value) is frozenset
    assert len(executor.jobs) == 1


@pytest.mark.parametrize("spoil", [lambda b: b[:-9], lambda b: b.replace(b"[9,", b"[8,"), lambda b: b"5"])
def test_spoiled_cache_is_computed_again(executor, tmp_path, spoil):
    assert values(SQUARE, executor, tmp_path) == [9, 5]
    (file,) = tmp_path.iterdir()
    file.write_bytes(spoil(file.read_bytes()))
    assert values(SQUARE, executor, tmp_path) == [9, 5]
    assert len(executor.jobs) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"reference": "def f(x):\n    return x ** 2"},
        {"tests": (Case((4,), UNKNOWN),)},
        {"setup_code": "x = 1"},
    ],
)
def test_other_data_have_another_place_in_the_cache(executor, tmp_path, change):
    values(SQUARE, executor, tmp_path)
    values(replace(SQUARE, **change), executor, tmp_path)
    assert len(executor.jobs) == 2


def test_match_objects_become_whether_there_is_one(executor, tmp_path):
    problem = Problem(
        "m", "", "f",
        tests=(Case(("ab",), UNKNOWN), Case(("b",), UNKNOWN)),
        reference="import re\ndef f(text):\n    return re.match('a', text)",
        comparison=Comparison(rule="not_none"),
    )  # fmt: skip
    assert values(problem, executor, tmp_path) == [True, False]


def test_values_too_large_to_leave_the_sandbox_are_left_out_and_counted(executor, tmp_path):
    problem = Problem(
        "p", "", "f",
        tests=tuple(Case((n,), UNKNOWN) for n in (1, 60_000_000, 2)),
        reference="def f(n):\n    return 'x' * n",
        base_tests=2,
    )  # fmt: skip
    (completed,) = with_expected_values(ProblemSet([problem]), executor, cache=tmp_path)
    assert [case.args for case in completed.cases] == [(1,), (2,)]
    assert (completed.tests_left_out, completed.base_tests) == (1, 1)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("def f(x):\n    return 1 / 0", "the reference fails on input 1: ZeroDivisionError"),
        ("def f(x):\n    return object()", "returns nothing that can leave the sandbox"),
        ("import sys\nsys.exit()", r"gave 0 of 2 values \(exited\)"),
        ("", "its expected values come from a reference, and it has none"),
    ],
)
def test_reference_that_fails_is_an_error(executor, tmp_path, reference, message):
    with pytest.raises(ProblemError, match=f"square: .*{message}"):
        values(replace(SQUARE, reference=reference), executor, tmp_path)
    assert not list(tmp_path.iterdir())


def test_answers_get_four_times_what_the_reference_took(tmp_path):
    class Slow:
        def run(self, jobs):
            for index, _ in enumerate(jobs):
                results = (CallResult(True, 9), CallResult(True, 4))
                yield index, RunResult(Outcome.COMPLETED, results, cpu_seconds=3.0)

    (completed,) = with_expected_values(ProblemSet([SQUARE]), Slow(), cache=tmp_path)
    assert completed.cpu_seconds == 12.0


def test_completed_problems_are_graded(tmp_path, monkeypatch):
    monkeypatch.setenv("GREENWARD_CACHE", str(tmp_path))
    with Grader(workers=1) as grader:
        (problem,) = grader.complete(ProblemSet([replace(SQUARE, tests=SQUARE.cases[:1])]))
        right, wrong = grader.grade([(problem, problem.reference), (problem, "def f(x):\n    return 2 * x")])
    assert right.passed
    assert not wrong.passed
    assert (tmp_path / "expected").is_dir()
