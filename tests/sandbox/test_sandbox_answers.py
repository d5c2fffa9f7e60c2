"""What one job gives, for honest, tricky and hostile answers. Every program here is bounded by itself."""

from __future__ import annotations

import json
import os
import traceback
from textwrap import dedent

import pytest

from greenward.sandbox.protocol import Call, Limits, Outcome

TINY = Limits(cpu_seconds=0.3, wall_seconds=1.0, memory_bytes=256 << 20)
GOOD = "def f(x): return x + 1\n"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("def f(x:", Outcome.SYNTAX_ERROR),
        ("def f(x): return x\0", Outcome.SYNTAX_ERROR),
        ("(" * 5000, Outcome.SYNTAX_ERROR),
        ("1 / 0", Outcome.LOAD_ERROR),
        ("raise KeyboardInterrupt", Outcome.LOAD_ERROR),
        ("g = 1", Outcome.NO_ENTRY_POINT),
        ("f = 3", Outcome.NO_ENTRY_POINT),
        ("import sys; sys.exit(0)", Outcome.EXITED),
        ("import os; os._exit(0)", Outcome.EXITED),
        ("def f(x): exit()", Outcome.EXITED),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", Outcome.EXITED),
        ("import os; os.abort()", Outcome.EXITED),
        ("import ctypes; ctypes.string_at(0)", Outcome.EXITED),
        ("class E(SystemExit):\n    code = property(lambda s: 1 / 0)\nraise E", Outcome.EXITED),
        ("while True: pass", Outcome.TIMEOUT),
        ("import time; time.sleep(30)", Outcome.TIMEOUT),
        ("import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass", Outcome.TIMEOUT),
        ("while True:\n    try:\n        while True: pass\n    except: pass", Outcome.TIMEOUT),
        ("x = 'a' * (3 << 30)", Outcome.MEMORY),
        ("while True: print('x' * 100000)", Outcome.OUTPUT_LIMIT),
        ("import os\nfor n in range(3, 64):\n    try: os.write(n, b'[\"done\"]')\n    except OSError: pass\n" + GOOD, Outcome.CHEATING),
    ],
)  # fmt: skip
def test_answers_that_end_otherwise_are_told_apart(run, code, outcome):
    assert run(code, limits=TINY).outcome is outcome


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess\ndef f(x): return int(subprocess.run(['echo', str(x)], capture_output=True).stdout) + 1",
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\ndef f(x): return x + 1",
    ],
)  # fmt: skip
def test_answers_may_start_processes_only_where_no_layer_forbids_it(run, run_barely_protected, code):
    allowed = run_barely_protected(code)
    assert [one.value for one in allowed.results] == [4]
    refused = run(code)
    classes = {refused.error_class, *(one.error_class for one in refused.results)}
    assert "PermissionError" in classes


def test_a_fork_bomb_is_stopped_where_processes_may_be_started(run_barely_protected):
    bomb = "import os\nfor _ in range(2000): os.fork()"
    assert run_barely_protected(bomb, limits=TINY).outcome is Outcome.CHEATING


def test_an_exception_is_reported_per_call_with_a_bounded_message(run):
    code = "def f(x):\n    if x == 1: raise ValueError('m' * 10**6)\n    return x"
    result = run(code, calls=tuple(Call((x,)) for x in (0, 1, 2)))
    assert result.outcome is Outcome.COMPLETED
    assert [one.value for one in result.results] == [0, None, 2]
    assert result.results[1].error_class == "ValueError"
    assert len(result.results[1].error_message) == 500


def test_an_exception_that_lies_about_itself_is_only_an_exception(run):
    code = dedent(
        """
        class E(Exception):
            def __str__(self): raise RuntimeError
        def f(x): raise E
        """
    )
    (result,) = run(code).results
    assert (result.returned, result.error_class) == (False, "E")


@pytest.mark.parametrize(
    "returned",
    [
        "type('Any', (), {'__eq__': lambda s, o: True})()",
        "__import__('unittest.mock').mock.ANY",
        "(i for i in [4])",
    ],
)
def test_objects_that_are_not_plain_data_are_marked(run, returned):
    (result,) = run(f"def f(x): return {returned}").results
    assert result.returned and not result.plain and result.value is None


def test_what_was_reached_before_a_timeout_is_kept(run):
    result = run("def f(x):\n    while x: pass\n    return x", calls=(Call((0,)), Call((1,))), limits=TINY)
    assert result.outcome is Outcome.TIMEOUT
    assert [one.value for one in result.results] == [0]


def test_calls_do_not_share_their_arguments(run):
    shared = [1]
    result = run("def f(x): x.append(1); return len(x)", calls=(Call((shared,)), Call((shared,))))
    assert [one.value for one in result.results] == [2, 2]
    assert shared == [1]


def test_setup_code_runs_after_the_answer_and_expressions_after_the_calls(run):
    result = run(
        "class Node:\n    v = 5\ndef f(x): return x.v",
        calls=(),
        expressions=("f(root)", "{f(root), 1}"),
        setup_code="root = Node()",
    )
    assert result.results[0].value == 5
    assert sorted(result.results[1].value.elements) == [1, 5]


def test_a_program_runs_as_main_to_its_end(run):
    code = """
        import atexit, threading, sys
        atexit.register(lambda: print("c"))
        threading.Thread(target=lambda: (threading.main_thread().join(), print("b"))).start()
        if __name__ == "__main__": print("a")
        sys.exit(0)
    """
    result = run(dedent(code), entry_point=None, calls=())
    assert (result.outcome, result.stdout) == (Outcome.COMPLETED, "a\nb\nc\n")


def test_the_traceback_of_a_program_shows_its_own_lines_only(run):
    result = run("x = 1\nraise ValueError('no')", entry_point=None, calls=())
    assert result.outcome is Outcome.LOAD_ERROR
    assert '"<answer>", line 2' in result.stderr
    assert "harness" not in result.stderr


def test_output_is_kept_up_to_its_bound_and_the_rest_dropped(run):
    limits = Limits(cpu_seconds=2, wall_seconds=5, output_bytes=1000)
    result = run("print('y' * 300_000)\n" + GOOD, limits=limits)
    assert result.outcome is Outcome.COMPLETED
    assert result.stdout == "y" * 1000


def test_an_answer_finds_nothing_of_the_parent(run):
    code = dedent(
        """
        import json, os, sys
        def is_open(number):
            try:
                return bool(os.fstat(number))
            except OSError:
                return False
        def f(x):
            return json.dumps({
                "environment": sorted(os.environ),
                "descriptors": [number for number in range(256) if is_open(number)],
                "ours": [n for n in sys.modules if "greenward" in n or "torch" in n],
                "path": [p for p in sys.path if "site-packages" in p or "src" in p],
                "files": os.listdir("."),
                "arguments": sys.argv,
            })
        """
    )
    found = json.loads(run(code).results[0].value)
    python = {"PYTHONHASHSEED", "PYTHONINTMAXSTRDIGITS"}
    assert set(found["environment"]) == {"HOME", "LC_ALL", "TMPDIR", "TZ"} | python
    assert found["descriptors"] == [0, 1, 2, 3]
    assert (found["ours"], found["path"], found["files"]) == ([], [], [])
    assert found["arguments"] == ["answer.py"]


def test_the_folder_of_an_answer_is_empty_for_the_next_however_it_was_left(run):
    mess = dedent(
        """
        import os
        for _ in range(1500):
            os.mkdir("d"); os.symlink("/etc", "d/link"); os.chdir("d")
        open("file", "w").write("x"); os.chmod(".", 0)
        def f(x): return 4
        """
    )
    assert run(mess).outcome is Outcome.COMPLETED
    assert run("import os\ndef f(x): return os.listdir('.')").results[0].value == []
    assert os.path.isdir("/etc")


def test_file_size_is_limited(run):
    limits = Limits(cpu_seconds=2, wall_seconds=5, file_bytes=1000)
    code = "def f(x):\n    with open('big', 'wb', buffering=0) as file: return file.write(b'x' * 5000)"
    assert run(code, limits=limits).results[0].value == 1000


RAISING = {
    "at a call": "def f(x):\n    y = 1\n    return x / 0\n",
    "in a helper": "def g(x):\n    return [][x]\n\ndef f(x):\n    return g(x)\n",
    "in the library": "import json\ndef f(x):\n    return json.loads('{')\n",
    "chained": "def f(x):\n    try:\n        1 / 0\n    except ZeroDivisionError as error:\n        raise KeyError from error\n",
    "without end": "def f(x):\n    return f(x)\n",
    "while loading": "import re\nx = 3\nre.compile('(')\n",
}  # fmt: skip


@pytest.mark.parametrize("code", RAISING.values(), ids=RAISING)
def test_a_traceback_names_the_places_that_cpython_names(run, code):
    namespace: dict[str, object] = {}
    try:
        exec(compile(code, "<answer>", "exec"), namespace)
        namespace["f"](3)
    except BaseException as error:
        places = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__][-10:]
    expected = [f'  File "{os.path.basename(p.filename)}", line {p.lineno}, in {p.name}' for p in places]
    result = run(code)
    found = result.results[0].traceback if result.results else result.traceback
    if code == RAISING["without end"]:  # the last place depends on how deep the stack was before
        assert len(found.splitlines()) == 10 and set(found.splitlines()) == {expected[0]}
    else:
        assert found.splitlines() == expected


def test_a_traceback_says_nothing_that_is_not_bounded_text(run):
    code = """
        class Name(str):
            def __ne__(self, other): raise SystemExit
            __eq__ = rpartition = __ne__
        def f(x):
            def g(): raise ValueError
            g.__code__ = g.__code__.replace(co_filename=Name("\\x1b[31m" * 5000), co_name="n" * 5000)
            g()
    """
    (result,) = run(dedent(code)).results
    assert result.error_class == "ValueError"
    assert len(result.traceback) < 2000 and len(result.traceback.splitlines()) == 2
