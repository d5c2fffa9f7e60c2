"""Test programs in a process of their own, programs that read and print, trusted code, and second tries."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest

from greenward.sandbox.attempts import Attempt
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, Outcome, RunResult

LIMITS = Limits(cpu_seconds=1.0, wall_seconds=3.0, memory_bytes=256 << 20)
ADD = "def add(a, b): return a + b"


@pytest.fixture(scope="module")
def executor():
    with LocalExecutor(1) as executor:
        yield executor


def run(executor: LocalExecutor, job: Job) -> RunResult:
    ((_, result),) = executor.run([replace(job, limits=LIMITS)])
    return result


def check(executor: LocalExecutor, code: str, *checks: str, setup: str = "", entry: str = "add") -> RunResult:
    return run(executor, Job(code, entry, checks=checks, check_setup=setup))


def classes(result: RunResult) -> list[str | None]:
    return [one.error_class for one in result.results]


def test_test_programs_call_the_answer_and_share_one_namespace(executor):
    result = check(
        executor,
        ADD,
        "total = add(1, 2)\nassert total == 3",
        "assert add(total, b=1) == 4",
        "assert add(1, 1) == 3",
        "assert add('a', 'b') == 'ab'",
        setup="import math",
    )
    assert result.outcome is Outcome.COMPLETED
    assert classes(result) == [None, None, "AssertionError", None]


@pytest.mark.parametrize(
    "value",
    [
        "(1, [2, {3}])",
        "{'a': {1, 2}, (1, 2): None}",
        "1e400",
        "10 ** 5000",
        "b'x'",
        "frozenset([1])",
        "1 + 2j",
    ],
)
def test_values_of_any_plain_type_cross_both_ways(executor, value):
    assert classes(check(executor, "def add(x): return x", f"assert add({value}) == {value}")) == [None]


@pytest.mark.parametrize(
    ("raised", "caught"),
    [
        ("ValueError('no')", "ValueError"),
        ("KeyError(1)", "LookupError"),
        ("ZeroDivisionError", "ArithmeticError"),
        ("UnicodeDecodeError('utf-8', b'', 0, 1, 'x')", "Exception"),
        ("type('Mine', (Exception,), {})()", "Exception"),
    ],
)
def test_a_test_catches_what_the_answer_raises(executor, raised, caught):
    test = f"try:\n    add(1)\nexcept {caught}:\n    pass\nelse:\n    assert False"
    assert classes(check(executor, f"def add(x): raise {raised}", test)) == [None]


@pytest.mark.parametrize(
    "raised", ["KeyboardInterrupt", "GeneratorExit", "type('int', (BaseException,), {})()"]
)
def test_what_is_no_exception_reaches_a_test_as_an_error_only(executor, raised):
    result = check(executor, f"def add(x): raise {raised}", "add(1)")
    assert classes(result) == ["AnswerError"]


ANSWERS_THAT_PASS_NO_TEST = {
    "equal to everything": "class E:\n    def __eq__(s, o): return True\ndef add(a, b): return E()",
    "lying integer": "class I(int):\n    def __eq__(s, o): return True\n    __hash__ = int.__hash__\ndef add(a, b): return I(7)",
    "early exit": "import os\ndef add(a, b): os._exit(0)",
    "clean exit": "import sys\ndef add(a, b): sys.exit(0)",
    "exit on load": "import os\nos._exit(0)",
    "frames": dedent(
        """
        import sys
        def add(a, b):
            frame = sys._getframe()
            while frame:
                for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
                    if isinstance(value, (list, tuple)) and "add(1" + ", 2)" in repr(value)[:10000]:
                        return 3
                frame = frame.f_back
        """
    ),
    "garbage for a reply": "import os\ndef add(a, b):\n    os.write(4, b'\\x00\\x00\\x00\\x10' + b'x' * 16)\n    return 0",
    "a reply before the call": "import os\nos.write(4, b'\\x00\\x00\\x00\\x0b[\"value\",9]')\ndef add(a, b): return 0",
    "a reply without end": "import os\ndef add(a, b):\n    os.write(4, b'\\xff\\xff\\xff\\xff')\n    return 0",
    "closing the line": "import os\ndef add(a, b):\n    os.close(4)\n    return 0",
    "never a reply": "def add(a, b):\n    while True: pass",
    "colliding set": "def add(a, b): return {i * (2 ** 61 - 1) for i in range(20000)}",
}  # fmt: skip


@pytest.mark.parametrize("code", ANSWERS_THAT_PASS_NO_TEST.values(), ids=ANSWERS_THAT_PASS_NO_TEST)
def test_no_answer_passes_a_test_program_but_by_right_values(executor, code):
    result = check(executor, code, "assert add(1, 2) == 3")
    assert result.outcome is not Outcome.INFRASTRUCTURE
    assert result.outcome is not Outcome.COMPLETED or classes(result) != [None]
    assert classes(check(executor, ADD, "assert add(1, 2) == 3")) == [None]


def test_the_answer_sees_neither_test_programs_nor_expected_values(executor):
    spy = dedent(
        """
        import gc, sys
        def add(a, b):
            needle = "".join(("SEC", "RET"))
            found = sum(needle in repr(o)[:100000] for o in gc.get_objects() if isinstance(o, (list, tuple, dict)))
            frame = sys._getframe().f_back
            while frame:
                found += sum(needle in str(v) for v in frame.f_locals.values() if isinstance(v, (str, bytes)))
                frame = frame.f_back
            return found
        """
    )
    result = check(executor, spy, "assert add(1, 2) == 0  # SECRET", setup="SECRET = 1")
    assert classes(result) == [None]


def test_setup_of_test_programs_that_fails_is_the_infrastructures_failure(executor):
    result = check(executor, ADD, "assert add(1, 2) == 3", setup="import nonesuch")
    assert result.outcome is Outcome.INFRASTRUCTURE
    assert "setup of the test programs" in result.error_message


def test_results_of_calls_expressions_and_checks_come_in_that_order(executor):
    job = Job(ADD, "add", (Call((1, 2)),), expressions=("add(2, 3)",), checks=("assert add(3, 4) == 7",))
    result = run(executor, job)
    assert [one.value for one in result.results] == [3, 5, None]


def test_a_program_is_run_afresh_for_each_text_of_standard_input(executor):
    code = (
        "import os, sys\nprint(os.path.exists('left'), sys.stdin.read().upper(), end='')\nopen('left', 'w')"
    )
    result = run(executor, Job(code, stdins=("a\n", "ünï\n", "")))
    assert result.outcome is Outcome.COMPLETED
    assert [one.value for one in result.results] == ["False A\n", "False ÜNÏ\n", "False "]


def test_after_a_run_that_failed_no_further_text_is_tried(executor):
    result = run(executor, Job("print(1 / int(input()))", stdins=("1", "0", "1")))
    assert (result.outcome, result.error_class) == (Outcome.LOAD_ERROR, "ZeroDivisionError")
    assert [one.value for one in result.results] == ["1.0\n"]


def test_trusted_code_runs_where_no_answer_has_been(executor):
    first = run(executor, Job("import os\ndef f(): return os.getppid()", "f", expressions=("f()",)))
    before = set(executor.worker_pids)
    trusted = run(executor, Job("", expressions=("1 + 1",), trusted=True))
    assert [one.value for one in trusted.results] == [2]
    assert first.outcome is Outcome.COMPLETED
    assert len(executor.worker_pids) == 2
    assert before <= set(executor.worker_pids)


def timeout(**fields) -> RunResult:
    return RunResult(Outcome.TIMEOUT, error_class="WallTimeLimit", wall_seconds=4.0, **fields)


@pytest.mark.parametrize(
    ("result", "again"),
    [
        (timeout(waiting_seconds=2.0), True),
        (timeout(waiting_seconds=None), True),
        (timeout(waiting_seconds=0.01), False),  # a sleeper
        (replace(timeout(waiting_seconds=2.0), error_class="CPUTimeLimit"), False),
    ],
)
def test_only_an_answer_that_waited_for_a_processor_runs_again_and_alone(result, again):
    attempt = Attempt(7, Job("pass"))
    follows = attempt.after_result(result)
    assert isinstance(follows, Attempt) is again
    if isinstance(follows, Attempt):
        assert follows.alone and follows.nonce != attempt.nonce
        assert follows.after_result(result) is result


def test_an_attempt_that_must_run_alone_does(executor):
    """Two sleepers whose first try was starved: each second try starts when nothing else runs."""
    real, running, most = Attempt.after_result, [], []

    def starve_once(attempt: Attempt, result: RunResult) -> RunResult | Attempt:
        if not attempt.alone and attempt.job.code.startswith("import time"):
            result = timeout(waiting_seconds=None)
        return real(attempt, result)

    with pytest.MonkeyPatch.context() as patch, LocalExecutor(2) as two:
        patch.setattr(Attempt, "after_result", starve_once)
        assign = two._assign

        def watched(attempt: Attempt) -> None:
            assign(attempt)
            running.append(attempt)
            if any(one.alone for one in two._busy.values()):
                most.append(len(two._busy))

        patch.setattr(two, "_assign", watched)
        sleeper = Job("import time\ntime.sleep(0.05)", limits=LIMITS)
        results = dict(two.run([sleeper, sleeper, Job("pass", limits=LIMITS)]))
    assert [results[index].outcome for index in range(3)] == [Outcome.COMPLETED] * 3
    assert most == [1, 1]
