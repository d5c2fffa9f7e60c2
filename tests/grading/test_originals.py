"""A function that was mined from an installed module is not solved by reading or calling the original."""

from __future__ import annotations

import ast
import os
from dataclasses import replace

import pytest

from greenward.common.errors import ProblemError, SandboxError
from greenward.grading.judge import Grader
from greenward.grading.testcases import make_plan
from greenward.problems.mining import MaskedFunction, find_tree, in_file, masked_functions, masked_problem
from greenward.problems.problem import Case, Doctest, Problem
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Limits

# The source, the function and examples: of a module that workers have loaded, of one that they have not, of
# one within a package, and of a package that answers may import.
FUNCTIONS = {
    "statistics": ("median_low", ">>> median_low([1, 3, 5, 7])\n3\n"),
    "difflib": ("get_close_matches", ">>> get_close_matches('appel', ['ape', 'apple'])\n['apple', 'ape']\n"),
    "email": (
        "quote",
        ">>> quote('a\"b')\n'a\\\\\"b'\n>>> import email.utils\n>>> email.utils.quote is quote\nTrue\n",
    ),
    "click": ("format_filename", ">>> format_filename('a/b', shorten=True)\n'b'\n"),
}
# `{place}` is the file beneath an import root, `{module}` its name; a body returns what the original returns.
OPENED = """
import glob, os
roots = [os.path.dirname(os.__file__), *glob.glob("/usr/lib/python3*"), *{search_path!r}]
for root in roots:
    try:
        text = {read}
    except OSError:
        continue
    names = {{"__name__": "{module}", "__package__": "{package}"}}
    exec(text, names)
    return names["{name}"]({arguments})
"""
READS = {
    "open": "open(root + '/{place}').read()",
    "linecache": "''.join(__import__('linecache').getlines(root + '/{place}')) or open('none')",
    "code file": (
        "__import__('marshal').loads("
        "open(__import__('importlib.util').util.cache_from_source(root + '/{place}'), 'rb').read()[16:])"
    ),
    "descriptor": "open('/proc/self/fd/%d' % os.open(root + '/{place}', os.O_PATH)).read()",
    "symbolic link": "(os.symlink(root + '/{place}', 'link.txt'), open('link.txt').read())[1]",
    "loader": "__import__('importlib.machinery').machinery.SourceFileLoader('{module}', root + '/{place}')"
    ".get_code('{module}')",
}
ONCE = "import sys\nif hasattr(sys, 'again'):\n    return None\nsys.again = True\n"
FOUND = {
    "import": "import {module} as found\nreturn found.{name}({arguments})",
    "fresh import": (
        "import sys, importlib\nfor one in [one for one in sys.modules if one.startswith('{module}')]:\n"
        "    del sys.modules[one]\nsys.path.pop(0)\nsys.meta_path.pop(0)\n"
        "return importlib.import_module('{module}').{name}({arguments})"
    ),
    "source": (
        "{once}import inspect, textwrap, {module} as found\nnames = vars(found).copy()\n"
        "exec(inspect.getsource(found), names)\nreturn names['{name}']({arguments})"
    ),
    "path finder": (
        "{once}from importlib.machinery import PathFinder\nfrom importlib import import_module\n"
        "path = import_module('{package}').__path__ if '{package}' else sys.path[1:]\n"
        "code = PathFinder.find_spec('{module}', path).loader.get_code('{module}')\n"
        "names = {{'__name__': '{module}', '__package__': '{package}'}}\nexec(code, names)\n"
        "return names['{name}']({arguments})"
    ),
    "memory": (
        "import gc\ngc.unfreeze()\nfor one in gc.get_objects():\n"
        "    if type(one) is type(lambda: 0) and one.__name__ == '{name}' "
        "and one.__code__.co_filename != __file__:\n"
        "        if (value := one({arguments})) is not None:\n            return value"
    ),
    "frozen": "import _imp\nnames = {{}}\nexec(_imp.get_frozen_object('{module}'), names)\n"
    "return names['{name}']({arguments})",
    "archive": (
        "import glob, os, zipfile\nfor one in glob.glob(os.path.dirname(os.__file__) + '/ensurepip/_bundled/*'):\n"
        "    zipfile.ZipFile(one).read('pip/__init__.py')\n    return {expected}"
    ),
}
BODIES = {**{name: OPENED.replace("{read}", read) for name, read in READS.items()}, **FOUND}


WITHOUT_NAMESPACES = "without namespaces"


@pytest.fixture(scope="module", params=["all layers", WITHOUT_NAMESPACES])
def grader(request):
    layers = ALL_LAYERS if request.param == "all layers" else CORE_LAYERS
    try:
        executor = LocalExecutor(1, layers=layers, packages=("click",))
    except SandboxError as error:
        pytest.skip(error.message)
    with executor, Grader(Limits(cpu_seconds=1.0, wall_seconds=10.0), executor=executor) as made:
        yield made


def function_in_tree(source: str, name: str):
    tree = find_tree(source)
    found = (one for file in tree.files for one in masked_functions(file))
    return tree, next(one for one in found if isinstance(one, MaskedFunction) and one.qualified == name)


@pytest.mark.parametrize(
    ("grader", "source"),
    [
        *(("all layers", source) for source in FUNCTIONS),
        *((WITHOUT_NAMESPACES, source) for source in ("difflib", "email")),
        *(
            pytest.param(WITHOUT_NAMESPACES, source, marks=pytest.mark.slow)
            for source in ("statistics", "click")
        ),
    ],
    indirect=["grader"],
)
def test_only_the_answer_itself_passes(grader, source):
    name, examples = FUNCTIONS[source]
    tree, function = function_in_tree(source, name)
    problem = masked_problem(function, tree, 100, tests=(Doctest(examples),), tags=())
    node = next(
        one
        for one in ast.walk(ast.parse(function.file.text))
        if isinstance(one, ast.FunctionDef) and one.name == name
    )
    facts = {
        "once": ONCE,
        "place": problem.path,
        "module": function.file.module,
        "package": function.file.module.rpartition(".")[0],
        "name": name,
        "arguments": ", ".join(one.arg for one in node.args.args),
        "expected": ast.literal_eval(examples.splitlines()[1]),
        "search_path": [os.path.dirname(os.path.dirname(pytest.__file__))],
    }
    bodies = {
        key: body.format(**{**facts, "expected": repr(facts["expected"])}) for key, body in BODIES.items()
    }
    answers = [problem.reference, *(in_file(function, body) for body in bodies.values())]
    right, *wrong = grader.grade([(problem, answer) for answer in answers])
    assert right.passed, right.failure
    assert not [key for key, verdict in zip(bodies, wrong, strict=True) if verdict.passed]
    assert {one.status.value for one in wrong} <= {"failed", "error", "timeout"}


@pytest.mark.parametrize("path", ["posixpath.py", "codecs.py", "runpy.py"])
def test_a_module_that_the_interpreter_carries_is_not_asked_for(path):
    files = {path: "def f(x):\n    raise NotImplementedError\n"}
    problem = Problem("frozen", "", "f", tests=(Case((1,), 2),), path=path, files=files)
    with pytest.raises(ProblemError, match="a part of the interpreter"):
        make_plan(problem)
    own = replace(problem, path=f"shop/{path}", files={f"shop/{path}": files[path]})
    assert make_plan(own)


def test_a_program_of_the_same_name_as_a_module_may_read_the_library(grader):
    """Only problems that give a part of a module hide its original."""
    tree, function = function_in_tree("statistics", "median_low")
    problem = masked_problem(function, tree, 100, tests=(Doctest(">>> size() > 1000\nTrue\n"),), tags=())
    whole = "import os\ndef size():\n    return len(open(os.path.dirname(os.__file__) + '/statistics.py').read())\n"
    own = problem.__class__(
        task_id="own", prompt="", entry_point="", path="statistics.py", tests=problem.tests
    )
    (verdict,) = grader.grade([(own, whole)])
    assert verdict.passed, verdict.failure
