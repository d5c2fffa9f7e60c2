"""The sandbox of one machine for callers elsewhere: requests in, replies out, several at the same time."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Lock
from typing import Any

from greenward.closing import Closing
from greenward.errors import SandboxError
from greenward.sandbox import wire
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Job, RunResult


class JobServer(Closing["JobServer"]):
    """Runs the jobs of all requests on `workers` local executors of one worker each.

    No request waits for the slowest job of another one, as it would with a single executor. `options` are
    those of `LocalExecutor`. Raises `SandboxError` as that does.
    """

    def __init__(self, workers: int, **options: Any) -> None:
        self.workers = workers
        self._executors: list[LocalExecutor] = []
        self._idle = SimpleQueue[LocalExecutor]()
        self._taking_all = Lock()
        self._threads = ThreadPoolExecutor(max(1, workers), thread_name_prefix="greenward-jobs")
        try:
            for _ in range(max(1, workers)):
                self._executors.append(LocalExecutor(min(workers, 1), **options))
                self._idle.put(self._executors[-1])
        except BaseException:
            self.close()
            raise
        self.isolation = self._executors[0].isolation

    def answer(self, request: Any) -> wire.Json:
        """The reply to a request (`wire`)."""
        try:
            results = self.run(wire.read_request(request))
        except SandboxError as error:
            return wire.write_error(error)
        return wire.write_reply(wire.Reply(self.isolation, self.workers, results))

    def run(self, jobs: Iterable[Job]) -> list[RunResult]:
        """The results of jobs, in order. May be called from several threads. Raises `SandboxError`."""
        return list(self._threads.map(self._run, jobs))

    def close(self) -> None:
        """Ends every worker. Jobs that have not begun are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for executor in self._executors:
            executor.close()

    def _run(self, job: Job) -> RunResult:
        result = self._run_on(1, job)
        # The machine was busy, perhaps with other jobs of this server: once more while none runs.
        return self._run_on(self.workers, job) if result.was_starved else result

    def _run_on(self, count: int, job: Job) -> RunResult:
        """Runs a job while `count` executors are taken from the others."""
        taken: list[LocalExecutor] = []
        try:
            with self._taking_all:
                taken.extend(self._idle.get() for _ in range(count))
            ((_, result),) = taken[0].run([job])
            return result
        finally:
            for executor in taken:
                self._idle.put(executor)
