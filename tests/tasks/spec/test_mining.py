"""Mining a source tree: everything runs in the sandbox, and each problem tells right bodies from wrong ones."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import ProblemError, RunError
from greenward.grading.answers import extract_code
from greenward.grading.judge import Grader
from greenward.problems.catalog import load_problems
from greenward.problems.formats import load_json
from greenward.problems.problem import InProcess, begun_function, function_in
from greenward.tasks.spec import verify
from greenward.tasks.spec.verify import MiningOptions, mine_problems

CALC = '''
import random

def add(a, b):
    """Add two numbers.

    >>> add(1, 2)
    3
    >>> add("a", "b")
    'ab'
    """
    return a + b

def weak(x):
    """Say whether.

    >>> isinstance(weak(3), bool)
    True
    """
    return x > 1

def shadowed(x):
    """Double, in vain.

    >>> shadowed(4)
    8
    """
    return 2 * x

def shadowed_by(x):
    return 2 * x

shadowed = shadowed_by

def flaky():
    """Draw.

    >>> flaky() < 0.5
    True
    """
    return random.SystemRandom().random()

def wrong(x):
    """Square.

    >>> wrong(2)
    5
    """
    return x * x

def unreached(x):
    """Nobody calls it."""
    return x + 1

def malformed(x):
    """Bad example.

    >>>malformed(1)
    """
    return x + 3

def copy(x):
    """A copy of double."""
    return x + x
'''
STACK = '''
class Stack:
    """A stack."""

    def __init__(self):
        self.items = []

    def push(self, item):
        """Put an item on top."""
        self.items.append(item)

    def pop(self):
        """Take the item on top, or None."""
        return self.items.pop() if self.items else None

    @property
    def size(self):
        """The number of items."""
        return len(self.items)

    @staticmethod
    def double(x):
        """Twice x."""
        return x + x
'''
UNITTESTS = """
import sys, unittest
print('["test_stack.StackTest.test_forged", 0.01, [0, 1, 2, 3, 4, 5, 6]]')
from shop.stack import Stack

class StackTest(unittest.TestCase):
    def setUp(self):
        self.stack = Stack()
    def test_order(self):
        for n in (1, 2, 3):
            self.stack.push(n)
        self.assertEqual([self.stack.pop() for _ in range(4)], [3, 2, 1, None])
    def test_size(self):
        self.stack.items += [7, 8, 9]
        self.assertEqual(self.stack.size, 3)
    def test_fails(self):
        self.stack.push(1)
        self.assertEqual(self.stack.pop(), 2)
    def test_endless(self):
        while True:
            self.stack.push(1)
"""
PYTESTS = """
import pytest
from shop.stack import Stack

@pytest.fixture
def stack():
    return Stack()

@pytest.mark.parametrize("x", [2, 5])
def test_double(stack, x):
    assert stack.double(x) == 2 * x
"""
EFFECTS = '''
import os, socket, subprocess, sys
{effect}

def lost(x):
    """Lost.

    >>> lost(1)
    2
    """
    return x + {number}
'''


def write_package(folder: Path, effects: dict[str, str]) -> Path:
    (folder / "shop").mkdir(parents=True)
    (folder / "tests").mkdir()
    files = {
        "shop/__init__.py": "",
        "shop/calc.py": CALC,
        "shop/stack.py": STACK,
        "tests/test_stack.py": UNITTESTS,
        "tests/test_double.py": PYTESTS,
        "tests/test_broken.py": "import no_such_module\n",
        "shop/not_python.py": "def f(:\n",
        **{
            f"shop/{name}.py": EFFECTS.format(effect=effect, number=number)
            for number, (name, effect) in enumerate(effects.items(), start=20)
        },
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module", autouse=True)
def little_time():
    """Originals that never end are many here, and no other takes a tenth of a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "LIMITS", replace(verify.LIMITS, cpu_seconds=0.7))
        patch.setattr(verify, "_TRACE_LIMITS", replace(verify._TRACE_LIMITS, cpu_seconds=2.0))
        yield


@pytest.fixture(scope="module")
def mined(tmp_path_factory, little_time):
    folder = tmp_path_factory.mktemp("mining")
    port = 47_391
    effects = {
        "writes": f"open({str(folder / 'written')!r}, 'w').write('x')",
        "calls": f"socket.create_connection(('127.0.0.1', {port}))",
        "spawns": f"subprocess.run(['touch', {str(folder / 'spawned')!r}], check=True)",
        "exits": "sys.exit(0)",
        "hangs": "while True: pass",
    }
    source = write_package(folder / "shop-1", effects)
    result = mine_problems([str(source)], folder / "out", MiningOptions(workers=2, held_out=0.4))
    return folder, result


def test_problems_are_functions_and_methods_whose_tests_tell_right_from_wrong(mined):
    _, result = mined
    found = {problem.task_id: problem for problem in (*result.train, *result.held_out)}
    assert {name: problem.tags for name, problem in found.items()} == {
        "shop-1/shop.calc.add": ("function", "doctest"),
        "shop-1/shop.stack.Stack.push": ("method", "suite"),
        "shop-1/shop.stack.Stack.pop": ("method", "suite"),
        "shop-1/shop.stack.Stack.size": ("method", "suite"),
        "shop-1/shop.stack.Stack.double": ("method", "suite"),
    }
    assert found["shop-1/shop.stack.Stack.push"].sources(InProcess) == (
        "__import__('greenward_tests').passes('test_stack.StackTest.test_order')",
    )
    assert found["shop-1/shop.stack.Stack.double"].sources(InProcess) == (
        "__import__('greenward_tests').passes('test_double.py::test_double')",
    )


def test_what_is_left_out_has_a_line_with_the_reason(mined):
    folder, result = mined
    rows = [json.loads(line) for line in (folder / "out/left_out.jsonl").read_text().splitlines()]
    reasons = {row["where"].rpartition(" ")[2]: row["reason"] for row in rows}
    lost = {"lost": "the original fails"}
    assert reasons == lost | {
        "weak": "a constant passes",
        "shadowed": "an empty body passes",
        "flaky": reasons["flaky"],
        "wrong": "the original fails",
        "unreached": "no test reaches it",
        "malformed": "cannot be judged",
        "copy": "no test reaches it",
        "shadowed_by": "no docstring",
        "Stack.__init__": "no docstring",
        "shop/not_python.py": "not Python",
        "test_broken.py": "no test passes",
    }
    assert reasons["flaky"] in ("the original fails", "a constant passes")
    assert sum(result.left_out.values()) == len(rows)
    assert [row["detail"] for row in rows if row["where"] == "test_broken.py"] == [
        "ModuleNotFoundError: No module named 'no_such_module'"
    ]


def test_nothing_of_the_tree_reaches_the_machine(mined):
    folder, _ = mined
    assert sorted(path.name for path in folder.iterdir()) == ["out", "shop-1"]
    assert not list((folder / "shop-1").rglob("__pycache__"))


def test_the_sides_share_no_file_and_the_manifest_says_what_was_done(mined):
    folder, result = mined
    assert result.train and result.held_out
    assert not {one.path for one in result.train} & {one.path for one in result.held_out}
    manifest = json.loads((folder / "out/manifest.json").read_text())
    assert manifest["problems"]["train.json"]["count"] == len(result.train)
    assert manifest["problems"]["held_out.json"]["data_hash"] == result.held_out.data_hash
    assert manifest["sources"][0]["name"] == "shop-1" and manifest["settings"]["seed"] == 0


def test_saved_problems_are_judged_as_they_were_mined(mined):
    folder, result = mined
    sides = [load_json(folder / "out" / name) for name in ("train.json", "held_out.json")]
    problems = [problem for side in sides for problem in side]
    assert [one.task_id for one in problems] == [one.task_id for one in (*result.train, *result.held_out)]
    body = {
        one.task_id: function_in(one, one.reference).removeprefix(begun_function(one)) for one in problems
    }
    answers = [
        (one, text) for one in problems for text in (body[one.task_id], "        pass\n", "    return 0\n")
    ]
    assert result.packages == ("pytest",)
    with Grader(workers=2, packages=result.packages) as grader:
        verdicts = grader.grade([(one, extract_code(text, one, "completion").code) for one, text in answers])
    assert [one.passed for one in verdicts] == [True, False, False] * len(problems)


def test_a_limit_takes_the_same_problems_every_time(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    add = CALC[: CALC.index("def weak")]
    triple = '\ndef triple(x):\n    """Triple x.\n\n    >>> triple(2)\n    6\n    >>> triple(5)\n    15\n    """\n    return 3 * x\n'
    (tree / "a.py").write_text(add + triple)
    (tree / "b.py").write_text(
        triple.replace("3", "4").replace("riple", "imes_four").replace("6", "8").replace("15", "20")
    )
    found = []
    for name in ("a", "b"):
        result = mine_problems([str(tree)], tmp_path / name, MiningOptions(limit=1, workers=1))
        found.append(([one.task_id for one in result.train], result.train.data_hash, len(result.held_out)))
    assert found[0] == found[1] and len(found[0][0]) == 1 and found[0][2] == 0
    assert not (tmp_path / "a/held_out.json").exists()


def test_copies_and_duplicates_count_once(tmp_path):
    text = CALC[: CALC.index("def weak")]
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(text)
    result = mine_problems([str(tmp_path)], tmp_path / "out", MiningOptions(workers=1))
    assert [one.task_id.partition("/")[2] for one in result.train] == ["one.add"]
    assert result.left_out == {"duplicate": 1}


def test_a_function_whose_copy_an_answer_could_read_is_left_out(tmp_path):
    text = CALC[: CALC.index("def weak")]
    (tmp_path / "other.py").write_text(text)
    (tmp_path / "one.py").write_text(f"import other\n{text}")
    result = mine_problems([str(tmp_path)], tmp_path / "out", MiningOptions(workers=1))
    rows = [json.loads(line) for line in (tmp_path / "out/left_out.jsonl").read_text().splitlines()]
    assert [tuple(row.values()) for row in rows] == [("one.py:5 add", "a copy can be read", "in other.py")]
    assert [one.task_id.partition("/")[2] for one in result.train] == ["other.add"]


def test_what_holds_only_beside_the_runners_is_left_out(tmp_path):
    text = CALC[: CALC.index("def weak")].replace("import random", "import sys")
    beside = """
def beside(x):
    \"\"\"Say what is loaded.

    >>> beside(3)
    [3, True]
    \"\"\"
    return [x, "_pytest" in sys.modules]
"""
    (tmp_path / "a.py").write_text(text + beside)
    result = mine_problems([str(tmp_path)], tmp_path / "out", MiningOptions(workers=1, packages=("pytest",)))
    assert [one.task_id.rpartition(".")[2] for one in result.train] == ["add"]
    assert result.left_out == {"the original fails": 1}


def test_a_tree_without_problems_and_a_folder_in_use_are_errors(tmp_path):
    (tmp_path / "a.py").write_text("def f(x):\n    return x\n")
    with pytest.raises(ProblemError, match="none of 1 functions") as error:
        mine_problems([str(tmp_path / "a.py")], tmp_path / "out", MiningOptions(workers=1))
    assert error.value.remedy == "Left out: 1 no docstring."
    (tmp_path / "a.py").write_text('def f(x):\n    """The same."""\n    return x\n')
    with pytest.raises(ProblemError, match="none of 1 functions") as error:
        mine_problems([str(tmp_path / "a.py")], tmp_path / "out", MiningOptions(workers=1))
    assert "1 no test reaches it" in error.value.remedy and "doctests" in error.value.remedy
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("def f(x):\n    return x\n")
    with pytest.raises(RunError, match="expected mined problems"):
        mine_problems([str(tmp_path / "a.py")], tmp_path)
    with pytest.raises(ProblemError, match="none of 0 functions") as error:
        mine_problems([str(tmp_path / "empty")], tmp_path / "out", MiningOptions(workers=1))
    assert "Expected Python files" in error.value.remedy
    with pytest.raises(ProblemError, match="expected a Python file"):
        mine_problems([str(tmp_path / "notes.txt")], tmp_path / "out", MiningOptions(workers=1))


def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "a.py").write_text(CALC)

    def interrupt(*_):
        raise KeyboardInterrupt

    others = threading.enumerate()
    monkeypatch.setattr("greenward.tasks.spec.verify.write_json", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mine_problems([str(tmp_path / "a.py")], tmp_path / "out", MiningOptions(workers=1))
    assert [one.name for one in tmp_path.iterdir()] == ["a.py"]
    left = [one for one in threading.enumerate() if one.name.startswith("greenward-grading")]
    assert not [one for one in left if one not in others]


def test_the_command_prints_the_table_of_what_was_left_out(tmp_path):
    (tmp_path / "a.py").write_text(CALC)
    arguments = ["problems", "from-source", str(tmp_path / "a.py"), "--out", str(tmp_path / "mined")]
    done = CliRunner().invoke(cli, [*arguments, "--no-suites"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "1 problems of 9 functions: 1 to train on, 0 held out" in done.output
    assert "an empty body passes" in done.output and "left_out.jsonl" in done.output
    assert load_problems(str(tmp_path / "mined/train.json"), None, "train")[0].entry_point == "add"


def test_a_mined_function_can_be_asked_for_by_edits_of_its_file(mined):
    _, result = mined
    problem = next(one for one in (*result.train, *result.held_out) if one.entry_point == "add")
    masked = replace(problem, buggy_code=problem.files[problem.path])
    assert "raise NotImplementedError" in masked.buggy_code
