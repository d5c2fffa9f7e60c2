"""Programs on several standard inputs: one process where a run leaves nothing behind, else one for each."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest

from greenward.sandbox.isolation import Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Job, Limits, Outcome
from greenward.sandbox.workers import WorkerProcess

TEXTS = ("3\n4\n", "ünï\r\nx\n", "", "last\rline without an end")
WHERE = "import os as _os\nprint(_os.getpid(), end=' ')\n"


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


def count_processes(executor, code, runs=4):
    """In how many processes a program ran, which its own part follows after the process's id."""
    given = outputs(executor, WHERE + code, ("a\n",) * runs)
    return len({one.split()[0] for one in given})


READERS = {
    "input": "try:\n    while True: print(input()[::-1])\nexcept EOFError: print('end')",
    "lines": "import sys\nfor line in sys.stdin: print(repr(line))",
    "read": "import sys\nprint(len(sys.stdin.read()), sys.stdin.read() == '')",
    "bytes": "import sys\nprint(sys.stdin.buffer.read())",
    "some": "import sys\nprint(repr(sys.stdin.readline()))",
    "descriptor": "import os\nprint(os.read(0, 100))",
    "opened": "print(repr(open(0).read()))",
    "replaced": "import io, os, sys\n"
    "sys.stdin = io.StringIO(os.read(0, 100).decode()); input = lambda: sys.stdin.readline().rstrip('\\n')\n"
    "print(input(), input(), sep='|')",
    "fast": "import io, os, sys\n"
    "class Out(io.StringIO):\n    def flush(self): os.write(1, self.getvalue().encode()); self.__init__()\n"
    "sys.stdout = Out()\nprint(sys.stdin.readline().upper())\nsys.stdout.flush()",
    "half read": "import sys\nprint(sys.stdin.buffer.readline(), sys.stdin.buffer.read(1))",
    "peeked": "import sys\nprint(sys.stdin.buffer.peek(2)[:2])",
    "wrapped": "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\n"
    "sys.stdin = io.TextIOWrapper(sys.stdin.buffer, encoding='utf-8')\nprint(sys.stdin.read()[::-1])",
    "configured": "import sys\nsys.stdout.reconfigure(encoding='utf-8', newline='\\r\\n')\n"
    "sys.stdin.reconfigure(encoding='latin-1')\nprint(sys.stdin.read())",
    "patched": "import sys\nwrite = sys.stdout.write\nsys.stdout.write = lambda text: write(f'>{text}')\nprint(1)",
    "errors": "import sys\nprint('seen', file=sys.stderr)\nprint(ascii(sys.stdin.read()), end='')",
    "exit": "import sys\nprint(sys.stdin.read(2), end='')\nsys.exit()",
    "state": "import random\nseen = globals().get('seen', 0) + 1\nprint(seen, random.random(), __name__)",
    "ended": "import sys\nprint(sys.stdin.isatty(), sys.stdin.encoding, sys.stdin.errors, sys.stdout.encoding, "
    "sys.stdout.errors, sys.stderr.errors, sys.stdin.name, sys.stdout.name, sys.stderr.name, "
    "sys.stdout is sys.__stdout__, sys.stdin is sys.__stdin__)",
}


@pytest.mark.parametrize("code", READERS.values(), ids=READERS)
def test_many_runs_print_what_single_runs_print(executor, code):
    single = [outputs(executor, code, (text,))[0] for text in TEXTS]
    assert outputs(executor, code, TEXTS) == single
    assert count_processes(executor, code) == 1


@pytest.mark.parametrize(
    "name",
    [
        "input",
        "lines",
        "read",
        "bytes",
        "some",
        "descriptor",
        "opened",
        "fast",
        "half read",
        "wrapped",
        "configured",
        "patched",
    ],
)
def test_a_run_prints_what_the_interpreter_prints(executor, name):
    def printed(text):
        environment = {"LC_ALL": "C.UTF-8"}
        command = [sys.executable, "-s", "-S", "-c", READERS[name]]
        return subprocess.run(command, input=text.encode(), capture_output=True, env=environment).stdout

    assert [one.encode() for one in outputs(executor, READERS[name], TEXTS)] == list(map(printed, TEXTS))


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
def test_a_run_that_leaves_something_is_the_last_one_in_its_process(executor, code):
    (alone,) = outputs(executor, code, ("a\n",))
    assert outputs(executor, code, ("a\n",) * 3) == [alone] * 3
    assert count_processes(executor, code) == 4


def test_what_a_run_sets_is_set_back(executor):
    code = (
        "import decimal, random, signal, sys\n"
        "print(sys.getrecursionlimit(), decimal.getcontext().prec, random.random(), signal.getitimer(0)[0])\n"
        "sys.setrecursionlimit(4321); decimal.getcontext().prec = 5; random.seed(5); signal.setitimer(0, 9)"
    )
    first, *others = outputs(executor, code, ("",) * 3)
    assert others == [first] * 2
    assert count_processes(executor, code) == 1


def test_what_a_replaced_stream_still_holds_is_lost_as_at_the_end_of_a_process(executor):
    code = "import io, sys\nsys.stdout.write('held back')\nsys.stdout = io.StringIO()\nprint(input())"
    assert outputs(executor, code, ("a\n",) * 3) == [""] * 3


def test_a_run_that_fails_after_others_is_tried_again_in_a_process_of_its_own(executor):
    code = "import json\nassert not hasattr(json, 'seen')\njson.seen = True\nprint(input())"
    assert outputs(executor, code, ("a\n", "b\n", "c\n")) == ["a\n", "b\n", "c\n"]


@pytest.mark.parametrize(
    ("code", "outcome", "error_class"),
    [
        ("x = input()\nwhile x == 'b': pass\nprint(x)", Outcome.TIMEOUT, "CPUTimeLimit"),
        ("import time\nx = input()\nif x == 'b': time.sleep(9)\nprint(x)", Outcome.TIMEOUT, "WallTimeLimit"),
        ("x = input()\nif x == 'b': [0] * 10**9\nprint(x)", Outcome.MEMORY, "MemoryError"),
        ("import os\nx = input()\nif x == 'b': os._exit(0)\nprint(x)", Outcome.EXITED, "Exit"),
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
    """Work that is kept in a module cannot be spread over the easy runs."""
    code = (
        "import json, time\nkind = input()\n"
        "def work(seconds):\n    end = time.process_time() + seconds\n"
        "    while time.process_time() < end: pass\n    json.done = getattr(json, 'done', 0) + seconds\n"
        "work(0.4)\nwhile kind == 'hard' and json.done < 1: work(0.1)\nprint(kind)"
    )
    limits = Limits(cpu_seconds=0.6, wall_seconds=30.0)
    result = run(executor, Job(code, stdins=("easy",) * 3 + ("hard",), limits=limits))
    assert (result.outcome, len(result.results)) == (Outcome.TIMEOUT, 3)


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


def test_memory_of_a_run_is_free_for_the_next_one(executor):
    code = "def f(): return a\ntry:\n    a = bytearray(100 << 20)\n    print(1)\nexcept MemoryError: print(0)"
    limits = Limits(memory_bytes=256 << 20)
    assert outputs(executor, WHERE + code, ("",) * 6, limits=limits)[-1].endswith("1\n")
    assert {one.split()[1] for one in outputs(executor, WHERE + code, ("",) * 6, limits=limits)} == {"1"}


def test_what_becomes_of_the_objects_of_a_run_touches_no_other_run(executor):
    finalizer = "class A:\n    def __del__(self): print('gone', flush=True)\na = A()\na.a = a\nprint(input())"
    writer = "import sys\nout = open(sys.stdout.fileno(), 'w', closefd=False)\nout.write(input())"
    reader = (
        "f = open(0)\nf.me = f\nimport gc\nprint(f.readline(), end='')\ngc.collect()\nprint(f.readline())"
    )
    stream = (
        "import io, os, sys\nclass Out(io.IOBase):\n    text = ''\n"
        "    def write(self, text): self.text += text\n    def flush(self): os.write(1, self.text.encode())\n"
        "sys.stdout = Out()\nprint(input())"
    )
    texts = ("a\nb\n", "c\nd\n", "e\nf\n")
    assert outputs(executor, stream, texts) == ["a\n", "c\n", "e\n"]
    assert outputs(executor, finalizer, texts) == ["a\n", "c\n", "e\n"]
    assert outputs(executor, writer, texts) == [""] * 3
    assert outputs(executor, reader, texts) == ["a\nb\n\n", "c\nd\n\n", "e\nf\n\n"]


def test_a_run_can_open_as_many_files_as_a_run_alone(executor):
    code = "files = [open('/dev/null') for _ in range(220)]\nprint(len(files))"
    assert outputs(executor, WHERE + code, ("",) * 40)[-1].endswith(" 220\n")
    assert count_processes(executor, code) == 1


def test_the_cpu_time_is_that_of_the_longest_run(executor):
    code = (
        "import time\nuntil = time.process_time() + float(input())\nwhile time.process_time() < until: pass\n"
    )
    result = run(executor, Job(code, stdins=("0.1", "0.3", "0.1", "0.2")))
    assert 0.29 < result.cpu_seconds < 0.5


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


@pytest.mark.parametrize("frame", ['["done"]', '["value",1,null]', '["value",0,7]["done"]', "junk"])
def test_a_forged_frame_proves_no_run(executor, frame):
    code = (
        f"import gc, os, struct\nnonce, text = {NONCE}, {frame.encode()!r}\n"
        "os.write(3, nonce + struct.pack('!I', len(text)) + text)\nprint(input())"
    )
    result = run(executor, Job(code, stdins=("a\n", "b\n")))
    assert (result.outcome, result.results) == (Outcome.CHEATING, ())
