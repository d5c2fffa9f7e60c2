"""Executes jobs on other hosts in batches, those of a lost host on another, and serves such requests.

A host is a way to one `JobServer`: a Ray actor or a server. It is infrastructure: what goes wrong there is
never an answer's fault. A request is {"version", "jobs"}, a reply {"version", "layers", "missing",
"workers", "results"} or {"error"}, as JSON. Inputs and results are the codec's text, never pickled. Neither
holds expected values.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from greenward import __version__
from greenward.common.errors import Closeable, SandboxError
from greenward.common.interruption import POLL_SECONDS, check
from greenward.common.records import check_types
from greenward.sandbox.inside.codec import PlainDataError, decode, decode_untrusted, encode
from greenward.sandbox.isolation import Isolation, Layer, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import MAX_JOB_CHARS, Call, CallResult, Job, Limits, Outcome, RunResult
from greenward.sandbox.workers import GRACE_SECONDS, WorkerLost
from greenward.sandbox.workspaces import USUAL_LIMITS, Workspace, WorkspaceLimits

Json = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """What a host is, and the results of a request in the order of its jobs."""

    isolation: Isolation
    workers: int
    results: Sequence[RunResult]


@cache
def source_files() -> dict[str, bytes]:
    """All of greenward that the sandbox imports, by path from the folder that holds the package."""
    package = Path(__file__).parent.parent
    used = "__init__", "control_groups", "errors", "interruption", "records"
    names = "__init__", *(f"common/{name}" for name in used)
    files = [*(package / f"{name}.py" for name in names), *sorted(package.glob("sandbox/**/*.py"))]
    return {str(file.relative_to(package.parent)): file.read_bytes() for file in files}


@cache
def version() -> str:
    """The version of greenward and a digest of the sandbox's source: verdicts depend on both."""
    digest = hashlib.sha256(b"".join(source_files().values())).hexdigest()
    return f"{__version__}+{digest[:8]}"


def write_job(job: Job) -> tuple[Json, int]:
    """A job and its characters. Raises `SandboxError` for inputs that are not plain data, or too long."""
    try:
        calls = [call.text for call in job.calls]
    except PlainDataError as error:
        raise SandboxError(f"the inputs of a job are not plain data: {error}.") from None
    texts = [job.code, job.preamble, job.setup_code, job.check_setup, *job.files.values(), *calls]
    texts += [*job.expressions, *job.checks, *job.stdins, *filter(None, job.changes.values())]
    if (chars := sum(map(len, texts))) > MAX_JOB_CHARS:
        raise SandboxError(f"a job takes {chars} characters; at most {MAX_JOB_CHARS} are allowed.")
    mappings = {"limits": vars(job.limits), "files": dict(job.files), "changes": dict(job.changes)}
    return vars(job) | mappings | {"calls": calls}, chars


def write_request(jobs: Sequence[Json]) -> Json:
    """A request for written jobs. Without jobs it asks what the host is."""
    return {"version": version(), "jobs": list(jobs)}


def read_request(request: Any) -> list[Job]:
    """Raises `SandboxError` for a request of another version, and for what is no request."""
    try:
        _check_version(request["version"])
        return [_read_job(**job) for job in request["jobs"]]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise SandboxError(f"no request can be read there ({type(error).__name__}: {error}).") from None


def write_reply(reply: Reply) -> Json:
    """The JSON of a reply."""
    return {
        "version": version(),
        "workers": reply.workers,
        "layers": [layer.value for layer in reply.isolation.layers],
        "missing": dict(reply.isolation.missing),
        "results": [_write_result(result) for result in reply.results],
    }


def read_reply(reply: Any, expected: int) -> Reply:
    """Raises `SandboxError` for an error and for another version, `ValueError` for what is no such reply."""
    try:
        if "error" in reply:
            message, remedy = reply["error"]
            raise SandboxError(str(message), remedy=remedy)
        _check_version(reply["version"])
        results = [_read_result(**result) for result in reply["results"]]
        isolation = Isolation(tuple(map(Layer, reply["layers"])), reply["missing"])
        if len(results) != expected:
            raise ValueError(f"{len(results)} results for {expected} jobs")
        return Reply(isolation, max(1, int(reply["workers"])), results)
    except (PlainDataError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _check_version(theirs: str) -> None:
    if theirs != version():
        raise SandboxError(
            f"one side runs greenward {version()}, the other side {str(theirs)[:100]}.",
            remedy="Install the same greenward on all machines.",
        )


def _tuples(parts: Json) -> Json:
    """JSON has lists only, records have tuples."""
    return {name: tuple(part) if type(part) is list else part for name, part in parts.items()}


def _read_job(calls: list[str], limits: Json, files: Json, changes: Json, **parts: Any) -> Job:
    arguments = tuple(Call(tuple(args), kwargs) for args, kwargs in map(decode, calls))
    mappings: Json = {"limits": Limits(**limits), "files": dict(files), "changes": dict(changes)}
    job = Job(**_tuples(parts), **mappings, calls=arguments)
    for record in (job, job.limits):
        check_types(record)
    job.check_files()
    return job


def _write_result(result: RunResult) -> Json:
    values = [vars(one) | {"value": encode(one.value, max_chars=MAX_JOB_CHARS)} for one in result.results]
    return vars(result) | {"outcome": result.outcome.value, "results": values}


def _read_result(results: list[Json], outcome: str, **parts: Any) -> RunResult:
    calls = tuple(CallResult(**one | {"value": decode_untrusted(one["value"])}) for one in results)
    result = RunResult(Outcome(outcome), calls, **_tuples(parts))
    for record in (result, *calls):
        check_types(record)
    times = (result.cpu_seconds, result.wall_seconds, result.idle_seconds or 0.0, *result.call_seconds)
    if not all(math.isfinite(seconds) and seconds >= 0 for seconds in times):
        raise ValueError("a time is no finite number from 0 on")
    return result


JOBS_PER_CALL = 64
CALLS_PER_HOST = 2  # one that runs, and one that waits so that no worker does
START_SECONDS = 60.0  # for the first call of a host
PROBE_SECONDS = 10.0
MAX_BACKOFF_SECONDS = 30.0
PATIENCE_SECONDS = 120.0  # with every host lost
MAX_LOSSES = 3  # of hosts, by one job
_MAX_WEIGHT = 256 << 20  # of a batch, in bytes of results; a character of a job weighs as much as 32
_CHAR_WEIGHT = 32
_GATHER_SECONDS = 0.05  # a batch is not kept back for longer while jobs are made


@dataclass(frozen=True)
class _Sent:
    """A job on its way: its place, its JSON, what it weighs in a batch, how long it may take at the most, and
    how many hosts it has lost.
    """

    index: int
    json: Json
    weight: int
    seconds: float
    losses: int = 0


class Host(ABC):
    """A way to one `JobServer`, and what an executor knows of it."""

    def __init__(self, name: str) -> None:
        self.name, self.workers, self.is_up = name, 1, True  # it takes calls now
        self.calls, self.given = 0, 0  # under way, and in all

    @abstractmethod
    def call(self, request: Json, seconds: float) -> Any:
        """The reply of the server. Raises `WorkerLost` and `SandboxError`."""

    @abstractmethod
    def close(self) -> None:
        """Gives the host up. Safe to call twice."""

    def run(self, jobs: Sequence[Json], seconds: float) -> Reply:
        """What it replies for written jobs. Raises `WorkerLost` and `SandboxError`."""
        reply = self.call(write_request(jobs), seconds)
        try:
            return read_reply(reply, len(jobs))
        except ValueError as error:
            raise WorkerLost(f"it does not speak as a sandbox of greenward does ({error})") from None


_News = tuple[Host, "list[_Sent]", "Reply | Exception"]


class RemoteExecutor(Closeable):
    """Runs jobs on hosts. A context manager.

    At most `calls_per_host` calls of `jobs_per_call` jobs are with a host, and no job is taken before a host
    has room for it. A job whose host is lost runs on another one, `MAX_LOSSES` times at most; then it is
    INFRASTRUCTURE, as it is when all hosts have been lost for `PATIENCE_SECONDS`. A lost host is asked
    again and again, without jobs, until it answers. `isolation` has the layers that all hosts have; `require`
    is the least level of each.

    Raises `SandboxError` if no host answers, for too little isolation, and for another version of greenward.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        *,
        require: Level = Level.B,
        jobs_per_call: int = JOBS_PER_CALL,
        calls_per_host: int = CALLS_PER_HOST,
    ) -> None:
        self._hosts = hosts
        self._require, self._jobs_per_call, self._calls_per_host = require, jobs_per_call, calls_per_host
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._last_loss = 0.0
        try:
            self.isolation = self._meet()
        except BaseException:
            self.close()
            raise

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, RunResult]]:
        """Runs jobs; yields (position of the job, its result) in order of completion."""
        fresh, waiting, news = _written(jobs), deque[_Sent](), SimpleQueue[_News]()
        calls, is_more = 0, True
        while is_more or waiting or calls:
            check()
            if self._closed.is_set():
                raise SandboxError("this executor is closed.")
            if news.empty():  # else results would come faster than they are taken
                is_more = is_more and self._gather(fresh, waiting)
                while batch := self._next_batch(waiting):
                    threading.Thread(target=self._call, args=(*batch, news), daemon=True).start()
                    calls += 1
            is_hopeless = not any(host.is_up for host in self._hosts)
            if is_hopeless and not calls and time.monotonic() > self._last_loss + PATIENCE_SECONDS:
                yield from _lost(waiting, "no host of the sandbox answers")
                waiting.clear()
            try:
                host, sent, outcome = news.get(timeout=POLL_SECONDS if calls or waiting else 0)
            except Empty:
                continue
            calls -= 1
            if isinstance(outcome, Reply):
                yield from ((job.index, result) for job, result in zip(sent, outcome.results, strict=True))
            elif isinstance(outcome, WorkerLost):
                again = [replace(job, losses=job.losses + 1) for job in sent]
                waiting.extendleft(job for job in reversed(again) if job.losses < MAX_LOSSES)
                given_up = (job for job in again if job.losses >= MAX_LOSSES)
                yield from _lost(given_up, f"{host.name} was lost: {outcome}")
            else:
                raise outcome

    def open(self, files: Mapping[str, str], limits: WorkspaceLimits = USUAL_LIMITS) -> Workspace:
        """Raises `SandboxError`: a host keeps nothing from one batch to the next."""
        raise SandboxError(
            "this sandbox is reached by HTTP and has no sessions, which the tools of agents need.",
            remedy="Set sandbox.backend=local, or ray.",
        )

    def close(self) -> None:
        """Gives up every host. Safe to call twice."""
        self._closed.set()
        for host in self._hosts:
            host.close()

    def _meet(self) -> Isolation:
        """Asks every host what it is; those that do not answer are asked again later."""

        def ask(host: Host) -> Reply | WorkerLost:
            try:
                return self._admit(host, START_SECONDS)
            except WorkerLost as error:
                return error

        with ThreadPoolExecutor(max(1, len(self._hosts))) as threads:
            found = dict(zip(self._hosts, threads.map(ask, self._hosts), strict=True))
        replies = [one for one in found.values() if isinstance(one, Reply)]
        silent = {host: one for host, one in found.items() if isinstance(one, WorkerLost)}
        reasons = "; ".join(f"{host.name}: {error}" for host, error in silent.items())
        if not replies:
            raise SandboxError(f"no host of the sandbox answers. {reasons}.")
        if silent:
            warnings.warn(f"Some hosts of the sandbox do not answer. {reasons}.", stacklevel=3)
        for host in silent:
            self._lose(host)
        layers = tuple(layer for layer in Layer if all(layer in one.isolation.layers for one in replies))
        missing = {name: why for one in replies for name, why in one.isolation.missing.items()}
        return Isolation(layers, missing)

    def _admit(self, host: Host, seconds: float) -> Reply:
        """What a host is. Raises `WorkerLost`, and `SandboxError` if it may not be used."""
        try:
            reply = host.run((), seconds)
            reply.isolation.demand(self._require)
        except SandboxError as error:
            raise SandboxError(f"{host.name}: {error.message}", remedy=error.remedy) from None
        host.workers = reply.workers
        return reply

    def _gather(self, fresh: Iterator[_Sent], waiting: deque[_Sent]) -> bool:
        """Takes jobs for which there is room, at least one; whether there may be more."""
        begun = time.monotonic()
        most = max(1, self._room * self._jobs_per_call)
        while len(waiting) < most and time.monotonic() < begun + _GATHER_SECONDS:
            job = next(fresh, None)
            if job is None:
                return False
            waiting.append(job)
        return True

    @property
    def _room(self) -> int:
        """How many calls the hosts can take now."""
        return sum(max(0, self._calls_per_host - host.calls) for host in self._hosts if host.is_up)

    def _next_batch(self, waiting: deque[_Sent]) -> tuple[Host, list[_Sent]] | None:
        """The next jobs, an equal share for each call, and the host with the fewest; None without either."""
        with self._lock:
            room = self._room
            if not waiting or not room:
                return None
            up = [host for host in self._hosts if host.is_up]
            host = min(up, key=lambda host: (host.calls, host.given))
            host.calls, host.given = host.calls + 1, host.given + 1
        count, batch = min(self._jobs_per_call, -(-len(waiting) // room)), [waiting.popleft()]
        weight = batch[0].weight
        while waiting and len(batch) < count and (weight := weight + waiting[0].weight) <= _MAX_WEIGHT:
            batch.append(waiting.popleft())
        return host, batch

    def _call(self, host: Host, batch: list[_Sent], news: SimpleQueue[_News]) -> None:
        seconds = START_SECONDS + self._calls_per_host * sum(job.seconds for job in batch) / host.workers
        try:
            outcome: Reply | Exception = host.run([job.json for job in batch], seconds)
        except Exception as error:  # whatever it is, it is raised where the results are read
            outcome = error
        with self._lock:
            host.calls -= 1
            if isinstance(outcome, WorkerLost) and host.is_up and not self._closed.is_set():
                self._lose(host)
        news.put((host, batch, outcome))

    def _lose(self, host: Host) -> None:
        host.is_up, self._last_loss = False, time.monotonic()
        threading.Thread(target=self._win_back, args=(host,), daemon=True).start()

    def _win_back(self, host: Host) -> None:
        seconds = 0.5
        while not self._closed.wait(seconds):
            try:
                self._admit(host, PROBE_SECONDS)
            except (WorkerLost, SandboxError):
                seconds = min(2 * seconds, MAX_BACKOFF_SECONDS)
            else:
                host.is_up = True
                return


def _written(jobs: Iterable[Job]) -> Iterator[_Sent]:
    for index, job in enumerate(jobs):
        # A job runs twice if a worker is lost, once more alone, and beside a control.
        seconds = 4 * (job.limits.wall_seconds + GRACE_SECONDS) * max(1, len(job.stdins))
        json, chars = write_job(job)
        yield _Sent(index, json, _CHAR_WEIGHT * chars + job.result_bytes, seconds)


def _lost(jobs: Iterable[_Sent], message: str) -> Iterator[tuple[int, RunResult]]:
    return ((job.index, RunResult(Outcome.INFRASTRUCTURE, error_message=message)) for job in jobs)


class JobServer(Closeable):
    """Runs the jobs of all requests on `workers` local executors of one worker each.

    No request waits for the slowest job of another one, as it would with a single executor. `options` are
    those of `LocalExecutor`. Raises `SandboxError` as that does.
    """

    def __init__(self, workers: int, **options: Any) -> None:
        self.workers = workers
        self._executors: list[LocalExecutor] = []
        self._idle = SimpleQueue[LocalExecutor]()
        self._taking_all = threading.Lock()
        self._threads = ThreadPoolExecutor(max(1, workers), thread_name_prefix="greenward-jobs")
        try:
            for _ in range(max(1, workers)):
                self._executors.append(LocalExecutor(min(workers, 1), **options))
                self._idle.put(self._executors[-1])
        except BaseException:
            self.close()
            raise
        self.isolation = self._executors[0].isolation

    def answer(self, request: Any) -> Json:
        """The reply to a request (`write_request`)."""
        try:
            results = self.run(read_request(request))
        except SandboxError as error:
            return {"error": [error.message, error.remedy]}
        return write_reply(Reply(self.isolation, self.workers, results))

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
