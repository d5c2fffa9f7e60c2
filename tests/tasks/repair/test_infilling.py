"""Which lines are suspicious, which gaps they make, and which programs fill them."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from greenward.sandbox.pool import LocalExecutor
from greenward.tasks.repair import infilling
from greenward.tasks.repair.fix import repair_problem
from greenward.tasks.repair.infilling import (
    around,
    filled,
    suspicious_lines,
)

CODE = '''"""Numbers."""
import math

FACTOR = 2


def double(number):
    """Twice a number."""
    if number < 0:
        return -FACTOR * number
    return FACTOR * number


def root(number):
    while number > 100:
        number += 1
    return math.sqrt(number)
'''
CASES = (
    ("double(2), 4", {7, 9, 11}),
    ("double(-2), -4", {7, 9, 10}),  # fails
    ("double(-1), -2", {7, 9, 10}),  # fails
    ("root(4), 2", {14, 15, 17}),
    ("root(400), 20", {14, 15, 16}),  # never ends
)


@pytest.fixture(scope="module")
def executor() -> Iterator[LocalExecutor]:
    with pytest.MonkeyPatch.context() as patch, LocalExecutor(1, packages=("pytest",)) as opened:
        patch.setattr(infilling, "_TEST_SECONDS", 0.5)  # one of the tests never ends
        yield opened


def suites(for_pytest: bool) -> str:
    if for_pytest:
        lines = ["from numbers_ import double, root"]
        for place, (case, _) in enumerate(CASES):
            got, expected = case.rsplit(", ", 1)
            lines.append(f"def test_{place}():\n    assert {got} == {expected}")
        return "\n".join(lines) + "\n"
    body = [
        f"    def test_{place}(self):\n        self.assertEqual({case})"
        for place, (case, _) in enumerate(CASES)
    ]
    head = "import unittest\nfrom numbers_ import double, root\n\nclass Numbers(unittest.TestCase):"
    return "\n".join([head, *body]) + "\n"


def found(folder: Path, code: str, tests: str, executor: LocalExecutor) -> list[int]:
    (folder / "numbers_.py").write_text(code)
    (folder / "test_numbers.py").write_text(tests)
    problem, project = repair_problem(folder / "numbers_.py", folder / "test_numbers.py")
    lines, has_run = suspicious_lines(problem, {one.file for one in project.tests.values()}, executor)
    assert has_run is ("(number\n" not in code and "missing" not in code)
    return lines


@pytest.mark.parametrize("for_pytest", [False, True])
def test_lines_come_in_the_order_of_ochiai(for_pytest: bool, tmp_path: Path, executor: LocalExecutor) -> None:
    has_passed = (True, False, False, True, False)
    everywhere = {4}  # run by the import
    coefficients = {}
    for number in range(1, CODE.count("\n") + 1):
        runs = [number in lines | everywhere for _, lines in CASES]
        failed = sum(ran and not passed for ran, passed in zip(runs, has_passed, strict=True))
        if failed:
            coefficients[number] = failed / math.sqrt(has_passed.count(False) * sum(runs))
    expressions = {4: 2, 7: 0, 9: 3, 10: 4, 11: 3, 14: 0, 15: 3, 16: 2, 17: 4}  # that begin on a line
    order = sorted(
        coefficients,
        key=lambda one: (-coefficients[one], one in everywhere, -expressions[one], -one),
    )
    assert found(tmp_path, CODE, suites(for_pytest), executor) == order
    assert order[0] == 10


def test_of_a_file_that_does_not_parse_the_nearest_lines_come_first(
    tmp_path: Path, executor: LocalExecutor
) -> None:
    code = CODE.replace("return FACTOR * number", "return FACTOR * (number")
    lines = found(tmp_path, code, suites(False), executor)
    with pytest.raises(SyntaxError) as error:
        ast.parse(code)
    assert lines[0] == error.value.lineno == 11 and set(lines[1:3]) == {10, 9}
    assert 5 not in lines  # it is empty


def test_of_a_file_that_cannot_be_imported_all_lines_are_tried(
    tmp_path: Path, executor: LocalExecutor
) -> None:
    lines = found(tmp_path, CODE.replace("FACTOR = 2", "FACTOR = missing"), suites(False), executor)
    assert lines == [4, 7, 9, 10, 11, 14, 15, 16, 17]


def test_what_the_code_prints_names_no_line_that_is_not_there(
    tmp_path: Path, executor: LocalExecutor
) -> None:
    noise = "import os\nfor one in range(3, 30):\n    try:\n        os.write(one, b'[false, [1, 99, -4]]\\n[[]]\\n{')\n    except OSError:\n        pass\n"
    lines = found(tmp_path, CODE + noise, suites(False), executor)
    assert 10 in lines and set(lines) <= set(range(4, 25))


STATEMENTS = '''import math

LIMITS = [
    1,
]

if math:
    def unused():
        return 1


@staticmethod
def area(
    width,
    height=1,
):
    # The sizes
    sizes = dict(
        first=1,
    )

    if (
        width
        and height
    ):
        return sizes
    match width:
        case 0:
            return 0
        case _:
            return (
                "none"
                """
                # at all
                """
            )
'''


def test_statements_of_several_lines_count_with_all_of_them(
    tmp_path: Path, executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(infilling, "MOST_LINES", len(STATEMENTS))
    tests = "import unittest\nfrom numbers_ import area\n\nclass Areas(unittest.TestCase):\n"
    for name, argument in (("none", "0, 0"), ("some", "1, 1")):
        tests += f"    def test_{name}(self):\n        self.assertEqual(area({argument}), dict(first=2))\n"
    numbers = {line.strip(): number for number, line in enumerate(STATEMENTS.splitlines(), 1)}
    lines = found(tmp_path, STATEMENTS, tests, executor)
    at_import = ("LIMITS = [", "1,", "if math:")
    run = (
        "@staticmethod",
        "height=1,",
        "first=1,",
        "width",
        "and height",
        "return sizes",
        "case 0:",
        "return 0",
    )
    assert {numbers[line] for line in (*at_import, *run)} <= set(lines)
    left_out = (
        "",
        "# The sizes",
        "import math",
        "def unused():",
        "return 1",
        "case _:",
        '"none"',
        "# at all",
    )
    assert not {numbers[line] for line in left_out} & set(lines)
    lines = found(tmp_path, STATEMENTS, tests.replace("1, 1", "5, 0").replace("0, 0", "5, 0"), executor)
    assert {numbers['"none"'], numbers["# at all"]} <= set(lines) and numbers["return sizes"] not in lines


@pytest.mark.parametrize(
    "tests",
    [
        "import unittest, numbers_\n\nclass Roots(unittest.TestCase):\n"
        "    def test_skipped(self):\n        numbers_.root(1)\n        self.skipTest('no')\n"
        "    @unittest.expectedFailure\n"
        "    def test_expected(self):\n        self.assertEqual(numbers_.root(1), 2)\n"
        "    def test_fails(self):\n"
        "        for number in (-1, 1):\n            with self.subTest(number):\n"
        "                self.assertEqual(numbers_.double(number), 2 * number)\n"
        "        with self.subTest('skipped'):\n            self.skipTest('no')\n"
        "    def test_passes(self):\n        self.assertEqual(numbers_.double(1), 2)\n",
        "import pytest, numbers_\n\n"
        "def test_skipped():\n    numbers_.root(1)\n    pytest.skip()\n\n"
        "@pytest.mark.xfail\ndef test_expected():\n    assert numbers_.root(1) == 2\n\n"
        "@pytest.fixture\ndef doubled():\n    assert numbers_.double(-1) == 0\n\n"
        "def test_fails(doubled):\n    pass\n\n"
        "def test_passes():\n    assert numbers_.double(1) == 2\n",
    ],
)  # fmt: skip
def test_only_failures_that_count_make_lines_suspicious(
    tests: str, tmp_path: Path, executor: LocalExecutor
) -> None:
    lines = found(tmp_path, CODE, tests, executor)
    assert lines[0] == 10 and not {15, 16, 17} & set(lines)


def test_a_file_is_traced_however_its_folder_is_named(tmp_path: Path, executor: LocalExecutor) -> None:
    head = "import os, sys\nsys.path.insert(0, os.path.join(os.getcwd(), '.'))\n"
    assert found(tmp_path, CODE, head + suites(False), executor)[0] == 10


def test_a_gap_is_shown_between_whole_lines_near_it() -> None:
    code = "".join(f"line_{number:04} = {number}\n" for number in range(1000))
    before, after = around(code, 501, shows_line=False)
    lines = code.splitlines(keepends=True)
    assert before.endswith(lines[499]) and after.startswith(lines[501])
    assert lines[500] not in before + after
    assert {*before.splitlines(keepends=True), *after.splitlines(keepends=True)} <= set(lines)
    assert 1900 < len(before) <= 2000 and 900 < len(after) <= 1000
    assert around("a = 1\nb = 2\nc = 3\n", 2, shows_line=True) == ("a = 1\n", "b = 2\nc = 3\n")


@pytest.mark.parametrize(
    ("code", "number", "text", "programs"),
    [
        (
            "a = 1\nb = 2\n",
            1,
            "a = 3\nc = 4",
            ["a = 3\nb = 2\n", "a = 3\na = 1\nb = 2\n", "a = 1\na = 3\nb = 2\n"],
        ),
        ("a = 1\nb = 2", 2, "c = 4  ", ["a = 1\nc = 4", "a = 1\nc = 4\nb = 2", "a = 1\nb = 2\nc = 4"]),
        ("a = 1\nb = 2\n", 1, "\n", ["b = 2\n"]),
        ("a = 1\nb = 2\n", 1, "# one", ["b = 2\n"]),  # before and behind it the program is the same
        ("a = 1\nb = 2\n", 1, "  a = 3", []),  # no program
        ("a = 1\nb = 2\n", 1, "a = 1", []),
        ("a = 1\n", 1, "a = 2\rb = 3", ["a = 2\n", "a = 2\na = 1\n", "a = 1\na = 2\n"]),
        ("a = 1\n", 1, "a = 2\0", []),
        ("a = 1\n", 1, "a = '\ud800'", []),
        ("if a:\n    b = (\n", 2, "    b = 1", ["if a:\n    b = 1\n"]),
        (
            "def f():\n    a = 1\n",
            2,
            "    return a",
            [
                "def f():\n    return a\n",
                "def f():\n    return a\n    a = 1\n",
                "def f():\n    a = 1\n    return a\n",
            ],
        ),
    ],
)
def test_a_line_is_written_in_place_of_another_before_and_behind_it(
    code: str, number: int, text: str, programs: list[str]
) -> None:
    written = list(filled(code, number, text))
    assert [one.replace("# one\n", "") for one in written] == programs
