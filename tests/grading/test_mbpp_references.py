"""MBPP's own reference solutions pass its tests: no protection changes what is right."""

from __future__ import annotations

import ast
import builtins
import json
from pathlib import Path

import pytest

from greenward.grading.grader import Grader
from greenward.problems.problem import Problem
from greenward.sandbox.protocol import Limits

DATA = Path(__file__).parents[2] / "../shared/data/mbpp/mbpp.jsonl"


def entry_point(test: str) -> str:
    calls = [node.func for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)]
    names = [call.id for call in calls if isinstance(call, ast.Name)]
    return next((name for name in names if not hasattr(builtins, name)), names[0])


def load_rows(every: int) -> list[tuple[Problem, str]]:
    rows = [json.loads(line) for line in DATA.read_text().splitlines()[::every]]
    return [
        (
            Problem(
                task_id=f"mbpp/{row['task_id']}",
                prompt=row["text"],
                entry_point=entry_point(row["test_list"][0]),
                tests=(*row["test_list"], *row["challenge_test_list"]),
                setup_code=row["test_setup_code"],
            ),
            row["code"],
        )
        for row in rows
    ]


def failures(every: int = 1) -> list[str]:
    """The references that do not pass, among every n-th row."""
    answers = load_rows(every)
    with Grader(Limits(cpu_seconds=30.0, wall_seconds=90.0), workers=2) as grader:
        verdicts = grader.grade(answers)
    return [
        f"{problem.task_id}: {verdict.status.value} {verdict.first_failure}"
        for (problem, _), verdict in zip(answers, verdicts, strict=True)
        if not verdict.passed
    ]


@pytest.mark.skipif(not DATA.exists(), reason=f"needs {DATA}")
def test_references_pass_their_tests():
    assert failures(every=10) == []


if __name__ == "__main__":
    print("\n".join(failures()) or "all references pass")
