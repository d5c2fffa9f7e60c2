"""Code that a program hides in text or behind computed names, and programs that only look like it."""

from __future__ import annotations

import ast
import gzip
import json
from pathlib import Path

import pytest

from greenward.grading.quality import hides_code

DATA = Path(__file__).parents[2] / "../shared/data"


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
        "import subprocess\nsubprocess.run(['python3', '-c', 'x'])",
        "print.__self__.eval('x')",
        "p = len\np.__self__.exec('x')",
        "vars(print.__self__)['exec']('x')",
        "from functools import reduce\nreduce(getattr, ['__self__', 'eval'], print)('x')",
        "from functools import reduce\nreduce(getattr, names, print)('x')",
        "import operator\nlist(map(operator.attrgetter, names))",
        "def find(name): return getattr(print.__self__, name)\nfind('eval')('x')",
        "def find(x, name): return getattr(x, name)\nfind(find(print, '__self__'), 'eval')('x')",
        "build = compile\nbuild('x', '', 'exec')",
        "import bdb\nbdb.Bdb().runeval('x')",
        "import doctest\ndoctest.pdb.run('x')",
        "import cProfile\ncProfile.run('x')",
        "from cProfile import run\nrun('x')",
        "import pdb\npdb.run('x')",
        "import trace\ntrace.Trace().run('x')",
        "__import__('pdb').run('x')",
        "import typing\ntyping.ForwardRef('x')._evaluate({}, {}, frozenset())",
        "from typing import get_type_hints as hints\ndef f(a: 'x'): pass\nhints(f)",
        "import inspect\ndef f(a: 'x'): pass\ninspect.signature(f, eval_str=True)",
        "import ctypes\nctypes.pythonapi.PyRun_SimpleString(b'x')",
        "from ctypes import pythonapi as api\napi.PyRun_SimpleString(b'x')",
        "import _pickle\n_pickle.loads(b'x')",
        "import pickle\ndata = b'x'\npickle.loads(data)",
        "import io, pickle\npickle.Unpickler(io.BytesIO(b'x')).load()",
        "def f(): pass\nsetattr(f, '__code__', other)",
        "def f(): pass\nf.__class__(f.__code__.replace(co_code=b'x'), {})()",
        "open('m.py', 'w').write('x')\nimport m",
        "from pathlib import Path\nPath('m' + '.' + 'py').write_text('x')\nimport m",
        "import importlib\nopen('bisect.py', mode='w').write('x')\nimportlib.import_module('bisect')",
        "from importlib.machinery import SourceFileLoader as Loader\nLoader('m', 'm').load_module()",
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
        "def getattr(a): return a\nlist(map(getattr, xs))",
        "model.eval()",
        "import subprocess\nsubprocess.run(['ls', '-l'])\nsubprocess.run('ls')",
        "import asyncio\nasyncio.run(main('x'))",
        "class Robot:\n    def run(self, moves): return moves\nRobot().run('LR')",
        "import re\nfrom re import compile\nlist(map(compile, patterns)) + list(map(re.compile, patterns))",
        "import ctypes\nctypes.c_int32(5).value",
        "import pickle\npickle.load(open('data', 'rb')), pickle.loads(pickle.dumps('x'))",
        "import types\nisinstance(f, types.FunctionType)",
        "open('out.txt', 'w').write('x')\nimport math",
        "import numpy\nopen('in.txt').read()",
    ],
)
def test_what_is_written_out_or_depends_on_arguments_is_not_hidden(code: str) -> None:
    assert not hides_code(ast.parse(code))


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_of_the_public_references_only_the_one_that_calls_eval_is_hidden() -> None:
    mbpp, humaneval = DATA / "mbpp/mbpp.jsonl", DATA / "humaneval/HumanEval.jsonl.gz"
    if not (mbpp.exists() and humaneval.exists()):
        pytest.skip(f"needs {mbpp} and {humaneval}")
    codes = [json.loads(line)["code"] for line in mbpp.read_text(encoding="utf-8").splitlines()]
    rows = map(json.loads, gzip.decompress(humaneval.read_bytes()).splitlines())
    codes += [row["prompt"] + row["canonical_solution"] for row in rows]
    hidden = [code for code in codes if hides_code(ast.parse(code))]
    assert len(codes) > 1000
    assert [code for code in hidden if "return eval(" not in code] == []
    assert len(hidden) == 1
