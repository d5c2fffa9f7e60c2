"""Failures that are ours: told from an answer's by what no answer can reach, and tried again."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import threading
from collections import Counter
from dataclasses import replace

import pytest
from waiting import eventually, is_alive

from greenward.grading.execution import RETRIES
from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.problem import Case, Problem
from greenward.sandbox.inside.linux import children, descendants
from greenward.sandbox.isolation import ALL_LAYERS, CORE_LAYERS
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, CallResult, Job, Limits, Outcome, RunResult

BOTH_LEVELS = pytest.mark.parametrize(
    "layers", [pytest.param(ALL_LAYERS, id="A"), pytest.param(CORE_LAYERS, id="B", marks=pytest.mark.slow)]
)
LIMITS = Limits(cpu_seconds=2.0, wall_seconds=6.0)
GOOD = Job("def f(x): return x + 1", "f", (Call((3,)),), limits=LIMITS)
PROBLEM = Problem("p", "", "f", tests=(Case((3,), 4),))


class Killer:
    """Kills the process that serves jobs, `times` times, while it runs an answer."""

    def __init__(self, executor: LocalExecutor, times: int) -> None:
        self._executor, self.left = executor, times
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        inside = "namespaces" in {layer.value for layer in self._executor.isolation.layers}
        while self.left and not self._stop.wait(0.05):
            for worker in self._executor.worker_pids:
                for server in children(worker) if inside else [worker]:
                    if children(server) and self.left:
                        os.kill(server, signal.SIGKILL)
                        self.left -= 1


SLOW = replace(GOOD, code="import time\ntime.sleep(0.4)\n" + GOOD.code)


@BOTH_LEVELS
def test_an_answer_whose_workers_are_killed_from_outside_is_not_to_blame(layers):
    with LocalExecutor(1, layers=layers) as executor:
        with Killer(executor, 2) as killer:
            ((_, result),) = executor.run([SLOW])
        assert killer.left == 0
        assert (result.outcome, result.error_message) == (
            Outcome.INFRASTRUCTURE,
            "its workers were killed from outside",
        )
        assert [one.outcome for _, one in executor.run([GOOD] * 3)] == [Outcome.COMPLETED] * 3


@pytest.mark.parametrize(
    ("layers", "kills", "status"),
    [
        pytest.param(ALL_LAYERS, 5, Status.PASSED, id="A", marks=pytest.mark.slow),
        pytest.param(CORE_LAYERS, 6, Status.INFRASTRUCTURE, id="B"),
    ],
)
def test_the_grader_tries_such_an_answer_again_twice(layers, kills, status):
    # Each of the three tries takes two losses.
    with LocalExecutor(1, layers=layers) as executor, Grader(LIMITS, executor=executor) as grader:
        with Killer(executor, kills) as killer:
            (verdict,) = grader.grade([(PROBLEM, SLOW.code)])
        assert (killer.left, verdict.status) == (0, status)


class Failing:
    """An executor that fails each program as often as a number in its text says."""

    isolation = None

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def run(self, jobs):
        for index, job in enumerate(jobs):
            self.runs[job.code] += 1
            failed = self.runs[job.code] <= int(job.code)
            outcome = Outcome.INFRASTRUCTURE if failed else Outcome.COMPLETED
            yield index, RunResult(outcome, results=() if failed else (CallResult(True, 4),))

    def close(self) -> None: ...


def test_every_way_of_grading_tries_again_and_keeps_order_and_duplicates():
    codes = ["0", "2", "3", "2", "0", "1"]
    wanted = [Status.PASSED if int(code) <= RETRIES else Status.INFRASTRUCTURE for code in codes]
    for way in ("grade", "submit", "stream", "lazy"):
        executor = Failing()
        with Grader(LIMITS, executor=executor) as grader:
            answers = [(PROBLEM, code) for code in codes]
            if way == "grade":
                verdicts = grader.grade(answers)
            elif way == "submit":
                verdicts = grader.submit(answers).result()
            else:
                pairs = dict(grader.grade_stream(answers if way == "stream" else iter(answers)))
                verdicts = [pairs[index] for index in range(len(codes))]
        assert [one.status for one in verdicts] == wanted
        assert executor.runs == {"0": 1, "1": 2, "2": 3, "3": 3}


@BOTH_LEVELS
def test_a_worker_that_cannot_be_started_again_is_a_verdict_and_no_exception(layers, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with LocalExecutor(2, layers=layers) as executor:
        with monkeypatch.context() as patch:
            patch.setattr("greenward.sandbox.workers.os.makedirs", refuse)
            lost = {process for worker in executor.worker_pids for process in (worker, *descendants(worker))}
            for worker in executor.worker_pids:
                os.kill(worker, signal.SIGKILL)
            assert eventually(lambda: not any(map(is_alive, lost)))  # one that lives on may still answer
            outcomes = [(one.outcome, one.error_message) for _, one in executor.run([GOOD] * 4)]
            assert [outcome for outcome, _ in outcomes] == [Outcome.INFRASTRUCTURE] * 4
            assert all("No space left on device" in message for _, message in outcomes)
        assert [one.outcome for _, one in executor.run([GOOD] * 4)] == [Outcome.COMPLETED] * 4
        assert len(executor.worker_pids) == 2


@BOTH_LEVELS
def test_a_worker_for_trusted_code_that_cannot_be_started_is_a_verdict_and_no_exception(layers, monkeypatch):
    checked = replace(GOOD, calls=(), checks=("assert f(3) == 4",))

    def refuse(*_, **__):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with LocalExecutor(1, layers=layers) as executor:
        with monkeypatch.context() as patch:
            patch.setattr("greenward.sandbox.workers.subprocess.Popen", refuse)
            assert [one.outcome for _, one in executor.run([checked])] == [Outcome.INFRASTRUCTURE]
        assert [one.outcome for _, one in executor.run([checked, GOOD])] == [Outcome.COMPLETED] * 2


def test_a_disk_that_is_full_before_an_answer_begins_is_the_infrastructure(tmp_path, monkeypatch):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "none", tmp_path], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a small disk")
    try:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        write = "open('x', 'wb').write(b'x' * 1000)\n" + GOOD.code
        with LocalExecutor(1, layers=CORE_LAYERS) as executor:
            assert [one.outcome for _, one in executor.run([replace(GOOD, code=write)])] == [
                Outcome.COMPLETED
            ]
            (tmp_path / "others").write_bytes(bytes(39 << 20))
            ((_, result),) = executor.run([replace(GOOD, code=write)])
            assert result.outcome is Outcome.INFRASTRUCTURE and "No space left" in result.error_message
            (tmp_path / "others").unlink()
            assert [one.outcome for _, one in executor.run([replace(GOOD, code=write)])] == [
                Outcome.COMPLETED
            ]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@BOTH_LEVELS
def test_a_long_program_in_little_memory_is_the_answers_fault(layers):
    limits = replace(LIMITS, memory_bytes=65 << 20)
    for letter in ("x", "é", "\U0001f600"):
        code = f"# {letter * ((1 << 20) - 100)}\n" + GOOD.code
        with LocalExecutor(1, layers=layers) as executor:
            ((_, result),) = executor.run([replace(GOOD, code=code, limits=limits)])
        assert result.outcome is not Outcome.INFRASTRUCTURE


@BOTH_LEVELS
def test_an_answer_cannot_make_the_set_up_of_its_tests_the_infrastructures_fault(layers):
    asks = replace(GOOD, calls=(), check_setup="start = f(3)", checks=("assert start == 4",))
    broken = replace(asks, check_setup="start = 1 / 0")
    codes = ["def f(x): raise ValueError", "import os\ndef f(x): os._exit(0)", "import os\nos._exit(0)"]
    with LocalExecutor(1, layers=layers) as executor:
        results = dict(executor.run([asks, broken, *(replace(asks, code=code) for code in codes)]))
    outcomes = [results[index].outcome for index in range(5)]
    assert outcomes[:2] == [Outcome.COMPLETED, Outcome.INFRASTRUCTURE]
    assert outcomes[2:] == [Outcome.EXITED] * 3
