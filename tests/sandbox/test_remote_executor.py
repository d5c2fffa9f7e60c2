"""The distribution of jobs on hosts that die, hang, talk nonsense or differ."""

from __future__ import annotations

import threading
import time
from itertools import count

import pytest
from executor_contract import are_right, successors

from greenward.common.errors import SandboxError
from greenward.sandbox import remote
from greenward.sandbox.isolation import ALL_LAYERS, PORTABLE_LAYERS, Isolation, Layer, Level
from greenward.sandbox.protocol import Call, CallResult, Job, Outcome, RunResult
from greenward.sandbox.workers import WorkerLost

A = Isolation(tuple(layer for layer in Layer if layer in ALL_LAYERS), {})
C = Isolation(tuple(layer for layer in Layer if layer in PORTABLE_LAYERS), {"seccomp": "old kernel"})


class Made(remote.Host):
    """A host that computes the results of `successors` itself; `fault(n)` acts at the n-th call with jobs."""

    def __init__(self, name="host", fault=lambda number: None, isolation=A, seconds=0.0) -> None:
        super().__init__(name)
        self.fault, self.isolation, self.seconds = fault, isolation, seconds
        self.lock, self.numbers = threading.Lock(), count()
        self.jobs = self.now = self.most = 0
        self.dead = self.closed = False

    def call(self, request, seconds):
        jobs = remote.read_request(request)
        with self.lock:
            number = next(self.numbers) if jobs else None
            self.now += bool(jobs)
            self.most = max(self.most, self.now)
        try:
            time.sleep(self.seconds if jobs else 0)
            if number is not None and (reply := self.fault(number)) is not None:
                return reply
            if self.dead:
                raise WorkerLost("it is dead")
            self.jobs += len(jobs)
            results = [
                RunResult(Outcome.COMPLETED, (CallResult(True, int(job.code.rsplit(" ", 1)[1]) + 3),))
                for job in jobs
            ]
            return remote.write_reply(remote.Reply(self.isolation, 1, results))
        finally:
            with self.lock:
                self.now -= bool(jobs)

    def close(self):
        self.closed = True

    def die(self, _number=0):
        self.dead = True


@pytest.fixture(autouse=True)
def hurry(monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(remote, "POLL_SECONDS", 0.02)


def test_all_hosts_share_the_jobs_and_each_job_comes_back_once():
    hosts = [Made(seconds=0.002) for _ in range(3)]
    with remote.RemoteExecutor(hosts, jobs_per_call=8) as executor:
        assert are_right(executor.run(successors(500)), 500)
        assert are_right(executor.run(iter(successors(5))), 5)
        assert list(executor.run([])) == []
    assert all(host.jobs > 50 for host in hosts)
    assert all(host.closed for host in hosts)


@pytest.mark.parametrize(
    "nonsense", [[], "hello", {"error": 3}, {"results": []}, {"version": remote.version()}]
)
def test_jobs_of_a_host_that_dies_or_talks_nonsense_run_elsewhere(nonsense):
    dying, mad, sound = (
        Made("dying"),
        Made("mad", lambda number: nonsense if number > 1 else None),
        Made("sound"),
    )
    dying.fault = lambda number: dying.die() if number == 3 else None
    with remote.RemoteExecutor([dying, mad, sound], jobs_per_call=4) as executor:
        assert are_right(executor.run(successors(200)), 200)


def test_results_that_are_too_few_do_not_count():
    short = Made("short", lambda number: remote.write_reply(remote.Reply(A, 1, ())))
    with remote.RemoteExecutor([short, Made()], jobs_per_call=4) as executor:
        assert are_right(executor.run(successors(50)), 50)


def test_a_job_that_loses_every_host_is_infrastructure():
    hosts = [Made(fault=lambda number: {"version": remote.version()}) for _ in range(4)]
    with remote.RemoteExecutor(hosts) as executor:
        ((_, result),) = executor.run(successors(1))
    assert result.outcome is Outcome.INFRASTRUCTURE
    assert sum(next(host.numbers) for host in hosts) == remote.MAX_LOSSES


def test_when_no_host_is_left_the_rest_is_infrastructure_in_bounded_time():
    host = Made()
    host.fault = lambda number: host.die() if number == 2 else None
    with remote.RemoteExecutor([host], jobs_per_call=4, calls_per_host=1) as executor:
        results = dict(executor.run(successors(40)))
    outcomes = [results[index].outcome for index in range(40)]
    assert outcomes == [Outcome.COMPLETED] * 8 + [Outcome.INFRASTRUCTURE] * 32


def test_a_host_that_comes_back_is_used_again(monkeypatch):
    monkeypatch.setattr(remote, "PATIENCE_SECONDS", 30.0)
    host = Made()
    host.fault = lambda number: host.die() if number == 2 else None
    with remote.RemoteExecutor([host], jobs_per_call=4, calls_per_host=1) as executor:
        threading.Timer(0.6, setattr, (host, "dead", False)).start()
        assert are_right(executor.run(successors(40)), 40)


def test_no_more_jobs_are_taken_than_the_hosts_have_room_for():
    hosts = [Made(seconds=0.02) for _ in range(2)]
    taken = []

    def stream():
        for job in successors(300):
            taken.append(job)
            yield job

    with remote.RemoteExecutor(hosts, jobs_per_call=5, calls_per_host=2) as executor:
        returned, most = 0, 0
        for _ in executor.run(stream()):
            most = max(most, len(taken) - returned)
            returned += 1
    assert returned == 300
    assert most <= 2 * 2 * 5 * 2  # with the hosts, and as many that wait
    assert all(host.most <= 2 for host in hosts)


def test_jobs_that_come_slowly_are_not_kept_back():
    def slowly():
        for job in successors(3):
            time.sleep(0.1)
            yield job

    with remote.RemoteExecutor([Made()]) as executor:
        first = next(run := executor.run(slowly()))
        assert first[0] == 0
        assert len(list(run)) == 2


def test_what_an_early_leaver_left_does_not_come_back_to_the_next():
    with remote.RemoteExecutor([Made(seconds=0.05)], jobs_per_call=2) as executor:
        next(iter(run := executor.run(successors(20))))
        run.close()
        assert are_right(executor.run(successors(10)), 10)


def test_several_threads_may_run_jobs_at_the_same_time():
    with remote.RemoteExecutor([Made(seconds=0.001), Made(seconds=0.001)], jobs_per_call=3) as executor:
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(are_right(executor.run(successors(100)), 100)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 4


def test_a_silent_host_is_named_and_others_do_without_it():
    silent = Made("silent")
    silent.dead = True
    with pytest.warns(UserWarning, match="silent: it is dead"):
        executor = remote.RemoteExecutor([silent, Made()])
    with executor:
        assert are_right(executor.run(successors(30)), 30)
    with pytest.raises(SandboxError, match=r"no host.*silent: it is dead"):
        remote.RemoteExecutor([silent])


def test_isolation_is_what_all_hosts_have_and_too_little_is_refused():
    with pytest.raises(SandboxError, match=r"weak: answers need isolation of level B.*old kernel"):
        remote.RemoteExecutor([Made(), Made("weak", isolation=C)])
    with remote.RemoteExecutor([Made(), Made(isolation=C)], require=Level.C) as executor:
        assert executor.isolation.level is Level.C
        assert executor.isolation.reason(Layer.SECCOMP) == "old kernel"


def test_another_version_is_refused(monkeypatch):
    other = remote.write_reply(remote.Reply(A, 1, ())) | {"version": "0.0.1+abc"}
    host = Made()
    host.call = lambda request, seconds: other  # type: ignore[method-assign]
    with pytest.raises(SandboxError, match=r"other side 0\.0\.1\+abc"):
        remote.RemoteExecutor([host])
    assert remote.version().startswith("0.")


def test_inputs_that_are_not_plain_data_are_the_callers_error():
    with remote.RemoteExecutor([Made()]) as executor, pytest.raises(SandboxError, match="plain data"):
        list(executor.run([Job("", "f", (Call((object(),)),))]))


def test_the_same_request_is_not_made_of_jobs_whose_results_are_too_large_together():
    sizes = []
    host = Made()
    call = host.call
    host.call = lambda request, seconds: sizes.append(len(request["jobs"])) or call(request, seconds)  # type: ignore
    jobs = [Job(job.code, "f", job.calls, result_bytes=100 << 20) for job in successors(8)]
    with remote.RemoteExecutor([host], calls_per_host=1) as executor:
        assert are_right(executor.run(jobs), 8)
    assert max(sizes) == 2
