"""Test programs in a process of their own, programs that read and print, trusted code, and second tries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.sandbox import workers
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, Outcome, RunResult
from greenward.sandbox.workers import Attempt, WorkerProcess

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


@pytest.mark.parametrize(("most_bytes", "messages"), [(4 << 20, 1), (2 << 16, 2), (1, 4)])
def test_the_texts_of_a_program_come_in_as_few_messages_as_their_size_allows(
    executor, monkeypatch, most_bytes, messages
):
    sent = []
    send = WorkerProcess.send
    monkeypatch.setattr(workers, "_BYTES_AT_ONCE", most_bytes)
    monkeypatch.setattr(WorkerProcess, "send", lambda *given: sent.append(given) or send(*given))
    result = run(executor, Job("print(input() * 2)", stdins=("a\n", "b\n", "c\n", "d\n")))
    assert [one.value for one in result.results] == ["aa\n", "bb\n", "cc\n", "dd\n"]
    assert len(sent) == messages


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
        (timeout(idle_seconds=0.5), True),
        (timeout(idle_seconds=None), True),
        (timeout(idle_seconds=3.9), False),  # a sleeper
        (timeout(idle_seconds=0.5, cpu_seconds=3.4), False),
        (replace(timeout(idle_seconds=0.5), error_class="CPUTimeLimit"), False),
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
            result = timeout(idle_seconds=None)
        return real(attempt, result)

    with pytest.MonkeyPatch.context() as patch, LocalExecutor(2) as two:
        patch.setattr(Attempt, "after_result", starve_once)
        assign = two._assign

        def watched(attempt: Attempt) -> None:
            assign(attempt)
            running.append(attempt)
            if any(one.is_alone for one in two._busy):
                most.append(len(two._busy))

        patch.setattr(two, "_assign", watched)
        sleeper = Job("import time\ntime.sleep(0.05)", limits=LIMITS)
        results = dict(two.run([sleeper, sleeper, Job("pass", limits=LIMITS)]))
    assert [results[index].outcome for index in range(3)] == [Outcome.COMPLETED] * 3
    assert most == [1, 1]
