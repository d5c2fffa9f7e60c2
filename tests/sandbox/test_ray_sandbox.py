"""The sandbox on a Ray cluster of two local nodes. `make test-ray` installs Ray and runs these tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from executor_contract import EXPECTED, LIMITS, are_right, statuses, successors
from waiting import eventually

from greenward.errors import SandboxError
from greenward.sandbox import wire
from greenward.sandbox.isolation import Level
from greenward.sandbox.protocol import Call, Job, Outcome
from greenward.sandbox.ray_executor import RayExecutor


def test_without_ray_the_pip_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SandboxError, match=r"pip install 'greenward\[ray\]'"):
        RayExecutor()


SECRET = "planted-in-the-driver-9241"


@pytest.fixture(scope="module")
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLANTED_SECRET", SECRET)
        cluster = Cluster()
        for _ in range(2):
            cluster.add_node(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False)
        yield cluster
        cluster.shutdown()


@pytest.fixture
def executor(cluster):
    with RayExecutor(cluster.address, workers_per_node=1, jobs_per_call=8) as executor:
        yield executor


def test_answers_get_the_verdicts_of_local_execution(executor):
    assert len(executor._lines) == 2
    assert statuses(executor) == EXPECTED


def test_both_nodes_work_and_results_are_plain_data(executor):
    assert are_right(executor.run(successors(60)), 60)
    assert all(line.given > 1 for line in executor._lines)


def test_nothing_of_the_driver_is_in_the_environment_of_answers(executor):
    code = "import os\ndef f(x):\n    return dict(os.environ)"
    results = dict(
        executor.run([Job(code + f"  # {i}", "f", (Call((1,)),), limits=LIMITS) for i in range(8)])
    )
    for result in results.values():
        assert result.outcome is Outcome.COMPLETED
        assert "PATH" not in str(result.results)
        assert SECRET not in str(result.results)
        assert "RAY" not in str(result.results)


def test_a_job_that_is_no_plain_data_there_is_the_callers_error(executor):
    with pytest.raises(SandboxError, match="plain data"):
        list(executor.run([Job("", "f", (Call((object(),)),))]))


def test_a_killed_actor_is_replaced_and_nothing_is_lost(executor):
    import ray

    results = []
    for number, one in enumerate(executor.run(successors(150))):
        results.append(one)
        if number == 20:
            ray.kill(executor._lines[0].host._actor, no_restart=False)
    assert are_right(results, 150)
    assert eventually(lambda: all(line.is_up for line in executor._lines), seconds=60)
    assert are_right(executor.run(successors(20)), 20)


def test_packages_that_a_node_does_not_have_are_named(cluster):
    with pytest.raises(SandboxError, match=r"Ray node .*no_such_package"):
        RayExecutor(cluster.address, 1, packages=["no_such_package"])


def test_nodes_without_the_cpus_are_refused_at_once(cluster):
    with pytest.raises(SandboxError, match=r"no node .* 99 CPUs; they have \[2, 2\]"):
        RayExecutor(cluster.address, workers_per_node=99)


def test_a_node_with_other_source_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(wire, "version", lambda: "0.0.1+other")
    with pytest.raises(SandboxError, match=r"Ray node .*0\.0\.1\+other.*\n.*same greenward"):
        RayExecutor(cluster.address, workers_per_node=1)


def test_isolation_of_the_nodes_is_demanded(cluster):
    with RayExecutor(cluster.address, workers_per_node=1, require=Level.A) as executor:
        assert executor.isolation.level is Level.A


def test_a_killed_node_costs_no_job_and_no_verdict(cluster):
    doomed = cluster.add_node(num_cpus=3, object_store_memory=100 << 20)
    with RayExecutor(cluster.address, workers_per_node=1, jobs_per_call=8) as executor:
        assert len(executor._lines) == 3
        results = []
        for number, one in enumerate(executor.run(successors(300))):
            results.append(one)
            if number == 30:
                cluster.remove_node(doomed, allow_graceful=False)
        assert are_right(results, 300)


def in_a_program(address: str, seconds: float) -> str:
    """What a program prints that connects to `address`; it has no cluster of its own."""
    code = (
        "import sys\nfrom greenward.errors import SandboxError\nfrom greenward.sandbox.ray_executor import RayExecutor\n"
        "try: RayExecutor(sys.argv[1])\nexcept SandboxError as error: print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", code, address],
        capture_output=True,
        text=True,
        timeout=seconds,
        env=environment,
    )
    return done.stdout + done.stderr[-500:]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "127.0.0.1:no", "ray://127.0.0.1:9"])
def test_an_address_without_a_cluster_is_named_soon(address):
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
    assert f"sandbox.ray.address={address}: no Ray cluster" in in_a_program(address, 120)


def test_a_server_that_is_no_ray_is_named_in_bounded_time():
    pytest.importorskip("ray", reason="Ray is not installed: make test-ray")
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def talk():
            server.settimeout(0.2)
            while not stop.is_set():
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    continue
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=talk)
        thread.start()
        begun = time.monotonic()
        said = in_a_program(f"127.0.0.1:{server.getsockname()[1]}", 240)
        stop.set()
        thread.join()
    assert "no Ray cluster can be reached" in said
    assert time.monotonic() - begun < 180
