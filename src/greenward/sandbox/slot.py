"""A place in the pool: a worker for answers, and one for trusted code that never runs an answer."""

from __future__ import annotations

import socket
from collections.abc import Callable

from greenward.sandbox.protocol import RunResult
from greenward.sandbox.results import read_report
from greenward.sandbox.tasks import Task, merge_checks
from greenward.sandbox.worker_process import WorkerLost, WorkerProcess

GRACE_SECONDS = 3.0  # a worker that is silent for so long after the wall limit is wedged


class Slot:
    """Runs one task at a time. `start` starts a worker; the one for trusted code starts when needed."""

    def __init__(self, start: Callable[[Slot], WorkerProcess]) -> None:
        self._start = start
        self.answers = start(self)
        self._trusted: WorkerProcess | None = None
        self._task: Task | None = None
        self._awaited: dict[WorkerProcess, int] = {}  # and how many results each must give
        self._results: dict[WorkerProcess, RunResult] = {}

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that were started."""
        return [self.answers] if self._trusted is None else [self.answers, self._trusted]

    @property
    def deadline(self) -> float:
        """When a task that has not ended counts as lost (monotonic seconds)."""
        return min((worker.deadline for worker in self._awaited), default=float("inf"))

    def assign(self, task: Task) -> None:
        """Hands a task to the workers that it needs. Raises `SandboxError` for one that cannot be sent."""
        job = task.job
        for_answer = task.answer_payload()
        for_checks = task.checks_payload() if job.checks else b""
        answers = self._for_trusted_code() if job.trusted else self.answers
        self._task, self._results = task, {}
        self._awaited = {answers: len(job.calls) + len(job.expressions)}
        wall = job.limits.wall_seconds
        if not job.checks:
            answers.send(task.header, for_answer, wall_seconds=wall, grace_seconds=GRACE_SECONDS)
            return
        checks = self._for_trusted_code()
        self._awaited[checks] = len(job.checks)
        one, other = socket.socketpair()
        with one, other:
            for worker, payload, calls in ((answers, for_answer, one), (checks, for_checks, other)):
                worker.send(task.header, payload, wall_seconds=wall, grace_seconds=GRACE_SECONDS, calls=calls)

    def hear(self, worker: WorkerProcess) -> RunResult | None:
        """Takes what a worker has begun to say; the result once all is said. Raises `WorkerLost`."""
        report = worker.receive()
        if self._task is None or worker not in self._awaited:
            raise WorkerLost  # an idle worker has nothing to say but that it is gone
        layers = tuple(layer.value for layer in worker.layers)
        expected = self._awaited.pop(worker)
        self._results[worker] = read_report(expected, self._task.nonce, *report, layers)
        if self._awaited:
            return None
        job, results, self._task = self._task.job, self._results, None
        (first, *rest) = (results[one] for one in self.workers if one in results)
        return merge_checks(job, first, rest[0]) if rest else first

    def was_killed_from_outside(self) -> bool:
        """Whether the workers of a lost task that have ended were killed by what no answer can send."""
        lost = [worker for worker in self.workers if worker.has_hung_up]
        return bool(lost) and all(worker.was_killed_from_outside() for worker in lost)

    def close(self) -> None:
        """Lets the workers clean up and end."""
        for worker in self.workers:
            worker.close()

    def kill(self) -> None:
        """Ends the workers and all that they started, at once."""
        for worker in self.workers:
            worker.kill()

    def _for_trusted_code(self) -> WorkerProcess:
        if self._trusted is None:
            self._trusted = self._start(self)
            self._trusted.wait_ready()
        return self._trusted
