"""What a failing test of unittest or pytest says, which models and people are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenward.grading.judge import Grader
from greenward.problems.mining import usual_packages
from greenward.problems.sandboxed_suites import without_runner
from greenward.tasks.repair.fix import repair_problem

PROGRAM = """
class Shelf:
    def top(self):
        return self


def numbers(n):
    return list(range(n))


def third(values):
    return values[2]
"""
CASE = "import unittest, shelf\n\nclass Case(unittest.TestCase):\n    def test_it(self):\n        "
FAILURES = {
    # Values over several lines, which unittest compares line by line below its first line.
    CASE + "self.assertEqual(shelf.numbers(3), [0, 1, 3])": (
        "self.assertEqual(shelf.numbers(3), [0, 1, 3]); AssertionError: Lists differ: [0, 1, 2] != [0, 1, 3]"
    ),
    CASE + "self.assertEqual(str(shelf.numbers(1)), '[1]')": (
        "self.assertEqual(str(shelf.numbers(1)), '[1]'); AssertionError: '[0]' != '[1]'"
    ),
    CASE + "self.assertTrue(shelf.numbers(0))": (
        "self.assertTrue(shelf.numbers(0)); AssertionError: [] is not true"
    ),
    # An error of the program: the line of the test, and the one that raised it.
    CASE + "shelf.third([1])": "shelf.third([1]); return values[2]; IndexError: list index out of range",
    CASE + "raise ValueError": "raise ValueError; ValueError",
    CASE + "with self.subTest(n=2):\n            self.assertEqual(len(shelf.numbers(2)), 3)": (
        "self.assertEqual(len(shelf.numbers(2)), 3); AssertionError: 2 != 3"
    ),
    # An address differs from run to run.
    CASE + "self.assertIsNone(shelf.Shelf())": (
        "self.assertIsNone(shelf.Shelf()); AssertionError: <shelf.Shelf object> is not None"
    ),
    "import shelf\n\ndef test_it():\n    assert len(shelf.numbers(2)) == 3": (
        "assert 2 == 3; +  where 2 = len([0, 1])"  # after the line itself, and in some versions the class
    ),
    "import shelf\n\ndef test_it():\n    shelf.third([1])": (
        "shelf.third([1]); return values[2]; IndexError: list index out of range"
    ),
}


@pytest.fixture(scope="module")
def grader() -> Grader:
    with Grader(packages=usual_packages()) as found:
        yield found


@pytest.mark.parametrize(("tests", "told"), FAILURES.items())
def test_a_failure_names_the_line_of_the_test_and_both_values(
    tests: str, told: str, grader: Grader, tmp_path: Path
) -> None:
    (tmp_path / "shelf.py").write_text(PROGRAM)
    (tmp_path / "test_shelf.py").write_text(f"{tests}\n")
    problem, _ = repair_problem(tmp_path / "shelf.py", tmp_path / "test_shelf.py")
    (verdict,) = grader.grade([(problem, PROGRAM)])
    _, _, failure = without_runner(verdict.failure).partition("test_it: ")
    assert told in failure and failure.startswith(tests.splitlines()[-1].strip())
