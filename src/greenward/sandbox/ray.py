"""Runs the sandbox on the nodes of a Ray cluster, in actors that hold workers (extra `ray`).

Ray starts the actor of a lost node again on another one, when that has free CPUs. Requests and replies are
JSON, and no environment is sent along; workers on a node start from an empty one as they do here. A worker
of workspaces has an actor of its own, and holds many of them, because an actor is a Python process that
takes a second to start. When its node is lost, so are its workspaces: their calls are INFRASTRUCTURE, and
those that are opened next go to an actor on a node that is left.
"""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from greenward.common.errors import SandboxError
from greenward.sandbox.isolation import Layer, Level
from greenward.sandbox.remote import CALLS_PER_HOST, Host, JobServer, Json, RemoteExecutor
from greenward.sandbox.workers import (
    GRACE_SECONDS,
    START_SECONDS,
    WorkerLost,
    WorkerNotStarted,
    WorkerProcess,
)
from greenward.sandbox.workspaces import USUAL_LIMITS, Workspace, WorkspaceLimits, WorkspacePool

WORKERS_PER_ACTOR = 8  # one Python process that serves more of them becomes the bottleneck
REACH_SECONDS, CONNECT_SECONDS = 5.0, 60.0  # for a connection at all, and for one to a cluster
_TRANSFER_SECONDS = 10.0  # for a call's way there and back, beyond what the worker itself may take
_ACTOR_SECONDS = 60.0  # until an actor runs on a node


class RayExecutor(RemoteExecutor):
    """Runs jobs on the nodes of the Ray cluster at `address`: `auto` or `HOST:PORT`.

    Each node that has so many CPUs gets `workers_per_node` workers (default: as many as it has CPUs), and Ray
    counts a CPU as used for each. A program that has called `ray.init` itself uses its own cluster. `others`
    are those of `RemoteExecutor`; `packages` are those of `LocalExecutor`.
    """

    def __init__(
        self,
        address: str = "auto",
        workers_per_node: int | None = None,
        packages: Sequence[str] = (),
        **others: Any,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise SandboxError(
                "sandbox.backend=ray needs Ray, which is not installed.",
                remedy="pip install 'greenward[ray]'",
            ) from None
        packages = tuple(packages)
        self._leave = ray.shutdown if _connect(ray, address) else lambda: None
        try:
            hosts = _place(ray, workers_per_node, packages)
            self.workspaces = WorkspacePool(
                lambda layers: RayWorker(ray, layers, packages),
                lambda: self.isolation.layers,
                sum(host.size for host in hosts),
            )
            super().__init__(hosts, **others)
        except BaseException:
            self._leave()
            raise

    def open(self, files: Mapping[str, str], limits: WorkspaceLimits = USUAL_LIMITS) -> Workspace:
        """As `LocalExecutor.open`, spread over the nodes, with as many workers as there are for answers."""
        return self.workspaces.open(files, limits)

    def close(self) -> None:
        """Ends the actors, and the connection if it was made here. Safe to call twice."""
        super().close()
        self.workspaces.close()
        self._leave()


class RayActor:
    """A way to an actor: an object of the class `kind` made of `arguments` in a process of the cluster."""

    place = ""  # what a loss is said to be of

    def __init__(self, ray: Any, kind: type, *arguments: Any, **options: Any) -> None:
        self._ray = ray
        self.handle = ray.remote(kind).options(**options).remote(*arguments)

    def call(self, method: str, *arguments: Any, seconds: float) -> Any:
        """What a method of the actor returns, or raises of the sandbox. Raises `WorkerLost`."""
        reference = getattr(self.handle, method).remote(*arguments)
        try:
            return self._ray.get(reference, timeout=seconds)
        except self._ray.exceptions.GetTimeoutError:
            self._ray.cancel(reference)
            why = f"no answer within {seconds:.0f} s (dead, or its CPUs are taken)"
        except self._ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), SandboxError | WorkerLost):
                raise cause from None
            why = " ".join(str(error).split())[:500]
        raise WorkerLost(f"{self.place}{why}")

    def kill(self) -> None:
        """Ends the actor; its workers end with it."""
        with contextlib.suppress(Exception):  # its node, or the whole cluster, is gone
            self._ray.kill(self.handle)


class RayHost(Host):
    """An actor that holds `size` workers on one node, and takes as many of its CPUs."""

    def __init__(self, ray: Any, node: dict[str, Any], size: int, packages: Sequence[str]) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        super().__init__(f"Ray node {node['NodeManagerAddress']} ({node['NodeID'][:8]}), {size} CPUs")
        self.size = size
        self._actor = RayActor(
            ray,
            JobActor,
            size,
            packages,
            num_cpus=size,
            max_restarts=-1,
            max_concurrency=CALLS_PER_HOST + 1,  # and a probe
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=True),
        )

    def call(self, request: Json, seconds: float) -> Any:
        return self._actor.call("answer", request, seconds=seconds)

    def close(self) -> None:
        self._actor.kill()


class JobActor:
    """Answers requests on a node. Why its workers could not start is told at each request."""

    def __init__(self, workers: int, packages: Sequence[str]) -> None:
        self._server: JobServer | None = None
        try:
            self._server = JobServer(workers, require=Level.D, packages=packages)  # the caller demands more
        except SandboxError as error:
            self._failure = error

    def answer(self, request: Json) -> Json:
        """The reply to a request (`remote.write_request`). Raises `SandboxError`."""
        if self._server is None:
            raise self._failure
        return self._server.answer(request)


class RayWorker(RayActor):
    """A `WorkerProcess` for commands on a node of the cluster; `node_id` is known once it is ready."""

    def __init__(self, ray: Any, layers: Collection[Layer], packages: Sequence[str]) -> None:
        self._asked_layers, self.layers = layers, tuple[Layer, ...]()
        self.missing: dict[str, str] = {}
        self.pid, self.node_id, self.place = 0, "", "Ray node unknown: "
        # The workers for answers have taken the CPUs of their nodes.
        super().__init__(ray, WorkspaceActor, packages, num_cpus=0, scheduling_strategy="SPREAD")

    def wait_ready(self) -> None:
        """Returns when the worker serves. Raises `WorkerNotStarted` and `NoNamespaces`."""
        most = START_SECONDS + _ACTOR_SECONDS
        try:
            facts = self.call("start", [layer.value for layer in self._asked_layers], seconds=most)
            self.pid, self.node_id, layers, self.missing = facts
            self.place, self.layers = f"Ray node {self.node_id[:8]}: ", tuple(map(Layer, layers))
        except WorkerLost as error:
            self.kill()
            raise WorkerNotStarted(f"an actor for workspaces did not start: {error}.") from None
        except (TypeError, ValueError, LookupError) as error:
            self.kill()
            raise WorkerNotStarted(f"an actor does not speak as one of greenward does ({error!r}).") from None

    def ask(self, header: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The report on one command. Raises `WorkerLost`."""
        most = seconds + GRACE_SECONDS + _TRANSFER_SECONDS
        return tuple(self.call("ask", header, payload, seconds, seconds=most))


class WorkspaceActor:
    """A worker for commands on a node."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        self._folder = tempfile.TemporaryDirectory(prefix="greenward-sandbox-")

    def start(self, layers: Sequence[str]) -> tuple[int, str, list[str], dict[str, str]]:
        """Process, node, layers and missing layers of the serving worker. Raises `WorkerNotStarted`."""
        import ray

        folder = Path(self._folder.name, "worker")
        self._worker = WorkerProcess(str(folder), [*map(Layer, layers)], self._packages, commands=True)
        self._worker.wait_ready()
        node_id, held = ray.get_runtime_context().get_node_id(), [one.value for one in self._worker.layers]
        return self._worker.pid, node_id, held, self._worker.missing

    def ask(self, header: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The worker's report. Raises `WorkerLost`."""
        return self._worker.ask(header, payload, seconds)


def _connect(ray: Any, address: str) -> bool:
    """Connects to a running cluster; False if this program is in one. Raises `SandboxError`, and soon."""
    if ray.is_initialized():
        return False
    host, _, port = address.removeprefix("ray://").rpartition(":")
    ended = SimpleQueue[Exception | None]()

    # Ray waits for minutes for a server that speaks something else, and it leaves the handler of SIGTERM, by
    # which a training ends at a checkpoint, alone in other threads than the main one only.
    def connect() -> None:
        try:
            if host:
                socket.create_connection((host, int(port)), REACH_SECONDS).close()
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            ended.put(None)
        except Exception as error:
            ended.put(error)

    threading.Thread(target=connect, daemon=True).start()
    try:
        if (error := ended.get(timeout=CONNECT_SECONDS)) is None:
            return True
    except Empty:
        error = TimeoutError(f"no connection within {CONNECT_SECONDS:.0f} s")
    reason = " ".join(str(error).split())[:300]
    raise SandboxError(
        f"sandbox.ray.address={address}: no Ray cluster can be reached there ({reason}).",
        remedy="Start one (ray start --head), or give the address that `ray start` printed as HOST:PORT.",
    )


def _place(ray: Any, workers: int | None, packages: Sequence[str]) -> list[RayHost]:
    """Starts actors on every node that has the CPUs. Raises `SandboxError` if none has."""
    nodes = [(node, int(node["Resources"].get("CPU", 0))) for node in ray.nodes() if node["Alive"]]
    fitting = [(node, workers or cpus) for node, cpus in nodes if cpus >= (workers or 1)]
    if not fitting:
        raise SandboxError(
            f"no node of the Ray cluster has {workers or 1} CPUs; they have {[cpus for _, cpus in nodes]}.",
            remedy="Set sandbox.ray.workers_per_node to fewer.",
        )
    return [
        RayHost(ray, node, min(WORKERS_PER_ACTOR, count - first), packages)
        for node, count in fitting
        for first in range(0, count, WORKERS_PER_ACTOR)
    ]
