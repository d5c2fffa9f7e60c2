"""The hash of a problem set: equal for equal data everywhere, different for different data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.problem import (
    Assertion,
    Case,
    Check,
    Comparison,
    Doctest,
    Expected,
    InProcess,
    Problem,
    ProblemSet,
    StdioCase,
)

PROBLEM = Problem("a", "Do.", "f", tests=(Case((1, [2.0]), {"k": (None,)}),), tags=("x",))


def hash_of(*problems: Problem) -> str:
    return ProblemSet(problems).data_hash


@pytest.mark.parametrize(
    "changed",
    [
        replace(PROBLEM, prompt="Do it."),
        replace(PROBLEM, tests=(Case((1, [2]), {"k": (None,)}),)),
        replace(PROBLEM, tests=(Case((True, [2.0]), {"k": (None,)}),)),
        replace(PROBLEM, tests=(Case((1, (2.0,)), {"k": (None,)}),)),
        replace(PROBLEM, tests=(Case((1, [2.0]), Expected.FROM_REFERENCE),)),
        replace(PROBLEM, comparison=Comparison(tolerance=0.0)),
        replace(PROBLEM, tags=()),
    ],
)
def test_every_difference_counts(changed):
    assert hash_of(changed) != hash_of(PROBLEM)


def test_huge_numbers_are_hashed():
    huge = [replace(PROBLEM, tests=(Case((), 10**5000 + n),)) for n in (0, 1)]
    assert hash_of(huge[0]) != hash_of(huge[1])


def test_order_counts_and_the_name_does_not():
    other = replace(PROBLEM, task_id="b")
    assert hash_of(PROBLEM, other) != hash_of(other, PROBLEM)
    assert ProblemSet([PROBLEM], name="x").data_hash == ProblemSet([PROBLEM], name="y").data_hash


def test_measured_time_does_not_count():
    assert hash_of(replace(PROBLEM, cpu_seconds=3.0)) == hash_of(PROBLEM)


def test_sets_hash_alike_in_every_process():
    code = (
        "from greenward.problems.problem import data_hash;"
        "print(data_hash([{'a', 'b', 'c', 1, None, (2, 'x')}, frozenset('hash')]))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(hashes) == 1


ONE = Problem("a", prompt="Do.", entry_point="f", setup_code="x = 1", reference="def f(): 1")
CASES = (Case((1, [2.0]), {"k": (None,)}), Case((), None, {"b": 1}, "ValueError"))


@pytest.mark.parametrize(
    ("problem", "start"),
    [
        (replace(ONE, tests=CASES), "cac53f443e9d0185"),
        (replace(ONE, tests=(Assertion("assert f() == 1"), Assertion("assert f()"))), "7737b747293949fc"),
        (replace(ONE, tests=(Check("check(f)"),), check_setup_code="y = 2"), "dcdf4a8d49fcd4d3"),
        (replace(ONE, tests=(StdioCase("1", "2"),)), "0bfc2daef1c409ad"),
        (replace(ONE, tests=(Doctest(">>> f()\n1\n"),)), "0bf10463ff7e8c8c"),
        (replace(ONE, tests=(InProcess("assert f()"),)), "71e712bbd37c478e"),
        (replace(ONE, tests=(Case((), 1),), hidden_cases=(Case((), 2),), base_tests=0), "73a987f96a5926b9"),
    ],
)
def test_hashes_are_those_of_the_time_when_each_kind_of_test_had_a_field(problem, start):
    """Runs and folders of answers resume by them."""
    assert hash_of(problem).startswith(start)


def test_what_is_no_test_is_refused():
    with pytest.raises(ProblemError, match=r"tests: expected a test \(Case, Assertion, .* found 'assert f'"):
        replace(ONE, tests=("assert f",))
    with pytest.raises(ProblemError, match="Assertion: source: expected text"):
        Assertion(1)
