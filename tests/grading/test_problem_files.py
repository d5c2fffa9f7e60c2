"""Problems whose program consists of several files, and tests that import it."""

from __future__ import annotations

import doctest
import json
from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError
from greenward.grading.judge import Grader
from greenward.grading.testcases import make_plan
from greenward.grading.verdict import Status
from greenward.problems.formats import load_json, save_json
from greenward.problems.problem import (
    Assertion,
    Case,
    Check,
    Doctest,
    InProcess,
    Problem,
    StdioCase,
    data_hash,
)

RIGHT = "from .rates import RATE\n\ndef taxed(price):\n    return price + price * RATE\n"
WRONG = RIGHT.replace("+ price", "- price")
UNITTEST = """
import unittest
from shop.prices import taxed
class Test(unittest.TestCase):
    def test_taxed(self):
        self.assertEqual(taxed(100), 150)
result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(Test))
assert result.wasSuccessful()
"""
SHOP = Problem(
    "shop",
    "Add the tax.",
    "taxed",
    path="shop/prices.py",
    files={"shop/__init__.py": "from shop.prices import taxed\n", "shop/rates.py": "RATE = 0.5\n"},
)


@pytest.fixture(scope="module")
def grader():
    with Grader(workers=1) as grader:
        yield grader


def status(grader, problem, code):
    (verdict,) = grader.grade([(problem, code)])
    return verdict.status


@pytest.mark.parametrize(
    "tests",
    [
        {"tests": (Case((100,), 150.0),)},
        {"tests": (Assertion("assert taxed(100) == 150"),)},
        {"tests": (InProcess(UNITTEST),)},
        {"tests": (InProcess("import tests.prices"),)},
        {"tests": (Doctest(">>> from shop import taxed\n>>> taxed(100)\n150.0\n"),)},
        {"tests": (Check("from tests.cases import CASES\nfor n in CASES: assert taxed(n) == 1.5 * n"),)},
    ],
    ids=lambda tests: next(iter(tests)),
)
def test_tests_import_the_package_with_the_answers_file_in_place(grader, tests):
    test_files = {
        "tests/prices.py": "import shop\nassert shop.taxed(100) == 150",
        "tests/cases.py": "CASES = range(9)",
    }
    problem = replace(SHOP, test_files=test_files, **tests)
    assert status(grader, problem, RIGHT) is Status.PASSED
    assert status(grader, problem, WRONG) is Status.FAILED
    assert status(grader, problem, "def taxed(price) return") is Status.SYNTAX_ERROR


def test_a_program_that_prints_imports_the_files_beside_it(grader):
    problem = Problem("p", "", "", tests=(StdioCase("2\n", "6\n"),), files={"three.py": "N = 3"})
    assert status(grader, problem, "from three import N\nprint(int(input()) * N)") is Status.PASSED


def test_a_method_can_be_called_as_entry_point(grader):
    problem = Problem("m", "", "Box.doubled", tests=(Case((4,), 8),), path="box.py")
    code = "class Box:\n    @staticmethod\n    def doubled(n):\n        return {}"
    assert status(grader, problem, code.format("n + n")) is Status.PASSED
    assert status(grader, problem, code.format("n")) is Status.FAILED
    assert status(grader, problem, "class Box: pass") is Status.NO_CODE


@pytest.mark.parametrize("path", ["textwrap.py", "os.py", "json/decoder.py", "json/__init__.py"])
def test_the_answers_file_comes_before_a_module_of_the_standard_library(grader, path):
    name = path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
    problem = Problem(
        "s", "", "mark", tests=(InProcess(f"import {name} as m\nassert m.mark() == 7"),), path=path
    )
    assert status(grader, problem, "def mark():\n    return 7") is Status.PASSED
    assert status(grader, problem, "def mark():\n    return 8") is Status.FAILED


def test_an_answer_that_overwrites_the_tests_gains_nothing(grader):
    test = "assert __import__('shop').taxed(100) == 150"
    problem = replace(SHOP, test_files={"test_shop.py": test}, tests=(InProcess("import test_shop"),))
    for attack in ("w", "a"):
        code = f"open('test_shop.py', {attack!r}).write('')\n{WRONG}"
        assert status(grader, problem, code) is Status.FAILED


def test_files_of_one_answer_are_gone_before_the_next(grader):
    first = replace(SHOP, tests=(Case((100,), 150.0),))
    assert status(grader, first, RIGHT) is Status.PASSED
    second = Problem("after", "", "f", tests=(Case((), False),))
    code = "import os\ndef f():\n    return any(os.scandir('.'))"
    assert status(grader, second, code) is Status.PASSED


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"/etc/passwd": ""}, "relative"),
        ({"../x.py": ""}, "relative"),
        ({"a//b.py": ""}, "relative"),
        ({"a/./b.py": ""}, "relative"),
        ({"a\nb.py": ""}, "control character"),
        ({"a\\b.py": ""}, "backslash"),
        ({"\ud800.py": ""}, "control character"),
        ({"": ""}, "1 to 200"),
        ({"a" * 201: ""}, "1 to 200"),
        ({"a": "", "a/b.py": ""}, "folder that is a file"),
        ({"a.py": 3}, "not text"),
        ({"a.py": "é" * (600 << 10)}, "more than 1048576 bytes"),
        ({f"{n}.txt": "x" * (1 << 20) for n in range(5)}, "6 files in 1 folders with 5242"),
        ({f"{n}.py": "" for n in range(1001)}, "1002 files"),
        ({"shop": ""}, "folder that is a file"),
    ],
)
def test_files_that_do_not_fit_are_refused(files, message):
    with pytest.raises(ProblemError, match=message):
        make_plan(replace(SHOP, files=files, tests=(Case((1,), 1),)))


@pytest.mark.parametrize("path", ["prices.txt", "a.b/c.py", "../prices.py"])
def test_a_path_that_cannot_be_imported_is_refused(path):
    with pytest.raises(ProblemError, match="is not"):
        make_plan(replace(SHOP, path=path, tests=(Case((1,), 1),)))


DOCTEST = """
Text between the examples.

>>> xs = [3, 1]
>>> f(xs); print(xs)
[1, 3]
>>> f(None)
Traceback (most recent call last):
    ...
TypeError: 'NoneType' object is not iterable
>>> f(None)  # doctest: +IGNORE_EXCEPTION_DETAIL
Traceback (most recent call last):
TypeError: other words
>>> print(list(range(20)))  # doctest: +ELLIPSIS
[0, 1, ..., 19]
>>> f(1)  # doctest: +SKIP
"""


def test_doctests_are_judged_as_the_standard_library_judges_them(grader):
    problem = Problem("d", "", "f", tests=(Doctest(DOCTEST), Doctest(">>> f([2, 1])\n>>> xs\n[]\n")))
    codes = [
        "def f(xs):\n    xs[:] = sorted(xs)",
        "def f(xs):\n    xs.sort()",
        "def f(xs):\n    return xs",
        "def f(xs):\n    print(sorted(xs))",
        "xs = []\ndef f(ys):\n    ys[:] = sorted(ys)",
    ]
    for code in codes:
        namespace: dict[str, object] = {}
        exec(code, namespace)
        expected = []
        for text in problem.sources(Doctest):
            for example, passed in examples_passed(
                doctest.DocTestParser().get_doctest(text, dict(namespace), "", "", 0)
            ):
                if not example.options.get(doctest.SKIP):
                    expected.append(passed)
        (verdict,) = grader.grade([(problem, code)])
        assert list(verdict.tests_passed) == expected, code


def examples_passed(test):
    found = []

    class Recorder(doctest.DocTestRunner):
        def report_success(self, out, test, example, got):
            found.append((example, True))

        def report_failure(self, out, test, example, got):
            found.append((example, False))

        def report_unexpected_exception(self, out, test, example, exc_info):
            found.append((example, False))

    Recorder(verbose=False).run(test, out=lambda _: None)
    return found


COMPARISONS = """
>>> xs = [3, 1]
>>> f(xs) == [1, 3]
True
>>> [1, 3] == f(xs)
True
>>> f(xs) == [3, 1]
False
>>> f(xs) != [1, 3]
False
>>> f(xs) is None
False
>>> f(xs)[0] in (1, 2)
True
>>> f(xs)[-1] not in [1, 2]
True
>>> assert f((2.0, 1)) == [1, 2]
>>> (f(xs)
...  == [1, 3])
True
>>> len(f(xs)) == 2
True
>>> f(xs) == (1, 3)
False
"""
OTHER_EXAMPLES = """
>>> isinstance(f([2]), list)
True
>>> 1 in f([1])
True
>>> for n in range(3): assert f([n]) == [n]
>>> f([2]) == [1 + 1]
True
>>> bool(f([]))
False
"""
ALWAYS_EQUAL = """
class Liar(list):
    def __getitem__(self, key): return Liar()
    __eq__ = __contains__ = lambda self, other: True
    __ne__ = __bool__ = lambda self, *other: False
    __len__ = lambda self: 2
class Stranger(Liar.__base__.__base__):
    vars().update({name: one for name, one in vars(Liar).items() if name not in ("__dict__", "__weakref__")})
    __class__ = list
"""


@pytest.mark.parametrize(
    "code",
    [
        "def f(xs):\n    return sorted(xs)",
        "def f(xs):\n    return xs",
        "def f(xs):\n    return None",
        "def f(xs):\n    return tuple(sorted(xs))",
        "class List(list): pass\ndef f(xs):\n    return List(sorted(xs))",
        "def f(xs):\n    raise ValueError(xs)",
    ],
)
def test_examples_that_compare_with_a_literal_are_judged_as_the_standard_library_judges_them(grader, code):
    problem = Problem("d", "", "f", tests=(Doctest(COMPARISONS),))
    namespace: dict[str, object] = {}
    exec(code, namespace)
    expected = examples_passed(doctest.DocTestParser().get_doctest(COMPARISONS, namespace, "", "", 0))
    (verdict,) = grader.grade([(problem, code)])
    assert list(verdict.tests_passed) == [passed for _, passed in expected]


@pytest.mark.parametrize("kind", ["Liar", "Stranger"])
def test_an_object_that_claims_to_equal_everything_passes_no_example_that_compares(grader, kind):
    problem = Problem("d", "", "f", tests=(Doctest(COMPARISONS.replace(">>> xs = [3, 1]\n", "")),))
    code = f"{ALWAYS_EQUAL}\nxs = []\ndef f(xs):\n    return {kind}()"
    (verdict,) = grader.grade([(problem, code)])
    assert not verdict.passed
    honest = [">>> f(xs)", ">>> [1", ">>> assert", ">>> (f(xs)"]
    assert verdict.first_failure.startswith(tuple(honest)), verdict.first_failure
    (right,) = grader.grade([(problem, "xs = [3, 1]\ndef f(xs):\n    return sorted(xs)")])
    assert right.passed, right.failure


def test_examples_that_objects_of_the_answer_decide_are_counted_as_forgeable():
    plain = Doctest(">>> f([2, 1])\n[1, 2]\n>>> len(f([1]))\n1\n>>> ys = f([1])\n")
    tests = (Doctest(COMPARISONS), plain, Doctest(OTHER_EXAMPLES))
    modes = [one.mode for one in make_plan(Problem("d", "", "f", tests=tests)).expectations]
    assert modes == ["values"] * 15 + ["in_process"] * 5
    calls = (Doctest(">>> is_odd(3)\nTrue\n>>> Number(3).is_odd()\nTrue\n>>> all([is_odd(3)])\nTrue\n"),)
    for entry_point in ("is_odd", "Number.is_odd"):
        found = make_plan(Problem("d", "", entry_point, tests=calls)).expectations
        assert [one.mode for one in found] == ["values", "values", "in_process"]


def test_the_failure_of_a_doctest_says_what_was_printed(grader):
    problem = Problem("d", "", "f", tests=(Doctest(">>> f(3)\n9\n"),))
    (verdict,) = grader.grade([(problem, "def f(n):\n    return n + n")])
    assert verdict.first_failure == r">>> f(3): expected '9\n', got '6\n'"
    (verdict,) = grader.grade([(problem, "def f(n):\n    return 1 / 0")])
    assert "ZeroDivisionError: division by zero" in verdict.first_failure


def test_expected_output_of_a_doctest_is_not_in_the_answers_process(grader):
    problem = Problem("d", "", "f", tests=(Doctest(">>> f()\n'a secret value'\n"),))
    code = "import gc\ndef f():\n    return next(s for s in map(str, gc.get_objects()) if 'a secret ' + 'value' in s)"
    assert status(grader, problem, code) is not Status.PASSED


def test_a_malformed_doctest_is_refused():
    for text in (">>>f(1)\n", "no example", ">>> f(1)  # doctest: +SKIP\n"):
        with pytest.raises(ProblemError, match="doctest"):
            make_plan(Problem("d", "", "f", tests=(Doctest(text),)))


def test_problems_of_files_survive_the_json_format(tmp_path):
    problem = replace(SHOP, tests=(Doctest(DOCTEST),), test_files={"t.py": "x = 1\n"}, entry_point="A.b")
    save_json([problem, replace(SHOP, task_id="2", tests=(InProcess("import shop"),))], tmp_path / "p.json")
    loaded = load_json(tmp_path / "p.json")
    assert loaded[0] == replace(problem, comparison=loaded[0].comparison)
    assert loaded[1].tests == (InProcess("import shop"),)
    rows = json.loads((tmp_path / "p.json").read_text())
    (tmp_path / "bad.json").write_text(json.dumps([{**rows[0], "files": {"a.py": 3}}]))
    with pytest.raises(ProblemError, match="field 'files' must be an object of paths and texts"):
        load_json(tmp_path / "bad.json")


def test_problems_without_files_keep_their_hash():
    # As recorded before problems had files.
    problem = Problem("add", "", "add", tests=(Case((1, 2), 3),))
    assert data_hash([problem]) == "d680bfa29f78f6a9ea95306b603a2c899977feca688326d8692c1ba1034738f0"
