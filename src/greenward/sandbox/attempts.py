"""One attempt at a job: what is sent for it, how its report is read, and what follows its result or loss.

A report is hostile text. What ended before the worker knew that every layer was on ended before the
answer's code was loaded: that is the infrastructure's failure. What came later is the answer's doing,
and so is whatever surprises the reader of its frames.
"""

from __future__ import annotations

import secrets
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from greenward.errors import SandboxError
from greenward.sandbox.codec import PlainDataError, decode_untrusted, encode
from greenward.sandbox.frames import LENGTH, NONCE_CHARS, result_frame_end
from greenward.sandbox.programs import MOST_RUNS
from greenward.sandbox.protocol import MAX_JOB_CHARS, CallResult, Job, Outcome, RunResult

CONTROL_SECONDS = 1.0
_BYTES_AT_ONCE = 4 << 20  # of all standard inputs of a process, and of what is kept of its output
_CLOCK_SECONDS = 1.0  # by which the clock of an answer and that of its worker may differ
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

Ending = tuple[Outcome, str | None, str]


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
        outcome, error_class, message = _ending(ended, report, may_leave=may_leave)
        result = RunResult(
            outcome=outcome,
            results=tuple(results),
            error_class=error_class,
            error_message=message,
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
        return replace(merged, outcome=outcome, error_class=checks.error_class, error_message=message)


_encode = partial(encode, max_chars=MAX_JOB_CHARS)


def _infrastructure(message: str) -> RunResult:
    return RunResult(Outcome.INFRASTRUCTURE, error_message=message)


def _count_runs(done: tuple[RunResult, ...]) -> int:
    return sum(len(result.results) for result in done)


_FORGED: Ending = (Outcome.CHEATING, "ForgedResult", "wrote to the private result channel")


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
            case ["raised", _, str(name), str(message)] if is_next:
                results.append(CallResult(False, error_class=name, error_message=message))
            case ["done"] if len(results) == expected:
                ended = (Outcome.COMPLETED, None, "")
            case ["ended", str(outcome), str(name), str(message)] if outcome in _ENDED:
                ended = (Outcome(outcome), name, message)
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
        return Outcome.INFRASTRUCTURE, None, f"the child ended before the answer was loaded ({exit_code})"
    if report["killed"] is not None:
        return *_KILLED[report["killed"]], "stopped at its limit"
    if ended is not None:
        return ended
    if exit_code == 0 and may_leave:
        return Outcome.COMPLETED, None, ""
    if exit_code >= 0:
        return Outcome.EXITED, "Exit", f"left with status {exit_code} before its calls were made"
    name = _SIGNALS.get(-exit_code, f"signal {-exit_code}")
    outcome = Outcome.TIMEOUT if -exit_code == signal.SIGXCPU else Outcome.EXITED
    return outcome, name, f"ended by {name}"
