"""Workers of workspaces on the nodes of a Ray cluster, each in an actor of its own (extra `ray`).

A worker holds many workspaces, because an actor is a Python process that takes a second to start. When its
node is lost, so are its workspaces: their calls are INFRASTRUCTURE, and those that are opened next go to an
actor on a node that is left.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from greenward.sandbox.isolation import Layer
from greenward.sandbox.workers import (
    GRACE_SECONDS,
    START_SECONDS,
    NoNamespaces,
    WorkerLost,
    WorkerNotStarted,
    WorkerProcess,
)

_TRANSFER_SECONDS = 10.0  # for a call's way there and back, beyond what the worker itself may take
_ACTOR_SECONDS = 60.0  # until an actor runs on a node


class RayWorker:
    """A `WorkerProcess` for commands on a node of the cluster; `node_id` is known once it is ready."""

    def __init__(self, ray: Any, layers: Collection[Layer], packages: Sequence[str]) -> None:
        self._ray, self._asked_layers = ray, [layer.value for layer in layers]
        self.layers: tuple[Layer, ...] = ()
        self.missing: dict[str, str] = {}
        self.pid, self.node_id = 0, ""
        # The workers for answers have taken the CPUs of their nodes.
        make = ray.remote(WorkspaceActor).options(num_cpus=0, scheduling_strategy="SPREAD")
        self._actor = make.remote(tuple(packages))

    def wait_ready(self) -> None:
        """Returns when the worker serves. Raises `WorkerNotStarted` and `NoNamespaces`."""
        try:
            reply = self._get(self._actor.start.remote(self._asked_layers), START_SECONDS + _ACTOR_SECONDS)
        except WorkerLost as error:
            self.kill()
            raise WorkerNotStarted(f"an actor for workspaces did not start: {error}.") from None
        if "failure" in reply:
            raise (NoNamespaces if reply["no_namespaces"] else WorkerNotStarted)(reply["failure"])
        self.pid, self.missing, self.node_id = reply["pid"], reply["missing"], reply["node_id"]
        self.layers = tuple(map(Layer, reply["layers"]))

    def ask(self, header: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The report on one command. Raises `WorkerLost`."""
        reply = self._get(
            self._actor.ask.remote(header, payload, seconds), seconds + GRACE_SECONDS + _TRANSFER_SECONDS
        )
        if reply is None:
            raise WorkerLost
        return tuple(reply)

    def kill(self) -> None:
        """Ends the actor; its worker ends with it."""
        with contextlib.suppress(Exception):  # its node, or the whole cluster, is gone
            self._ray.kill(self._actor)

    def _get(self, reference: Any, seconds: float) -> Any:
        try:
            return self._ray.get(reference, timeout=seconds)
        except self._ray.exceptions.RayError as error:  # a timeout, too
            place = f"Ray node {self.node_id[:8] or 'unknown'}"
            raise WorkerLost(f"{place}: {' '.join(str(error).split())[:500]}") from None


class WorkspaceActor:
    """A worker for commands on a node. What goes wrong is part of the reply."""

    def __init__(self, packages: Sequence[str]) -> None:
        self._packages = packages
        self._folder = tempfile.TemporaryDirectory(prefix="greenward-sandbox-")

    def start(self, layers: Sequence[str]) -> dict[str, Any]:
        import ray

        folder = Path(self._folder.name, "worker")
        try:
            self._worker = WorkerProcess(str(folder), [*map(Layer, layers)], self._packages, commands=True)
            self._worker.wait_ready()
        except WorkerNotStarted as error:
            return {"failure": str(error), "no_namespaces": isinstance(error, NoNamespaces)}
        return {
            "pid": self._worker.pid,
            "node_id": ray.get_runtime_context().get_node_id(),
            "layers": [layer.value for layer in self._worker.layers],
            "missing": self._worker.missing,
        }

    def ask(
        self, header: dict[str, Any], payload: bytes, seconds: float
    ) -> tuple[dict[str, Any], bytes] | None:
        """The worker's report, None if it is lost."""
        try:
            return self._worker.ask(header, payload, seconds)
        except WorkerLost:
            return None
