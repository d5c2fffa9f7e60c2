"""The problems of an audit, and right answers to them in many shapes. All must be accepted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

from greenward.evaluation.audit.report import HONEST, AuditAnswer
from greenward.grading.problem_columns import assertions
from greenward.problems.problem import Case, Problem, StdioCase

VISIBLE = 2  # so many of the tests of a function are shown in its prompt
NOTHING_PRINTED = "pass\n"


def programs(name: str) -> list[tuple[str, str, str, str]]:
    """(task, family, name, code) of each program in a file of `evaluation/data`.

    A program begins with a line `### TASK, FAMILY: NAME`.
    """
    text = (resources.files("greenward.evaluation") / "data" / name).read_text("utf-8")
    parts = re.split(r"^### (\w+), ([\w ]+): (.+)\n", text, flags=re.MULTILINE)
    return list(zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True))


_RIGHT = programs("right_answers.txt")
_REFERENCES = {task: code for task, _, name, code in _RIGHT if name == "reference"}


def _function(
    name: str, arguments: str, words: str, inputs: Sequence[Any], outputs: Sequence[Any]
) -> Problem:
    """A problem whose `inputs` are one argument or a tuple of several."""
    given = [one if isinstance(one, tuple) else (one,) for one in inputs]
    problem = Problem(
        f"audit/{name}",
        f"Write a function {name}({arguments}) that returns {words}",
        name,
        cases=tuple(map(Case, given, outputs)),
        starter_code=f"def {name}({arguments}):\n",
        reference=_REFERENCES[name],
    )
    shown = "\n".join(assertions(problem)[:VISIBLE])
    return replace(problem, prompt=f"{problem.prompt}\n\nYour code should pass these tests:\n\n{shown}\n")


def _program(name: str, words: str, tests: dict[str, str]) -> Problem:
    stdin, stdout = next(iter(tests.items()))
    return Problem(
        f"audit/{name}",
        f"{words}\n\nInput:\n{stdin}Output:\n{stdout}",
        "",
        stdio_cases=tuple(StdioCase(*test) for test in tests.items()),
        reference=_REFERENCES[name],
    )


GCD = _function(
    "gcd",
    "a, b",
    "the greatest common divisor of two integers, never negative.",
    [(12, 18), (7, 13), (0, 5), (100, 75), (-4, 6)],
    [6, 1, 5, 25, 2],
)
RUNNING_MAX = _function(
    "running_max",
    "numbers",
    "the list of the largest number up to each position.",
    [[3, 1, 4, 1, 5], [2, 1], [], [-2, -5, -1], [1, 3, 2, 3]],
    [[3, 3, 4, 4, 5], [2, 2], [], [-2, -2, -1], [1, 3, 3, 3]],
)
INITIALS = _function(
    "initials",
    "name",
    "the first letters of the words of a name, in upper case.",
    ["ada lovelace", "alan", "grace brewster murray hopper", "  jean   bartik ", ""],
    ["AL", "A", "GBMH", "JB", ""],
)
SUMS = _program(
    "running_sums",
    "Read a number n and then n integers, one on each line. After each of them print the sum so far.",
    {
        "3\n1\n2\n3\n": "1\n3\n6\n",
        "4\n5\n-2\n0\n7\n": "5\n3\n3\n10\n",
        "2\n10\n-10\n": "10\n0\n",
        "5\n1\n1\n2\n3\n5\n": "1\n2\n4\n7\n12\n",
    },
)
LARGER = _program(
    "larger",
    "Read two integers on one line. Print the larger one, then on a second line their difference, never "
    "negative.",
    {"3 8\n": "8\n5\n", "7 2\n": "7\n5\n", "-4 -9\n": "-4\n5\n", "6 6\n": "6\n0\n"},
)
FUNCTIONS, PROGRAMS = (GCD, RUNNING_MAX, INITIALS), (SUMS, LARGER)
BY_NAME = {problem.task_id.removeprefix("audit/"): problem for problem in (*FUNCTIONS, *PROGRAMS)}
RIGHT_ANSWERS = tuple(AuditAnswer(name, HONEST, BY_NAME[task], code) for task, _, name, code in _RIGHT)


def plainly_wrong(problem: Problem) -> str:
    """The plainest wrong answer: a function that returns None, or a program that prints nothing."""
    return f"{problem.starter_code}    return None\n" if problem.entry_point else NOTHING_PRINTED
