"""Runs workers on the side of the pool (a process with a socket and a deadline) and attempts at jobs.

A report is hostile text. What ended before the worker knew that every layer was on ended before the answer's
code was loaded: that is the infrastructure's failure. What came later is the answer's doing, and so is
whatever surprises the reader of its frames.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import greenward
from greenward.common.errors import SandboxError
from greenward.sandbox.inside.codec import (
    LENGTH,
    NONCE_CHARS,
    PlainDataError,
    decode_untrusted,
    encode,
    receive_frame,
    result_frame_end,
    send_frame,
)
from greenward.sandbox.inside.files import remove_folder
from greenward.sandbox.inside.linux import kill_tree
from greenward.sandbox.inside.programs import MOST_RUNS
from greenward.sandbox.isolation import CORE_LAYERS, Layer
from greenward.sandbox.protocol import MAX_JOB_CHARS, CallResult, Job, Outcome, RunResult

CONTROL_SECONDS = 1.0
_BYTES_AT_ONCE = 4 << 20  # of all standard inputs of a process, and of what is kept of its output
_CLOCK_SECONDS = 1.0  # by which the clock of an answer and that of its worker may differ
_REMOVAL_SECONDS = 1.0  # for the folder of a worker that was killed; `LocalExecutor.close` takes its time
_IDLE_LIMITS = 2  # limits of wall time for which the processes of a program may sleep in all its runs
_KILLED = {
    "cpu": (Outcome.TIMEOUT, "CPUTimeLimit"),
    "wall": (Outcome.TIMEOUT, "WallTimeLimit"),
    "output": (Outcome.OUTPUT_LIMIT, "OutputLimit"),
    "processes": (Outcome.CHEATING, "ProcessLimit"),
    "folder": (Outcome.OUTPUT_LIMIT, "FolderLimit"),
}
_ENDED = ("load_error", "syntax_error", "no_entry_point", "exited", "memory")  # what an answer may report
_SIGNALS = {one.value: one.name for one in signal.Signals}

Ending = tuple[Outcome, str | None, str, str]


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job: its place, the nonce of this run, and what has happened so far.

    `done` are the results of the processes that have run the first texts of `job.stdins`. One process runs
    the program on several texts, within the limits of a single run, if they may share it (`sharing`). Where
    it does not come to the last of them, the texts that are left are run `apart`, each in a process of its
    own. An `alone` attempt has one run, while no other runs. A control is a harmless program that runs in
    place of a job.
    """

    index: int
    job: Job
    losses: int = 0
    alone: bool = False
    is_control: bool = False
    apart: bool = False
    done: tuple[RunResult, ...] = ()
    nonce: str = field(default_factory=lambda: secrets.token_hex(NONCE_CHARS // 2))

    def _again(self, **changes: Any) -> Attempt:
        return replace(self, nonce=secrets.token_hex(NONCE_CHARS // 2), **changes)

    @cached_property
    def _stdins(self) -> list[bytes]:
        """What the program reads in the runs of this attempt."""
        texts, size, job = list[bytes](), 0, self.job
        begin, most = _count_runs(self.done), min(MOST_RUNS, int(_BYTES_AT_ONCE / job.limits.output_bytes))
        if self.alone or self.apart or job.files or job.changes or job.path or job.setup_code:
            most = 1
        for text in job.stdins[begin : begin + max(1, most)]:
            texts.append(text.encode("utf-8", "surrogatepass"))
            size += len(texts[-1])
            if size > _BYTES_AT_ONCE:
                break
        return texts

    @property
    def header(self) -> dict[str, Any]:
        job = self.job
        return {
            **vars(job.limits),
            "result_bytes": job.result_bytes,
            "stdin_bytes": list(map(len, self._stdins)),
            "call_seconds": job.call_seconds,
            "call_wall_seconds": job.call_wall_seconds,
            "measures_calls": job.trusted,
            "completes": job.path if job.path in job.files else "",
        }

    def payloads(self) -> tuple[bytes, bytes]:
        """What the answer's process gets, and what the process of its test programs gets.

        The first, its standard inputs last, has no check and nothing that is expected; the second has
        no code and no file of the answer. Raises `SandboxError`.
        """
        job = self.job
        try:
            if job.files or job.changes or job.path:
                job.check_files()
            files, changes = dict(job.files), dict(job.changes)
            before = _encode(
                [self.nonce, "answer", files, job.preamble, job.code, job.path, changes, job.entry_point]
            )
            calls = ",".join(call.text for call in job.calls)
            after = _encode([list(job.expressions), job.setup_code, bool(job.checks)])
            checks = _encode(
                [self.nonce, "checks", files, job.entry_point, job.check_setup, list(job.checks)]
            )
        except PlainDataError as error:
            raise SandboxError(f"the inputs of a job are not plain data: {error}.") from None
        answer = f"{before[:-1]},[{calls}],{after[1:]}".encode("ascii")
        if len(answer) > MAX_JOB_CHARS:
            raise SandboxError(f"a job takes {len(answer)} characters; at most {MAX_JOB_CHARS} are allowed.")
        return b"".join((answer, *self._stdins)), checks.encode("ascii")

    def after_result(self, result: RunResult) -> RunResult | Attempt:
        """What follows a result: it is final, or there is more to run."""
        if self.is_control:
            if result.outcome is not Outcome.COMPLETED:
                return _infrastructure("the sandbox cannot run a harmless program")
            message = "two workers died or stopped while it ran; a harmless program lost none"
            return RunResult(Outcome.CHEATING, (), "WorkerLost", message, layers=result.layers)
        if result.was_starved and not self.alone:
            return self._again(alone=True)
        if not self.job.stdins:
            return result
        runs = (*self.done, result)
        if result.outcome is Outcome.COMPLETED and _count_runs(runs) < len(self.job.stdins):
            apart = self.apart or len(result.results) < len(self._stdins)
            if sum(run.idle_seconds or 0.0 for run in runs) <= _IDLE_LIMITS * self.job.limits.wall_seconds:
                return self._again(alone=False, apart=apart, done=runs)
            message = f"its runs slept for more than {_IDLE_LIMITS} limits of wall time in all"
            outcome = Outcome.TIMEOUT
            result = replace(result, outcome=outcome, error_class="IdleTimeLimit", error_message=message)
        return replace(
            result,
            results=tuple(one for run in runs for one in run.results),
            cpu_seconds=max(run.cpu_seconds for run in runs),
            wall_seconds=sum(run.wall_seconds for run in runs),
        )

    def after_loss(self, killed_from_outside: bool) -> RunResult | Attempt:
        """What follows the loss of its worker: another try, then a control, then a verdict.

        A worker that was killed by what no answer can send needs no control.
        """
        if self.is_control:
            return _infrastructure("workers die under harmless programs, too")
        if self.losses == 0:
            return self._again(losses=1)
        if killed_from_outside:
            return _infrastructure("its workers were killed from outside")
        return Attempt(self.index, Job(f"import time\ntime.sleep({CONTROL_SECONDS})"), is_control=True)

    def read_report(
        self, is_of_checks: bool, report: Mapping[str, Any], blobs: bytes, layers: tuple[str, ...]
    ) -> RunResult:
        """The result of the answer, or of its test programs, from a worker's report."""
        if "failure" in report:
            return _infrastructure(report["failure"])
        results_end, stdout_end = report["lengths"][0], sum(report["lengths"][:2])
        job, results, nonce = self.job, list[CallResult](), self.nonce.encode("ascii")
        expected = len(job.checks) if is_of_checks else len(job.calls) + len(job.expressions)
        expected += len(self._stdins) if report.get("shares") else bool(self._stdins)
        try:
            ended = _read_frames(blobs[:results_end], nonce, expected, results)
            if job.stdins and not _are_times([one.value for one in results], job.limits.cpu_seconds):
                ended = _FORGED
        except Exception:  # an input of an answer that this reader does not foresee
            ended = _FORGED
        may_leave = bool(job.stdins) and not report.get("shares")
        outcome, error_class, message, traceback = _ending(ended, report, may_leave=may_leave)
        result = RunResult(
            outcome=outcome,
            results=tuple(results),
            error_class=error_class,
            error_message=message,
            traceback=traceback,
            stdout=blobs[results_end:stdout_end].decode("utf-8", "replace"),
            stderr=blobs[stdout_end:].decode("utf-8", "replace"),
            layers=layers,
            call_seconds=tuple(report["call_seconds"][: len(results)]),
            **report["usage"],
        )
        return self._of_runs(result, blobs[results_end:], report) if job.stdins else result

    def _of_runs(self, process: RunResult, outputs: bytes, report: Mapping[str, Any]) -> RunResult:
        """The result of the runs that a process has completed; how it ended if that is none.

        Of runs that share a process, the one at which it ended otherwise is left out: it is to show in a
        process of its own what it does.
        """
        length, most = report["lengths"][1], int(self.job.limits.output_bytes)
        stdout, stderr = outputs[:length], outputs[length:]
        is_complete, seconds = process.outcome is Outcome.COMPLETED, process.cpu_seconds
        if report.get("shares"):
            nonce = self.nonce.encode("ascii")
            (*stdouts, rest), stderrs = stdout.split(nonce), stderr.split(nonce)
            completed = min(len(process.results), len(stdouts), len(self._stdins) - (not is_complete))
            if process.outcome is Outcome.CHEATING:
                completed = 0
            stdouts = stdouts[:completed] or [rest]
            stderr = stderrs[min(len(stderrs), max(1, completed)) - 1]
            # The harness has told how much the process had used at the end of each run.
            used = [0.0, *(one.value for one in process.results[:completed])]
            seconds = min(seconds, max((end - begin for begin, end in pairwise(used)), default=seconds))
        else:  # all that it has written until its end
            completed, stdouts = int(is_complete), [stdout]
        texts = [output[:most].decode("utf-8", "replace") for output in stdouts]
        result = replace(
            process,
            results=(),
            stdout=texts[-1],
            stderr=stderr[:most].decode("utf-8", "replace"),
            call_seconds=(),
        )
        if completed < 1:
            return result
        return replace(
            result,
            cpu_seconds=seconds,
            outcome=Outcome.COMPLETED,
            results=tuple(CallResult(True, text) for text in texts),
            error_class=None,
            error_message="",
            traceback="",
        )

    def merge(self, answer: RunResult, checks: RunResult) -> RunResult:
        """The result of an answer whose calls were made by test programs in another process."""
        own_are_complete = len(answer.results) == len(self.job.calls) + len(self.job.expressions)
        merged = replace(
            answer,
            results=answer.results + checks.results if own_are_complete else answer.results,
            wall_seconds=max(answer.wall_seconds, checks.wall_seconds),
        )
        if answer.outcome is not Outcome.COMPLETED or checks.outcome is Outcome.COMPLETED:
            return merged
        outcome, when = checks.outcome, "while it was tested"
        if outcome in (Outcome.LOAD_ERROR, Outcome.SYNTAX_ERROR):
            outcome, when = Outcome.INFRASTRUCTURE, "the setup of the test programs fails"
        message = f"{when}: {checks.error_message}"
        return replace(
            merged,
            outcome=outcome,
            error_class=checks.error_class,
            error_message=message,
            traceback=checks.traceback,
        )


_encode = partial(encode, max_chars=MAX_JOB_CHARS)


def _infrastructure(message: str) -> RunResult:
    return RunResult(Outcome.INFRASTRUCTURE, error_message=message)


def _count_runs(done: tuple[RunResult, ...]) -> int:
    return sum(len(result.results) for result in done)


_FORGED: Ending = (Outcome.CHEATING, "ForgedResult", "wrote to the private result channel", "")


def _read_frames(data: bytes, nonce: bytes, expected: int, results: list[CallResult]) -> Ending | None:
    """Adds the results in an answer's frames, checked one by one: nonce, length, kind, order.

    Gives how the answer ended by what it wrote, `_FORGED` for a frame that our harness does not write
    (what came before it counts), or None if the frames stop before the end.
    """
    start = 0
    ended: Ending | None = None
    while start < len(data):
        end = result_frame_end(data, start)
        if end is None or ended is not None or not data.startswith(nonce, start):
            return _FORGED
        frame = decode_untrusted(data[start + NONCE_CHARS + LENGTH.size : end].decode("ascii"))
        if type(frame) is not list:
            return _FORGED
        is_next = len(results) < expected and frame[1:2] == [len(results)]
        match frame:
            case ["value", _, value] if is_next:
                results.append(CallResult(True, value))
            case ["opaque", _, str(message)] if is_next:
                results.append(CallResult(True, error_message=message, plain=False))
            case ["raised", _, str(name), str(message), str(traceback)] if is_next:
                results.append(
                    CallResult(False, error_class=name, error_message=message, traceback=traceback)
                )
            case ["done"] if len(results) == expected:
                ended = (Outcome.COMPLETED, None, "", "")
            case ["ended", str(outcome), str(name), str(message), str(traceback)] if outcome in _ENDED:
                ended = (Outcome(outcome), name, message, traceback)
            case _:
                return _FORGED
        start = end
    return ended


def _are_times(values: list[Any], cpu_limit: float) -> bool:
    """Whether values of an answer's process can be the CPU times that it had used at the ends of its runs."""
    if any(type(value) is not float for value in values):
        return False
    return all(one <= other for one, other in pairwise([0.0, *values, cpu_limit + _CLOCK_SECONDS]))


def _ending(ended: Ending | None, report: Mapping[str, Any], *, may_leave: bool) -> Ending:
    """How a process ended: what its worker saw counts before what it wrote itself.

    `may_leave`: with status 0 it may end by itself, since its output decides.
    """
    exit_code = report["exit"]
    if not report["ready"]:
        return Outcome.INFRASTRUCTURE, None, f"the child ended before the answer was loaded ({exit_code})", ""
    if report["killed"] is not None:
        return *_KILLED[report["killed"]], "stopped at its limit", ""
    if ended is not None:
        return ended
    if exit_code == 0 and may_leave:
        return Outcome.COMPLETED, None, "", ""
    if exit_code >= 0:
        return Outcome.EXITED, "Exit", f"left with status {exit_code} before its calls were made", ""
    name = _SIGNALS.get(-exit_code, f"signal {-exit_code}")
    outcome = Outcome.TIMEOUT if -exit_code == signal.SIGXCPU else Outcome.EXITED
    return outcome, name, f"ended by {name}", ""


START_SECONDS = 30.0
# A worker that is silent for so long after the wall limit counts as lost. On a busy machine it takes a second
# until all threads of a killed answer have ended. A worker with real-time priority may also spend 0.95 s
# (sched_rt_runtime_us) in wait4: Linux waits in a busy loop for a thread that this worker keeps from the
# processor and that has not yet removed its entry in /proc.
GRACE_SECONDS = 3.0
KILLED_INSIDE = 128  # a worker of which the part in namespaces was ended by signal n exits with 128 + n
# Python ignores PYTHONHASHSEED under -I; with this environment, -s and no path to us, -I adds nothing.
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",  # the time of an answer is limited, not the length of its integers
    "LD_BIND_NOW": "1",  # looking up functions of libraries once, not in every answer
}
# Modules register functions to run after a fork (new locks, new seeds). Every answer would spend time on
# them, and they are not needed: a worker has one thread, and the harness seeds its answers.
_BOOTSTRAP = (
    f"import os, sys; sys.path[0] = {str(Path(greenward.__file__).parent.parent)!r}; "
    "register = os.register_at_fork; os.register_at_fork = lambda **_: None; "
    "import greenward.sandbox.inside.template as template; template.preload(); "
    "from greenward.sandbox.inside.worker import main; "
    "os.register_at_fork = register; del sys.path[0]; main()"
)


class WorkerLost(Exception):
    """A worker, or a host of several, died, did not answer in time, or not as one. A text may say why."""


class WorkerNotStarted(SandboxError):
    """The machine did not let a worker start."""


class NoNamespaces(WorkerNotStarted):
    """The machine does not let the worker have namespaces of its own; the text says why."""


class WorkerProcess:
    """A started worker on `layers` of isolation; its `folder` need not exist. Raises `WorkerNotStarted`.

    With `commands` it holds workspaces (`inside.worker.Workspaces`), else it runs answers.

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
                    # The file system of a worker has what links lead to, and no links.
                    "search_path": [os.path.realpath(path) for path in sys.path if path],
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
            status = self._process.wait(timeout=1.0)
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
        """Ends the worker and all that it started, and removes its folder, unless that takes long."""
        if self._process.poll() is None:
            kill_tree(self.pid)
            self._process.wait()
        self._channel.close()
        self._errors.close()
        with contextlib.suppress(OSError):
            remove_folder(self.folder, _REMOVAL_SECONDS)


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
        self._results[worker] = attempt.read_report(is_of_checks, report, blobs, layers)
        results = [result for result in self._results.values() if result is not None]
        if len(results) < len(self._results):
            return None
        self._results = {}
        return attempt.merge(*results) if attempt.job.checks else results[0]

    def was_killed_from_outside(self) -> bool:
        """Whether the workers of a lost attempt that have ended were killed by what no answer can send."""
        lost = [worker for worker in self.workers if worker.has_closed]
        return bool(lost) and all(worker.was_killed_from_outside() for worker in lost)
