"""The pool: order, back-pressure, lost workers, and nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from textwrap import dedent

import pytest
from waiting import eventually, is_alive

from greenward.common.errors import SandboxError
from greenward.sandbox import workers
from greenward.sandbox.inside.linux import children, descendants
from greenward.sandbox.isolation import ALL_LAYERS, PORTABLE_LAYERS, Layer, Level
from greenward.sandbox.pool import LocalExecutor, usual_workers
from greenward.sandbox.protocol import Call, Job, Limits, Outcome

LIMITS = Limits(cpu_seconds=1.0, wall_seconds=1.0, memory_bytes=256 << 20)


def barely_protected(workers: int) -> LocalExecutor:
    """A pool whose answers can reach their worker: what holds then is the pool itself."""
    with pytest.warns(UserWarning, match="isolation level C"):
        return LocalExecutor(workers, require=Level.C, layers=PORTABLE_LAYERS)


def job(code: str, limits: Limits = LIMITS) -> Job:
    return Job(code, "f", (Call((3,)),), limits=limits)


GOOD = job("def f(x): return x")


@pytest.mark.parametrize(("cores", "workers"), [(1, 2), (2, 3), (7, 8), (64, 32)])
def test_a_pool_has_one_worker_more_than_the_machine_has_cores(monkeypatch, cores, workers):
    monkeypatch.setattr("greenward.sandbox.pool.usable_cores", lambda: cores)
    assert usual_workers() == workers
    if workers < 4:
        with LocalExecutor(require=Level.D) as executor:
            assert len(executor.worker_pids) == workers


def our_folders() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("greenward-sandbox-")}


def test_every_job_is_answered_once_with_its_index():
    with LocalExecutor(2) as executor:
        jobs = (job(f"def f(x): return {index}") for index in range(40))
        values = {index: result.results[0].value for index, result in executor.run(jobs)}
    assert values == {index: index for index in range(40)}


def test_jobs_are_taken_only_when_a_worker_is_free():
    taken = []

    def jobs():
        for index in range(20):
            taken.append(index)
            yield GOOD

    with LocalExecutor(2) as executor:
        for count, _ in enumerate(executor.run(jobs()), 1):
            assert len(taken) <= count + 3


def test_an_abandoned_batch_leaves_the_pool_usable():
    with LocalExecutor(2) as executor:
        for _ in executor.run([GOOD, job("while True: pass"), GOOD]):
            break
        assert [result.outcome for _, result in executor.run([GOOD] * 3)] == [Outcome.COMPLETED] * 3


def test_a_batch_inside_a_batch_is_refused_instead_of_waiting_for_ever():
    with LocalExecutor(1) as executor:
        batch = executor.run([GOOD, GOOD])
        next(batch)
        with pytest.raises(SandboxError, match="in the middle of a batch"):
            next(executor.run([GOOD]))
        batch.close()
        assert len(list(executor.run([GOOD]))) == 1


@pytest.mark.parametrize("attack", ["SIGKILL", "SIGSTOP", "SIGTERM"])
def test_an_answer_that_attacks_its_worker_is_blamed_and_the_others_are_not(attack, monkeypatch):
    monkeypatch.setattr("greenward.sandbox.workers.GRACE_SECONDS", 0.5)
    monkeypatch.setattr("greenward.sandbox.workers.CONTROL_SECONDS", 0.2)
    hostile = job(f"import os, signal, time\nos.kill(os.getppid(), signal.{attack})\ntime.sleep(5)")
    with barely_protected(2) as executor:
        outcomes = {i: r.outcome for i, r in executor.run([GOOD, hostile, GOOD, GOOD])}
    assert outcomes == {0: Outcome.COMPLETED, 1: Outcome.CHEATING, 2: Outcome.COMPLETED, 3: Outcome.COMPLETED}


def test_daemons_of_an_answer_die_with_it():
    daemon = dedent(
        """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.close(1); os.close(2); os.close(3)
                time.sleep(60)
            os._exit(0)
        os.wait()
        def f(x): return x
        """
    )
    with barely_protected(1) as executor:
        ((_, result),) = executor.run([job(daemon)])
        assert result.outcome is Outcome.COMPLETED
        assert descendants(executor.worker_pids[0]) == []


def test_a_system_without_the_means_of_linux_still_judges_and_ends_answers(monkeypatch, own_temporary_folder):
    foreign = (
        "import os, select, sys; sys.platform = 'darwin'; "
        "del os.pidfd_open, os.memfd_create, select.POLLRDHUP; "
    )
    monkeypatch.setattr(workers, "_BOOTSTRAP", foreign + workers._BOOTSTRAP)
    spinner = job("while True: pass", Limits(cpu_seconds=0.5, wall_seconds=4.0))
    sleeper = job("import time\ntime.sleep(9)")
    stdin = Job("print(input())", stdins=("a", "b"), limits=LIMITS)
    monkeypatch.setattr("greenward.sandbox.pool.LINUX", False)
    with pytest.warns(UserWarning, match="isolation level C"):
        executor = LocalExecutor(1, require=Level.C)
    with executor:
        assert "needs Linux" in executor.isolation.reason(Layer.SECCOMP)
        results = dict(executor.run([GOOD, spinner, sleeper, stdin, GOOD]))
    assert [results[index].outcome.value for index in range(5)] == [
        "completed", "timeout", "timeout", "completed", "completed",
    ]  # fmt: skip
    assert [one.value for one in results[3].results] == ["a\n", "b\n"]
    assert our_folders() == set()


@pytest.mark.parametrize("layers", [ALL_LAYERS, PORTABLE_LAYERS], ids=["all", "portable"])
def test_close_leaves_no_process_descriptor_or_file(own_temporary_folder, layers):
    def descriptors() -> list[str]:
        return os.listdir("/proc/self/fd")

    before = len(descriptors()), our_folders(), set(children(os.getpid()))
    executor = LocalExecutor(2) if layers is ALL_LAYERS else barely_protected(2)
    endless = job("while True: pass", Limits(cpu_seconds=0.3))
    hostile = [job("import os\nos.fork()"), job("open('left', 'w').write('x')"), endless]
    assert len(list(executor.run([GOOD, *hostile]))) == 4
    for _ in executor.run([endless, endless, GOOD]):
        break
    executor.close()
    executor.close()
    assert (len(descriptors()), our_folders(), set(children(os.getpid()))) == before
    with pytest.raises(SandboxError, match="closed"):
        executor.open({})
    with pytest.raises(SandboxError, match="closed"):
        list(executor.run([GOOD]))


@pytest.mark.parametrize("layers", ["ALL_LAYERS", "PORTABLE_LAYERS"])
def test_nothing_outlives_a_parent_that_is_killed(own_temporary_folder, layers):
    before = our_folders()
    script = dedent(
        """
        import sys, time
        from greenward.sandbox.isolation import *
        from greenward.sandbox.pool import LocalExecutor, usual_workers
        from greenward.sandbox.protocol import Job, Limits
        executor = LocalExecutor(3, require=Level.D, layers=globals()[sys.argv[1]])
        limits = Limits(cpu_seconds=60, wall_seconds=60)
        stop = "import os, signal, time\\nopen('x', 'w')\\nos.kill(os.getppid(), signal.SIGSTOP)\\ntime.sleep(60)"
        sleep = "import os, time\\nos.makedirs('a/b')\\ndef f(x): time.sleep(60)"
        check = "import threading\\nthreading.Thread(target=f, args=(1,)).start()\\nwhile True: pass"
        jobs = [Job(code, limits=limits) for code in ("while True: pass", stop)]
        processes_of_a_worker = 2 if Layer.NAMESPACES in executor.isolation.layers else 1
        print(4 * processes_of_a_worker + 3, flush=True)  # where a signal can stop a worker, there is one more
        list(executor.run([Job(sleep, "f", checks=(check,), limits=limits), *jobs]))
        """
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script, layers], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout as stdout:
        processes = int(stdout.readline())
    assert eventually(lambda: len(descendants(parent.pid)) >= processes)
    time.sleep(0.3)
    everyone = descendants(parent.pid)
    parent.kill()
    parent.wait()
    assert eventually(lambda: not any(map(is_alive, everyone)), 2.0)
    assert our_folders() == before


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu_seconds": 0},
        {"wall_seconds": -1},
        {"cpu_seconds": float("nan")},
        {"wall_seconds": float("inf")},
        {"memory_bytes": 1000},
        {"output_bytes": 0},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits):
    with pytest.raises(SandboxError, match=f"limit {next(iter(limits))}"):
        Limits(**limits)


def test_inputs_that_are_not_plain_data_are_refused():
    with LocalExecutor(1) as executor, pytest.raises(SandboxError, match="plain data"):
        list(executor.run([Job("def f(x): pass", "f", (Call((object(),)),))]))


@pytest.mark.parametrize("workers", [0, -1, 10**20])
def test_a_pool_has_one_worker_at_least_and_no_more_than_the_machine_serves(workers):
    with pytest.raises(SandboxError, match=rf"takes 1 to \d+ workers on this machine, not {workers}"):
        LocalExecutor(workers)


def test_the_worker_needs_only_the_standard_library():
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); import greenward.sandbox.inside.worker; "
        "print([n for n in sys.modules if n.split('.')[0] in ('torch','numpy','pydantic','greenward')])"
    )
    source = os.path.join(os.path.dirname(__file__), "../../src")
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", script, source], capture_output=True, text=True, check=True
    ).stdout
    assert {name.split(".")[:2][-1] for name in eval(loaded)} == {"greenward", "common", "sandbox"}
