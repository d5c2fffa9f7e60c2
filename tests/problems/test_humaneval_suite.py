"""HumanEval's files: helpers of the prompt, and the program that checks."""

from __future__ import annotations

import gzip
import json

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.catalog import load_file
from greenward.problems.problem import Check

PROMPT = '''import math

def twice(x):
    return 2 * x

def area(r):
    """ Area of a circle.
    >>> round(area(1), 2)
    3.14
    """
'''
ROW = {
    "task_id": "HumanEval/0",
    "prompt": PROMPT,
    "entry_point": "area",
    "canonical_solution": "    return math.pi * r ** 2\n",
    "test": "def check(candidate):\n    assert candidate(twice(1)) > 12\n",
}


def test_helpers_of_the_prompt_are_there_for_the_check(lines):
    (problem,) = load_file(lines(ROW))
    assert problem.check_setup_code == "import math\n\ndef twice(x):\n    return 2 * x"
    assert problem.sources(Check) == (ROW["test"] + "\n\ncheck(area)\n",)
    assert problem.starter_code == PROMPT
    assert problem.reference == PROMPT + ROW["canonical_solution"]
    assert problem.prompt.startswith("Area of a circle.")


def test_prompt_may_end_in_a_signature(lines):
    row = {**ROW, "prompt": "def one():\n", "entry_point": "one", "canonical_solution": "    return 1"}
    (problem,) = load_file(lines(row))
    assert problem.prompt == "def one():"
    assert problem.check_setup_code == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"entry_point": "volume"}, "'prompt' does not define the function 'volume'"),
        ({"entry_point": "not a name"}, "'entry_point' must be the name of a Python function"),
        ({"prompt": "def area(:"}, "'prompt' is not Python"),
        ({"test": "assert area(1)"}, "'test' does not define check"),
        ({"canonical_solution": 5}, "'canonical_solution' must be text, found a number"),
    ],
)
def test_wrong_row_is_named(lines, change, message):
    with pytest.raises(ProblemError, match=rf"row 1 \(line 1\).*{message}"):
        load_file(lines({**ROW, **change}))


def test_public_file(public):
    problems = load_file(public("humaneval/HumanEval.jsonl.gz"))
    assert len(problems) == 164
    with_helpers = [p.task_id for p in problems if "def " in p.check_setup_code]
    assert with_helpers == ["HumanEval/10", "HumanEval/32", "HumanEval/38", "HumanEval/50"]
    # Its docstring does not come first in the function.
    assert problems.by_id("HumanEval/115").prompt.startswith("You are given a rectangular grid")


def test_humaneval_x_asks_for_the_functions_of_the_public_file(public, lines):
    with gzip.open(public("humaneval/HumanEval.jsonl.gz"), "rt") as file:
        rows = list(map(json.loads, file))
    problems = load_file(
        lines(
            *(
                {name: value for name, value in row.items() if name != "entry_point"}
                | {"task_id": f"Python/{number}", "declaration": "", "test": f"{row['test']}\ncheck(_)\n"}
                for number, row in enumerate(rows)
            )
        )
    )
    assert [problem.entry_point for problem in problems] == [row["entry_point"] for row in rows]
