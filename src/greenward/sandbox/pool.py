"""The local executor: a pool of fork-server workers on this machine, each with an answer at a time."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import selectors
import statistics
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import MappingProxyType

from greenward.common.control_groups import usable_cores
from greenward.common.errors import Closeable, SandboxError
from greenward.common.interruption import POLL_SECONDS, check
from greenward.sandbox.inside.files import remove_folder
from greenward.sandbox.inside.linux import LINUX
from greenward.sandbox.isolation import ALL_LAYERS, PORTABLE_LAYERS, Isolation, Layer, Level
from greenward.sandbox.protocol import Call, Job, Outcome, RunResult
from greenward.sandbox.workers import (
    Attempt,
    NoNamespaces,
    WorkerLost,
    WorkerNotStarted,
    WorkerProcess,
    WorkerSlot,
)
from greenward.sandbox.workspaces import USUAL_LIMITS, Workspace, WorkspaceLimits, WorkspacePool

_MOST_USUAL = 32  # a process that serves more of them is slower than they are
_MOST_OF_A_CORE = 64  # workers, all of which are started before the first answer


def usual_workers() -> int:
    """One more than the cores, so that none is idle while a worker waits for its next answer; at most 32."""
    return min(usable_cores() + 1, _MOST_USUAL)


class LocalExecutor(Closeable):
    """Runs jobs in `workers` clean processes on this machine (one more than its cores). A context manager.

    A job is taken from its iterable only when a worker is free. A worker that dies or falls silent
    is replaced and its job runs again; for a job that loses a second worker, a control (a harmless
    program) runs in a fresh one: if the control survives, the job is to blame (CHEATING), else the
    machine (INFRASTRUCTURE). An answer that ran out of wall time while it waited for a processor
    runs once more, alone.

    `require` is the least level of isolation to run at; `isolation` says which was reached and why
    no more. `layers` are those to try; leaving some out is for tests and measurements. `packages`
    may be imported by answers besides the standard library. `variables` are added to the environment of their
    interpreter, as `PYTHONHASHSEED`, on which the order of sets of text depends.

    Raises `SandboxError` for too little isolation, limits that make no sense, inputs that are not
    plain data, a worker that cannot start, and a batch begun inside an unfinished one of the same thread.
    """

    def __init__(
        self,
        workers: int | None = None,
        *,
        require: Level = Level.B,
        layers: Collection[Layer] = ALL_LAYERS,
        packages: Sequence[str] = (),
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        workers = usual_workers() if workers is None else workers
        most = _MOST_OF_A_CORE * max(1, usable_cores())
        if not 1 <= workers <= most:
            raise SandboxError(f"the sandbox takes 1 to {most} workers on this machine, not {workers}.")
        for name in packages:
            # That of a module would import the packages around it.
            if importlib.util.find_spec(name.partition(".")[0]) is None:
                raise SandboxError(
                    f"answers are to import {name!r}, but there is no such package here.",
                    remedy=f"Install it (pip install {name}), or drop it from sandbox.packages (--package).",
                )
        self._folder = tempfile.mkdtemp(prefix="greenward-sandbox-")
        # Where nobody closes this: workers that still live remove their folders, and the last one the pool's.
        weakref.finalize(self, _remove_if_empty, self._folder)
        # The kernel ends a worker with the *thread* that started it, so one lasting thread starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="greenward-sandbox")
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._running_thread: int | None = None
        self._closed = False
        self._size = workers
        self._numbers = itertools.count(1)  # of the workers that were started
        offered = ALL_LAYERS if LINUX else PORTABLE_LAYERS
        self._packages, self._layers = packages, offered.intersection(layers)
        self._variables = variables
        missing = {one.value: f"it needs Linux, not {sys.platform}" for one in ALL_LAYERS - offered}
        self._idle: list[WorkerSlot] = []
        self._busy: list[WorkerSlot] = []
        self._leaving: list[WorkerProcess] = []  # spent, and removing their folders
        start_for_commands = partial(self._start_process, commands=True)
        self.workspaces = WorkspacePool(start_for_commands, lambda: self._layers, workers)
        try:
            try:
                self._idle = self._start_slots(workers)
            except NoNamespaces as error:
                self._layers -= {Layer.NAMESPACES}
                missing[Layer.NAMESPACES.value] = error.message
                self._idle = self._start_slots(workers)
            first = self._idle[0].workers[0]
            self.isolation = Isolation(first.layers, {**first.missing, **missing})
            self.isolation.demand(require)
        except BaseException:
            self.close()
            raise
        if not self.isolation.level.suffices(Level.B):
            warnings.warn(self.isolation.warning, stacklevel=2)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        return tuple(worker.pid for slot in (*self._idle, *self._busy) for worker in slot.workers)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, RunResult]]:
        """Runs jobs; yields (position of the job, its result) in order of completion."""
        if self._running_thread == threading.get_ident():
            raise SandboxError(
                "this executor is in the middle of a batch of the same thread.",
                remedy="Finish or close that batch first, or use a second executor.",
            )
        with self._lock:
            if self._closed:
                raise SandboxError("this executor is closed.")
            self._running_thread = threading.get_ident()
            try:
                self._start_missing()
                yield from self._run(Attempt(index, job) for index, job in enumerate(jobs))
            finally:
                while self._busy:  # the caller left early and does not need these results
                    self._discard(self._busy.pop())
                self._running_thread = None

    def open(self, files: Mapping[str, str], limits: WorkspaceLimits = USUAL_LIMITS) -> Workspace:
        """A workspace that holds `files` (relative path to text), in workers of their own.

        Raises `SandboxError`, also at a level below B.
        """
        return self.workspaces.open(files, limits)

    def close(self) -> None:
        """Ends every worker and removes every file; one that is spent does so itself. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self.workspaces.close()
        for slot in (*self._idle, *self._busy):
            self._discard(slot)
        self._idle, self._busy = [], []
        self._selector.close()
        self._starter.shutdown()
        left = {worker.folder for worker in self._leaving if not worker.has_ended}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._folder):
                if (folder := os.path.join(self._folder, name)) not in left:
                    remove_folder(folder)
        _remove_if_empty(self._folder)  # the last of those that are left does so

    def _run(self, fresh: Iterator[Attempt]) -> Iterator[tuple[int, RunResult]]:
        again, alone = deque[Attempt](), deque[Attempt]()
        settled: list[tuple[int, RunResult]] = []
        while True:
            while (self._idle or not self._busy) and not any(one.is_alone for one in self._busy):
                attempt = again.popleft() if again else next(fresh, None)
                if attempt is None and alone and not self._busy:
                    attempt = alone.popleft()
                if attempt is None:
                    break
                try:
                    self._assign(attempt)
                except WorkerNotStarted as error:
                    failed = RunResult(Outcome.INFRASTRUCTURE, error_message=error.message)
                    settled.append((attempt.index, failed))
            yield from settled
            settled.clear()
            if not self._busy:
                return
            for slot, result in self._wait():
                attempt = slot.attempt if slot in self._busy else None
                if attempt is not None:
                    self._busy.remove(slot)
                if result is None:
                    from_outside = slot.was_killed_from_outside()
                if result is None or slot.is_spent:
                    self._replace(slot)
                else:
                    self._idle.append(slot)
                if attempt is None:  # an idle worker was lost
                    continue
                follows = attempt.after_result(result) if result else attempt.after_loss(from_outside)
                if isinstance(follows, Attempt):
                    (alone if follows.alone else again).append(follows)
                else:
                    settled.append((attempt.index, follows))

    def _assign(self, attempt: Attempt) -> None:
        """Hands an attempt to an idle slot. Raises `WorkerNotStarted` and `SandboxError`."""
        if not self._idle:
            self._idle += self._start_slots(1)
        slot = self._idle[-1]
        try:
            slot.assign(attempt)
        except WorkerNotStarted:
            self._replace(slot)
            raise
        self._busy.append(self._idle.pop())

    def _wait(self) -> list[tuple[WorkerSlot, RunResult | None]]:
        """Waits for slots with a result, or with None: slots (busy or idle) that have lost a worker."""
        check()
        timeout = min(min(slot.deadline for slot in self._busy) - time.monotonic(), POLL_SECONDS)
        news: dict[WorkerSlot, RunResult | None] = {}
        for key, _ in self._selector.select(max(0.0, timeout)):
            slot: WorkerSlot = key.data
            try:
                result = slot.receive(key.fileobj)  # type: ignore[arg-type]
            except WorkerLost:
                news[slot] = None
            else:
                if result is not None:
                    news.setdefault(slot, result)
        # Reading those reports took time, and reports of other slots may have arrived meanwhile.
        now = time.monotonic()
        late = [slot for slot in self._busy if now >= slot.deadline and slot not in news]
        heard = {key.data for key, _ in self._selector.select(0)} if late else set()
        news.update((slot, None) for slot in late if slot not in heard)
        return list(news.items())

    def _start_slots(self, count: int) -> list[WorkerSlot]:
        """Slots whose workers serve. Raises `WorkerNotStarted`."""
        slots: list[WorkerSlot] = []
        try:
            for _ in range(count):
                slots.append(WorkerSlot(self._start))
            for slot in slots:
                slot.workers[0].wait_ready()
        except BaseException:
            for slot in slots:
                self._discard(slot)
            raise
        return slots

    def _start_process(self, layers: Collection[Layer], *, commands: bool = False) -> WorkerProcess:
        folder = os.path.join(self._folder, str(next(self._numbers)))
        arguments = (folder, layers, self._packages, self._variables)
        return self._starter.submit(WorkerProcess, *arguments, commands=commands).result()

    def _start(self, slot: WorkerSlot) -> WorkerProcess:
        worker = self._start_process(self._layers)
        self._selector.register(worker, selectors.EVENT_READ, slot)
        return worker

    def _discard(self, slot: WorkerSlot) -> None:
        for worker in slot.workers:
            self._selector.unregister(worker)
            if worker.is_spent:
                worker.leave()
                self._leaving = [one for one in (*self._leaving, worker) if not one.has_ended]
            else:
                worker.kill()

    def _replace(self, slot: WorkerSlot) -> None:
        self._discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        self._start_missing()

    def _start_missing(self) -> None:
        """Starts missing workers; those that the machine does not let start are tried again later."""
        with contextlib.suppress(WorkerNotStarted):
            self._idle += self._start_slots(self._size - len(self._idle) - len(self._busy))


def _remove_if_empty(folder: str) -> None:
    with contextlib.suppress(OSError):
        os.rmdir(folder)


StartingExecutor = Future[LocalExecutor]
"""An executor that is ready soon: its result, or the error for which there is none."""


@contextlib.contextmanager
def starting_executor(
    workers: int | None, *, require: Level, packages: Sequence[str]
) -> Iterator[StartingExecutor]:
    """A `LocalExecutor` that starts while the caller goes on, and is closed at the end."""
    with ThreadPoolExecutor(1, thread_name_prefix="greenward-starting") as thread:
        starting = thread.submit(LocalExecutor, workers, require=require, packages=packages)
        try:
            yield starting
        finally:
            if starting.exception() is None:
                starting.result().close()


def inspect_sandbox() -> tuple[Isolation, float]:
    """Tests every layer on this machine: the isolation, and the median milliseconds of a trivial answer.

    Raises `SandboxError` if no worker starts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor = LocalExecutor(1, require=Level.D)
    seconds = []
    with executor:
        for number in range(21):
            job = Job(f"def add(a, b):\n    return a + b  # {number}", "add", (Call((1, 2)),))
            started = time.perf_counter()
            list(executor.run([job]))
            seconds.append(time.perf_counter() - started)
    return executor.isolation, statistics.median(seconds) * 1000
