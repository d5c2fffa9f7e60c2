"""Workers on the side of the pool: a process with a socket and a deadline, and slots that hold two."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import greenward
from greenward.errors import SandboxError
from greenward.sandbox.attempts import Attempt
from greenward.sandbox.frames import receive_frame, send_frame
from greenward.sandbox.isolation import CORE_LAYERS, Layer
from greenward.sandbox.processes import kill_tree
from greenward.sandbox.protocol import RunResult

START_SECONDS = 30.0
# A worker that is silent for so long after the wall limit counts as lost. On a busy machine it takes a second
# until all threads of a killed answer have ended. A worker with real-time priority may also spend 0.95 s
# (sched_rt_runtime_us) in wait4: Linux waits in a busy loop for a thread that this worker keeps from the
# processor and that has not yet removed its entry in /proc.
GRACE_SECONDS = 3.0
KILLED_INSIDE = 128  # a worker of which the part in namespaces was ended by signal n exits with 128 + n
_SECONDS_TO_END = 1.0
# Python ignores PYTHONHASHSEED under -I; with this environment, -s and no path to us, -I adds nothing.
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "LD_BIND_NOW": "1",  # looking up functions of libraries once, not in every answer
}
# Modules register functions to run after a fork (new locks, new seeds). Every answer would spend time on
# them, and they are not needed: a worker has one thread, and the harness seeds its answers.
_BOOTSTRAP = (
    f"import os, sys; sys.path[0] = {str(Path(greenward.__file__).parent.parent)!r}; "
    "register = os.register_at_fork; os.register_at_fork = lambda **_: None; "
    "import greenward.sandbox.template as template; template.preload(); "
    "from greenward.sandbox.worker import main; os.register_at_fork = register; del sys.path[0]; main()"
)


class WorkerLost(Exception):
    """The worker died, did not answer in time, or sent a report that cannot be read."""


class WorkerNotStarted(SandboxError):
    """The machine did not let a worker start."""


class NoNamespaces(WorkerNotStarted):
    """The machine does not let the worker have namespaces of its own; the text says why."""


class WorkerProcess:
    """A started worker on `layers` of isolation; its `folder` need not exist. Raises `WorkerNotStarted`.

    With `commands` it holds workspaces (`commands.Workspaces`), else it runs answers.

    After `wait_ready`, `layers` are those that its self-test found to hold, and `missing` gives the
    reason for each other one.
    """

    def __init__(
        self,
        folder: str,
        layers: Collection[Layer],
        packages: Sequence[str],
        variables: Mapping[str, str] = MappingProxyType({}),
        *,
        commands: bool = False,
    ) -> None:
        self.folder = folder
        self.layers: tuple[Layer, ...] = ()
        self.missing: dict[str, str] = {}
        self.deadline = float("inf")
        self.has_closed = self.is_spent = False
        try:
            os.makedirs(folder, 0o700)
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the worker)
            self._channel, theirs = socket.socketpair()
            with theirs:
                arguments = {
                    "socket": theirs.fileno(),
                    "folder": folder,
                    "parent": os.getpid(),
                    "layers": [layer.value for layer in layers],
                    "packages": list(packages),
                    "search_path": [path for path in sys.path if path],
                    "commands": commands,
                }
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-S", "-c", _BOOTSTRAP, json.dumps(arguments)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    env={**ENVIRONMENT, **variables},
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except OSError as error:
            raise WorkerNotStarted(f"a sandbox worker did not start: {error}.") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._channel.fileno()

    def wait_ready(self) -> None:
        """Returns when the worker serves. Raises `WorkerNotStarted` with what it printed, `NoNamespaces`."""
        self._channel.settimeout(START_SECONDS)
        try:
            report, _ = self.receive()
        except WorkerLost:
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            printed = self._errors.read()[-2000:].decode("utf-8", "replace").strip() or "nothing"
            remedy = f"It printed: {printed}"
            raise WorkerNotStarted("a sandbox worker did not start.", remedy=remedy) from None
        if "no_namespaces" in report:
            raise NoNamespaces(report["no_namespaces"])
        self.layers = tuple(Layer(name) for name in report["layers"])
        self.missing = report["missing"]

    def send(self, attempt: Attempt, payload: bytes, calls: socket.socket | None = None) -> None:
        """Hands over one attempt and sets the deadline. A worker that is gone shows at `receive`.

        `calls` is this side's end of the socket between an answer and its checks.
        """
        self.deadline = time.monotonic() + attempt.job.limits.wall_seconds + GRACE_SECONDS
        self._channel.settimeout(GRACE_SECONDS)
        try:
            descriptor = None if calls is None else calls.fileno()
            send_frame(self._channel, attempt.header, payload, descriptor=descriptor)
        except OSError:
            self.deadline = time.monotonic()

    def ask(self, header: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]:
        """The report on one command. Raises `WorkerLost` if there is none within `seconds`."""
        self._channel.settimeout(seconds + GRACE_SECONDS)
        try:
            send_frame(self._channel, header, payload)
        except OSError:
            self.has_closed = True
            raise WorkerLost from None
        return self.receive()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The report that has begun to arrive. Raises `WorkerLost`."""
        try:
            report = receive_frame(self._channel)
        except (OSError, ValueError):
            report = None
        if report is None:
            self.has_closed = True
            raise WorkerLost
        return report

    def was_killed_from_outside(self) -> bool:
        """Whether this worker, whose socket was closed, was killed by what no answer can send.

        The layers of level B keep every signal of an answer from its worker.
        """
        try:
            status = self._process.wait(timeout=_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return False
        is_out_of_reach = frozenset(self.layers) >= CORE_LAYERS
        return is_out_of_reach and status in (-signal.SIGKILL, KILLED_INSIDE + signal.SIGKILL)

    def leave(self) -> None:
        """Lets a worker that is spent remove its folder and end by itself."""
        self._channel.close()
        self._errors.close()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    def kill(self) -> None:
        """Ends the worker and all that it started, at once."""
        if self._process.poll() is None:
            kill_tree(self.pid)
            self._process.wait()
        self._channel.close()
        self._errors.close()


class WorkerSlot:
    """A worker for answers, and one for trusted code that never runs an answer; one attempt at a time.

    `start` starts a worker; the one for trusted code starts when it is needed.
    """

    def __init__(self, start: Callable[[WorkerSlot], WorkerProcess]) -> None:
        self._start = start
        self.workers = [start(self)]
        self.attempt: Attempt | None = None  # the last one
        self._results: dict[WorkerProcess, RunResult | None] = {}  # None: awaited

    @property
    def deadline(self) -> float:
        """When an attempt that has not ended counts as lost (monotonic seconds)."""
        awaited = [worker.deadline for worker, result in self._results.items() if result is None]
        return min(awaited, default=float("inf"))

    @property
    def is_spent(self) -> bool:
        """Whether a worker can run nothing any more."""
        return any(worker.is_spent for worker in self.workers)

    @property
    def is_alone(self) -> bool:
        return self.attempt is not None and self.attempt.alone

    def assign(self, attempt: Attempt) -> None:
        """Hands an attempt to the workers that it needs. Raises `SandboxError` if it cannot be sent."""
        job = attempt.job
        for_answer, for_checks = attempt.payloads()
        if (job.trusted or job.checks) and len(self.workers) == 1:
            self.workers.append(self._start(self))
            self.workers[1].wait_ready()
        self.attempt = attempt
        if not job.checks:
            worker = self.workers[job.trusted]
            self._results = {worker: None}
            worker.send(attempt, for_answer)
            return
        self._results = dict.fromkeys(self.workers)
        one, other = socket.socketpair()
        with one, other:
            self.workers[0].send(attempt, for_answer, one)
            self.workers[1].send(attempt, for_checks, other)

    def receive(self, worker: WorkerProcess) -> RunResult | None:
        """Reads the report that has begun to arrive; the result once all have come. Raises `WorkerLost`."""
        report, blobs = worker.receive()
        attempt, layers = self.attempt, tuple(layer.value for layer in worker.layers)
        if attempt is None or self._results.get(worker, ()) is not None:
            raise WorkerLost  # an idle worker sends nothing unless it is broken
        worker.is_spent = report.get("is_spent", False)
        is_of_checks = bool(attempt.job.checks) and worker is self.workers[1]
        result = attempt.read_report(is_of_checks, report, blobs, layers)
        self._results[worker] = result
        results = [result for result in self._results.values() if result is not None]
        if len(results) < len(self._results):
            return None
        self._results = {}
        return attempt.merge(*results) if attempt.job.checks else results[0]

    def was_killed_from_outside(self) -> bool:
        """Whether the workers of a lost attempt that have ended were killed by what no answer can send."""
        lost = [worker for worker in self.workers if worker.has_closed]
        return bool(lost) and all(worker.was_killed_from_outside() for worker in lost)
