"""One job on its way through a pool: what is sent for it, and what its result or its loss leads to."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from greenward.errors import SandboxError
from greenward.sandbox.codec import PlainDataError, encode
from greenward.sandbox.harness import NONCE_CHARS
from greenward.sandbox.protocol import MAX_JOB_CHARS, CallResult, Job, Limits, Outcome, RunResult

CONTROL_SECONDS = 1.0
MIN_MEMORY_BYTES = 64 << 20  # what the interpreter itself takes
STARVED_SHARE = 0.1  # of the wall time, spent waiting for a processor: the machine's fault, not the answer's


@dataclass(frozen=True)
class Task:
    """One job on its way: its place, the nonce of this run, and what has happened to it so far.

    `stdins_done` are the results of the texts of `job.stdins` that were run. An `alone` task runs
    while nothing else does.
    """

    index: int
    job: Job
    nonce: str
    losses: int = 0
    alone: bool = False
    is_control: bool = False
    stdins_done: tuple[RunResult, ...] = ()

    @staticmethod
    def new(index: int, job: Job) -> Task:
        check_limits(job.limits)
        return Task(index, job, _new_nonce())

    @property
    def header(self) -> dict[str, Any]:
        """What the worker must know."""
        return {
            **asdict(self.job.limits),
            "result_bytes": self.job.result_bytes,
            "stdin_bytes": len(self._stdin) if self.job.stdins else None,
            "call_seconds": self.job.call_seconds,
            "call_wall_seconds": self.job.call_wall_seconds,
            "measures_calls": self.job.trusted,
        }

    @property
    def _stdin(self) -> bytes:
        """What the program reads in this run."""
        stdins = self.job.stdins
        return stdins[len(self.stdins_done)].encode("utf-8", "surrogatepass") if stdins else b""

    def answer_payload(self) -> bytes:
        """What the answer's process gets, its standard input last: no check and nothing that was expected."""
        job = self.job
        before = _encode([self.nonce, "answer", job.preamble, job.code, job.entry_point])
        after = _encode([list(job.expressions), job.setup_code, bool(job.checks)])
        with _inputs_must_be_plain():
            calls = ",".join(call.text for call in job.calls).encode("ascii")
        payload = b"%b,[%b],%b" % (before[:-1], calls, after[1:])
        if len(payload) > MAX_JOB_CHARS:
            raise SandboxError(f"a job takes {len(payload)} characters; at most {MAX_JOB_CHARS} are allowed.")
        return payload + self._stdin

    def checks_payload(self) -> bytes:
        """What the process of the test programs gets: no code of the answer."""
        job = self.job
        return _encode([self.nonce, "checks", job.entry_point, job.check_setup, list(job.checks)])


def check_limits(limits: Limits) -> None:
    """Raises `SandboxError` naming the first limit that makes no sense."""
    for field in fields(limits):
        value = getattr(limits, field.name)
        least = MIN_MEMORY_BYTES if field.name == "memory_bytes" else 0
        if not (math.isfinite(value) and value > least):
            raise SandboxError(
                f"the limit {field.name} must be a finite number above {least}, not {value!r}."
            )


def after_result(task: Task, result: RunResult) -> RunResult | Task:
    """What follows a result: it is final, or there is more to run."""
    if task.is_control:
        return _blame(result)
    if _was_starved(result) and not task.alone:
        return replace(task, nonce=_new_nonce(), alone=True)
    if not task.job.stdins:
        return result
    done = (*task.stdins_done, result)
    if result.outcome is Outcome.COMPLETED and len(done) < len(task.job.stdins):
        return replace(task, nonce=_new_nonce(), alone=False, stdins_done=done)
    return _together(done)


def after_loss(task: Task, *, killed_from_outside: bool) -> RunResult | Task:
    """What follows the loss of the worker that ran a task: another try, then a control, then a verdict.

    A worker that was killed by what no answer can send needs no control.
    """
    if task.is_control:
        return RunResult(Outcome.INFRASTRUCTURE, error_message="workers die under harmless programs, too")
    if task.losses == 0:
        return replace(task, nonce=_new_nonce(), losses=1)
    if killed_from_outside:
        return RunResult(Outcome.INFRASTRUCTURE, error_message="its workers were killed from outside")
    control = Job(f"import time\ntime.sleep({CONTROL_SECONDS})")
    return Task(task.index, control, _new_nonce(), is_control=True)


def merge_checks(job: Job, answer: RunResult, checks: RunResult) -> RunResult:
    """The result of an answer whose calls were made by test programs in another process."""
    own_are_complete = len(answer.results) == len(job.calls) + len(job.expressions)
    merged = replace(
        answer,
        results=answer.results + checks.results if own_are_complete else answer.results,
        wall_seconds=max(answer.wall_seconds, checks.wall_seconds),
    )
    if answer.outcome is not Outcome.COMPLETED or checks.outcome is Outcome.COMPLETED:
        return merged
    if checks.outcome in (Outcome.LOAD_ERROR, Outcome.SYNTAX_ERROR):
        return replace(
            merged,
            outcome=Outcome.INFRASTRUCTURE,
            error_class=checks.error_class,
            error_message=f"the setup of the test programs fails: {checks.error_message}",
        )
    return replace(
        merged,
        outcome=checks.outcome,
        error_class=checks.error_class,
        error_message=f"while it was tested: {checks.error_message}",
    )


def _was_starved(result: RunResult) -> bool:
    """Whether a wall timeout may be due to others on the machine."""
    if result.error_class != "WallTimeLimit":
        return False
    waited = result.waiting_seconds
    return waited is None or waited > STARVED_SHARE * result.wall_seconds


def _together(runs: tuple[RunResult, ...]) -> RunResult:
    """The runs of one program as one result: how the last one ended, and what each printed."""
    return replace(
        runs[-1],
        results=tuple(CallResult(True, run.stdout) for run in runs if run.outcome is Outcome.COMPLETED),
        cpu_seconds=max(run.cpu_seconds for run in runs),
        wall_seconds=sum(run.wall_seconds for run in runs),
    )


def _blame(control: RunResult) -> RunResult:
    if control.outcome is not Outcome.COMPLETED:
        return RunResult(Outcome.INFRASTRUCTURE, error_message="the sandbox cannot run a harmless program")
    return RunResult(
        Outcome.CHEATING,
        error_class="WorkerLost",
        error_message="two workers died or stopped while it ran; a harmless program lost none",
        layers=control.layers,
    )


def _encode(content: list[Any]) -> bytes:
    with _inputs_must_be_plain():
        return encode(content, max_chars=MAX_JOB_CHARS).encode("ascii")


@contextmanager
def _inputs_must_be_plain() -> Iterator[None]:
    try:
        yield
    except PlainDataError as error:
        raise SandboxError(f"the inputs of a job are not plain data: {error}.") from None


def _new_nonce() -> str:
    return secrets.token_hex(NONCE_CHARS // 2)
