"""The hash of a problem set: equal for equal data everywhere, different for different data."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from greenward.problems.problem import Case, Comparison, Expected, Problem, ProblemSet

PROBLEM = Problem("a", "Do.", "f", cases=(Case((1, [2.0]), {"k": (None,)}),), tags=("x",))


def hash_of(*problems: Problem) -> str:
    return ProblemSet(problems).data_hash


@pytest.mark.parametrize(
    "changed",
    [
        replace(PROBLEM, prompt="Do it."),
        replace(PROBLEM, cases=(Case((1, [2]), {"k": (None,)}),)),
        replace(PROBLEM, cases=(Case((True, [2.0]), {"k": (None,)}),)),
        replace(PROBLEM, cases=(Case((1, (2.0,)), {"k": (None,)}),)),
        replace(PROBLEM, cases=(Case((1, [2.0]), Expected.FROM_REFERENCE),)),
        replace(PROBLEM, comparison=Comparison(tolerance=0.0)),
        replace(PROBLEM, tags=()),
    ],
)
def test_every_difference_counts(changed):
    assert hash_of(changed) != hash_of(PROBLEM)


def test_huge_numbers_are_hashed():
    huge = [replace(PROBLEM, cases=(Case((), 10**5000 + n),)) for n in (0, 1)]
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
