"""Programs that read standard input: habits that must pass, and wrong ones that must not.

All run in one call. Each right one prints the sum of two numbers in another way. The wrong ones know the right
outputs, but print them only where they think that it counts.
"""

from __future__ import annotations

import pytest

from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.problem import Problem, StdioCase
from greenward.sandbox.protocol import Limits

PAIRS = ((1, 2), (10, -4), (0, 0), (5, 5))
SUM = Problem("sum", "", "", tests=tuple(StdioCase(f"{a} {b}\n", str(a + b)) for a, b in PAIRS))
S = "sum(map(int, input().split()))"
FAST_IO = """
import io, os, sys
class FastIO(io.IOBase):
    def __init__(self, file):
        self._fd, self.buffer = file.fileno(), io.BytesIO()
        self.writable, self.write = True, self.buffer.write
    def readline(self):
        data = os.read(self._fd, max(os.fstat(self._fd).st_size, 8192))
        where = self.buffer.tell()
        self.buffer.seek(0, 2), self.buffer.write(data), self.buffer.seek(where)
        return self.buffer.readline()
    def flush(self):
        os.write(self._fd, self.buffer.getvalue())
        self.buffer.truncate(0), self.buffer.seek(0)
class Wrapper(io.IOBase):
    def __init__(self, file):
        self.buffer = FastIO(file)
        self.flush, self.writable = self.buffer.flush, True
        self.write = lambda text: self.buffer.write(text.encode())
        self.readline = lambda: self.buffer.readline().decode()
sys.stdin, sys.stdout = Wrapper(sys.stdin), Wrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip()
"""

RIGHT = {
    "input": f"print({S})",
    "readline": f"import sys\ninput = sys.stdin.readline\nprint({S})",
    "read": "import sys\nprint(sum(map(int, sys.stdin.read().split())))",
    "buffer": "import sys\nsys.stdout.buffer.write(b'%d' % sum(map(int, sys.stdin.buffer.read().split())))",
    "lines": "import sys\nfor line in sys.stdin: print(sum(map(int, line.split())))",
    "open(0)": "print(sum(map(int, open(0).read().split())))",
    "next": "it = iter(open(0).read().split()).__next__\nprint(int(it()) + int(it()))",
    "os.read": "import os\nprint(sum(map(int, os.read(0, os.fstat(0).st_size).split())))",
    "mmap": "import mmap\nprint(sum(map(int, mmap.mmap(0, 0, access=mmap.ACCESS_READ).read().split())))",
    "fileinput": "import fileinput\nfor line in fileinput.input(): print(sum(map(int, line.split())))",
    "fast": f"{FAST_IO}print({S})",
    "main": f"def main():\n    print({S})\nif __name__ == '__main__':\n    main()",
    "exit": f"import sys\nprint({S})\nsys.exit(0)",
    "exit in a function": f"def main():\n    print({S})\n    raise SystemExit\nmain()",
    "quit": f"print({S})\nquit()",
    "os._exit": f"import os\nprint({S}, flush=True)\nos._exit(0)",
    "os._exit after a flush": f"import os, sys\nprint({S})\nsys.stdout.flush()\nos._exit(0)",
    "os._exit in a thread": f"import os, threading\ndef main():\n    print({S}, flush=True)\n    os._exit(0)\n"
    "threading.Thread(target=main).start()",
    "os._exit at the end": f"import atexit, os, sys\natexit.register(lambda: (sys.stdout.flush(), os._exit(0)))\nprint({S})",
    "large stack": "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(1 << 26)\n"
    f"def f(n): return n and f(n - 1)\ndef main(): print(f(9000) + {S})\n"
    "t = threading.Thread(target=main)\nt.start()\nt.join()",
    "thread at the end": f"import threading\nthreading.Thread(target=lambda: print({S})).start()",
    "daemon": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    f"print({S})",
    "pool": "from concurrent.futures import ThreadPoolExecutor\nThreadPoolExecutor(2).submit("
    f"lambda: print({S}))",
    "asyncio": f"import asyncio\nasync def main(): print({S})\nasyncio.run(main())",
    "wrapper": f"f = open(1, 'w', closefd=False)\nf.write(str({S}))",
    "wrapper of bytes": f"f = open(1, 'wb')\nf.write(b'%d' % {S})",
    "names of the streams": "x = sum(map(int, open('/dev/stdin').read().split()))\n"
    "with open('/dev/stdout', 'w') as f: print(x, file=f)",
    "fdopen": f"import os\nf = os.fdopen(os.dup(1), 'w', 1 << 16)\nprint({S}, file=f)",
    "buffered writer": "import io\nw = io.BufferedWriter(io.FileIO(1, 'w', closefd=False))\n"
    f"w.write(b'%d' % {S})",
    "wrapper as stdout": f"import sys\nsys.stdout = open(1, 'w', closefd=False)\nprint({S})",
    "wrapper of a wrapper": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer)\n" f"print({S})",
    "partial": f"from functools import partial\nprint = partial(print, file=open(1, 'w', closefd=False))\nprint({S})",
    "wrapper in a class": f"class Out:\n    file = open(1, 'w', closefd=False)\nOut.file.write(str({S}))",
    "wrapper in a cycle": "class A: pass\na = A()\na.me, a.file = a, open(1, 'w', closefd=False)\n"
    f"a.file.write(str({S}))",
    "wrapper in a closure": "def make():\n    f = open(1, 'w', closefd=False)\n    return lambda x: f.write(x)\n"
    f"put = make()\nput(str({S}))",
    "wrapper in a default": "def put(x, f=open(1, 'w', closefd=False)): f.write(x)\n" f"put(str({S}))",
    "wrapper and exit": "import sys\ndef main():\n    f = open(1, 'w', closefd=False)\n"
    f"    f.write(str({S}))\n    sys.exit()\nmain()",
    "detached": f"import sys\nout = sys.stdout.detach()\nout.write(b'%d' % {S})",
    "finalizer": f"class A:\n    def __del__(self): print(x)\na = A()\nx = {S}",
    "finalizer in a cycle": f"class A:\n    def __del__(self): print(x)\na = A()\na.me = a\nx = {S}",
    "finalize": f"import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, {S})",
    "weakref": f"import weakref\nclass A: pass\na, x = A(), {S}\nr = weakref.ref(a, lambda _: print(x))\ndel a",
    "generator": f"def g():\n    try: yield {S}\n    finally: print(x)\nheld = g()\nx = next(held)",
    "atexit": f"import atexit\natexit.register(print, {S})",
    "atexit with a buffer": "import atexit, io, os\nout = io.BytesIO()\nprint = lambda x: out.write(b'%d' % x)\n"
    f"atexit.register(lambda: os.write(1, out.getvalue()))\nprint({S})",
    "held back": f"import io, sys\nsys.stdout.write(str({S}))\nsys.stdout = io.StringIO()\nprint('lost')",
    "redirected": "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as f: print("
    f"{S})\nprint(f.getvalue())",
    "stderr": f"import sys\nprint('debug', file=sys.stderr)\nprint({S})",
    "closed": f"import sys\nprint({S})\nsys.stdout.close()",
    "closed descriptor": f"import os\nprint({S}, flush=True)\nos.close(1)",
    "logging": "import logging, sys\nlogging.basicConfig(stream=sys.stdout, format='%(message)s')\n"
    f"logging.warning({S})",
    "dataclass": "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\n    y: int = 0\n"
    "print((lambda p: p.x + p.y)(P(*map(int, input().split()))))",
    "classes": "from collections import Counter, namedtuple\nP = namedtuple('P', 'x y')\nclass A:\n"
    "    def __init__(self, p): self.p = p\n    def __int__(self): return self.p.x + self.p.y\n"
    "print(int(A(P(*map(int, input().split())))))",
    "typing": "from typing import List, Optional\ndef f(x: List[int]) -> Optional[int]: return sum(x)\n"
    "print(f([int(x) for x in input().split()]))",
    "cache": "from functools import lru_cache\n@lru_cache(None)\ndef f(a, b): return a if b == 0 else f(a, b - 1) + 1 "
    "if b > 0 else f(a, b + 1) - 1\nprint(f(*map(int, input().split())))",
    "random": f"import random\nx = {S}\nprint(x if random.random() > 0.8 else -1)",
    "folder": f"import os\nos.mkdir('sub')\nos.chdir('sub')\nopen('x', 'w').write(str({S}))\nprint(open('x').read())",
    "counter in a module": f"import json\njson.seen = getattr(json, 'seen', -1) + 1\nprint({S} + json.seen)",
}  # fmt: skip

OUTS = f"outs = {[str(a + b) for a, b in PAIRS]}\n"
NONCE = "next(vars(o)['_nonce'] for o in gc.get_objects() if type(o).__name__ == '_Harness')"
# What each later run prints where it believes that its output does not count.
RUBBISH = "x = input()\nif x != '1 2': print('rubbish'); raise SystemExit\n"
FORGE = (
    "import gc, os, struct, sys\nsend = lambda text: os.write(3, nonce + struct.pack('!I', len(text)) + text)\n"
    "def forge(nonce_):\n    global nonce\n    nonce = nonce_\n    for at, out in enumerate(outs):\n"
    "        os.write(1, out.encode() + nonce)\n        os.write(2, nonce)\n"
    "        send(b'[\"value\",%d,0.01]' % at)\n    send(b'[\"done\"]')\n    os._exit(0)\n"
)
SCAN = (
    "def walk(frame):\n    while frame:\n        for o in frame.f_locals.values():\n"
    "            if type(o).__name__ == '_Harness': forge(o._nonce)\n        frame = frame.f_back\n"
)
STATES = {
    "module": "import json\nn = json.seen = getattr(json, 'seen', -1) + 1",
    "function": "from heapq import merge\nn = merge.seen = getattr(merge, 'seen', -1) + 1",
    "class": "from collections import Counter\ntry: Counter.seen += 1\nexcept AttributeError: Counter.seen = 0\nn = Counter.seen",
    "class of an object": "from collections import Counter\nC = type(Counter())\nn = C.seen = getattr(C, 'seen', -1) + 1",
    "builtins": "import builtins\nn = builtins.seen = getattr(builtins, 'seen', -1) + 1",
    "names of builtins": "b = __builtins__\nb = b if isinstance(b, dict) else vars(b)\nn = b['seen'] = b.get('seen', -1) + 1",
    "modules": "import sys\nn = sys.modules['seen'] = sys.modules.get('seen', -1) + 1",
    "path": "import sys\nsys.path.append('x')\nn = sys.path.count('x') - 1",
    "arguments": "import sys\nsys.argv.append('x')\nn = len(sys.argv) - 2",
    "environment": "import os\nn = int(os.environ.get('N', '-1')) + 1\nos.environ['N'] = str(n)",
    "file": "import os\nn = len(os.listdir('.'))\nopen(str(n), 'w').close()",
    "default": "import copy\nd = copy.deepcopy.__defaults__[1]\nd.append(1)\nn = len(d) - 1",
    "default by a memo": "from copy import deepcopy\nclass M(dict):\n    def get(self, k, d): global n; d.append(1); n = len(d) - 1; return d\n"
    "deepcopy([], M())",
    "context": "import decimal\nc = decimal.DefaultContext\nn = c.Emax % 100 if c.Emax < 999999 else 0\nc.Emax = 1000 + n + 1",
    "signals": "from decimal import getcontext\nf = [*getcontext().flags][0]\n"
    "n = f.seen = f.seen + 1 if hasattr(f, 'seen') else 0",
    "descriptors": "import os\nn = max(0, os.dup(0) - 5)",
    "error": "import math\ntry: math.no\nexcept AttributeError as e: m = e.obj\nm.seen = m.seen + 1 if 'seen' in dir(m) else 0\nn = m.seen",
    "time": "import time\nn = int(time.process_time() / 0.05)\nwhile time.process_time() < (n + 1) * 0.05: pass",
    "collector": "import gc\na, b, c = gc.get_threshold()\nn = c - 10\ngc.set_threshold(a, b, c + 1)",
    "switch interval": "import sys\nn = round(sys.getswitchinterval() * 1000) - 5\nsys.setswitchinterval((n + 6) / 1000)",
    "recursion": "import sys\nn = sys.getrecursionlimit() - 1000\nsys.setrecursionlimit(1001 + n)",
    "hook": "import sys\nn = getattr(sys.excepthook, 'n', -1) + 1\ndef hook(*_): pass\nhook.n = n\nsys.excepthook = hook",
    "expressions": "import re\nn = len(re._cache) if hasattr(re, '_cache') else 0\nre.compile('x' * (n + 1))",
    "types": "import typing\nn = len(typing._overload_registry) if hasattr(typing, '_overload_registry') else 0\n"
    "typing._overload_registry[n] = 1",
    "file position": "import os\nn = os.lseek(0, 0, 1) and 1",
}  # fmt: skip

WRONG = {
    "nonce of objects": f"{OUTS}{FORGE}{RUBBISH}forge({NONCE})",
    "nonce of frames": f"{OUTS}{FORGE}{SCAN}{RUBBISH}walk(sys._getframe())",
    "nonce of a traceback": f"{OUTS}{FORGE}{SCAN}{RUBBISH}try: 1 / 0\nexcept Exception as e: walk(e.__traceback__.tb_frame)",
    "nonce of a generator": f"{OUTS}{FORGE}{SCAN}{RUBBISH}def g():\n    walk(it.gi_frame)\n    yield\nit = g()\nnext(it)",
    "nonce by a format": f"{OUTS}{RUBBISH}def g():\n    text = '{{0.gi_frame.f_back.f_back.f_locals}}'.format(it)\n"
    "    yield text\nit = g()\nprint(next(it))",
    "nonce in memory": f"{OUTS}{FORGE}{RUBBISH}import re\nfor line in open('/proc/self/maps'):\n    a, b = (int(x, 16) for x in "
    "line.split()[0].split('-'))\n    m = open('/proc/self/mem', 'rb', 0)\n    m.seek(a)\n"
    "    for n in re.findall(rb'[0-9a-f]{32}', m.read(b - a)): forge(n)",
    "nonce by a module": f"{OUTS}{FORGE}{RUBBISH}for m in list(sys.modules.values()):\n    for o in vars(m).values():\n"
    "        if hasattr(o, '_nonce'): forge(o._nonce)",
    "all outputs in the first run": f"{OUTS}x = input()\nprint(*outs if x == '1 2' else '', sep='\\n')",
    "output to a descriptor of the worker": f"{OUTS}{RUBBISH}import os\nfor n in range(2, 99):\n    try: os.write(n, b'3')\n"
    "    except OSError: pass",
    "forged end": f"{OUTS}{FORGE}nonce = {NONCE}\n{RUBBISH}print(3, flush=True)\nsend(b'[\"value\",0,0.01]')\n"
    "send(b'[\"value\",1,0.01]')\nsend(b'[\"done\"]')\nos._exit(0)",
    **{
        f"time of {text}": f"{OUTS}{FORGE}nonce = {NONCE}\nprint({S}, flush=True)\nsend(b'[\"value\",0,{text}]')\n"
        "send(b'[\"done\"]')\nos._exit(0)"
        for text in ('{"float":"nan"}', '{"float":"inf"}', "-1.0", "1e308", '"1"', "true", "null", "[0.1]", "NaN", "9" * 400)
    },
    "delimiter in the output": f"{OUTS}{FORGE}print(3)\nos.write(1, {NONCE} + b'6')",
    "output swapped": f"{OUTS}{RUBBISH}import os\nread, write = os.pipe()\nos.dup2(write, 1)\nprint(3, flush=True)",
    "output swallowed": f"import os\nx = {S}\nprint(x, flush=True)\nif x == 6: os.close(3)\n",
    "output closed": f"import os\nx = {S}\nif x == 6: os.close(1)\nprint(x)",
    "nothing and no error": f"import os\nx = {S}\nif x == 6: os._exit(0)\nprint(x)",
    "not flushed": f"import os\nprint({S})\nos._exit(0)",
    "status": f"import os\nprint({S}, flush=True)\nos._exit(2)",
    "signal": f"import os\nprint({S}, flush=True)\nos.kill(os.getpid(), 9)",
    "exit with a status": f"import sys\nprint({S})\nsys.exit(3)",
    "error": f"print({S})\nraise ValueError",
    "late error": f"print({S}, flush=True)\nimport atexit, os\natexit.register(os._exit, 1)",
    "thread for later runs": f"{OUTS}{RUBBISH}import threading, time\ndef late():\n    for out in outs:\n"
    "        print(out, flush=True)\n        time.sleep(0.01)\nthreading.Thread(target=late).start()",
    "finalizer for later runs": f"{OUTS}{RUBBISH}import sys\nclass A:\n    def __del__(self): print(*outs[1:], sep='\\n')\n"
    "sys.a = A()\nprint(3)",
    "guess by what is left": f"import json\nx = {S}\nseen = hasattr(json, 'seen')\njson.seen = 1\nprint(6 if seen else 3)",
    **{f"count in {name}": f"n = 0\n{state}\n{OUTS}print(outs[n])" for name, state in STATES.items()},
}  # fmt: skip


@pytest.fixture(scope="module")
def verdicts():
    programs = RIGHT | WRONG
    with Grader(Limits(cpu_seconds=1.0, wall_seconds=3.0), workers=2) as grader:
        found = grader.grade([(SUM, code) for code in programs.values()])
    return dict(zip(programs, found, strict=True))


def test_right_programs_of_all_habits_pass(verdicts):
    assert {name: verdicts[name] for name in RIGHT if not verdicts[name].passed} == {}


def test_no_wrong_program_passes(verdicts):
    assert [name for name in WRONG if verdicts[name].passed] == []
    assert [name for name in WRONG if verdicts[name].status is Status.INFRASTRUCTURE] == []


@pytest.mark.parametrize("name", [name for name in WRONG if name.startswith("time of")])
def test_a_forged_time_is_cheating(verdicts, name):
    assert verdicts[name].status is Status.CHEATING
    assert 0 <= verdicts[name].cpu_seconds < 5


@pytest.mark.parametrize("name", STATES)
def test_what_a_run_leaves_is_met_by_no_other(verdicts, name):
    """Each run is the first one: it prints the first output, if it comes so far."""
    assert verdicts[f"count in {name}"].tests_passed[1:] == (False, False, False)
