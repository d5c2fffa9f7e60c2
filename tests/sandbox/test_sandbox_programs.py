"""Programs on several standard inputs: one process where a run leaves nothing behind, else one for each."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import CallResult, Job, Limits, Outcome, RunResult
from greenward.sandbox.workers import Attempt, WorkerProcess

TEXTS = ("3\n4\n", "ünï\r\nx\n", "", "last\rline without an end")


@pytest.fixture(scope="module")
def executor():
    with LocalExecutor(1, require=Level.D) as executor:
        yield executor


def run(executor, job):
    ((_, result),) = executor.run([job])
    return result


def outputs(executor, code, texts, **fields):
    result = run(executor, Job(code, stdins=texts, **fields))
    assert result.outcome is Outcome.COMPLETED, result
    return [one.value for one in result.results]


@pytest.fixture
def count_processes(executor, monkeypatch):
    """In how many processes a program runs on some texts."""
    started, send = [], WorkerProcess.send
    monkeypatch.setattr(WorkerProcess, "send", lambda *given: started.append(given) or send(*given))

    def count(code, runs=4):
        started.clear()
        outputs(executor, code, ("a\n",) * runs)
        return len(started)

    return count


SHARING = {
    "input": "try:\n    while True: print(input()[::-1])\nexcept EOFError: print('end')",
    "lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "read": "import sys\nprint(len(sys.stdin.read()), sys.stdin.read() == '')",
    "bytes": "import sys\nprint(sys.stdin.buffer.read())",
    "some": "import sys\nprint(repr(sys.stdin.readline()))",
    "opened": "print(repr(open(0).read()))",
    "half read": "import sys\nprint(sys.stdin.buffer.readline(), sys.stdin.buffer.read(1))",
    "peeked": "import sys\nprint(sys.stdin.buffer.peek(2)[:2])",
    "configured": "import sys\nsys.stdout.reconfigure(encoding='utf-8', newline='\\r\\n')\n"
    "sys.stdin.reconfigure(encoding='latin-1')\nprint(sys.stdin.read())",
    "errors": "import sys\nprint('seen', file=sys.stderr)\nprint(ascii(sys.stdin.read()), end='')",
    "exit": "import sys\nprint(sys.stdin.read(2), end='')\nsys.exit()",
    "format": "print('{} {:>5.2f}'.format(open(0).read()[:1], 2 / 3))",
    "types": "from typing import List, Optional\n"
    "def f(x: List[str]) -> Optional[str]: return x[0]\nprint(f(open(0).read().split() or ['']))",
    "classes": "import heapq\nfrom collections import Counter, defaultdict, namedtuple\n"
    "class Node:\n    __slots__ = ('value', 'left')\n    def __init__(self, value): self.value = value\n"
    "    def __lt__(self, other): return self.value < other.value\n"
    "class Leaf(Node):\n    def __init__(self): super().__init__(2)\n"
    "P = namedtuple('P', 'x y')\nseen = defaultdict(list)\nseen[P(1, 2)].append(Leaf())\n"
    "print(min(seen[1, 2]).value, Counter('aab').most_common(1), heapq.nlargest(1, [1, 2]))",
    "recursive": "import sys\nfrom functools import lru_cache\nsys.setrecursionlimit(20000)\n"
    "@lru_cache(maxsize=None)\ndef f(n): return n and 1 + f(n - 1)\nprint(f(9000))",
    "generator": "def lines():\n    try:\n        yield 'begin'\n    finally:\n        print('end')\n"
    "held = lines()\nprint(next(held))",
    "not flushed": "import sys\nsys.stdout.buffer.write(b'a')\nsys.stdout.flush = lambda: None",
    "closed": "import sys\nprint(sys.stdin.read()[:1])\nsys.stdin.close()\nsys.stdout.close()",
}

APART = {
    "descriptor": "import os\nprint(os.read(0, 100))",
    "replaced": "import io, os, sys\n"
    "sys.stdin = io.StringIO(os.read(0, 100).decode()); input = lambda: sys.stdin.readline().rstrip('\\n')\n"
    "print(input(), input(), sep='|')",
    "fast": "import io, os, sys\n"
    "class Out(io.StringIO):\n    def flush(self): os.write(1, self.getvalue().encode()); self.__init__()\n"
    "sys.stdout = Out()\nprint(sys.stdin.readline().upper())\nsys.stdout.flush()",
    "wrapped": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\n"
    "sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding='utf-8')\nprint(sys.stdin.read()[::-1])",
    "patched": "import sys\nwrite = sys.stdout.write\nsys.stdout.write = lambda text: write(f'>{text}')\nprint(1)",
    "wrapper": "f = open(1, 'w', closefd=False)\nf.write('held back')",
    "wrapper in a class": "class Out:\n    file = open(1, 'w', closefd=False)\nOut.file.write('held back')",
    "finalizer": "class A:\n    def __del__(self): print('gone', x)\na = A()\na.me = a\nx = 1",
    "finalize": "import weakref\nclass A: pass\na = A()\nweakref.finalize(a, print, 'gone')",
    "held back": "import io, sys\nsys.stdout.write('held back')\nsys.stdout = io.StringIO()\nprint(1)",
    "stream that flushes twice": "import io, os, sys\nclass Out(io.IOBase):\n    text = ''\n"
    "    def write(self, text): self.text += text\n"
    "    def flush(self): os.write(1, self.text.encode())\nsys.stdout = Out()\nprint('a')",
    "left": "import os\nprint(1, flush=True)\nos._exit(0)",
    "thread": "import threading\nf = open(1, 'w', closefd=False)\n"
    "threading.Thread(target=lambda: f.write('late')).start()",
}


@pytest.mark.parametrize("name", [*SHARING, *APART])
def test_a_run_prints_what_the_interpreter_prints(executor, name):
    code = (SHARING | APART)[name]

    def printed(text):
        environment = {"LC_ALL": "C.UTF-8"}
        command = [sys.executable, "-s", "-S", "-c", code]
        found = subprocess.run(command, input=text.encode(), capture_output=True, env=environment, timeout=60)
        return found.stdout

    assert [one.encode() for one in outputs(executor, code, TEXTS)] == list(map(printed, TEXTS))


@pytest.mark.parametrize("code", (SHARING | APART).values(), ids=SHARING | APART)
def test_many_runs_print_what_single_runs_print(executor, code):
    single = [outputs(executor, code, (text,))[0] for text in TEXTS]
    assert outputs(executor, code, TEXTS) == single


@pytest.mark.parametrize("code", SHARING.values(), ids=SHARING)
def test_runs_that_can_leave_nothing_share_a_process(count_processes, code):
    assert count_processes(code) == 1


LEFT = {
    "file": "import os\nprint(os.listdir('.'))\nopen('left', 'w').close()",
    "folder": "import os\nprint(os.path.basename(os.getcwd()) == 'sub')\nos.mkdir('sub')\nos.chdir('sub')",
    "thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "joined at the end": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.02), print('late'))).start()",
    "pool": "from concurrent.futures import ThreadPoolExecutor\nprint(*ThreadPoolExecutor(1).map(abs, [-1]))",
    "exit function": "import atexit\natexit.register(print, 'bye')",
    "builtin": "import builtins\nprint(hasattr(builtins, 'x'))\nbuiltins.x = 1",
    "print": "import builtins\nold = print\nbuiltins.print = lambda *args: old('>', *args)\nbuiltins.print(1)",
    "environment": "import os\nprint(os.environ.get('X'))\nos.environ['X'] = '1'",
}


@pytest.mark.parametrize("code", LEFT.values(), ids=LEFT)
def test_a_run_that_leaves_something_is_the_last_one_in_its_process(executor, count_processes, code):
    (alone,) = outputs(executor, code, ("a\n",))
    assert outputs(executor, code, ("a\n",) * 3) == [alone] * 3
    assert count_processes(code) == 4


STATE = {
    "limits": "import sys\nprint(sys.getrecursionlimit(), len(str(10**999)))\nsys.setrecursionlimit(4321)\n"
    "sys.set_int_max_str_digits(0)",
    "random": "import random\nprint(random.random())\nrandom.seed(5)",
    "decimal": "from decimal import *\nprint(Decimal(1) / 7)\ngetcontext().prec = 5\nsetcontext(Context(prec=4))",
    "names": "try:\n    print(seen)\nexcept NameError: print('none')\nseen = __name__",
    "types": "from typing import *\nclass A:\n    count = 0\n    def __call__(self): pass\n"
    "    def __hash__(self): return 1\n    def __eq__(self, other): A.count += 1; return True\n"
    "List[A()]\nprint(A.count)",
}


@pytest.mark.parametrize("code", STATE.values(), ids=STATE)
def test_what_a_run_sets_is_set_back(executor, count_processes, code):
    first, *others = outputs(executor, code, ("",) * 3)
    assert others == [first] * 2
    assert count_processes(code) == 1


def test_a_run_that_fails_after_others_is_tried_again_in_a_process_of_its_own(executor):
    code = "import json\nassert not hasattr(json, 'seen')\njson.seen = True\nprint(input())"
    assert outputs(executor, code, ("a\n", "b\n", "c\n")) == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize(
    ("code", "outcome", "error_class"),
    [
        ("x = input()\nwhile x == 'b': pass\nprint(x)", Outcome.TIMEOUT, "CPUTimeLimit"),
        ("import time\nx = input()\nif x == 'b': time.sleep(9)\nprint(x)", Outcome.TIMEOUT, "WallTimeLimit"),
        ("x = input()\nif x == 'b': [0] * 10**9\nprint(x)", Outcome.MEMORY, "MemoryError"),
        ("import os\nx = input()\nif x == 'b': os._exit(1)\nprint(x, flush=True)", Outcome.EXITED, "Exit"),
        ("import os\nx = input()\nif x == 'b': os.kill(os.getpid(), 9)\nprint(x)", Outcome.EXITED, "SIGKILL"),
        ("import sys\nx = input()\nif x == 'b': sys.exit(3)\nprint(x)", Outcome.EXITED, "SystemExit"),
        ("x = input()\nif x == 'b': raise KeyError(x)\nprint(x)", Outcome.LOAD_ERROR, "KeyError"),
        ("x = input()\nwhile x == 'b': print(x * 9999)\nprint(x)", Outcome.OUTPUT_LIMIT, "OutputLimit"),
    ],
)
def test_how_a_later_run_ends_is_reported_after_the_outputs_before_it(executor, code, outcome, error_class):
    limits = Limits(cpu_seconds=0.5, wall_seconds=3.0, output_bytes=5000)
    result = run(executor, Job(code, stdins=("a", "a", "b", "a"), limits=limits))
    assert (result.outcome, result.error_class) == (outcome, error_class)
    assert [one.value for one in result.results] == ["a\n", "a\n"]
    assert result.stdout == "" or "b" in result.stdout


def test_each_run_has_the_whole_of_each_limit(executor):
    code = "import time\nstart = time.process_time()\nwhile time.process_time() < start + 0.3: pass\nprint(1)"
    limits = Limits(cpu_seconds=0.6, wall_seconds=30.0, output_bytes=1000)
    result = run(executor, Job(code, stdins=("",) * 4, limits=limits))
    assert [one.value for one in result.results] == ["1\n"] * 4
    assert 0.25 < result.cpu_seconds < 0.9
    printed = outputs(executor, "print('x' * 4000)", ("",) * 3, limits=limits)
    assert printed == ["x" * 1000] * 3


def test_together_the_runs_of_a_process_have_no_more_time_than_one(executor):
    code = "for i in range(10**6 * (2 if input() == 'easy' else 2000)): pass\nprint(1)"
    limits = Limits(cpu_seconds=0.6, wall_seconds=30.0)
    result = run(executor, Job(code, stdins=("easy",) * 3 + ("hard",), limits=limits))
    assert (result.outcome, len(result.results)) == (Outcome.TIMEOUT, 3)
    assert result.cpu_seconds < 2


@pytest.mark.parametrize("sleep", ["time.sleep(0.3)", "t = threading.Timer(0.3, int)\nt.start()\nt.join()"])
def test_all_runs_together_may_sleep_for_two_limits_of_wall_time(executor, sleep):
    code = f"import threading, time\n{sleep}\nprint(1)"
    limits = Limits(cpu_seconds=0.4, wall_seconds=0.6)
    result = run(executor, Job(code, stdins=("",) * 20, limits=limits))
    assert (result.outcome, result.error_class) == (Outcome.TIMEOUT, "IdleTimeLimit")
    assert 3 < len(result.results) < 20


@pytest.mark.parametrize("idle", [0.0, None, 0.15])
def test_runs_that_compute_or_wait_for_a_processor_have_no_limit_in_common(idle):
    attempt = Attempt(0, Job("", stdins=("",) * 33, limits=Limits(wall_seconds=3.0)), apart=True)
    run = RunResult(Outcome.COMPLETED, (CallResult(True, ""),), wall_seconds=2.9, idle_seconds=idle)
    for _ in range(32):
        attempt = attempt.after_result(run)
        assert isinstance(attempt, Attempt)
    assert attempt.after_result(run).outcome is Outcome.COMPLETED


def test_a_sleeper_is_not_taken_for_starved(executor, monkeypatch):
    sent, send = [], WorkerProcess.send
    monkeypatch.setattr(WorkerProcess, "send", lambda *given: sent.append(given) or send(*given))
    limits = Limits(cpu_seconds=0.3, wall_seconds=0.6)
    for sleep in ("time.sleep(9)", "threading.Thread(target=time.sleep, args=(9,)).start()"):
        sent.clear()
        result = run(executor, Job(f"import threading, time\n{sleep}", stdins=("",), limits=limits))
        assert (result.error_class, len(sent)) == ("WallTimeLimit", 1)


@pytest.mark.parametrize(
    "code",
    [
        "print('x' * 3000)",
        "import os\nprint(1, flush=True)\nos.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "open('left', 'w').close()",
        "import sys\nprint('x' * 500000, file=sys.stderr)",
    ],
)
def test_no_program_is_run_more_than_twice_on_a_text(executor, monkeypatch, code):
    sent, send = [], WorkerProcess.send
    monkeypatch.setattr(WorkerProcess, "send", lambda *given: sent.append(given[1]) or send(*given))
    limits = Limits(cpu_seconds=2.0, wall_seconds=30.0, output_bytes=1000)
    alone = outputs(executor, code, ("",), limits=limits)
    sent.clear()
    assert outputs(executor, code, ("",) * 12, limits=limits) == alone * 12
    assert len(sent) <= 12
    assert sum(len(attempt._stdins) for attempt in sent) <= 24


def test_memory_of_a_run_is_free_for_the_next_one(executor, count_processes):
    code = "def f(): return a\ntry:\n    a = bytearray(40 << 20)\n    print(1)\nexcept MemoryError: print(0)"
    limits = Limits(memory_bytes=128 << 20)
    assert outputs(executor, code, ("",) * 6, limits=limits) == ["1\n"] * 6
    assert count_processes(code) == 1


def test_what_becomes_of_the_objects_of_a_run_touches_no_other_run(executor):
    code = (
        "class Reader:\n    def __init__(self): self.file = open(0); self.me = self\n"
        "r = Reader()\nprint(r.file.readline(), end='')\nprint(r.file.readline())"
    )
    texts = ("a\nb\n", "c\nd\n", "e\nf\n")
    assert outputs(executor, code, texts) == ["a\nb\n\n", "c\nd\n\n", "e\nf\n\n"]


def test_no_run_has_the_files_of_the_others(executor):
    code = (
        "import os\ndef is_open(number):\n    try: os.fstat(number); return True\n    except OSError: return False\n"
        "print(*filter(is_open, range(4, 250)))"
    )
    assert outputs(executor, code, ("",) * 3) == ["\n"] * 3


@pytest.mark.parametrize("before", ["", "import time\n"])
def test_the_cpu_time_is_that_of_the_longest_run(executor, before):
    single = run(executor, Job("for i in range(3 * 10**6): pass", stdins=("",))).cpu_seconds
    code = f"{before}for i in range(10**6 * int(input()) // 2): pass"
    result = run(executor, Job(code, stdins=("2", "6", "2", "4")))
    assert single / 3 < result.cpu_seconds < 2 * single + 0.1


def test_errors_are_those_of_the_last_run(executor):
    code = "import sys\nprint(input(), file=sys.stderr)"
    assert run(executor, Job(code, stdins=("a", "b", "c"))).stderr == "c\n"


def test_a_fork_that_comes_back_ends_no_run():
    code = (
        "import os, sys\nx = input()\nif os.fork() == 0:\n    print('child')\n    sys.exit()\n"
        "os.wait()\nprint('parent', x)"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor = LocalExecutor(1, require=Level.D, layers=())
    with executor:
        assert outputs(executor, code, "ab") == ["child\nparent a\n", "child\nparent b\n"]


def test_a_program_that_closes_its_output_has_printed_what_came_before(executor):
    code = "import os\nprint(input(), flush=True)\nos.close(1)"
    assert outputs(executor, code, ("a\n", "b\n")) == ["a\n", "b\n"]


def test_modules_of_a_program_are_loaded_for_each_run(executor):
    files = {"counter.py": "seen = []\n"}
    code = "import counter\ncounter.seen.append(input())\nprint(counter.seen)"
    assert outputs(executor, code, ("a\n", "b\n"), files=files) == ["['a']\n", "['b']\n"]


NONCE = "next(vars(one)['_nonce'] for one in gc.get_objects() if type(one).__name__ == '_Harness')"


@pytest.mark.parametrize(
    "frame",
    [
        '["done"]',
        '["value",1,null]',
        '["value",0,7]',
        '["value",0,{"float":"nan"}]',
        '["value",0,{"float":"inf"}]',
        '["value",0,-0.5]',
        '["value",0,1e300]',
        '["value",0,true]',
        '["value",0,"1"]',
        '["value",0,7.0]["done"]',
        "junk",
    ],
)
@pytest.mark.parametrize("end", ["print(input())", "print(input(), flush=True)\nos._exit(0)"])
def test_a_forged_frame_proves_no_run(executor, frame, end):
    code = (
        f"import gc, os, struct\nnonce, text = {NONCE}, {frame.encode()!r}\n"
        f"os.write(3, nonce + struct.pack('!I', len(text)) + text)\n{end}"
    )
    result = run(executor, Job(code, stdins=("a\n", "b\n")))
    assert (result.outcome, result.results) == (Outcome.CHEATING, ())


def test_a_time_that_an_answer_forged_changes_no_time(executor):
    """The frame that proves a run: only what the worker has measured counts."""
    code = (
        f"import gc, os, struct\nnonce = {NONCE}\n"
        "for text in (b'[\"value\",0,2.5]', b'[\"done\"]'):\n"
        "    os.write(3, nonce + struct.pack('!I', len(text)) + text)\nprint(input(), flush=True)\nos._exit(0)"
    )
    result = run(executor, Job(code, stdins=("a\n", "b\n")))
    assert [one.value for one in result.results] == ["a\n", "b\n"]
    assert 0 < result.cpu_seconds < 2
