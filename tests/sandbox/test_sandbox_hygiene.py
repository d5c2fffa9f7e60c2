"""What is left behind: after many answers, after the death of the parent, after the loss of a worker."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import eventually, is_alive

from greenward.sandbox.inside.linux import children
from greenward.sandbox.isolation import Layer
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job, Limits, Outcome

SOAK = Path(__file__).parents[2] / "benchmarks" / "sandbox_soak.py"
CALLS = (Call((3,)),)
GOOD = Job("def f(x): return x", "f", CALLS)


@pytest.mark.parametrize("answers", [150, pytest.param(300, marks=pytest.mark.slow)])
def test_a_mixed_run_misjudges_nothing_and_leaves_nothing_behind(answers):
    done = subprocess.run(
        [sys.executable, str(SOAK), "--answers", str(answers), "--batch", "30"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"PASS: {answers} answers" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(signal.SIGSTOP, id="hung", marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
def test_a_lost_worker_holds_up_its_own_slot_only(loss, monkeypatch):
    monkeypatch.setattr("greenward.sandbox.workers.GRACE_SECONDS", 0.2)
    sleep = "import time\ntime.sleep(0.8)\ndef f(x): return x"
    slow = Job(sleep, "f", CALLS, limits=Limits(wall_seconds=1.5))
    with LocalExecutor(2) as executor:
        batch = executor.run([slow, *[GOOD] * 8])
        results = [next(batch)]
        os.kill(the_busy_one(executor), loss)
        results += batch
    assert [result.outcome for _, result in results] == [Outcome.COMPLETED] * 9
    assert results[-1][0] == 0


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(signal.SIGSTOP, id="hung"),
        pytest.param(signal.SIGKILL, id="killed", marks=pytest.mark.slow),
    ],
)
def test_a_lost_worker_of_test_programs_is_replaced(loss, monkeypatch):
    monkeypatch.setattr("greenward.sandbox.workers.GRACE_SECONDS", 0.2)
    check = "import time\ntime.sleep(0.5)\nassert f(3) == 3"
    tested = Job(GOOD.code, "f", checks=(check,), limits=Limits(wall_seconds=1.0))
    with LocalExecutor(1) as executor:
        assert [result.outcome for _, result in executor.run([tested])] == [Outcome.COMPLETED]
        before = set(executor.worker_pids)
        tester = server(executor, executor.worker_pids[1])
        stop = threading.Timer(0.2, lambda: os.kill(tester, loss))
        stop.start()
        ((_, result),) = executor.run([tested])
        stop.join()
        assert result.outcome is Outcome.COMPLETED
        assert not before & set(executor.worker_pids)
    assert not any(map(is_alive, before))


def test_the_loss_of_the_only_server_leaves_the_pool_usable():
    # As when memory runs out: the kernel prefers workers, and takes the process inside the namespaces.
    with LocalExecutor(1) as executor:
        (worker,) = executor.worker_pids
        os.kill(server(executor, worker), signal.SIGKILL)
        assert eventually(lambda: not is_alive(worker))
        assert [result.outcome for _, result in executor.run([GOOD] * 2)] == [Outcome.COMPLETED] * 2


_INTERRUPTED = """
import signal, sys, warnings
from greenward.sandbox.isolation import Layer, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Job
warnings.simplefilter("ignore")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored by what runs in the background
layers = {*Layer} if sys.argv[1] == "all" else {Layer.RESOURCES}
executor = LocalExecutor(2, require=Level.D, layers=layers)  # which nobody closes
busy = "import time\\nopen('left', 'w').close()\\nprint(1)\\ntime.sleep(20)"
for _ in executor.run([Job("pass"), Job(busy), Job(busy)]):
    print("runs", flush=True)
"""


@pytest.mark.parametrize("layers", ["all", "few"])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "killed"])
def test_a_process_that_ends_while_answers_run_leaves_no_folder(tmp_path, layers, sent):
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, layers],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout.readline() == b"runs\n"
        assert list(tmp_path.glob("greenward-sandbox-*/*"))
        process.send_signal(sent)
    assert eventually(lambda: not list(tmp_path.iterdir()))


_AUDITED = """
from greenward.evaluation.audit import audit
audit("function_that_hangs:score", timeout_seconds=60)
"""
_HANGS = """
import os, time
def score(completions, **columns):
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    open("begun", "w").close()
    while True: pass
"""


def test_an_audit_that_is_killed_leaves_no_process_and_no_folder(tmp_path):
    (tmp_path / "function_that_hangs.py").write_text(_HANGS)
    place = tmp_path / "temporary"
    place.mkdir()
    environment = {**os.environ, "TMPDIR": str(place), "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", _AUDITED], cwd=tmp_path, env=environment) as process:
        assert eventually(lambda: list(place.glob("*/begun")), seconds=60)
        process.send_signal(signal.SIGKILL)
    assert eventually(lambda: not list(place.iterdir()))
    assert eventually(lambda: not processes_with(str(place)))


def processes_with(text: str) -> list[str]:
    """Those in whose environment a text occurs; forks of a process have it, too."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if text.encode() in file.read_bytes():
                found.append(file.parent.name)
    return found


def the_busy_one(executor: LocalExecutor) -> int:
    servers = [server(executor, pid) for pid in executor.worker_pids]
    assert eventually(lambda: sum(bool(children(pid)) for pid in servers) == 1)
    return next(pid for pid in servers if children(pid))


def server(executor: LocalExecutor, worker: int) -> int:
    """The process that serves jobs: a worker with namespaces stays outside, its child serves."""
    return children(worker)[0] if Layer.NAMESPACES in executor.isolation.layers else worker
