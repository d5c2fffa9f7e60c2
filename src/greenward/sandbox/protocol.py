"""Defines the sandbox as its users see it: jobs in, plain data out, never a verdict.

A job holds code and inputs, never expected values. Backends (local pool, Ray, HTTP) implement `Executor`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from greenward.common.errors import SandboxError
from greenward.sandbox.inside.codec import accept_numpy, encode
from greenward.sandbox.inside.files import check_files, module_name
from greenward.sandbox.isolation import Isolation

if TYPE_CHECKING:
    from greenward.sandbox.workspaces import Workspace, WorkspaceLimits

MAX_JOB_CHARS = 64 << 20
MAX_RESULT_BYTES = 16 << 20
MIN_MEMORY_BYTES = 64 << 20  # what the interpreter itself takes
STARVED_SHARE = 0.5  # of the time without a processor: who slept less was kept waiting by the machine


@dataclass(frozen=True)
class CheckedLimits:
    """Limits that are finite and above 0. Raises `SandboxError` for the first one that is not."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, str):
                continue
            least = MIN_MEMORY_BYTES if name == "memory_bytes" else 0
            if not (math.isfinite(value) and value >= least and value):
                bound = f"of at least {least}" if least else "above 0"
                raise SandboxError(f"the limit {name} must be a finite number {bound}, not {value!r}.")


@dataclass(frozen=True)
class Limits(CheckedLimits):
    """What one answer may use, in seconds and bytes.

    The CPU limit decides; the wall limit only catches sleepers.

    - `cpu_seconds`: ended by the worker, and by `RLIMIT_CPU` one second later.
    - `wall_seconds`: ended by the worker. It is meant for answers that sleep: keep it well above
      `cpu_seconds`. An answer that runs out of wall time because the machine was busy is run once more,
      alone.
    - `memory_bytes`: `RLIMIT_AS`, on Linux only.
    - `output_bytes`: so much is kept of each of stdout and stderr; 1,024 times as much ends the answer.
    - `file_bytes`: `RLIMIT_FSIZE`, per file. The folder as a whole holds 16 MiB and 4,096 files.

    A job may also have `call_seconds`, the CPU time of each test, ended by the worker. Its results may take
    1 MiB of text beyond the size of the expected values, at most 16 MiB (`wrong_type`, `output_limit`).
    """

    cpu_seconds: float = 2.0
    wall_seconds: float = 6.0
    memory_bytes: int = 1 << 30
    output_bytes: int = 64 << 10
    file_bytes: int = 1 << 20


@dataclass(frozen=True)
class Call:
    """One call of the entry point: plain-data arguments."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def text(self) -> str:
        """The arguments as a worker gets them, the same for every answer. Raises `PlainDataError`."""
        accept_numpy()
        return encode([self.args, dict(self.kwargs)], max_chars=MAX_JOB_CHARS)


@dataclass(frozen=True)
class Job:
    """One answer to run: load `code`, then make each call of `entry_point` in one fresh process.

    `expressions` are Python expressions evaluated in the answer's namespace after it is loaded
    (the calls split off assertions); of calls of `entry_point`, arguments that are plain data are
    computed before it is loaded. `checks` are test programs that run, one after the other in one
    namespace, in another process, which has never seen an answer: there `entry_point` is a proxy
    that hands arguments and results over as plain data. With `check_setup` that namespace begins.
    Results come in the order calls, expressions, checks; a check that completed returned None.

    `files` (relative path to text) are those of the problem: every process of the job finds them in its
    folder and can import them. `changes` are what the answer makes of them (None deletes a file): they are
    in the answer's process only, once arguments of calls have been computed. With a `path`, `code` is the
    module at that path: it is imported under its name, and its namespace is the answer's. An entry point may
    be dotted (`Class.method`).

    With no entry point the program is run as `__main__`, its output captured: once, or once for each text of
    `stdins`, each giving its standard output as one result. A run that meets anything that another one has
    left, or that does not complete, has a fresh process.

    `result_bytes` bounds what all results take as text: reading them costs the caller's time.
    `preamble` runs before the code, in the same namespace, as contest suites have it. A program with
    a preamble may end with a top-level `return`, and with any exit status. `call_seconds` limits the
    CPU time of each call, the first with the loading of the code, and `call_wall_seconds` its wall
    time; without these, only `limits` apply. `trusted` code comes from a problem, not from an answer
    (expected values are computed so): it runs where no answer has been.

    If `files` holds `path`, the answer completes that module: what is installed of it can be neither read
    nor called by this job (`originals`).
    """

    code: str
    entry_point: str | None = None
    calls: tuple[Call, ...] = ()
    expressions: tuple[str, ...] = ()
    setup_code: str = ""
    limits: Limits = Limits()
    checks: tuple[str, ...] = ()
    check_setup: str = ""
    stdins: tuple[str, ...] = ()
    result_bytes: int = MAX_RESULT_BYTES
    trusted: bool = False
    preamble: str = ""
    call_seconds: tuple[float, ...] = ()
    call_wall_seconds: float = 0.0
    files: Mapping[str, str] = field(default_factory=dict)
    changes: Mapping[str, str | None] = field(default_factory=dict)
    path: str = ""

    def check_files(self) -> None:
        """Raises `SandboxError` for files, changes and a path that are not allowed."""
        after: dict[str, str | None] = {**self.files, **self.changes}
        if self.path:
            module_name(self.path)
            after[self.path] = self.code
        check_files({one: text for one, text in after.items() if text is not None}, self.limits.file_bytes)


class Outcome(str, Enum):
    """How the process that ran an answer ended."""

    COMPLETED = "completed"  # every call was made and proven by the nonce
    LOAD_ERROR = "load_error"  # the code raised while it was loaded
    SYNTAX_ERROR = "syntax_error"
    NO_ENTRY_POINT = "no_entry_point"
    EXITED = "exited"  # ended early: sys.exit, os._exit, a signal that it raised
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    CHEATING = "cheating"  # wrote to the private result channel, or attacked its worker
    INFRASTRUCTURE = "infrastructure"  # not the answer's fault: never a reward


@dataclass(frozen=True)
class CallResult:
    """What one call gave: a value as plain data, or class, message and traceback of an exception.

    The traceback has the innermost places in Python's form, without the lines of the source.
    """

    returned: bool
    value: Any = None
    error_class: str | None = None
    error_message: str = ""
    traceback: str = ""
    plain: bool = True  # False: the call returned something that is not plain data


@dataclass(frozen=True)
class RunResult:
    """What running one job gave. `results` has one entry per call that was reached.

    `layers` names the layers of isolation that were in force. `idle_seconds` is how long the process slept,
    neither running nor waiting for a processor; None if unknown.
    For a trusted job, `call_seconds` is the CPU time of each call that returned, within some 20 ms.
    """

    outcome: Outcome
    results: tuple[CallResult, ...] = ()
    error_class: str | None = None
    error_message: str = ""
    traceback: str = ""
    stdout: str = ""
    stderr: str = ""
    cpu_seconds: float = 0.0
    wall_seconds: float = 0.0
    idle_seconds: float | None = None
    layers: tuple[str, ...] = ()
    call_seconds: tuple[float, ...] = ()

    @property
    def was_starved(self) -> bool:
        """Whether it ran out of wall time perhaps because others on the machine used the processors."""
        if self.error_class != "WallTimeLimit":
            return False
        off_processor = self.wall_seconds - self.cpu_seconds
        return self.idle_seconds is None or self.idle_seconds < STARVED_SHARE * off_processor


class Executor(Protocol):
    """Runs jobs in isolation; results come in order of completion with the job's index.

    `open` gives a folder in which commands run, as long as it is open; what cannot, raises `SandboxError`.
    """

    @property
    def isolation(self) -> Isolation: ...

    def run(self, jobs: Iterable[Job]) -> Iterator[tuple[int, RunResult]]: ...

    def open(self, files: Mapping[str, str], limits: WorkspaceLimits = ...) -> Workspace: ...

    def close(self) -> None: ...
