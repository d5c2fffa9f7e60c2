from __future__ import annotations

import pytest

from greenward.grading.judge import Grader
from greenward.problems.problem import Case, Problem
from greenward.sandbox.protocol import Limits


@pytest.fixture(scope="package")
def grader():
    with Grader(Limits(cpu_seconds=0.5, wall_seconds=3.0, memory_bytes=512 << 20), workers=1) as grader:
        yield grader


@pytest.fixture(scope="package")
def add():
    return Problem(
        task_id="add",
        prompt="Add two numbers.",
        entry_point="add",
        tests=tuple(Case((a, b), a + b) for a, b in ((1, 2), (0, 0), (-1, 1), (10, 5), (7, 7))),
        starter_code="def add(a, b):\n",
    )
