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
from typing import Any

from greenward.errors import SandboxError
from greenward.sandbox.codec import PlainDataError, decode_untrusted, encode
from greenward.sandbox.frames import LENGTH, NONCE_CHARS, result_frame_end
from greenward.sandbox.protocol import MAX_JOB_CHARS, CallResult, Job, Outcome, RunResult

CONTROL_SECONDS = 1.0
_STDIN_BYTES_AT_ONCE = 4 << 20
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

    `stdins_done` are the results of the texts of `job.stdins` that were run. The worker gets several of
    the others at once, and runs the program on one after the other while it completes. An `alone` attempt
    has one run, while no other runs. A control is a harmless program that runs in place of a job.
    """

    index: int
    job: Job
    losses: int = 0
    alone: bool = False
    is_control: bool = False
    stdins_done: tuple[RunResult, ...] = ()
    nonce: str = field(default_factory=lambda: secrets.token_hex(NONCE_CHARS // 2))

    def _again(self, **changes: Any) -> Attempt:
        return replace(self, nonce=secrets.token_hex(NONCE_CHARS // 2), **changes)

    @cached_property
    def _stdins(self) -> list[bytes]:
        """What the program reads in the runs of this attempt, at least in one of them."""
        texts, size = list[bytes](), 0
        for text in self.job.stdins[len(self.stdins_done) :]:
            texts.append(text.encode("utf-8", "surrogatepass"))
            size += len(texts[-1])
            if self.alone or size > _STDIN_BYTES_AT_ONCE:
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
        }

    def payloads(self) -> tuple[bytes, bytes]:
        """What the answer's process gets, and what the process of its test programs gets.

        The first, its standard inputs last, has no check and nothing that is expected; the second has
        no code of the answer. Raises `SandboxError`.
        """
        job = self.job
        try:
            job.check_files()
            files, own_files = dict(job.files), dict(job.answer_files)
            before = _encode(
                [self.nonce, "answer", own_files, job.preamble, job.code, job.path, job.entry_point]
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

    def after_run(self, result: RunResult) -> Attempt | None:
        """What an attempt is when its worker goes on with the next text; None if none can follow."""
        done = (*self.stdins_done, result)
        is_possible = result.outcome is Outcome.COMPLETED and len(done) < len(self.job.stdins)
        return replace(self, stdins_done=done) if is_possible else None

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
        runs = (*self.stdins_done, result)
        if result.outcome is Outcome.COMPLETED and len(runs) < len(self.job.stdins):
            return self._again(alone=False, stdins_done=runs)
        return replace(
            result,
            results=tuple(CallResult(True, run.stdout) for run in runs if run.outcome is Outcome.COMPLETED),
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
        job, results = self.job, list[CallResult]()
        expected = len(job.checks) if is_of_checks else len(job.calls) + len(job.expressions)
        try:
            ended = _read_frames(blobs[:results_end], self.nonce.encode("ascii"), expected, results)
        except Exception:  # an input of an answer that this reader does not foresee
            ended = _FORGED
        outcome, error_class, message = _ending(ended, report)
        return RunResult(
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


def _ending(ended: Ending | None, report: Mapping[str, Any]) -> Ending:
    """How a process ended: what its worker saw counts before what it wrote itself."""
    exit_code = report["exit"]
    if not report["ready"]:
        return Outcome.INFRASTRUCTURE, None, f"the child ended before the answer was loaded ({exit_code})"
    if report["killed"] is not None:
        return *_KILLED[report["killed"]], "stopped at its limit"
    if ended is not None:
        return ended
    if exit_code >= 0:
        return Outcome.EXITED, "Exit", f"left with status {exit_code} before its calls were made"
    name = _SIGNALS.get(-exit_code, f"signal {-exit_code}")
    outcome = Outcome.TIMEOUT if -exit_code == signal.SIGXCPU else Outcome.EXITED
    return outcome, name, f"ended by {name}"
