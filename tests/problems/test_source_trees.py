"""Source trees, masked functions and what a prompt shows of a file. Nothing is run here."""

from __future__ import annotations

import ast
import os
import sysconfig
from pathlib import Path

import pytest

from greenward.common.errors import ProblemError
from greenward.problems.mining import (
    STUB,
    LeftOut,
    MaskedFunction,
    SourceFile,
    context_of,
    dependencies,
    doctest_problem,
    files_for,
    find_tree,
    helpers_for,
    in_file,
    masked_functions,
    needs_pytest,
    suites_of,
)
from greenward.problems.problem import function_in, hole_of

SHOP = {
    "PKG-INFO": "Metadata-Version: 2.1\nName: shop\nVersion: 1.2\nLicense: MIT\n\nText.\n",
    "src/shop/__init__.py": "from shop.prices import taxed\n",
    "src/shop/prices.py": "from . import rates\nimport yaml\n\ndef taxed(p):\n    '''With tax.'''\n    return p * rates.ONE\n",
    "src/shop/rates.py": "ONE = 1\n",
    "src/shop/unused.py": "X = 1\n",
    "tests/conftest.py": "import pytest\n",
    "tests/helper.py": "from shop import rates\n",
    "tests/test_prices.py": "import helper\nfrom shop import taxed\ndef test_taxed(): assert taxed(1) == 1\n",
    "tests/test_unit.py": "import unittest\nclass T(unittest.TestCase):\n    def test_it(self): pass\n",
    "tests/deep/test_more.py": "",
}


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def functions(text: str) -> list[MaskedFunction | LeftOut]:
    return list(masked_functions(SourceFile("m.py", "m.py", text, is_test=False)))


def test_a_project_has_files_at_their_import_roots_and_states_its_origin(tmp_path):
    tree = find_tree(str(write(tmp_path / "shop-1.2", SHOP)))
    assert (tree.name, tree.version, tree.licence) == ("shop-1.2", "1.2", "MIT")
    assert {one.place: one.module for one in tree.files if not one.is_test} == {
        "shop/__init__.py": "shop",
        "shop/prices.py": "shop.prices",
        "shop/rates.py": "shop.rates",
        "shop/unused.py": "shop.unused",
    }
    assert sorted(tree.suites) == ["test_more.py", "test_prices.py", "test_unit.py"]


def test_a_file_comes_with_those_that_it_imports_and_a_suite_with_its_helpers(tmp_path):
    tree = find_tree(str(write(tmp_path, SHOP)))
    prices, suite = tree.by_place["shop/prices.py"], tree.by_place["test_prices.py"]
    assert set(files_for(prices, tree)) == {"shop/__init__.py", "shop/prices.py", "shop/rates.py"}
    assert set(helpers_for(suite, tree)) == {"conftest.py", "helper.py"}
    assert suites_of(prices, tree) == tree.suites
    assert needs_pytest(suite) and not needs_pytest(tree.by_place["test_unit.py"])
    assert dependencies([prices]) == {"shop", "yaml"}


def test_the_standard_library_is_mined_with_the_tests_that_cpython_names_after_a_module():
    tree = find_tree("textwrap")
    (file,) = tree.files
    has_tests = (Path(sysconfig.get_path("stdlib")) / "test/test_textwrap.py").is_file()
    assert (tree.name, file.place, tree.licence) == ("stdlib", "textwrap.py", "PSF-2.0")
    assert suites_of(file, tree) == (["test.test_textwrap"] if has_tests else [])
    assert set(files_for(file, tree)) == {"textwrap.py"}
    json = find_tree("json")
    assert {"json/__init__.py", "json/decoder.py"} <= set(files_for(json.by_place["json/__init__.py"], json))


def test_what_is_built_into_the_interpreter_is_not_mined():
    tree = find_tree("stdlib")
    reasons = {one.where: one.reason for one in tree.left_out}
    assert reasons["importlib/_bootstrap.py"] == reasons["zipimport.py"] == "built into the interpreter"
    assert {"textwrap.py", "json/decoder.py"} <= tree.by_place.keys()


def test_what_is_no_source_is_an_error():
    for source in ("no_such_package_here", "/no/such/path", "os.path", "sys"):
        with pytest.raises(ProblemError, match="no such path"):
            find_tree(source)


def test_files_that_cannot_be_used_are_left_out_with_the_reason(tmp_path):
    write(
        tmp_path,
        {
            "good.py": "def f():\n    '''F.'''\n    return g()\n",
            "latin.py": "# caf\u00e9\n".encode("latin-1"),
            "huge.py": "x = 1\n" * 400_000,
            "my-script.py": "",
            ".hidden/a.py": "",
            "env/pyvenv.cfg": "",
            "env/lib.py": "",
            "inner/b.py": "",
        },
    )
    write(tmp_path, {"dense.py": "a\n" * 60_000, "/".join(["deep"] * 60 + ["c.py"]): ""})
    (tmp_path / "outside.py").symlink_to("/etc/hostname")
    (tmp_path / "within.py").symlink_to("good.py")
    (tmp_path / "loop.py").symlink_to("loop.py")
    (tmp_path / "inner/again").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe.py")
    tree = find_tree(str(tmp_path))
    assert [one.shown for one in tree.files] == ["good.py", "inner/b.py"]
    assert {one.where: one.reason for one in tree.left_out} == {
        "/".join(["deep"] * 50): "folders nested too deeply",
        "dense.py": "file too large",
        "huge.py": "file too large",
        "latin.py": "not UTF-8",
        "loop.py": "symbolic link",
        "my-script.py": "cannot be imported by its name",
        "outside.py": "symbolic link",
        "pipe.py": "not a file",
        "within.py": "symbolic link",
    }


def test_a_folder_that_cannot_be_read_is_left_out_with_the_reason(tmp_path, monkeypatch):
    write(tmp_path, {"good.py": "", "closed/a.py": ""})
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)  # root may read everything
    tree = find_tree(str(tmp_path))
    assert [one.shown for one in tree.files] == ["good.py"]
    assert tree.left_out == (LeftOut("closed", "cannot be read", "Permission denied"),)


@pytest.mark.parametrize("name", ["LICENSE", "COPYING.txt", "licence", "PKG-INFO"])
def test_facts_of_a_tree_come_from_its_own_files(tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text("License: secret\nVersion: secret\n")
    tree = write(tmp_path / "theirs", {"a.py": ""})
    for target in (secret, "/dev/zero"):
        (tree / name).symlink_to(target)
        assert (find_tree(str(tree)).licence, find_tree(str(tree)).version) == ("", "")
        (tree / name).unlink()
    os.mkfifo(tree / name)
    assert find_tree(str(tree)).licence == ""
    (tree / name).unlink()
    (tree / name).write_text(f"\nVersion: {'1' * 500}\x1b[2J" if name == "PKG-INFO" else f"\n {'x' * 500}\n")
    facts = find_tree(str(tree))
    assert len(facts.version) <= 81 and len(facts.licence) <= 81 and "\x1b" not in facts.version


def test_the_files_of_a_tree_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("greenward.problems.mining.MAX_TREE_FILES", 3)
    write(tmp_path, {f"a{number}.py": "" for number in range(9)})
    tree = find_tree(str(tmp_path))
    assert len(tree.files) == 3
    assert [(one.where, one.reason) for one in tree.left_out] == [
        ("a3.py", "it and those behind it are too many")
    ]


FILE = '''\
"""Text."""
import re
from os import path

LIMIT = 3


def helper(x: int) -> str:
    """Say x.

    At length.
    """
    y = x + 1
    return str(y)


class Box(dict):
    size = 1

    def __init__(self, xs):
        self.xs = xs

    @property
    @functools.cache
    def total(
        self,
    ) -> int:
        r"""The sum of \\d."""
        # a comment
        text = """
left"""
        return sum(self.xs)

    async def wait(self, n):
        """Wait."""
        return n


def last():
    """The last."""
    return [
        1
    ]
'''


def test_masked_functions_keep_decorators_signature_and_docstring():
    total, wait = (one for one in functions(FILE) if isinstance(one, MaskedFunction) and "." in one.qualified)
    assert total.starter == FILE[FILE.index("    @property") : FILE.index("        # a comment")]
    assert (total.qualified, total.said, total.first_parameter) == ("Box.total", r"The sum of \d.", "")
    assert total.reference.startswith("        # a comment\n") and total.reference.endswith("sum(self.xs)\n")
    assert (wait.qualified, wait.first_parameter) == ("Box.wait", "n")


def test_form_feeds_and_unusual_line_ends_are_no_lines():
    text = "\f\ndef f(x):\n    '''F.'''\n    return x + '\u2028'\n\n\f\ndef g(x):\n    '''G.'''\n    return x - 1\n"
    first, second = functions(text)
    assert first.starter == "def f(x):\n    '''F.'''\n" and first.reference == "    return x + '\u2028'\n"
    assert second.starter + second.reference == text[text.index("def g") :]


def test_a_masked_file_differs_in_the_body_only():
    for one in functions(FILE):
        if isinstance(one, MaskedFunction):
            masked = in_file(one, STUB)
            before, after = (ast.parse(text) for text in (FILE, masked))
            assert masked.startswith(FILE[: FILE.index(one.starter) + len(one.starter)])
            changed = [node for node in ast.walk(after) if getattr(node, "name", "") == one.name]
            assert ast.unparse(changed[-1].body[1:]) == STUB
            originals = [node for node in ast.walk(before) if getattr(node, "name", "") == one.name]
            changed[-1].body = originals[-1].body
            assert ast.unparse(after) == ast.unparse(before)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def f():\n    return g()\n", "no docstring"),
        ("def f():\n    '''F.'''\n", "nothing to implement"),
        ("def f():\n    '''F.'''\n    return None\n", "nothing to implement"),
        ("def f():\n    '''F.'''\n    raise NotImplementedError('later')\n", "nothing to implement"),
        ("@abc.abstractmethod\ndef f():\n    '''F.'''\n    return g()\n", "nothing to implement"),
        ("def f(): '''F.'''; return g()\n", "body on the line of its docstring"),
        ("def f(\n    x=(1,\n  2)): '''F.'''; return g()\n", "body on the line of its docstring"),
        ("def f():\n    '''F.'''\n" + "    g()\n" * 61, "body too long"),
        (
            "if x:\n    def f():\n        '''F.'''\n        g()\nelse:\n    def f(): pass\n",
            "defined more than once",
        ),
        (f"def f():\n    '''{'F ' * 6000}'''\n    return g()\n", "docstring too long"),
        ("def f():\n    '''F.'''\n    return 1" + " + 1" * 2500, "nested too deeply"),
        ("def f(:\n", "not Python"),
        ("x = " + "(" * 300 + ")" * 300, "not Python"),
        ("x = '\0'", "not Python"),
    ],
)
def test_functions_that_cannot_be_asked_for_are_left_out_with_the_reason(text, reason):
    assert {one.reason for one in functions(text) if isinstance(one, LeftOut)} == {reason}


def test_equal_functions_have_one_fingerprint():
    texts = [
        "def f(x):\n    '''One.'''\n    return x + 1\n",
        "def other(x: int) -> int:\n    '''Two.'''\n    # why\n    return (x + 1)\n",
        "def f(x):\n    '''One.'''\n    return x + 2\n",
        "def f(y):\n    '''One.'''\n    return x + 1\n",
    ]
    first, same, *others = (functions(text)[0].fingerprint for text in texts)
    assert first == same and len({first, *others}) == 3


def test_the_context_has_imports_first_the_class_last_and_fits_the_budget():
    total = next(one for one in functions(FILE) if getattr(one, "qualified", "") == "Box.total")
    small, large = context_of(total, 150), context_of(total, 4000)
    assert small.startswith("import re\nfrom os import path\n") and len(small) <= 150
    assert large.index("def last") < large.index("class Box(dict):") < large.index("def __init__")
    assert "y = x + 1" in large and "sum(self.xs)" not in large and "Text." not in large
    for text in (small, large):
        ast.parse(text + total.starter)


def test_a_mined_problem_asks_for_the_hole_in_its_file(tmp_path):
    text = 'def add(a, b):\n    """Add.\n\n    >>> add(1, 2)\n    3\n    """\n    return a + b\n'
    tree = find_tree(str(write(tmp_path / "m", {"calc.py": text})))
    (function,) = masked_functions(tree.files[0])
    problem = doctest_problem(function, tree, 100)
    assert problem.task_id == "m/calc.add" and problem.reference == text
    assert function_in(problem, text) == text
    assert hole_of(problem).filled_with(text) == text
    assert problem.columns == {"origin": "m, calc.py:1", "licence": "", "dependencies": []}
