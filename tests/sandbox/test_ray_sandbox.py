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

from greenward.common.errors import SandboxError
from greenward.sandbox import remote
from greenward.sandbox.isolation import Level
from greenward.sandbox.protocol import Call, Job, Outcome
from greenward.sandbox.ray import RayActor, RayExecutor
from greenward.sandbox.workers import NoNamespaces, WorkerLost
from greenward.sandbox.workspaces import WorkspaceError, WorkspaceLimits

WORKSPACE = WorkspaceLimits(call_seconds=2.0, calls=100_000)


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
    assert len(executor._hosts) == 2
    assert statuses(executor) == EXPECTED


def test_both_nodes_work_and_results_are_plain_data(executor):
    assert are_right(executor.run(successors(60)), 60)
    assert all(host.given > 1 for host in executor._hosts)


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
            ray.kill(executor._hosts[0]._actor.handle, no_restart=False)
    assert are_right(results, 150)
    assert eventually(lambda: all(host.is_up for host in executor._hosts), seconds=60)
    assert are_right(executor.run(successors(20)), 20)


@pytest.mark.parametrize("error", [NoNamespaces("none here", remedy="allow them"), WorkerLost(), KeyError(1)])
def test_what_an_actor_raises_of_the_sandbox_is_raised_here(executor, error):
    import ray

    class Failing:
        def fail(self, error):
            raise error

    actor = RayActor(ray, Failing, num_cpus=0)
    with pytest.raises(WorkerLost if isinstance(error, KeyError) else type(error)) as caught:
        actor.call("fail", error, seconds=60)
    assert "KeyError" in str(caught.value) if isinstance(error, KeyError) else str(caught.value) == str(error)
    actor.kill()


def test_packages_that_a_node_does_not_have_are_named(cluster):
    with pytest.raises(SandboxError, match=r"Ray node .*no_such_package"):
        RayExecutor(cluster.address, 1, packages=["no_such_package"])


def test_nodes_without_the_cpus_are_refused_at_once(cluster):
    with pytest.raises(SandboxError, match=r"no node .* 99 CPUs; they have \[2, 2\]"):
        RayExecutor(cluster.address, workers_per_node=99)


def test_a_node_with_other_source_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(remote, "version", lambda: "0.0.1+other")
    with pytest.raises(SandboxError, match=r"Ray node .*0\.0\.1\+other.*\n.*same greenward"):
        RayExecutor(cluster.address, workers_per_node=1)


def test_isolation_of_the_nodes_is_demanded(cluster):
    with RayExecutor(cluster.address, workers_per_node=1, require=Level.A) as executor:
        assert executor.isolation.level is Level.A


def test_a_killed_node_costs_no_job_and_no_verdict(cluster):
    doomed = cluster.add_node(num_cpus=3, object_store_memory=100 << 20)
    with RayExecutor(cluster.address, workers_per_node=1, jobs_per_call=8) as executor:
        assert len(executor._hosts) == 3
        results = []
        for number, one in enumerate(executor.run(successors(300))):
            results.append(one)
            if number == 30:
                cluster.remove_node(doomed, allow_graceful=False)
        assert are_right(results, 300)


class TestWorkspaces:
    def test_commands_run_on_both_nodes_and_files_stay_until_the_end(self, executor):
        files = {"prices.py": "PRICE = 3\n"}
        with executor.open(files, WORKSPACE) as one, executor.open(files, WORKSPACE) as other:
            one.write({"prices.py": "PRICE = 4\n"})
            assert one.exec("cat prices.py").output == "PRICE = 4\n"
            assert other.exec("cat prices.py; exit 3").exit_code == 3
            assert other.read_all() == files
            assert SECRET not in one.exec("env; cat /proc/self/environ").output
            assert one.exec("sleep 60").outcome is Outcome.TIMEOUT
        assert len(set(executor.workspaces.worker_pids)) >= 2
        with pytest.raises(WorkspaceError, match="closed"):
            one.exec("true")

    def test_a_killed_actor_costs_its_own_workspaces_only(self, executor):
        import ray

        doomed, other = executor.open({"a": "1"}, WORKSPACE), executor.open({"a": "2"}, WORKSPACE)
        assert (doomed.exec("cat a").output, other.exec("cat a").output) == ("1", "2")
        ray.kill(doomed._home.worker.handle)
        with pytest.raises(WorkspaceError) as caught:
            doomed.exec("cat a")
        assert caught.value.outcome is Outcome.INFRASTRUCTURE
        assert other.exec("cat a").output == "2"
        for _ in range(2):  # one of them where the lost actor was
            with executor.open({"a": "3"}, WORKSPACE) as fresh:
                assert fresh.exec("cat a").output == "3"

    def test_a_killed_node_costs_its_workspaces_and_the_others_take_over(self, cluster):
        added = [cluster.add_node(num_cpus=3, object_store_memory=100 << 20) for _ in range(2)]
        for _ in range(10):  # until Ray has placed a worker on one of them
            executor = RayExecutor(cluster.address, workers_per_node=1)
            opened = [executor.open({"a": str(i)}, WORKSPACE) for i in range(4)]
            assert [one.exec("cat a").output for one in opened] == ["0", "1", "2", "3"]
            homes = [one._home.worker.node_id for one in opened]
            doomed = next((node for node in added if node.node_id in homes), None)
            if doomed is not None:
                break
            executor.close()
        with executor:
            cluster.remove_node(doomed, allow_graceful=False)
            lost = [one for one, home in zip(opened, homes, strict=True) if home == doomed.node_id]
            # An actor ends some time after the process of its node.
            assert eventually(lambda: {*map(outcome_of, lost)} == {"infrastructure"}, seconds=60)
            assert {outcome_of(one) for one in opened if one not in lost} <= {"completed"}
            fresh = [executor.open({"a": str(i)}, WORKSPACE) for i in range(4)]
            assert [one.exec("cat a").output for one in fresh] == ["0", "1", "2", "3"]
            assert doomed.node_id not in [one._home.worker.node_id for one in fresh]
        cluster.remove_node(next(node for node in added if node is not doomed))


def outcome_of(workspace):
    try:
        return workspace.exec("cat a").outcome.value
    except WorkspaceError as error:
        return error.outcome.value


def in_a_program(address: str, seconds: float) -> str:
    """What a program prints that connects to `address`; it has no cluster of its own."""
    code = (
        "import sys\nfrom greenward.common.errors import SandboxError\nfrom greenward.sandbox.ray import RayExecutor\n"
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
