"""One job in a child of the worker, watched from outside: bounded, killed at its limits, cleaned up after.

Reports facts only, no judgement, and never looks into what an answer wrote.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from greenward.sandbox import harness, stand_in
from greenward.sandbox.erasable import ErasableBuffer
from greenward.sandbox.folders import empty_folder, folder_bytes
from greenward.sandbox.isolation import Layer
from greenward.sandbox.layers.stack import LayerStack
from greenward.sandbox.processes import (
    PR_SET_PDEATHSIG,
    children,
    cpu_seconds,
    descendants,
    kill,
    open_process,
    prctl,
    waiting_seconds,
)
from greenward.sandbox.progress import Progress

MAX_OUTPUT_FACTOR = 1024  # output over output_bytes is counted and dropped; over this, the answer is killed
MAX_PROCESSES = 64
MAX_FOLDER_BYTES = 16 << 20
FIRST_TICK_SECONDS = 0.005
TICK_SECONDS = 0.02
PAUSE_PER_COUNT = 9.0  # between two counts of a folder passes so many times what the count took
_CHUNK = 1 << 16
# What is reported of an answer that could not be started.
_NOTHING: dict[str, Any] = {
    "ready": False, "killed": None, "exit": 0, "cpu_seconds": 0.0, "wall_seconds": 0.0,
    "waiting_seconds": None, "lengths": [0, 0, 0],
}  # fmt: skip
_HANG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)


class ParentGone(Exception):
    """The parent has closed its end in the middle of a job."""


@dataclass(frozen=True)
class Place:
    """Where a worker runs its answers.

    `owns_processes`: the worker is process 1 of a namespace, all that runs beside it is an answer's.
    """

    workspace: str
    shield: LayerStack
    owns_processes: bool
    ready: harness.Announcement = field(default_factory=harness.Announcement)


def run_job(
    channel: socket.socket, place: Place, limits: Mapping[str, Any], job: memoryview, calls: int | None
) -> tuple[dict[str, Any], list[ErasableBuffer]]:
    """Runs one job and reports how it ended; its results, output and errors come as they are.

    `calls` is the socket between an answer and its checks. A machine that does not let a child start
    is told by `ready` False and the reason as `failure`.
    """
    started = time.monotonic()
    try:
        pid, reads = _start(place, limits, job, calls)
    except OSError as error:  # no memory, process, descriptor or space for an answer that is not there yet
        return {**_NOTHING, "failure": f"an answer's process cannot be started: {error}"}, []
    watch = Watch(channel, pid, reads, place, limits, started)
    try:
        watch.until_end()
    finally:
        waited = waiting_seconds(pid) if watch.killed == "wall" else None
        wall_seconds = time.monotonic() - started
        status, usage = _end_all(pid, place)
        watch.drain()
        for read in reads:
            os.close(read)
        is_too_full = watch.overfills_folder()  # now nobody can move its files while they are counted
        empty_folder(place.workspace)
    used = usage.ru_utime + usage.ru_stime  # with that of children, which the watch does not see
    if watch.killed is None and used > limits["cpu_seconds"]:
        watch.killed = "cpu"
    reply = {
        "ready": place.ready.was_made(),
        "failure": "",
        "killed": watch.killed or ("folder" if is_too_full else None),
        "exit": os.waitstatus_to_exitcode(status),
        "cpu_seconds": used,
        "wall_seconds": wall_seconds,
        "waiting_seconds": waited,
        "lengths": [len(buffer.view()) for buffer in watch.kept],
        "call_seconds": watch.call_seconds(used, wall_seconds) if limits["measures_calls"] else [],
    }
    return reply, watch.kept


def _start(
    place: Place, limits: Mapping[str, Any], job: memoryview, calls: int | None
) -> tuple[int, list[int]]:
    """Forks the answer; its process id, and the pipes of its results, output and errors. Raises `OSError`."""
    place.ready.clear()
    pid, stdin, reads, writes = 0, None, list[int](), list[int]()
    try:
        _demand_room(place)
        for _ in range(3):
            read, write = os.pipe()
            reads.append(read)
            writes.append(write)
        if limits["stdin_bytes"] is not None:
            end = len(job) - limits["stdin_bytes"]
            job, stdin = job[:end], _file_of(job[end:], place.workspace)
        worker = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become_answer(worker, place, writes, stdin, calls, limits, job)
        return pid, reads
    finally:
        for descriptor in (*writes, stdin, calls, *(() if pid else reads)):
            if descriptor is not None:
                os.close(descriptor)


def _demand_room(place: Place) -> None:
    """Raises `OSError` where the disk is full before an answer could fill it."""
    if place.owns_processes:  # its folder is in memory
        return
    found = os.statvfs(place.workspace)
    if found.f_blocks and found.f_bavail * found.f_frsize < MAX_FOLDER_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place.workspace)


def run_child(place: Place, action: Callable[[int], object]) -> bytes:
    """Forks, runs `action(descriptor)` in the child, and returns what it wrote, at most one pipe full."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            action(write)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    try:
        ready = select.select([read], [], [], 5.0)[0]
        return os.read(read, _CHUNK) if ready else b""
    finally:
        os.close(read)
        _end_all(pid, place)


def _file_of(content: memoryview, folder: str) -> int:
    """An open file that holds the content and has no name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        path = os.path.join(folder, "stdin")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.unlink(path)
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _become_answer(
    worker: int,
    place: Place,
    writes: list[int],
    stdin: int | None,
    calls: int | None,
    limits: Mapping[str, Any],
    job: memoryview,
) -> NoReturn:
    try:
        if not place.owns_processes:  # what process 1 of a namespace started ends with it
            signal.signal(signal.SIGCONT, signal.SIG_DFL)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != worker:
                os._exit(1)
        os.setpgid(0, 0)
        os.chdir(place.workspace)
        results, stdout, stderr = writes
        if stdin is not None:
            os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.dup2(results, harness.RESULT_FD)
        if calls is not None:
            os.dup2(calls, stand_in.CALL_FD)
        harness.run_job(place.shield, place.ready, limits, job)
    finally:
        os._exit(1)


class Watch:
    """Reads what a child writes, bounded, and kills it at its limits.

    `kept` holds results, stdout and stderr; `killed` is None or the limit that was reached.
    """

    def __init__(
        self,
        channel: socket.socket,
        pid: int,
        reads: list[int],
        place: Place,
        limits: Mapping[str, Any],
        started: float,
    ) -> None:
        self._channel, self._pid, self._limits, self._started = channel, pid, limits, started
        self._place = place
        self._reads = {read: index for index, read in enumerate(reads)}
        self._seen = [0, 0, 0]
        self.kept = [ErasableBuffer(), ErasableBuffer(), ErasableBuffer()]
        self.killed: str | None = None
        self._next_look = 0.0
        self._progress = Progress(limits)
        for read in reads:
            os.set_blocking(read, False)

    def until_end(self) -> None:
        """Returns when the child has ended by itself or has reached a limit."""
        ended = open_process(self._pid)
        try:
            self._until(ended)
        finally:
            if ended is not None:
                os.close(ended)

    def _until(self, ended: int | None) -> None:
        poll = select.poll()
        poll.register(self._channel, _HANG_UP)
        if ended is not None:
            poll.register(ended, select.POLLIN)
        # Most answers end within the first tick and leave less than a pipe holds: no wake-up for them.
        # Where a process cannot be waited for, its end is that of its pipes.
        timeout = FIRST_TICK_SECONDS if ended is not None else 0.0
        next_check, reading, open_pipes = 0.0, False, len(self._reads)
        while self.killed is None and open_pipes:
            for descriptor, _ in poll.poll(timeout * 1000):
                if descriptor == ended:
                    return
                if descriptor == self._channel.fileno():
                    raise ParentGone
                if not self._read(descriptor):
                    poll.unregister(descriptor)
                    open_pipes -= ended is None
            if not reading:
                reading, timeout = True, TICK_SECONDS
                for read in self._reads:
                    poll.register(read, select.POLLIN)
            now = time.monotonic()
            if self.killed is None and now >= next_check:
                next_check = now + TICK_SECONDS
                self.killed = self._exceeded()

    def drain(self) -> None:
        """Reads what is left in the pipes once every writer is dead."""
        for read in self._reads:
            while self._read(read):
                continue

    def overfills_folder(self) -> bool:
        """Whether the answer's folder holds too much; in a namespace it is bounded by itself."""
        if self._place.owns_processes:
            return False
        begun = time.monotonic()
        is_too_full = folder_bytes(self._place.workspace) > MAX_FOLDER_BYTES
        ended = time.monotonic()
        self._next_look = ended + PAUSE_PER_COUNT * (ended - begun)
        return is_too_full

    def _may_look(self) -> bool:
        """Whether to count the folder now: an answer must not keep its worker busy with that."""
        return time.monotonic() >= self._next_look

    def call_seconds(self, used: float, wall_seconds: float) -> list[float]:
        """The CPU time of each call that has ended, given that of the whole process."""
        self._progress.advance(self.kept[0].view(), used, wall_seconds)
        return self._progress.call_seconds

    def _exceeded(self) -> str | None:
        used, wall_seconds = cpu_seconds(self._pid), time.monotonic() - self._started
        if used > self._limits["cpu_seconds"]:
            return "cpu"
        if wall_seconds > self._limits["wall_seconds"]:
            return "wall"
        self._progress.advance(self.kept[0].view(), used, wall_seconds)
        if (limit := self._progress.exceeded(used, wall_seconds)) is not None:
            return limit
        if self._may_look() and self.overfills_folder():
            return "folder"
        may_start_processes = Layer.SECCOMP not in self._place.shield
        if may_start_processes and len(descendants(os.getpid(), at_most=MAX_PROCESSES + 1)) > MAX_PROCESSES:
            return "processes"
        return None

    def _read(self, descriptor: int) -> bool:
        """Takes what one pipe holds now; False at its end."""
        index = self._reads[descriptor]
        keep = self._limits["result_bytes" if index == 0 else "output_bytes"]
        try:
            count = self.kept[index].read(descriptor, keep)
        except BlockingIOError:
            return False
        self._seen[index] += count
        if self._seen[index] > (keep if index == 0 else keep * MAX_OUTPUT_FACTOR):
            self.killed = "output"
        return count > 0


def _end_all(pid: int, place: Place) -> tuple[int, Any]:
    """Kills and reaps an answer and all that it left behind; its exit status and usage."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it may have died before it led a group
        os.killpg(pid, signal.SIGKILL)
    return end_children(owns_processes=place.owns_processes)[pid]


def end_children(*, owns_processes: bool = False) -> dict[int, tuple[int, Any]]:
    """Kills and reaps all children of this process; exit status and usage by process id.

    What a dead process leaves behind becomes our child, so this ends when no child is left.
    `owns_processes`: all others in this process's namespace may be killed.
    """
    ended: dict[int, tuple[int, Any]] = {}
    options = os.WNOHANG  # most answers leave nothing behind: look for children only if some live on
    while True:
        try:
            pid, status, usage = os.wait4(-1, options)
        except ChildProcessError:
            return ended
        if pid:
            ended[pid] = status, usage
        else:
            options = 0
        if options == 0:
            for child in [-1] if owns_processes else children(os.getpid()):
                kill(child)
