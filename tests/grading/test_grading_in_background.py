from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import CancelledError
from dataclasses import replace

import pytest

from greenward.common.errors import GreenwardError, ProblemError
from greenward.grading import execution
from greenward.grading.execution import RETRIES
from greenward.grading.judge import Grader
from greenward.grading.verdict import Status
from greenward.problems.problem import Assertion, Case, Problem
from greenward.sandbox.protocol import CallResult, Limits, Outcome, RunResult

IDENTITY = Problem("identity", "", "f", tests=(Case((1,), 1),))
RIGHT, WRONG = "def f(x): return x", "def f(x): return -x"
PATIENCE_SECONDS = 20.0  # a test that waits so long fails


def result(value):
    return RunResult(Outcome.COMPLETED, (CallResult(True, value),))


class Scripted:
    """An executor that gives each job the next of `values`, once `gate` is open. One batch at a time."""

    def __init__(self, values=(), gate=None):
        self.values = iter(values)
        self.gate = gate
        self.begun = threading.Event()
        self.left_early = threading.Event()
        self.jobs = []
        self._lock = threading.Lock()

    def run(self, jobs):
        with self._lock:
            try:
                for index, job in enumerate(jobs):
                    self.jobs.append(job)
                    self.begun.set()
                    if self.gate is not None:
                        assert self.gate.wait(PATIENCE_SECONDS)
                    yield index, result(next(self.values, 1))
            except GeneratorExit:
                self.left_early.set()
                raise

    def close(self):
        raise AssertionError("the grader closes only an executor of its own")


def test_what_is_submitted_is_graded_while_the_caller_goes_on():
    gate = threading.Event()
    executor = Scripted([1, 2, 1], gate)
    with Grader(executor=executor) as grader:
        first = grader.submit([(IDENTITY, RIGHT), (IDENTITY, WRONG), (IDENTITY, RIGHT)])
        second = grader.submit([(IDENTITY, RIGHT)])
        assert executor.begun.wait(PATIENCE_SECONDS)
        assert not first.done()
        gate.set()
        assert [verdict.passed for verdict in first.result(PATIENCE_SECONDS)] == [True, False, True]
        assert [verdict.passed for verdict in second.result(PATIENCE_SECONDS)] == [True]
    assert [job.code for job in executor.jobs] == [RIGHT, WRONG, RIGHT]


def test_an_error_reaches_who_waits_for_the_verdicts():
    with Grader(executor=Scripted()) as grader:
        future = grader.submit([(Problem("p", "", "f"), RIGHT)])
        with pytest.raises(ProblemError, match="found none"):
            future.result(PATIENCE_SECONDS)
        assert grader.submit([(IDENTITY, RIGHT)]).result(PATIENCE_SECONDS)[0].passed


def test_closing_ends_what_runs_at_its_next_answer_and_cancels_what_waits():
    gate = threading.Event()
    executor = Scripted([1] * 10, gate)
    grader = Grader(executor=executor)
    running = grader.submit([(IDENTITY, RIGHT + "\n" * n) for n in range(10)])
    waiting = grader.submit([(IDENTITY, RIGHT)])
    assert executor.begun.wait(PATIENCE_SECONDS)
    threading.Timer(0.1, gate.set).start()
    grader.close()
    grader.close()
    assert waiting.cancelled()
    with pytest.raises(CancelledError):
        running.result(PATIENCE_SECONDS)
    assert executor.left_early.is_set()
    assert len(executor.jobs) < 10


def test_closing_waits_for_no_answer_that_runs_and_leaves_the_executor_to_others(grader):
    endless = grader.with_limits(Limits(cpu_seconds=1000.0, wall_seconds=3000.0))
    future = endless.submit([(IDENTITY, "while True: pass")])
    while not future.running():
        time.sleep(0.01)
    time.sleep(0.3)  # the program has begun, most probably
    closing = threading.Thread(target=endless.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    with pytest.raises(CancelledError):
        future.result(0)
    assert grader.submit([(IDENTITY, RIGHT)]).result(PATIENCE_SECONDS)[0].passed


def test_verdicts_come_as_they_are_found_and_the_event_loop_stays_free():
    gate = threading.Event()
    executor = Scripted([1, 5], gate)

    async def collect(grader):
        found = []

        async def read():
            async for index, verdict in grader.grade_stream_async([(IDENTITY, RIGHT), (IDENTITY, WRONG)]):
                found.append((index, verdict.passed))

        reading = asyncio.create_task(read())
        while not executor.begun.is_set():  # the loop turns while the executor is stuck
            await asyncio.sleep(0.001)
        assert not found
        gate.set()
        await asyncio.wait_for(reading, PATIENCE_SECONDS)
        return found

    with Grader(executor=executor) as grader:
        assert asyncio.run(collect(grader)) == [(0, True), (1, False)]


def test_two_streams_and_a_batch_at_once_take_turns(grader):
    async def grade_all():
        async def stream(code):
            return [verdict.passed async for _, verdict in grader.grade_stream_async([(IDENTITY, code)] * 3)]

        both = asyncio.gather(stream(RIGHT), stream(WRONG), grader.grade_async([(IDENTITY, RIGHT)]))
        return await asyncio.wait_for(both, PATIENCE_SECONDS)

    one, other, (verdict,) = asyncio.run(grade_all())
    assert (one, other, verdict.passed) == ([True] * 3, [False] * 3, True)


def test_leaving_a_stream_ends_its_batch():
    executor = Scripted([1] * 100)

    async def take_two(grader):
        answers = ((IDENTITY, RIGHT + "\n" * n) for n in range(100))
        stream = grader.grade_stream_async(answers)
        taken = [await anext_of(stream) for _ in range(2)]
        await stream.aclose()
        return taken

    with Grader(executor=executor) as grader:
        assert [index for index, _ in asyncio.run(take_two(grader))] == [0, 1]
        assert grader.submit([(IDENTITY, RIGHT)]).result(PATIENCE_SECONDS)[0].passed


async def anext_of(stream):
    return await stream.__anext__()


def test_an_error_ends_an_asynchronous_stream():
    async def read(grader):
        return [item async for item in grader.grade_stream_async([(Problem("p", "", "f"), RIGHT)])]

    with Grader(executor=Scripted()) as grader, pytest.raises(ProblemError, match="found none"):
        asyncio.run(read(grader))


def test_several_threads_may_grade_at_once(grader):
    verdicts = {}

    def work(code):
        verdicts[code] = [verdict.passed for verdict in grader.grade([(IDENTITY, code)] * 4)]

    threads = [threading.Thread(target=work, args=(code,)) for code in (RIGHT, WRONG, RIGHT + "\n")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert verdicts == {RIGHT: [True] * 4, WRONG: [False] * 4, RIGHT + "\n": [True] * 4}


def test_answers_that_differ_from_run_to_run_are_named(grader):
    problem = Problem("p", "", "f", tests=(Case((0,), 0), Case((1,), 1)))
    by_the_clock = "import time\nT = time.time_ns() // 10\ndef f(x): return x + T % 2 * x"
    seeded = "import random\ndef f(x): return x + int(random.random() * 2) * x"
    found = grader.flaky([(problem, RIGHT), (problem, by_the_clock), (problem, seeded), (problem, None)], 24)
    assert [flaky.index for flaky in found] == [1]
    assert {verdict.tests_passed for verdict in found[0].verdicts} == {(True, True), (True, False)}
    assert len(found[0].verdicts) == 24


def test_a_failing_infrastructure_makes_no_answer_flaky():
    class Unreliable(Scripted):
        def run(self, jobs):
            for index, one in super().run(jobs):
                is_lost = index == 1 or len(self.jobs) > 3  # and so are the tries that follow
                yield index, RunResult(Outcome.INFRASTRUCTURE) if is_lost else one

    executor = Unreliable([1, 1, 1])
    with Grader(Limits(), executor=executor) as grader:
        assert grader.flaky([(IDENTITY, RIGHT)], 3) == []
        assert len(executor.jobs) == 3 + RETRIES
        with pytest.raises(GreenwardError, match="at least two runs"):
            grader.flaky([(IDENTITY, RIGHT)], 1)


def test_expected_values_are_computed_between_batches_as_a_stream_needs_them():
    tests = [Problem(str(n), "", "f", tests=(Assertion(f"assert f(1) == int('{n}')"),)) for n in range(3)]
    executor = Scripted()

    def answer_with_one(jobs):
        for index, job in enumerate(jobs):
            executor.jobs.append(job)
            yield index, result(1)

    executor.run = answer_with_one
    answers = [(tests[0], RIGHT), (IDENTITY, RIGHT), (tests[1], RIGHT), (tests[0], RIGHT), (tests[2], RIGHT)]
    with Grader(executor=executor) as grader:
        streamed = dict(grader.grade_stream(iter(answers)))
        assert [job.trusted for job in executor.jobs] == [True, False, False, True, False, True, False]
        executor.jobs.clear()
        assert [verdict.status for verdict in grader.grade(answers)] == [Status.PASSED] * 5
        assert {index: verdict.passed for index, verdict in streamed.items()} == dict.fromkeys(range(5), True)
    executor.jobs.clear()
    with Grader(executor=executor) as grader:
        grader.grade(answers)
        assert [job.trusted for job in executor.jobs] == [True, True, True] + [False] * 4


def test_answers_submitted_one_by_one_keep_all_workers_busy():
    """With a run for each submission, the second of two workers would wait for the first."""
    gate = threading.Event()

    class TwoAtOnce(Scripted):
        def run(self, jobs):
            assert self.gate.wait(PATIENCE_SECONDS)
            jobs = enumerate(jobs)
            pair = [next(jobs), next(jobs)]  # each of which a worker takes before it waits for a result
            yield from ((index, result(1)) for index, _ in [*pair, *jobs])

    with Grader(executor=TwoAtOnce(gate=gate)) as grader:
        futures = [grader.submit([(IDENTITY, RIGHT + "\n" * n)]) for n in range(2)]
        gate.set()
        assert [one.result(PATIENCE_SECONDS)[0].passed for one in futures] == [True, True]


def test_a_long_submission_is_planned_at_once_and_begins_with_what_takes_long():
    tests = [Problem(str(n), "", "f", tests=(Assertion(f"assert f(1) == int('{n}')"),)) for n in range(3)]
    quick, slow = (replace(IDENTITY, task_id=name, cpu_seconds=n) for n, name in enumerate(("quick", "slow")))
    gate, executor = threading.Event(), Scripted()

    def answer_with_one(jobs):
        assert gate.wait(PATIENCE_SECONDS)
        for index, job in enumerate(jobs):
            executor.jobs.append(job)
            yield index, result(1)

    executor.run = answer_with_one
    with Grader(executor=executor) as grader:
        grader.submit([])
        first = grader.submit([(quick, RIGHT), (slow, WRONG)])
        second = grader.submit([(one, RIGHT) for one in tests])
        gate.set()
        assert len(first.result(PATIENCE_SECONDS)) == 2
        assert [one.status for one in second.result(PATIENCE_SECONDS)] == [Status.PASSED] * 3
    assert [job.code for job in executor.jobs[:2]] == [WRONG, RIGHT]
    assert [job.trusted for job in executor.jobs] == [False] * 2 + [True] * 3 + [False] * 3


def test_streams_are_bounded_and_nothing_submitted_is_forgotten(monkeypatch):
    monkeypatch.setattr(execution, "MOST_SUBMITTED", 3)
    gate, streams = threading.Event(), []

    class Counted(Scripted):
        def run(self, jobs):
            streams.append(0)
            for found in super().run(jobs):
                streams[-1] += 1
                yield found

    with Grader(executor=Counted(gate=gate)) as grader:
        futures = [grader.submit([(IDENTITY, RIGHT), (IDENTITY, WRONG)]) for _ in range(10)]
        gate.set()
        assert [len(one.result(PATIENCE_SECONDS)) for one in futures] == [2] * 10
    assert sum(streams) == 20
    assert max(streams) <= 4  # the last submission of a stream is graded whole


def test_an_error_of_one_submission_leaves_the_others_their_verdicts():
    gate = threading.Event()
    with Grader(executor=Scripted(gate=gate)) as grader:
        first = grader.submit([(IDENTITY, RIGHT)])
        broken = grader.submit([(IDENTITY, RIGHT), (Problem("p", "", "f"), RIGHT)])
        last = grader.submit([(IDENTITY, RIGHT)] * 2)
        gate.set()
        with pytest.raises(ProblemError, match="found none"):
            broken.result(PATIENCE_SECONDS)
        assert first.result(PATIENCE_SECONDS)[0].passed
        assert [verdict.passed for verdict in last.result(PATIENCE_SECONDS)] == [True, True]
