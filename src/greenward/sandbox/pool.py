"""The local executor: a pool of fork-server workers on this machine, with a watchdog over each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import selectors
import statistics
import sys
import tempfile
import threading
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from greenward.errors import SandboxError
from greenward.sandbox.folders import remove_folder
from greenward.sandbox.isolation import ALL_LAYERS, PORTABLE_LAYERS, Isolation, Layer, Level
from greenward.sandbox.processes import LINUX
from greenward.sandbox.protocol import Call, Job, Outcome, RunResult
from greenward.sandbox.slot import Slot
from greenward.sandbox.tasks import Task, after_loss, after_result
from greenward.sandbox.worker_process import (
    NoNamespaces,
    WorkerLost,
    WorkerNotStarted,
    WorkerProcess,
    WorkerSettings,
)

_TRIVIAL_ANSWERS = 21


class LocalExecutor:
    """Runs jobs in `workers` clean processes on this machine. A context manager.

    A job is taken from its iterable only when a worker is free. A worker that dies or falls silent
    is replaced and its job runs again; for a job that loses a second worker, a control (a harmless
    program) runs in a fresh one: if the control survives, the job is to blame (CHEATING), else the
    machine (INFRASTRUCTURE). An answer that ran out of wall time while it waited for a processor
    runs once more, alone.

    `require` is the least level of isolation to run at; `isolation` says which was reached and why
    no more. `layers` are those to try; leaving some out is for tests and measurements. `packages`
    may be imported by answers besides the standard library.

    Raises `SandboxError` for too little isolation, limits that make no sense, inputs that are not
    plain data, a worker that cannot start, and a batch begun inside an unfinished one of the same thread.
    """

    def __init__(
        self,
        workers: int = 2,
        *,
        require: Level = Level.B,
        layers: Collection[Layer] = ALL_LAYERS,
        packages: Sequence[str] = (),
    ) -> None:
        if workers < 1:
            raise SandboxError(f"the sandbox needs at least one worker, not {workers}.")
        for name in packages:
            if importlib.util.find_spec(name) is None:
                raise SandboxError(
                    f"answers are to import {name!r}, but there is no such package here.",
                    remedy=f"Install it (pip install {name}), or take it out of sandbox.packages.",
                )
        self._folder = tempfile.mkdtemp(prefix="greenward-sandbox-")
        # The kernel ends a worker with the *thread* that started it, so one lasting thread starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="greenward-sandbox")
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._running_thread: int | None = None
        self._closed = False
        self._size = workers
        self._workers_started = 0
        self._settings = WorkerSettings(frozenset(layers), tuple(packages))
        if not LINUX:
            self._do_without(ALL_LAYERS - PORTABLE_LAYERS, f"it needs Linux, not {sys.platform}")
        self._idle: list[Slot] = []
        self._busy: dict[Slot, Task] = {}
        try:
            self._idle = self._start_slots(workers)
            first = self._idle[0].answers
            self.isolation = Isolation(first.layers, {**first.missing, **self._settings.missing})
            self.isolation.demand(require)
        except BaseException:
            self.close()
            raise
        if not self.isolation.level.suffices(Level.B):
            warnings.warn(self.isolation.warning, stacklevel=2)

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.pid for slot in (*self._idle, *self._busy) for worker in slot.workers)

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, RunResult]]:
        """Runs jobs; yields (position of the job, its result) in order of completion."""
        self._begin()
        try:
            yield from self._run(Task.new(index, job) for index, job in enumerate(jobs))
        finally:
            for slot in list(self._busy):  # the caller left early: nobody wants these answers
                del self._busy[slot]
                self._replace(slot)
            self._running_thread = None
            self._lock.release()

    def close(self) -> None:
        """Ends every worker and removes every file. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for slot in (*self._idle, *self._busy):
            slot.close()
        self._idle, self._busy = [], {}
        self._selector.close()
        self._starter.shutdown()
        if os.path.isdir(self._folder):  # the last worker takes it along, unless it was killed
            remove_folder(self._folder)

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        if self._running_thread == threading.get_ident():
            raise SandboxError(
                "this executor is in the middle of a batch of the same thread.",
                remedy="Finish or close that batch first, or use a second executor.",
            )
        self._lock.acquire()
        self._running_thread = threading.get_ident()
        if self._closed:
            self._running_thread = None
            self._lock.release()
            raise SandboxError("this executor is closed.")
        self._start_missing()

    def _run(self, fresh: Iterator[Task]) -> Iterator[tuple[int, RunResult]]:
        again: deque[Task] = deque()
        alone: deque[Task] = deque()
        settled: deque[tuple[int, RunResult]] = deque()
        while True:
            while (self._idle or not self._busy) and not any(task.alone for task in self._busy.values()):
                task = again.popleft() if again else next(fresh, None)
                if task is None and alone and not self._busy:
                    task = alone.popleft()
                if task is None:
                    break
                try:
                    self._assign(task)
                except WorkerNotStarted as error:
                    failed = RunResult(Outcome.INFRASTRUCTURE, error_message=error.message)
                    settled.append((task.index, failed))
            yield from settled
            settled.clear()
            if not self._busy:
                return
            for slot, result in self._wait():
                task = self._busy.pop(slot, None)
                from_outside = result is None and slot.was_killed_from_outside()
                if result is None:
                    self._replace(slot)
                else:
                    self._idle.append(slot)
                if task is not None:
                    verdict = (
                        after_loss(task, killed_from_outside=from_outside)
                        if result is None
                        else after_result(task, result)
                    )
                    if isinstance(verdict, Task):
                        (alone if verdict.alone else again).append(verdict)
                    else:
                        settled.append((task.index, verdict))

    def _assign(self, task: Task) -> None:
        """Hands a task to an idle slot. Raises `WorkerNotStarted` and `SandboxError`."""
        if not self._idle:
            self._idle += self._start_slots(1)
        slot = self._idle[-1]
        try:
            slot.assign(task)
        except WorkerNotStarted:
            self._replace(slot)
            raise
        self._busy[self._idle.pop()] = task

    def _wait(self) -> list[tuple[Slot, RunResult | None]]:
        """Waits for news: slots with a result, and slots (busy or idle) that lost a worker with None."""
        timeout = min(slot.deadline for slot in self._busy) - time.monotonic()
        news: dict[Slot, RunResult | None] = {}
        for key, _ in self._selector.select(max(0.0, timeout)):
            slot: Slot = key.data
            try:
                result = slot.hear(key.fileobj)  # type: ignore[arg-type]
            except WorkerLost:
                news[slot] = None
            else:
                if result is not None:
                    news.setdefault(slot, result)
        # Reading those reports took time, in which those of other slots may have come.
        now = time.monotonic()
        late = [slot for slot in self._busy if now >= slot.deadline and slot not in news]
        heard = {key.data for key, _ in self._selector.select(0)} if late else set()
        news.update((slot, None) for slot in late if slot not in heard)
        return list(news.items())

    def _start_slots(self, count: int) -> list[Slot]:
        """Slots whose workers serve; without namespaces where the machine does not allow them."""
        slots: list[Slot] = []
        try:
            for _ in range(count):
                slots.append(Slot(self._start))
            for slot in slots:
                slot.answers.wait_ready()
        except NoNamespaces as error:
            for slot in slots:
                self._discard(slot)
            self._do_without({Layer.NAMESPACES}, str(error))
            return self._start_slots(count)
        except BaseException:
            for slot in slots:
                self._discard(slot)
            raise
        return slots

    def _do_without(self, layers: Collection[Layer], reason: str) -> None:
        self._settings = replace(
            self._settings,
            layers=frozenset(self._settings.layers) - frozenset(layers),
            missing={**self._settings.missing, **{layer.value: reason for layer in layers}},
        )

    def _start(self, slot: Slot) -> WorkerProcess:
        self._workers_started += 1
        folder = os.path.join(self._folder, str(self._workers_started))
        worker = self._starter.submit(WorkerProcess, folder, self._settings).result()
        self._selector.register(worker, selectors.EVENT_READ, slot)
        return worker

    def _discard(self, slot: Slot) -> None:
        for worker in slot.workers:
            self._selector.unregister(worker)
        slot.kill()

    def _replace(self, slot: Slot) -> None:
        self._discard(slot)
        if slot in self._idle:
            self._idle.remove(slot)
        self._start_missing()

    def _start_missing(self) -> None:
        """Starts what the pool lacks; what the machine does not let start is tried again later."""
        with contextlib.suppress(WorkerNotStarted):
            self._idle += self._start_slots(self._size - len(self._idle) - len(self._busy))


def inspect_sandbox() -> tuple[Isolation, float]:
    """Tries every layer out on this machine: what holds, and the median milliseconds of a trivial answer.

    Raises `SandboxError` if no worker starts.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor = LocalExecutor(1, require=Level.D)
    seconds = []
    with executor:
        for number in range(_TRIVIAL_ANSWERS):
            job = Job(f"def add(a, b):\n    return a + b  # {number}", "add", (Call((1, 2)),))
            started = time.perf_counter()
            list(executor.run([job]))
            seconds.append(time.perf_counter() - started)
    return executor.isolation, statistics.median(seconds) * 1000
