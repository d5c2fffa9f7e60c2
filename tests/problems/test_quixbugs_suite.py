"""QuixBugs: how each kind of program is judged."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from greenward.common.errors import ProblemError
from greenward.grading.edits import extract_edited, written_edits
from greenward.grading.judge import Grader
from greenward.problems.catalog import load_quixbugs
from greenward.problems.problem import Assertion, Case, Check, InProcess
from greenward.sandbox.protocol import Limits

PYTEST_FILE = """
import pytest
from node import Node
if pytest.use_correct:
    from correct_python_programs.{name} import {name}
else:
    from python_programs.{name} import {name}

shared = {shared}

def test1():
    assert {name}(shared) == 1

def test2():
    assert not {name}({shared})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for part in ("python_programs", "correct_python_programs", "json_testcases", "python_testcases"):
        (tmp_path / part).mkdir()
    (tmp_path / "python_testcases" / "node.py").write_text("class Node:\n    pass\n")
    return tmp_path


def add(folder: Path, name: str, code: str, rows: list | None = None, test: str = "") -> None:
    (folder / "correct_python_programs" / f"{name}.py").write_text(code)
    (folder / "python_programs" / f"{name}.py").write_text(code.replace("return", "return not"))
    (folder / "python_testcases" / f"test_{name}.py").write_text(test)
    if rows is not None:
        text = "\n".join(json.dumps(row) for row in rows)
        (folder / "json_testcases" / f"{name}.json").write_text(text + "\n\n")


def test_results_are_compared(folder):
    add(folder, "hanoi", "def hanoi(n, start):\n    return []", [[[1, 3], [[1, 3]]], [5, 8]])
    (problem,) = load_quixbugs(folder)
    assert problem.task_id == "QuixBugs/hanoi"
    assert problem.cases == (Case((1, 3), [[1, 3]]), Case((5,), 8))  # what is no list is one argument
    assert problem.comparison.tuple_is_list
    assert problem.buggy_code == "def hanoi(n, start):\n    return not []"


def test_generators_are_judged_by_their_list(folder):
    add(folder, "flatten", "def flatten(xs):\n    for x in xs:\n        yield x", [[[[1, "a"]], [1, "a"]]])
    assert load_quixbugs(folder)[0].tests == (Assertion("assert list(flatten([1, 'a'])) == [1, 'a']"),)


def test_square_roots_within_the_tolerance_that_they_are_given(folder):
    add(folder, "sqrt", "def sqrt(x, epsilon):\n    return 1.5", [[[2, 0.3], 1.5]])
    assert load_quixbugs(folder)[0].tests == (Assertion("assert abs(sqrt(2, 0.3) - 1.5) <= 0.3"),)


def test_cases_that_take_minutes_are_left_out_and_counted(folder):
    rows = [[["kitten", "sitting"], 3], [["a" * 20, "b" * 50], 50]]
    add(folder, "levenshtein", "def levenshtein(a, b):\n    return 3", rows)
    (problem,) = load_quixbugs(folder)
    assert (len(problem.cases), problem.tests_left_out) == (1, 1)


def test_graphs_of_plain_data_are_judged_apart_and_those_of_nodes_within(folder):
    add(folder, "edges", "", test=PYTEST_FILE.format(name="edges", shared="{(1, 2): 3}"))
    add(folder, "nodes", "", test=PYTEST_FILE.format(name="nodes", shared="Node()"))
    edges, nodes = load_quixbugs(folder)
    assert edges.check_setup_code == "shared = {(1, 2): 3}"
    assert edges.sources(Check) == (
        "def test1():\n    assert edges(shared) == 1\ntest1()\n",
        "def test2():\n    assert not edges({(1, 2): 3})\ntest2()\n",
    )
    assert nodes.setup_code == "class Node:\n    pass\n"
    assert len(nodes.sources(InProcess)) == 2
    assert nodes.sources(InProcess)[0].startswith("shared = Node()\ndef test1()")


def test_incomplete_folder_and_wrong_line(folder, tmp_path):
    with pytest.raises(ProblemError, match="there is no test file"):
        load_quixbugs(folder)
    add(folder, "gcd", "def gcd(a, b):\n    return a", [[[1, 2], 1], [3]])
    with pytest.raises(ProblemError, match=r"gcd\.json, line 2: expected \[arguments, expected\]"):
        load_quixbugs(folder)
    with pytest.raises(ProblemError, match="expected the folder 'python_programs' of QuixBugs"):
        load_quixbugs(tmp_path / "json_testcases")


def test_public_folder(public):
    problems = load_quixbugs(public("quixbugs"))
    assert Counter(problem.tags for problem in problems) == {("json",): 31, ("graph",): 9}
    assert sum(bool(problem.tests_of(Check)) for problem in problems) == 3
    assert sum(bool(problem.tests_of(InProcess)) for problem in problems) == 6
    left_out = {problem.task_id: 1 for problem in problems if problem.tests_left_out}
    assert left_out == {"QuixBugs/knapsack": 1, "QuixBugs/levenshtein": 1}


def edited(problem, form):
    """The program after the edits that a model would have to write to arrive at the reference patch."""
    text = written_edits(problem, problem.reference, form)
    found = extract_edited(f"Here is the repair:\n\n```\n{text}```\n", problem, form)
    assert found.code is not None, (problem.task_id, found.reason)
    assert found.code.rstrip("\n") == problem.reference.rstrip("\n")
    return found.answer


SLOW = ("levenshtein",)  # its tests take the right program many seconds


def not_passing(answers):
    with Grader(Limits(cpu_seconds=20.0, wall_seconds=90.0), workers=1) as grader:
        verdicts = grader.grade(answers)
    return [problem.task_id for (problem, _), one in zip(answers, verdicts, strict=True) if not one.passed]


@pytest.mark.parametrize("form", ["search_replace", pytest.param("diff", marks=pytest.mark.slow)])
def test_all_reference_patches_can_be_written_as_edits_and_pass(public, form):
    answers = [(problem, edited(problem, form)) for problem in load_quixbugs(public("quixbugs"))]
    assert len(answers) == 40
    assert not_passing([one for one in answers if one[0].entry_point not in SLOW]) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ["search_replace", "diff"])
def test_the_slow_reference_patches_pass_as_edits_too(public, form):
    problems = [one for one in load_quixbugs(public("quixbugs")) if one.entry_point in SLOW]
    assert len(problems) == 1
    assert not_passing([(one, edited(one, form)) for one in problems]) == []
