"""Keeps workspaces on the side of the pool: folders in the sandbox for the tools of agents.

A workspace lives in one of a few workers, which run one command at a time each, so hundreds may be open at
once. Its commands run behind the layers of answers, but may start processes, which end with it:

    from greenward.sandbox.pool import LocalExecutor
    from greenward.sandbox.workspaces import WorkspaceLimits

    with LocalExecutor(workers=2) as executor:
        with executor.open({"a.py": "print(1)\\n"}, WorkspaceLimits(call_seconds=5)) as workspace:
            workspace.exec("python3 a.py").output        # "1\\n"
            workspace.write({"a.py": "print(2)\\n"})
            workspace.read("a.py"), workspace.read_all()
            workspace.run_tests()                        # python3 -m unittest

A workspace is closed by `close`, when nobody holds it any more, after `lifetime_seconds`, and when it holds
more than 16 MiB or 4,096 files. With `sandbox.backend: ray` workspaces lie on the nodes of the cluster; the
backend `http` has none.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import json
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from greenward.common.errors import Closeable, SandboxError
from greenward.sandbox.inside.files import RESULT_BYTES, check_files
from greenward.sandbox.isolation import CORE_LAYERS, Layer, level_of
from greenward.sandbox.protocol import CheckedLimits, Outcome
from greenward.sandbox.workers import NoNamespaces, WorkerLost, WorkerNotStarted

MAX_OPEN = 1024
_SECONDS_TO_REMOVE = 30.0
_PAUSES = (0.0, 1.0, 3.0)  # seconds before each attempt to start a worker in the place of a lost one
_OUTCOMES = {
    "cpu": Outcome.TIMEOUT, "wall": Outcome.TIMEOUT, "memory": Outcome.MEMORY, "output": Outcome.OUTPUT_LIMIT,
    "folder": Outcome.OUTPUT_LIMIT, "processes": Outcome.CHEATING,
}  # fmt: skip
Value = TypeVar("Value")


@dataclass(frozen=True)
class WorkspaceLimits(CheckedLimits):
    """What one workspace may use, in seconds and bytes.

    `call_seconds` limits the wall and CPU time of one call, `seconds` the wall time of all calls, and
    `lifetime_seconds` the time from its opening, after which it is collected. `memory_bytes` holds for each
    process and for all together. The folder as a whole holds 16 MiB and 4096 files; more ends the workspace.
    `completes` is the path of a module in it that commands are to complete: what is installed of a module of
    its name cannot be read.
    """

    call_seconds: float = 10.0
    seconds: float = 120.0
    calls: int = 200
    processes: int = 32
    memory_bytes: int = 1 << 30
    output_bytes: int = 64 << 10
    file_bytes: int = 4 << 20
    lifetime_seconds: float = 3600.0
    completes: str = ""


USUAL_LIMITS = WorkspaceLimits()


@dataclass(frozen=True)
class CommandResult:
    """How a command ended and the first `output_bytes` of what it printed, errors included.

    `outcome` is COMPLETED whatever the exit code is; `exit_code` is below 0 for a signal and None where there
    was no process. `error` says why there is no ordinary end.
    """

    outcome: Outcome
    exit_code: int | None = None
    output: str = ""
    seconds: float = 0.0
    error: str = ""


class WorkspaceError(SandboxError):
    """A workspace that cannot be used so; `outcome` is INFRASTRUCTURE where that is not its own doing."""

    def __init__(self, message: str, outcome: Outcome = Outcome.EXITED) -> None:
        super().__init__(message)
        self.outcome = outcome


class Workspace(Closeable):
    """A folder in the sandbox that holds files and runs commands until it is closed. A context manager.

    Calls are made one after the other. One that is garbage, or older than it may be, is closed.
    """

    def __init__(self, home: _Home, name: str, limits: WorkspaceLimits) -> None:
        self._home, self._name, self.limits = home, name, limits
        self.calls, self.seconds = 0, 0.0
        self._opening: Future[Any] | None = None
        self._closing = weakref.finalize(self, home.remove, name)
        self._closing.atexit = False

    def exec(self, command: str) -> CommandResult:
        """Runs a command of the shell (`sh -c`) in the folder. Raises `WorkspaceError` if that is closed."""
        if self.calls >= self.limits.calls or self.seconds >= self.limits.seconds:
            used = f"{self.calls} calls and {self.seconds:.0f} seconds"
            return CommandResult(Outcome.TIMEOUT, error=f"the workspace has used up its {used}")
        if "\0" in command:
            return CommandResult(Outcome.SYNTAX_ERROR, error="a command holds no null characters")
        report, blobs = self._ask("exec", command)
        killed = "folder" if report["is_too_full"] else report["killed"]
        if killed == "folder":
            self.close()
        outcome = _OUTCOMES[killed] if killed else Outcome.COMPLETED
        error = f"it was ended by its limit of {killed}" if killed else ""
        output = blobs[report["lengths"][0] :].decode("utf-8", "replace")
        return CommandResult(outcome, report["exit"], output, report["usage"]["wall_seconds"], error)

    def run_tests(self, arguments: str = "") -> CommandResult:
        """Runs the tests in the folder by unittest: all, or those that `arguments` names."""
        return self.exec(f"python3 -m unittest -q {arguments}")

    def read(self, *paths: str) -> dict[str, str | None]:
        """The text of files, None for one that is missing. Raises `WorkspaceError` for what is not text."""
        return self._answer("read", list(paths))

    def read_all(self) -> dict[str, str]:
        """The text of all regular files that are UTF-8. Raises `WorkspaceError` if that is too much."""
        return self._answer("read", None)

    def write(self, files: Mapping[str, str]) -> None:
        """Writes files, over those that are there. Raises `SandboxError` for what is not allowed."""
        check_files(files, self.limits.file_bytes)
        self._answer("write", dict(files))

    def submit(self, function: Callable[[Workspace], Value]) -> Future[Value]:
        """Calls a function with this workspace in a thread, in turn with those of others."""
        return self._home.thread.submit(function, self)

    def close(self) -> None:
        """Removes the folder. Safe to call twice."""
        self._closing()

    def _answer(self, action: str, argument: Any) -> Any:
        report, blobs = self._ask(action, argument)
        try:
            found = json.loads(blobs[: report["lengths"][0]])
        except ValueError:
            killed = report["killed"]
            found = f"it ended by its limit of {killed}" if killed else "it gave no answer"
        if isinstance(found, str):
            raise WorkspaceError(f"the {action} failed: {found}.")
        return found

    def _ask(self, action: str, argument: Any) -> tuple[dict[str, Any], bytes]:
        if not self._closing.alive:
            raise WorkspaceError("this workspace is closed.")
        if action != "open":
            if self._opening is not None:
                self._opening.result()
            self.calls += 1
        report, blobs = self._home.ask(self._name, self.limits, action, argument)
        self.seconds += report["usage"]["wall_seconds"]
        return report, blobs


class CommandWorker(Protocol):
    """A worker for commands, here (`WorkerProcess`) or on another machine; see there what the parts do."""

    @property
    def pid(self) -> int: ...
    @property
    def layers(self) -> tuple[Layer, ...]: ...
    @property
    def missing(self) -> Mapping[str, str]: ...
    def wait_ready(self) -> None: ...
    def ask(self, header: dict[str, Any], payload: bytes, seconds: float) -> tuple[dict[str, Any], bytes]: ...
    def kill(self) -> None: ...


class _Home:
    """A worker with workspaces, and the thread in which functions are called with them."""

    def __init__(self, start: Callable[[], CommandWorker]) -> None:
        self._start, self.worker = start, start()
        self.worker.wait_ready()
        self._lock = threading.RLock()
        self.names: set[str] = set()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="greenward-workspaces")
        self.is_closed = self._is_lost = False

    def ask(
        self, name: str, limits: WorkspaceLimits, action: str, argument: Any, *, is_repeated: bool = False
    ) -> tuple[dict[str, Any], bytes]:
        """The worker's report. Raises `WorkspaceError` of the infrastructure, which lost a workspace."""
        is_new = action == "open"
        header = {
            **vars(limits), "name": name, "is": "new" if is_new else "open",
            "cpu_seconds": limits.call_seconds, "wall_seconds": limits.call_seconds,
            "result_bytes": RESULT_BYTES, "stdin_bytes": (), "call_seconds": (), "call_wall_seconds": 0.0,
            "measures_calls": False,
        }  # fmt: skip
        payload = json.dumps([action, argument]).encode("ascii")
        with self._lock:
            if is_new and self._is_lost and not self.is_closed:
                self._replace()
            if self.is_closed or self._is_lost or not (is_new or name in self.names):
                raise WorkspaceError("the worker of this workspace has ended.", Outcome.INFRASTRUCTURE)
            try:
                report, blobs = self.worker.ask(header, payload, limits.call_seconds)
            except WorkerLost as error:
                self._replace()
                if is_new and not is_repeated:  # there was nothing in it yet
                    return self.ask(name, limits, action, argument, is_repeated=True)
                message = f"the worker of this workspace was lost ({str(error) or 'it died or fell silent'})."
                raise WorkspaceError(message, Outcome.INFRASTRUCTURE) from None
            self.names.add(name)
        if not report.get("ready"):
            reason = report.get("failure", "the layers of isolation could not be applied")
            raise WorkspaceError(f"a call did not start: {reason}.", Outcome.INFRASTRUCTURE)
        return report, blobs

    def remove(self, name: str) -> None:
        """Removes a workspace, in the thread and later: it may be garbage, collected within any other call.

        Whoever collects it may hold the locks of `self.thread` and of `threading`, so none is taken here.
        """

        def submit() -> None:
            with contextlib.suppress(RuntimeError):  # the pool is closed
                self.thread.submit(self._remove, name)

        with contextlib.suppress(RuntimeError):  # the interpreter ends
            _thread.start_new_thread(submit, ())

    def _remove(self, name: str) -> None:
        with self._lock:
            if name not in self.names or self.is_closed:
                return
            self.names.discard(name)
            try:
                self.worker.ask({"name": name, "is": "old"}, b"", _SECONDS_TO_REMOVE)
            except WorkerLost:
                self._replace()

    def _replace(self) -> None:
        """Starts another worker; the workspaces of the old one are gone, and their calls fail.

        A cluster may place it on the node that was just lost, so a start that fails is tried again.
        """
        if not self._is_lost:
            self.worker.kill()
        self.names.clear()
        for pause in _PAUSES:
            time.sleep(pause)
            try:
                self.worker = self._start()
                self.worker.wait_ready()
            except WorkerNotStarted:
                self._is_lost = True
            else:
                self._is_lost = False
                return

    def close(self) -> None:
        self.thread.shutdown(cancel_futures=True)
        with self._lock:
            if not (self.is_closed or self._is_lost):
                self.worker.kill()
            self.is_closed = True


class WorkspacePool:
    """The workers that hold the workspaces of an executor, once one was opened.

    `start` starts one on layers of isolation, at first on what `layers` gives then.
    """

    def __init__(
        self,
        start: Callable[[Collection[Layer]], CommandWorker],
        layers: Callable[[], Collection[Layer]],
        workers: int,
    ) -> None:
        self._start, self._layers, self._size = start, layers, workers
        self._homes: list[_Home] = []
        self._opened: dict[str, tuple[float, weakref.ref[Workspace]]] = {}
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def layers(self) -> Collection[str]:
        """The layers of isolation, once a workspace was opened."""
        return tuple(layer.value for home in self._homes[:1] for layer in home.worker.layers)

    @property
    def worker_pids(self) -> Sequence[int]:
        return [home.worker.pid for home in self._homes]

    @property
    def open_count(self) -> int:
        return sum(len(home.names) for home in self._homes)

    def open(self, files: Mapping[str, str], limits: WorkspaceLimits) -> Workspace:
        """A new workspace. Raises `SandboxError`, also where commands would not be contained at level B."""
        check_files(files, limits.file_bytes)
        with self._lock:
            if self._is_closed:
                raise SandboxError("this executor is closed.")
            self._homes = self._homes or self._start_homes()
            self._collect()
            if len(self._opened) >= MAX_OPEN:
                raise SandboxError(f"{MAX_OPEN} workspaces are open, and no more can be: close some of them.")
            name = str(next(self._numbers))
            home = self._homes[int(name) % len(self._homes)]
            workspace = Workspace(home, name, limits)
            self._opened[name] = time.monotonic() + limits.lifetime_seconds, weakref.ref(workspace)
        workspace._opening = home.thread.submit(workspace._answer, "open", dict(files))
        return workspace

    def _start_homes(self) -> list[_Home]:
        layers, homes = self._layers(), list[_Home]()
        try:
            homes.append(_Home(partial(self._start, layers)))
        except NoNamespaces:
            layers = frozenset(layers) - {Layer.NAMESPACES}
        more = self._size - len(homes)
        with ThreadPoolExecutor(more or 1) as threads:
            homes += threads.map(_Home, [partial(self._start, layers)] * more)
        found = homes[0].worker
        if not frozenset(found.layers) >= CORE_LAYERS:
            for home in homes:
                home.close()
            raise SandboxError(
                "workspaces need isolation of level B or A, and commands reach level "
                f"{level_of(found.layers).value} here.",
                remedy=f"Missing: {found.missing}. See `greenward doctor`.",
            )
        return homes

    def _collect(self) -> None:
        now = time.monotonic()
        for name, (end, reference) in list(self._opened.items()):
            workspace = reference()
            if workspace is None or not workspace._closing.alive or now >= end:
                del self._opened[name]
                if workspace is not None:
                    workspace.close()

    def close(self) -> None:
        """Ends all workspaces and their workers."""
        self._is_closed = True
        for home in self._homes:
            home.close()
