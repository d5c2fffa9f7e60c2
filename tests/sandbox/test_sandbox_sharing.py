"""Which programs may share a process over several standard inputs: only those that can leave nothing to share."""

from __future__ import annotations

import importlib
import sys

import pytest

from greenward.problems import contests
from greenward.sandbox.inside import sharing
from greenward.sandbox.inside.sharing import may_share_process

ALLOWED = [
    "print(sum(map(int, input().split())))",
    "import sys\ninput = sys.stdin.readline\nsys.setrecursionlimit(10**6)\nsys.stdout.write(input())",
    "from sys import stdin, stdout\nstdout.write(stdin.readline())",
    "import sys\ndata = iter(sys.stdin.buffer.read().split())\nprint(next(data), file=sys.stderr)",
    "n, *rows = open(0)\nprint(n)",
    "from math import *\nfrom heapq import *\nfrom itertools import *\nh = []\nheappush(h, gcd(4, 6))\nprint(*h)",
    "import collections as c\nd = c.defaultdict(list)\nq = c.deque([1])\nprint(c.Counter('aab').most_common(1))",
    "from functools import lru_cache, cmp_to_key\n@lru_cache(None)\ndef f(x): return x\nprint(f(1))",
    "import functools\n@functools.cache\ndef f(x): return x\nprint(sorted([f(2)], key=lambda x: -x))",
    "from typing import List\nclass A:\n    def __init__(self, x: List[int]): self.x = x\n"
    "    def __repr__(self): return f'{self.x!r:>{9}}'\nprint(A([1]))",
    "class A:\n    def f(self): return 1\nclass B(A):\n    def __init__(self): super().__init__(); self.y = 1\n"
    "B().y += 1",
    "def main():\n    import math\n    try: print(math.sqrt(-1))\n    except ValueError as error: print(error)\n"
    "if __name__ == '__main__': main()",
    "print('{} {:.2f} {{}} {x}'.format(1, 2.0, x=3), '%s' % 4, format(5, '.1f'))",
    "from decimal import Decimal, getcontext\ngetcontext().prec = 9\nprint(Decimal(1) / 3)",
    "from fractions import Fraction as F\nfrom copy import deepcopy\nprint(F(1, 2), deepcopy([1]))",
    "x = 1\nmatch x:\n    case 1 | 2: print(x)\n    case [_, *rest]: print(rest)",
    "import random\nrandom.shuffle([1])\nprint(random.randint(1, 2))",
    "def g():\n    yield 1\nfor x in g(): print(x)\nglobal_ = [*g()]\nprint({**{'a': 1}})",
    "from collections import namedtuple\nP = namedtuple('P', 'x y')\nprint(P(1, 2).x)",
    "import operator, bisect\nprint(sorted([(1, 2)], key=operator.itemgetter(1)), bisect.bisect([1], 1))",
    "d = {}\nprint(sorted(d, key=d.__getitem__))\nnext_word = iter(open(0).read().split()).__next__",
    "def f():\n    global seen\n    seen = 1\nf()",
]  # fmt: skip

# By what each would reach: the harness, other runs' inputs, or what a later run meets.
REFUSED = {
    "module": ["import os", "import gc", "import ctypes", "import io, sys", "import builtins", "import __main__",
               "import collections.abc", "from . import x", "import this", "from os import path"],
    "builtin": ["exec('1')", "eval('1')", "getattr(1, 'x')", "setattr(f, 'x', 1)", "globals()", "vars()",
                "locals()", "type(1)", "dir()", "id(1)", "memoryview(b'')", "hasattr(1, 'x')", "breakpoint()",
                "f = getattr", "def getattr(): pass\ngetattr()", "delattr(1, 'x')", "compile('1', '', 'exec')"],
    "file": ["open(3)", "open(0, 'w')", "open('x')", "open(*[3])", "open(0, closefd=False)", "f = open",
             "list(map(open, [3]))", "open(0.0)", "x = 3\nopen(x)", "open(file=3)"],
    "dunder": ["__builtins__", "().__class__", "print.__self__", "f = lambda: 0\nf.__globals__", "__import__('os')",
               "class A:\n    def __del__(self): pass",
               "class A:\n    def __exit__(self, kind, value, trace): kind.left = 1", "class A:\n    def __getattribute__(self, n): pass",
               "class A:\n    def __reduce_ex__(self, n): pass", "class A:\n    __module__ = 'sys'",
               "import sys as __builtins__", "def f(__builtins__): pass", "class __x: pass",
               "try: pass\nexcept Exception as __builtins__: pass", "for __builtins__ in [1]: pass",
               "global __builtins__\n__builtins__ = {}", "import sys as __s\nprint(_A__s)", "object.__subclasses__()",
               "import sys\nsys.stdout.buffer.raw.__init__(3, 'w')", "int.__init__(1)", "super(int, 1).__init__()",
               "def __build_class__(): pass", "class A:\n    def __set_name__(s, o, n): pass"],
    "frame": ["g.gi_frame", "c.cr_frame", "a.ag_frame", "t.tb_frame", "f.f_back", "f.f_globals", "f.co_code",
              "'{0.gi_frame}'.format(g)", "'{0[0].x}'.format(g)", "'{:{0.gi_frame}}'.format(g)", "'{ 0.x}'.format(1)",
              "str.format('{0.gi_frame}', g)", "f = '{0.x}'.format", "x = '{0.x}'\nx.format(g)", "'{a.x}'.format_map(g)",
              "f'{1}{{0.x}}'.format(g)", "'{x[a]}'.format(x=g)", "int.mro()", "e.obj.modules", "c.cell_contents",
              "match g:\n    case A(gi_frame=x): pass", "match g:\n    case int(): pass",
              "import operator\noperator.attrgetter('gi_frame')(g)", "from operator import attrgetter as a\na('gi_frame')(g)",
              "import operator\noperator.methodcaller('x')", "from functools import wraps\nwraps(g)",
              "from functools import update_wrapper\nupdate_wrapper(g, g)"],
    "object of a module": ["import sys\nsys.modules", "import sys\nsys._getframe()", "import sys\nx = sys", "import math\n[math]",
              "import math\nprint(math)", "import math\nclass A:\n    m = math", "class A:\n    import sys\nA.sys.modules",
              "from sys import modules\nmodules", "from sys import *\nmodules", "import sys\nsys.exc_info()", "import random\nrandom._os",
              "import heapq\nheapq.__dict__", "from string import Formatter\nFormatter()", "from string import *\nFormatter()",
              "from typing import sys\nsys.modules", "import typing\ntyping.sys", "from collections import *\nUserDict()",
              "from typing import get_type_hints\nget_type_hints(1)", "from decimal import DefaultContext\nDefaultContext.prec = 5",
              "from decimal import getcontext\nfor x in getcontext().traps: x.seen = 1", "import random\nrandom.Random",
              "if 1:\n    import sys\n    sys.modules", "from operator import *\nattrgetter('x')",
              "import sys as math\nmath.modules", "import math as m\nimport sys as m\nm.modules"],
    "attribute set": ["import math\nmath.seen = 1", "import sys\nsys.stdout = None", "import sys\ndel sys.stdin",
              "import sys\nfor sys.stdin in [1]: pass", "import sys\nwith a as sys.stdin: pass",
              "from typing import List\nList.__name__ = [1]", "from typing import List as L\nfor L.__eq__ in [1]: pass",
              "x.y.__call__ = 1", "exit.seen = 1", "try: f()\nexcept ZeroDivisionError as e: e.args[0][0].seen = 1",
              "import sys\n(sys.stdin, x) = 1, 2", "import sys\nsys.maxsize += 1", "import sys\nsys.stdin: int = 1",
              "import math\ndel math", "import sys\nsys.stdin, = [1]"],
    "what takes attributes": ["from collections import Counter\nCounter.seen = 1", "from collections import Counter\nc = Counter",
              "from collections import Counter\nclass A(Counter): pass", "from collections import Counter\nlist(map(Counter, []))",
              "from heapq import merge\nmerge.seen = 1", "import heapq\nf = heapq.merge", "import heapq\nheapq.merge.seen = 1",
              "from fractions import Fraction as F\nx = [F]", "from functools import lru_cache as c\nc.seen = 1",
              "from collections import *\nx = Counter", "from __future__ import annotations\nannotations.seen = 1",
              "from copy import deepcopy\ndeepcopy(1, {})", "from copy import deepcopy\ndeepcopy(*[1, {}])",
              "import copy\ncopy.deepcopy(x=1)", "import copy\ncopy.deepcopy(1, memo={})", "from typing import Any\nAny.seen = 1",
              "class A(metaclass=f): pass", "from functools import total_ordering\ntotal_ordering(1)",
              "from dataclasses import dataclass", "from collections import Counter\nmatch 1:\n    case Counter(): pass"],
    "text": ["x = ", "\0", "(" * 300 + ")" * 300, "x" * 70_000, "return 1\nimport os"],
}  # fmt: skip


@pytest.mark.parametrize("code", ALLOWED)
def test_ordinary_programs_share_a_process(code):
    assert may_share_process(code)


@pytest.mark.parametrize("kind", REFUSED)
def test_what_could_reach_another_run_has_a_process_of_its_own(kind):
    assert [code for code in REFUSED[kind] if may_share_process(code)] == []


def test_no_value_that_may_be_handed_on_takes_an_attribute():
    takes = []
    for module, names in sharing._VALUES.items():
        for name in names & vars(importlib.import_module(module)).keys():
            value = getattr(sys.modules[module], name)
            try:
                value.seen = 1
            except (AttributeError, TypeError):
                continue
            takes.append(f"{module}.{name}")
    assert sorted(takes) == ["sys.stderr", "sys.stdin", "sys.stdout"]  # each run has streams of its own


@pytest.mark.parametrize("preamble", [contests._APPS_SUITE.preamble, contests._LIVECODEBENCH_SUITE.preamble])
def test_names_of_a_preamble_are_what_they_stand_for(preamble):
    allowed = [
        "print(sqrt(4), heappop([1]), deque([1]), math.pi, Counter('a'))",
        "def f(x: List[int]) -> int: return x[0]\nprint(f([1]), sys.stdin.read(), stdin.read())",
        "import sys, math\nfrom collections import deque, Counter\nprint(Counter(input()))",
        "@lru_cache(None)\ndef f(x): return x",
        "print(1)\nreturn",
        "def main(): print(input())\nif __name__ == '__main__': main()",
    ]
    refused = [
        "print(modules)", "settrace(f)", "re.x = 1", "json.dumps(1)", "print(io)", "exc_info()",
        "Counter.seen = 1", "x = Counter", "attrgetter('x')", "time()", "sys.modules", "FileIO(3)", "deepcopy(1, {})",
        "Formatter()", "wraps(f)", "date.today()",
    ]  # fmt: skip
    assert [code for code in allowed if not may_share_process(code, preamble)] == []
    assert [code for code in refused if may_share_process(code, preamble)] == []
