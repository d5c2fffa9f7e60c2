"""Runs one job in a child of the worker: bounds it, kills it at its limits, and cleans up after it.

The report holds facts only, and what an answer wrote is passed on unread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import select
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from greenward.sandbox.inside import harness, linux
from greenward.sandbox.inside.codec import NONCE_CHARS, result_frame_end
from greenward.sandbox.inside.files import empty_folder, folder_bytes, unnamed_bytes
from greenward.sandbox.inside.layers import LayerStack
from greenward.sandbox.isolation import Layer

MAX_OUTPUT_FACTOR = 1024  # output over output_bytes is counted and dropped; over this, the answer is killed
MAX_PROCESSES, FEW_PROCESSES, NICENESS_OF_MANY = 64, 3, 15
MAX_FOLDER_BYTES = 16 << 20
FIRST_TICK_SECONDS = 0.005
TICK_SECONDS = 0.02
FORKING_TICK_SECONDS = 0.003  # within 20 ms, processes that multiply keep all others from the processors
REMOVAL_SECONDS = 0.2  # for what an answer has left in its folder, before its worker is spent
AWAKE_SECONDS = 0.1  # from the start, in which nobody looks whether the child sleeps
PAUSE_PER_COUNT = 9.0  # between two counts of a folder passes so many times what the count took
_SELF_TEST_LIMITS: dict[str, Any] = {
    "cpu_seconds": 5.0, "wall_seconds": 5.0, "memory_bytes": 1 << 30, "file_bytes": 1 << 20,
    "output_bytes": 1 << 16, "result_bytes": 1 << 16,
    "stdin_bytes": (), "call_seconds": (), "call_wall_seconds": 0.0, "measures_calls": False,
}  # fmt: skip
_HANG_UP = select.POLLHUP | getattr(select, "POLLRDHUP", 0)


Report = tuple[dict[str, Any], "list[Output]"]


class ParentGone(Exception):
    """The parent has closed its end in the middle of a job."""


class Supervisor:
    """Runs the jobs of a worker in `workspace`, a folder, one after the other, behind `layers`.

    `owns_processes`: the worker is process 1 of a namespace, all that runs beside it is an answer's.
    """

    def __init__(self, workspace: str, layers: LayerStack, owns_processes: bool) -> None:
        self.workspace, self.layers, self.owns_processes = workspace, layers, owns_processes
        self.folder_is_bounded = owns_processes  # by its file system
        self._ready = mmap.mmap(-1, 1)  # shared with each child, until it has said that its layers are on
        self._next_count = 0.0
        descriptor = linux.unnamed_file(memoryview(b""), workspace)
        self._stdin_device = os.fstat(descriptor).st_dev  # what is given has no name, too
        os.close(descriptor)

    def run(
        self, channel: socket.socket, limits: Mapping[str, Any], job: memoryview, calls: int | None = None
    ) -> Report:
        """Runs one job and reports how it ended; its results, output and errors come as they are.

        The texts of standard input (`stdin_bytes`) are the job's end. An empty job is the self-test of the
        layers. `calls` is the socket between an answer and its checks. Where the machine does not let a child
        start, the report is the reason, as `failure`. Where the folder cannot be emptied in time, the worker
        `is_spent`: it must run nothing any more.
        """
        started = time.monotonic()
        try:
            pid, reads = self._start(limits, job, calls)
        except OSError as error:  # the answer is not there yet: no memory, process, descriptor or space
            return {"failure": f"an answer's process cannot be started: {error}"}, []
        child = Child(self, pid, reads, limits, started)
        try:
            child.wait(channel)
        finally:
            wall_seconds = time.monotonic() - started
            with contextlib.suppress(ProcessLookupError, PermissionError):  # it died before it led a group
                os.killpg(pid, signal.SIGKILL)
            status, usage = end_children(owns_processes=self.owns_processes)[pid]
            child.close()
            is_too_full = self.overfills_folder()  # no process is left that could move files during the count
            is_spent = not self._clean()
        used = usage.ru_utime + usage.ru_stime  # with that of children, which `Child` does not see
        if child.killed is None and used > limits["cpu_seconds"]:
            child.killed = "cpu"
        if limits["measures_calls"]:
            child.times.advance(child.outputs[0].kept, used, wall_seconds)
        idle = min(child.idle_seconds, wall_seconds) if linux.LINUX else None
        return {
            "ready": self._ready[0] != 0,
            "shares": self._ready[0] == harness.SHARES,
            "killed": child.killed or ("folder" if is_too_full else None),
            "is_too_full": is_too_full,
            "is_spent": is_spent,
            "exit": os.waitstatus_to_exitcode(status),
            "usage": {"cpu_seconds": used, "wall_seconds": wall_seconds, "idle_seconds": idle},
            "lengths": [len(output.kept) for output in child.outputs],
            "call_seconds": child.times.call_seconds if limits["measures_calls"] else [],
        }, child.outputs

    serve = run  # what a frame asks for

    def test_layers(self, channel: socket.socket) -> dict[str, Any]:
        """What `LayerStack.test` finds in a child. Raises `OSError` if it does not come to an end."""
        _, outputs = self.run(channel, _SELF_TEST_LIMITS, memoryview(b""))
        if not outputs or not outputs[0].kept:
            raise OSError("the self-test of the layers gave no report")
        found: dict[str, Any] = json.loads(bytes(outputs[0].kept))
        return found

    def overfills_folder(self, running: Sequence[int] = ()) -> bool:
        """Whether the answer's folder holds too much; in a namespace it is bounded by itself.

        An answer that is running, in the processes `running`, must not keep its worker busy with counting.
        Files without a name that it holds open count as well.
        """
        begun = time.monotonic()
        if self.folder_is_bounded or (running and begun < self._next_count):
            return False
        size = folder_bytes(self.workspace)
        if running and size <= MAX_FOLDER_BYTES:
            size += unnamed_bytes(running, self._stdin_device)
        self._next_count = begun + (1 + PAUSE_PER_COUNT) * (time.monotonic() - begun)
        return size > MAX_FOLDER_BYTES

    def _clean(self) -> bool:
        """Empties the folder for the next answer; False if that takes too long."""
        try:
            empty_folder(self.workspace, REMOVAL_SECONDS)
        except TimeoutError:
            return False
        return True

    def _act(self, limits: Mapping[str, Any], job: memoryview, stdins: list[int]) -> NoReturn:
        """What the child does: it applies the layers, says so, and ends."""
        harness.run_job(self.layers, self._ready, limits, job, stdins)

    def _start(self, limits: Mapping[str, Any], job: memoryview, calls: int | None) -> tuple[int, list[int]]:
        """Forks the answer; its id, and the pipes of its results, output and errors. Raises `OSError`."""
        self._ready[0], self._next_count = 0, time.monotonic() + TICK_SECONDS
        pid, reads, writes, stdins = 0, list[int](), list[int](), list[int]()
        try:
            self.layers.prepare(limits.get("completes", ""))
            if not self.owns_processes:  # elsewhere its folder is in memory
                disk = os.statvfs(self.workspace)
                if disk.f_blocks and disk.f_bavail * disk.f_frsize < MAX_FOLDER_BYTES:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.workspace)
            for _ in range(3):
                read, write = os.pipe()
                reads.append(read)
                writes.append(write)
            end = len(job) - sum(limits["stdin_bytes"])
            code, rest = job[:end], job[end:]
            for length in limits["stdin_bytes"]:
                stdins.append(linux.unnamed_file(rest[:length], self.workspace))
                rest = rest[length:]
            results, stdout, stderr = writes
            targets = {1: stdout, 2: stderr, harness.RESULT_FD: results, harness.CALL_FD: calls}
            worker = os.getpid()
            pid = os.fork()
            if pid == 0:
                self._become_answer(worker, targets, limits, code, stdins)
            return pid, reads
        finally:
            for descriptor in (*writes, *stdins, calls, *(() if pid else reads)):
                if descriptor is not None:
                    os.close(descriptor)

    def _become_answer(
        self,
        worker: int,
        targets: dict[int, int | None],
        limits: Mapping[str, Any],
        job: memoryview,
        stdins: list[int],
    ) -> NoReturn:
        try:
            if self.layers.lets_processes_start:
                linux.reset_priority()
            if not self.owns_processes:  # what process 1 of a namespace started ends with it
                signal.signal(signal.SIGCONT, signal.SIG_DFL)
                linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
                if os.getppid() != worker:
                    os._exit(1)
            if not self.folder_is_bounded and Layer.LANDLOCK in self.layers:
                # The worker can see the descriptors now. No other answer can.
                linux.prctl(linux.PR_SET_DUMPABLE, 1)
            os.setpgid(0, 0)
            os.chdir(self.workspace)
            for number, descriptor in {0: next(iter(stdins), None), **targets}.items():
                if descriptor is not None:
                    os.dup2(descriptor, number)
            if job:
                self._act(limits, job, stdins)
            self.layers.test(limits, self.owns_processes, harness.RESULT_FD)
        finally:
            os._exit(1)


def end_children(*, owns_processes: bool = False) -> dict[int, tuple[int, Any]]:
    """Kills and reaps all children of this process; exit status and usage by process id.

    What a dead process leaves behind becomes our child, so this ends when no child is left.
    `owns_processes`: all others in this process's namespace may be killed.
    """
    ended: dict[int, tuple[int, Any]] = {}
    options = os.WNOHANG
    while True:
        try:
            pid, status, usage = os.wait4(-1, options)
        except ChildProcessError:
            return ended
        if pid:
            ended[pid] = status, usage
            options = os.WNOHANG  # whatever has ended is reaped before the others are looked for again
        else:
            for one in [-1] if owns_processes else linux.descendants(os.getpid()):
                linux.kill(one)
            options = 0


class Child:
    """The process of one answer: reads what it writes, bounded, and says when a limit is reached.

    `outputs` are results, stdout and stderr; `killed` is None or the limit that was reached. `idle_seconds`
    is how long it slept, as one look in each tick tells.
    """

    def __init__(
        self, supervisor: Supervisor, pid: int, reads: list[int], limits: Mapping[str, Any], started: float
    ) -> None:
        self._supervisor, self._pid, self._limits, self._started = supervisor, pid, limits, started
        most, stdins = limits["output_bytes"], len(limits["stdin_bytes"])
        kept = most * max(1, stdins) + NONCE_CHARS * stdins  # a nonce ends the output of each run
        bounds = [(limits["result_bytes"],) * 2, *[(kept, max(kept, most * MAX_OUTPUT_FACTOR))] * 2]
        self.outputs = [Output(read, *bound) for read, bound in zip(reads, bounds, strict=True)]
        self.times = CallTimes(limits)
        self.killed: str | None = None
        self.idle_seconds = 0.0
        self._last_look = started
        self._ended = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None  # readable at its end

    def wait(self, channel: socket.socket) -> None:
        """Returns when the child has ended by itself or has reached a limit. Raises `ParentGone`."""
        ended, poll = self._ended, select.poll()
        poll.register(channel, _HANG_UP)
        if ended is not None:
            poll.register(ended, select.POLLIN)
        # Most answers end within the first tick and leave less than a pipe holds: the pipes are not watched.
        # Where a process cannot be waited for, its end is that of its pipes.
        tick = FORKING_TICK_SECONDS if self._supervisor.layers.lets_processes_start else TICK_SECONDS
        timeout = min(FIRST_TICK_SECONDS, tick) if ended is not None else 0.0
        pipes = {output.descriptor: output for output in self.outputs}
        next_check, reading, open_pipes = 0.0, False, len(pipes)
        while self.killed is None and open_pipes:
            for descriptor, _ in poll.poll(timeout * 1000):
                if descriptor == ended:
                    return
                if descriptor == channel.fileno():
                    raise ParentGone
                if not self._read(pipes[descriptor]):
                    poll.unregister(descriptor)
                    open_pipes -= ended is None
            if not reading:
                reading, timeout = True, tick
                for descriptor in pipes:
                    poll.register(descriptor, select.POLLIN)
            now = time.monotonic()
            if self.killed is None and now >= next_check:
                next_check = now + tick
                self.killed = self._exceeded()

    def close(self) -> None:
        """Reads what is left in the pipes once every writer is dead, and closes all descriptors."""
        for output in self.outputs:
            while self._read(output):
                continue
            os.close(output.descriptor)
        if self._ended is not None:
            os.close(self._ended)

    def _read(self, output: Output) -> bool:
        is_open = output.read()
        if output.seen > output.most:
            self.killed = "output"
        return is_open

    def _exceeded(self) -> str | None:
        """The limit that the child has reached by now."""
        used, now = linux.cpu_seconds(self._pid), time.monotonic()
        wall_seconds = now - self._started
        if wall_seconds > AWAKE_SECONDS and linux.is_asleep(self._pid):
            self.idle_seconds += now - self._last_look
        self._last_look = now
        if used > self._limits["cpu_seconds"]:
            return "cpu"
        if wall_seconds > self._limits["wall_seconds"]:
            return "wall"
        self.times.advance(self.outputs[0].kept, used, wall_seconds)
        if (limit := self.times.exceeded(used, wall_seconds)) is not None:
            return limit
        layers, started = self._supervisor.layers, [self._pid]
        if layers.lets_processes_start:
            most = self._limits.get("processes", MAX_PROCESSES)
            started = linux.descendants(os.getpid(), at_most=most + 1)
            if len(started) > most:
                return "processes"
            if len(started) > FEW_PROCESSES:
                with contextlib.suppress(OSError):  # they must not keep their worker from its processor
                    os.setpriority(os.PRIO_PGRP, self._pid, NICENESS_OF_MANY)
        memory = sum(map(linux.resident_bytes, started)) if layers.allows_processes else 0
        if memory > self._limits["memory_bytes"]:
            return "memory"
        return "folder" if self._supervisor.overfills_folder(started) else None


class Output:
    """What a child writes into one pipe, of which up to `keep` bytes are kept, and `most` are allowed.

    Every answer begins as a copy of its worker's memory, freed blocks included, and what an earlier
    answer was and gave may be the very thing that this one is asked for: what is kept has no other
    copy in this process, and is erased.
    """

    def __init__(self, descriptor: int, keep: int, most: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self._keep, self.most = descriptor, keep, most
        self._memory = memoryview(bytearray(4096))
        self._used = self.seen = 0

    @property
    def kept(self) -> memoryview:
        return self._memory[: self._used]

    def read(self) -> bool:
        """Takes what the pipe holds now; False if that was nothing, or its end."""
        if self._used == len(self._memory):
            larger = memoryview(bytearray(len(self._memory) * 4))
            larger[: self._used] = self._memory
            erase(self._memory)
            self._memory = larger
        try:
            count = os.readv(self.descriptor, [self._memory[self._used :]])
        except BlockingIOError:
            return False
        self.seen += count
        end = self._used + count
        self._used = min(end, self._keep)
        erase(self._memory[self._used : end])
        return count > 0


def erase(memory: memoryview) -> None:
    """Overwrites memory with zeros."""
    memory[:] = bytes(len(memory))


class CallTimes:
    """The CPU time of each call of one answer, and its limits; loading the code belongs to the first call.

    `limits` holds `call_seconds`, the CPU limit of each call (none if it is empty), and
    `call_wall_seconds`, the limit of a call on the wall clock. The frames on the result channel are
    counted, not read: an answer that writes frames of its own there can mislead this count, and is
    judged as cheating by whoever reads them.
    """

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.call_seconds: list[float] = []
        self._cpu_limits, self._wall_limit = limits["call_seconds"], limits["call_wall_seconds"]
        self._began_cpu = self._began_wall = 0.0
        self._frames = self._position = 0

    def advance(self, written: memoryview, cpu_seconds: float, wall_seconds: float) -> None:
        """Takes note of the calls that have ended; the seconds are those of the process until now."""
        while (end := result_frame_end(written, self._position)) is not None:
            self._position = end
            self._frames += 1
        ended = self._frames - len(self.call_seconds)
        if ended > 0:
            self.call_seconds += [cpu_seconds - self._began_cpu, *[0.0] * (ended - 1)]
            self._began_cpu, self._began_wall = cpu_seconds, wall_seconds

    def exceeded(self, cpu_seconds: float, wall_seconds: float) -> str | None:
        """Which limit of the present call is exceeded, "cpu" or "wall"; None for neither."""
        call = len(self.call_seconds)
        if call >= len(self._cpu_limits):
            return None
        if cpu_seconds - self._began_cpu > self._cpu_limits[call]:
            return "cpu"
        return "wall" if wall_seconds - self._began_wall > self._wall_limit else None
