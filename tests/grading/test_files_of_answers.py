"""Files that an answer changes, adds or deletes decide nothing, and cost a right answer nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from greenward.grading.extracted import Extracted
from greenward.grading.judge import Grader
from greenward.grading.testcases import program_changes
from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Case, Check, Doctest, InProcess, Problem
from greenward.sandbox.protocol import Limits

RIGHT = "from shop.rates import RATE\n\ndef taxed(price):\n    return price + price * RATE\n"
WRONG = "def taxed(price):\n    return None\n"
SUITE = """
import unittest
from shop.prices import taxed
from tests.helper import expected
class Test(unittest.TestCase):
    def test_taxed(self):
        self.assertEqual(taxed(100), expected(100))
"""
RUN_UNITTEST = """
import unittest
result = unittest.TestResult()
unittest.defaultTestLoader.loadTestsFromName("tests.test_prices").run(result)
assert result.testsRun == 1 and result.wasSuccessful()
"""
RUN_PYTEST = "import pytest\nassert pytest.main(['-q', '-p', 'no:cacheprovider', '--assert=plain', '.']) == 0"
SHOP = Problem(
    "shop",
    "Add the tax.",
    "taxed",
    path="shop/prices.py",
    files={
        "shop/__init__.py": "from shop.prices import taxed\n",
        "shop/rates.py": "RATE = 0.5\n",
        "data.py": "ONE = 1\n\ndef price():\n    return 100\n",
        "setup.cfg": "[metadata]\nname = shop\n",
    },
    test_files={"tests/helper.py": "def expected(n):\n    return 1.5 * n\n", "tests/test_prices.py": SUITE},
)
CHECK = """
import json, statistics, textwrap
assert statistics.mean([taxed(100), taxed(100)]) == 150 * ONE
assert json.dumps(taxed(2)) == textwrap.dedent(" 3.0")
"""
KINDS = {
    "cases": {"tests": (Case((100,), 150.0), Case((2,), 3.0))},
    "tests": {"tests": (Assertion("assert taxed(price()) == 150"),), "setup_code": "from data import price"},
    "assertions": {
        "tests": (Assertion("assert taxed(100) == taxed(100) == 150 * ONE"),),
        "setup_code": "from data import *",
    },
    "checks": {
        "tests": (Check(CHECK),),
        "check_setup_code": "from data import ONE\nfrom tests.helper import expected",
    },
    "doctests": {
        "tests": (Doctest(">>> import textwrap, statistics\n>>> statistics.mean([taxed(100)])\n150.0\n"),)
    },
    "in_process_tests": {"tests": (InProcess(RUN_UNITTEST),)},
}
# What makes tests pass where it is loaded: everything equals everything, and no assertion fails.
LIE = """
import builtins, sys
class Anything:
    def __getattr__(self, name): return self
    def __call__(self, *args, **kwargs): return self
    def __eq__(self, other): return True
    def __rmul__(self, other): return self
    __hash__ = None
def __getattr__(name):
    return Anything()
ONE = mean = dumps = dedent = expected = price = RATE = taxed = Anything()
class TestCase: pass
try:
    import unittest
    unittest.TestCase.assertEqual = lambda *args: None
except Exception: pass
frame = sys._getframe()
while frame:
    if "taxed" in frame.f_globals: frame.f_globals["taxed"] = Anything()
    frame = frame.f_back
"""
BROKEN = "def (\n"
NO_TESTS = "[pytest]\naddopts = --collect-only\n[tool:pytest]\naddopts = --collect-only\n"
FAILING = "def test_nothing():\n    assert False\n"
# Each is added, changed or (None) deleted.
HOSTILE = {
    "a constant lies": {"data.py": LIE},
    "a file is broken": {"data.py": BROKEN},
    "a file is gone": {"data.py": None},
    "numpy": {"numpy.py": LIE},
    "a package numpy": {"numpy/__init__.py": LIE},
    "textwrap": {"textwrap.py": LIE},
    "statistics": {"statistics.py": LIE},
    "json": {"json/__init__.py": LIE},
    "builtins and time": {"builtins.py": LIE, "time.py": LIE, "math.py": LIE},
    "unittest": {"unittest/__init__.py": LIE},
    "pytest": {"pytest.py": LIE, "_pytest/__init__.py": LIE},
    "the runner": {"greenward_tests.py": LIE, "greenward/__init__.py": LIE},
    "sitecustomize": {"sitecustomize.py": LIE, "usercustomize.py": LIE},
    "a pth file": {"lie.pth": "import lie\n", "lie.py": LIE},
    "conftest": {"conftest.py": LIE, "tests/conftest.py": LIE, "shop/conftest.py": LIE},
    "a package of tests": {"tests/__init__.py": LIE, "__init__.py": LIE},
    "the tests": {"tests/test_prices.py": RUN_PYTEST.replace("assert", ""), "tests/helper.py": LIE},
    "the tests are gone": {"tests/test_prices.py": None, "tests/helper.py": None},
    "a package beside a helper": {"tests/helper/__init__.py": LIE},
    "a package beside a module": {"shop/rates/__init__.py": LIE, "data/__init__.py": LIE},
    "modules beside folders": {"tests.py": LIE, "shop.py": LIE, "shop/prices/__init__.py": LIE},
    "a plugin": {
        "lie-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: lie\nVersion: 1\n",
        "lie-1.dist-info/entry_points.txt": "[pytest11]\nlie = lie\n",
        "lie.py": LIE,
    },
    "settings": dict.fromkeys(("pytest.ini", "tox.ini", "setup.cfg", "tests/pytest.ini"), NO_TESTS),
    "settings in toml": {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--collect-only"\n'},
    "other tests": {"test_more.py": FAILING, "tests/test_more.py": FAILING, "shop/more_test.py": FAILING},
    "a file in place of the tests": {"tests": "x"},
    "files below a test": {"tests/helper.py/a.txt": "x"},
    "caches": {"__pycache__/data.cpython-310.pyc": "o\r\r\n", "shop/__pycache__/rates.py": LIE},
}
# In the answer's own process the setup of these tests loads the file, too.
ITS_OWN_LOSS = {
    (hostile, kind)
    for hostile in ("a constant lies", "a file is broken", "a file is gone")
    for kind in ("tests", "assertions")
}


def answer(code, changes):
    return Extracted(code, files=tuple(changes.items()))


@pytest.fixture(scope="module")
def grader():
    with Grader(Limits(cpu_seconds=3.0, wall_seconds=20.0), workers=2, packages=["pytest"]) as grader:
        yield grader


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_wrong_answer_fails_by_itself_and_a_right_one_passes(grader, every):
    """With every fifth pair all changes occur, and all kinds of tests."""
    problems = {kind: replace(SHOP, task_id=kind, **tests) for kind, tests in KINDS.items()}
    asked = list(product(HOSTILE, KINDS))[::every]
    for code in (WRONG, RIGHT):
        found = grader.grade([(problems[kind], answer(code, HOSTILE[one])) for one, kind in asked])
        verdicts = dict(zip(asked, found, strict=True))
        assert not {pair: one for pair, one in verdicts.items() if one.status is Status.INFRASTRUCTURE}
        passed = {pair for pair, one in verdicts.items() if one.passed}
        assert not passed if code is WRONG else passed >= {*asked} - ITS_OWN_LOSS


def test_settings_and_packages_of_an_answer_do_not_reach_pytest(grader):
    suite = "from shop.prices import taxed\n\ndef test_taxed():\n    assert taxed(100) == 150\n"
    problem = replace(SHOP, test_files={"tests/test_prices.py": suite}, tests=(InProcess(RUN_PYTEST),))
    hostile = ("settings", "settings in toml", "conftest", "a package of tests", "other tests", "a plugin")
    answers = [(problem, answer(code, HOSTILE[one])) for one in hostile for code in (RIGHT, WRONG)]
    assert [one.passed for one in grader.grade(answers)] == [True, False] * len(hostile)


def test_new_files_of_a_program_are_found_where_they_lie(grader):
    code = """
import textwrap
from pathlib import Path
from shop.new import RATE, text
from added import inner
import statistics

def taxed(price):
    assert textwrap.dedent("  x") == "x" and statistics.mean([1, 3]) == 2
    assert text() == "half" and inner.up() == text()
    return price + price * RATE
"""
    files = {
        "shop/new.py": "from pathlib import Path\nRATE = 0.5\n"
        "def text():\n    return (Path(__file__).parent / 'data' / 'rate.txt').read_text()\n",
        "shop/data/rate.txt": "half",
        "added/__init__.py": "",
        "added/inner.py": "from shop import new\nfrom . import other\ndef up():\n    return other.text()\n",
        "added/other.py": "from shop.new import text\n",
        "textwrap.py": LIE,
        "statistics/__init__.py": LIE,
        "shop/rates.py": None,
    }
    problems = [replace(SHOP, **KINDS[kind]) for kind in KINDS]
    assert all(one.passed for one in grader.grade([(problem, answer(code, files)) for problem in problems]))


def test_arguments_are_computed_with_the_files_of_the_problem(grader):
    fixed = "def taxed(price):\n    return 150.0\n"
    lie = {"data.py": "def price():\n    return 7\n"}
    inputs = ("assert taxed(price()) == 150", "assert taxed(price() + 2) == 153")
    for setup in ("from data import price", "from shop import taxed\nfrom data import price"):
        problem = replace(SHOP, tests=tuple(map(Assertion, inputs)), setup_code=setup)
        told = "def taxed(price):\n    return {100: 150.0, 102: 153.0}[price]\n"
        answers = [(problem, answer(code, lie)) for code in (told, RIGHT, fixed)]
        assert [one.passed for one in grader.grade(answers)] == [True, True, False]


TOO_MUCH = {
    "a name in bytes": {"é" * 128 + ".py": ""},
    "a path": {"/".join("d" * 101) + "/x": ""},
    "folders": {f"{n}/" * 20 + "x": "" for n in range(60)},
    "files": {f"{n}.txt": "" for n in range(4400)},
    "bytes": {f"{n}.txt": "é" * (500 << 10) for n in range(5)},
    "one file": {"x.txt": "x" * ((1 << 20) + 1)},
    "a file and a folder": {"a": "", "a/b": ""},
    "a folder that is a file": {"data.py/x": ""},
    "a lone surrogate": {"\ud800.py": ""},
    "a null character": {"a\0b": ""},
    "a control character": {"a\nb": ""},
    "a parent": {"../x": ""},
    "the root": {"/x": ""},
    "no text": {"x": 3},
}


@pytest.mark.parametrize("much", TOO_MUCH)
def test_files_that_no_folder_can_hold_are_the_answers_own_failure(grader, much):
    problems = [replace(SHOP, **KINDS[kind]) for kind in ("checks", "in_process_tests")]
    for one in grader.grade([(problem, answer(RIGHT, TOO_MUCH[much])) for problem in problems]):
        assert one.status is Status.ERROR and one.error_message, one


def test_a_file_may_take_the_place_of_a_folder_and_a_folder_that_of_a_file(grader):
    problem = replace(SHOP, files={**SHOP.files, "a/b": "", "c": ""}, **KINDS["cases"])
    code = "import os\nassert os.path.isfile('a') and os.path.isfile('c/d')\n" + RIGHT
    (found,) = grader.grade([(problem, answer(code, {"a/b": None, "a": "", "c": None, "c/d": ""}))])
    assert found.passed, found


def test_what_belongs_to_the_tests_depends_on_who_runs_them():
    changes = {
        "tests/test_prices.py": "",
        "tests/new.py": "",
        "conftest.py": "",
        "setup.cfg": "",
        "shop/__pycache__/rates.py": "",
        "shop/new.py": "",
        "shop/__init__.py": None,
    }
    beside = program_changes(changes.items(), replace(SHOP, **KINDS["in_process_tests"]))
    assert list(beside) == ["shop/new.py", "shop/__init__.py"]
    apart = program_changes(changes.items(), replace(SHOP, **KINDS["checks"]))
    moved = {"shop/rates.py": None, "shop/rates/__init__.py": ""}
    assert program_changes(moved.items(), SHOP) == moved
    assert list(apart) == ["tests/new.py", "conftest.py", "setup.cfg", "shop/new.py", "shop/__init__.py"]


def test_a_new_init_may_make_a_package_of_a_folder_that_has_none(grader):
    problem = Problem(
        "shop",
        "Add the tax.",
        "taxed",
        path="main.py",
        files={"shop/rates.py": "RATE = 0.5\n"},
        tests=(Case((100,), 150.0),),
    )
    code = "from shop import RATE\n\ndef taxed(price):\n    return price + price * RATE\n"
    files = {"shop/__init__.py": "from shop.rates import RATE\n"}
    assert grader.grade([(problem, answer(code, files))])[0].passed
