"""The local executor: a pool of fork-server workers on this machine, with a watchdog over each."""

from __future__ import annotations

import math
import os
import secrets
import selectors
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace

from greenward.errors import SandboxError
from greenward.sandbox.codec import PlainDataError, encode
from greenward.sandbox.folders import remove_folder
from greenward.sandbox.harness import NONCE_CHARS
from greenward.sandbox.protocol import Job, Limits, Outcome, RunResult
from greenward.sandbox.results import read_report
from greenward.sandbox.worker_process import WorkerLost, WorkerProcess

GRACE_SECONDS = 3.0  # a worker that is silent for so long after the wall limit is wedged
START_SECONDS = 30.0
CONTROL_SECONDS = 1.0
MIN_MEMORY_BYTES = 64 << 20  # what the interpreter itself takes


@dataclass(frozen=True)
class _Task:
    """One job on its way: its place, the nonce of this run, and how many workers it has lost."""

    index: int
    job: Job
    nonce: str
    losses: int = 0
    is_control: bool = False


class LocalExecutor:
    """Runs jobs in `workers` clean processes on this machine. A context manager.

    A job is taken from its iterable only when a worker is free. A worker that dies or falls silent
    is replaced and its job runs again; for a job that loses a second worker, a control (a harmless
    program) runs in a fresh one: if the control survives, the job is to blame (CHEATING), else the
    machine (INFRASTRUCTURE).

    Raises `SandboxError` for limits that make no sense, inputs that are not plain data, a worker
    that cannot start, and a batch begun inside an unfinished batch of the same thread.
    """

    def __init__(self, workers: int = 2) -> None:
        if workers < 1:
            raise SandboxError(f"the sandbox needs at least one worker, not {workers}.")
        self._folder = tempfile.mkdtemp(prefix="greenward-sandbox-")
        # The kernel ends a worker with the *thread* that started it, so one lasting thread starts them all.
        self._starter = ThreadPoolExecutor(1, thread_name_prefix="greenward-sandbox")
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._running_thread: int | None = None
        self._closed = False
        self._workers_started = 0
        self._idle: list[WorkerProcess] = []
        self._busy: dict[WorkerProcess, _Task] = {}
        try:
            self._idle = [self._start() for _ in range(workers)]
            for worker in self._idle:
                worker.wait_ready(START_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def worker_pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(worker.pid for worker in (*self._idle, *self._busy))

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, RunResult]]:
        """Runs jobs; yields (position of the job, its result) in order of completion."""
        self._begin()
        try:
            yield from self._run(_Task(index, job, _new_nonce()) for index, job in enumerate(jobs))
        finally:
            for worker in list(self._busy):  # the caller left early: nobody wants these answers
                del self._busy[worker]
                self._replace(worker)
            self._running_thread = None
            self._lock.release()

    def close(self) -> None:
        """Ends every worker and removes every file. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for worker in (*self._idle, *self._busy):
            worker.close()
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

    def _run(self, tasks: Iterator[_Task]) -> Iterator[tuple[int, RunResult]]:
        again: deque[_Task] = deque()
        settled: deque[tuple[int, RunResult]] = deque()
        while True:
            while self._idle:
                task = again.popleft() if again else next(tasks, None)
                if task is None:
                    break
                self._assign(task)
            yield from settled
            settled.clear()
            if not self._busy:
                return
            for worker, result in self._wait():
                task = self._busy.pop(worker, None)
                if result is None:
                    self._replace(worker)
                else:
                    self._idle.append(worker)
                if task is not None:
                    verdict = _after_loss(task) if result is None else _after_result(task, result)
                    if isinstance(verdict, _Task):
                        again.append(verdict)
                    else:
                        settled.append((task.index, verdict))

    def _assign(self, task: _Task) -> None:
        payload = _encode_job(task.job, task.nonce)
        worker = self._idle.pop()
        self._busy[worker] = task
        limits = task.job.limits
        worker.send(asdict(limits), payload, wall_seconds=limits.wall_seconds, grace_seconds=GRACE_SECONDS)

    def _wait(self) -> list[tuple[WorkerProcess, RunResult | None]]:
        """Waits for news: workers with a result, and lost workers (busy or idle) with None."""
        timeout = min(worker.deadline for worker in self._busy) - time.monotonic()
        speaking = {key.fileobj for key, _ in self._selector.select(max(0.0, timeout))}
        news: list[tuple[WorkerProcess, RunResult | None]] = []
        now = time.monotonic()
        for worker in (*self._busy, *self._idle):
            if worker in speaking:
                news.append((worker, self._receive(worker)))
            elif worker in self._busy and now >= worker.deadline:
                news.append((worker, None))
        return news

    def _receive(self, worker: WorkerProcess) -> RunResult | None:
        try:
            report = worker.receive()
        except WorkerLost:
            return None
        task = self._busy.get(worker)  # an idle worker has nothing to say but that it is gone
        return None if task is None else read_report(task.job, task.nonce, *report)

    def _start(self) -> WorkerProcess:
        self._workers_started += 1
        folder = os.path.join(self._folder, str(self._workers_started))
        worker = self._starter.submit(WorkerProcess, folder).result()
        self._selector.register(worker, selectors.EVENT_READ)
        return worker

    def _replace(self, worker: WorkerProcess) -> None:
        self._selector.unregister(worker)
        worker.kill()
        if worker in self._idle:
            self._idle.remove(worker)
        fresh = self._start()
        fresh.wait_ready(START_SECONDS)
        self._idle.append(fresh)


def _new_nonce() -> str:
    return secrets.token_hex(NONCE_CHARS // 2)


def _encode_job(job: Job, nonce: str) -> bytes:
    check_limits(job.limits)
    calls = [[call.args, dict(call.kwargs)] for call in job.calls]
    try:
        text = encode([nonce, job.code, job.entry_point, calls, list(job.expressions), job.setup_code])
    except PlainDataError as error:
        raise SandboxError(f"the inputs of a job are not plain data: {error}.") from None
    return text.encode("ascii")


def check_limits(limits: Limits) -> None:
    """Raises `SandboxError` naming the first limit that makes no sense."""
    for field in fields(limits):
        value = getattr(limits, field.name)
        least = MIN_MEMORY_BYTES if field.name == "memory_bytes" else 0
        if not (math.isfinite(value) and value > least):
            raise SandboxError(
                f"the limit {field.name} must be a finite number above {least}, not {value!r}."
            )


def _after_result(task: _Task, result: RunResult) -> RunResult:
    if not task.is_control:
        return result
    if result.outcome is not Outcome.COMPLETED:
        return RunResult(Outcome.INFRASTRUCTURE, error_message="the sandbox cannot run a harmless program")
    return RunResult(
        Outcome.CHEATING,
        error_class="WorkerLost",
        error_message="two workers died or stopped while it ran; a harmless program lost none",
    )


def _after_loss(task: _Task) -> RunResult | _Task:
    if task.is_control:
        return RunResult(Outcome.INFRASTRUCTURE, error_message="workers die under harmless programs, too")
    if task.losses == 0:
        return replace(task, nonce=_new_nonce(), losses=1)
    control = Job(f"import time\ntime.sleep({CONTROL_SECONDS})")
    return _Task(task.index, control, _new_nonce(), is_control=True)
