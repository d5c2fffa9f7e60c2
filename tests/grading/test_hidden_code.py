"""Code that a program hides in text or behind computed names, and programs that only look like it."""

from __future__ import annotations

import ast

import pytest

from greenward.grading.hidden_code import hides_code


@pytest.mark.parametrize(
    "code",
    [
        "exec('x')",
        "run = eval",
        "import builtins\ngetattr(builtins, 'ex' + 'ec')('x')",
        "import builtins as b\nb.exec('x')",
        "import builtins\nb = builtins\nb.exec('x')",
        "import builtins\nvars(builtins)['exec']('x')",
        "import builtins\nfor name in dir(builtins): getattr(builtins, name)",
        "from builtins import exec as run\nrun('x')",
        "__builtins__['exec']('x')",
        "(lambda: 0).__globals__['__builtins__']['ex' + 'ec']('x')",
        "globals()['__builtins__']",
        "globals().get('__buil' + 'tins__')",
        "x.__dict__['e' + 'x']",
        "import sys\nsys.modules['built' + 'ins']",
        "__import__('o' + 's').system('x')",
        "import importlib\nimportlib.import_module('built' + 'ins').exec('x')",
        "from importlib import import_module as load\nload('builtins').exec('x')",
        "import operator\noperator.attrgetter('ex' + 'ec')(x)",
        "object.__getattribute__(x, 'ex' + 'ec')",
        "().__class__.__base__.__subclasses__()",
        "name = 'cexe'[::-1]\ngetattr(x, name)",
        "a, b = 'ex', 'ec'\ngetattr(x, a + b)",
        "for name in ['ex' + 'ec']: getattr(x, name)",
        "getattr(x, ''.join(['ex', 'ec']))",
        "getattr(x, chr(101) + chr(120))",
        "getattr(x, f'{\"ex\"}ec')",
        "import base64\ngetattr(x, base64.b64decode('ZXhlYw==').decode())",
        "d['ex' + 'ec']",
        "compile('x', '', 'exec')",
        "import types\ntypes.FunctionType(code, {})",
        "import marshal\nmarshal.loads(b'x')",
        "import code\ncode.interact()",
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'x'])",
    ],
)
def test_text_that_is_run_and_names_that_are_assembled_are_hidden_code(code: str) -> None:
    assert hides_code(ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "getattr(self, 'name', None)",
        "def visit(self, node): return getattr(self, 'visit_' + type(node).__name__, self.other)(node)",
        "for name in ('body', 'orelse'): getattr(node, name)",
        "for name in 'body orelse'.split(): getattr(node, name)",
        "import builtins\nbuiltins.sum([1])",
        "import re\nre.compile('a' + 'b')",
        "counts['a'] + rows[i][j] + xs[2 * 3] + xs[-1] + words[f'{x}_a']",
        "def f(n): return memo['%d' % n] + table[str(n)]",
        "a.eval(b)",
        "vars(self) == other.__dict__ and 'f' in globals()",
        "import sys\nsys.modules[__name__]",
        "import pickle\npickle.loads(pickle.dumps(x))",
        "__import__('math').sqrt(4)",
        "import operator\nsorted(xs, key=operator.attrgetter('a.b'))",
        "def compile(a): return a\ncompile(3)",
        "super().__getattribute__(name)",
    ],
)
def test_what_is_written_out_or_depends_on_arguments_is_not_hidden(code: str) -> None:
    assert not hides_code(ast.parse(code))
