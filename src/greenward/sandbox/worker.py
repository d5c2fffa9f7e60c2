"""The fork-server: a small clean Python that forks one child per job and watches it from outside.

It is started by the pool without the parent's environment, modules and descriptors, stays
single-threaded, and never looks into what an answer wrote: it passes bytes on. When its parent
dies it ends its child, removes its folder and exits.

Requests and replies are frames on one socket: length, JSON header, newline, bytes.

Standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import Any, NoReturn

from greenward.sandbox import harness
from greenward.sandbox.folders import remove_folder
from greenward.sandbox.processes import (
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    children,
    cpu_seconds,
    descendants,
    kill,
    prctl,
)

LENGTH = struct.Struct("!Q")
MAX_RESULT_BYTES = 16 << 20
MAX_OUTPUT_FACTOR = 1024  # output over output_bytes is counted and dropped; over this, the answer is killed
MAX_PROCESSES = 64
MAX_USER_TASKS_MORE = 1024  # RLIMIT_NPROC counts the whole user, so it can only be a far backstop
FIRST_TICK_SECONDS = 0.005
TICK_SECONDS = 0.02
_CHUNK = 1 << 16

# Loaded before the fork, so that answers find them at no cost.
PRELOADED = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc", "contextlib",
    "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "hashlib", "heapq",
    "inspect", "io", "itertools", "json", "math", "numbers", "operator", "os", "pprint", "queue", "random",
    "re", "statistics", "string", "struct", "sys", "tempfile", "textwrap", "threading", "time", "traceback",
    "types", "typing", "unicodedata",
)  # fmt: skip


class ParentGone(Exception):
    """The parent has closed its end in the middle of a job."""


def main() -> None:
    """Serves jobs until the parent closes its end. Arguments: socket, folder, parent's process id."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    folder, parent = sys.argv[2], int(sys.argv[3])
    workspace = os.path.join(folder, "job")
    os.environ.update(HOME=workspace, TMPDIR=workspace)
    _prefer_as_victim_of_memory_shortage()
    try:
        _follow_parent(parent, folder)
        _leave_no_trace_of_ourselves()
        send_frame(channel, {"ready": True})
        while (request := receive_frame(channel)) is not None:
            header, job = request
            header["user_tasks"] = _user_tasks + MAX_USER_TASKS_MORE
            reply, blobs = run_job(channel, workspace, header, job)
            del request, job
            send_frame(channel, reply, *blobs)
    except (ParentGone, ConnectionError):
        return
    finally:
        _remove_own_folder(folder)


def _prefer_as_victim_of_memory_shortage() -> None:
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _follow_parent(parent: int, folder: str) -> None:
    """Has this process end with its parent, whatever it is doing.

    The signal is SIGCONT because it reaches a process that an answer has stopped, and can still be
    caught to clean up, which SIGKILL cannot. The clean-up runs in the handler: an exception could
    be raised into the middle of the clean-up that follows the end of the socket.
    """
    own = os.getpid()

    def check(*_: Any) -> None:
        if os.getpid() == own and os.getppid() != parent:
            end_children()
            _remove_own_folder(folder)
            os._exit(0)

    signal.signal(signal.SIGCONT, check)
    prctl(PR_SET_PDEATHSIG, signal.SIGCONT)
    check()


def _leave_no_trace_of_ourselves() -> None:
    """Readies the memory that every answer inherits: common modules in, our names out."""
    global _user_tasks
    _user_tasks = _count_user_tasks()
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # daemons of an answer become our children
    prctl(PR_SET_DUMPABLE, 0)  # an answer of the same user cannot read or trace us
    for name in PRELOADED:
        importlib.import_module(name)
    for name in [name for name in sys.modules if name.split(".")[0] == "greenward"]:
        del sys.modules[name]
    sys.argv = ["answer.py"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # -S leaves them out, programs use them
    os.umask(0o077)
    gc.collect()
    gc.freeze()


_user_tasks = 0


def _count_user_tasks() -> int:
    count, user = 0, os.getuid()
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return count


def _remove_own_folder(folder: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        remove_folder(folder)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(folder))  # the last worker to leave takes the pool's folder along


def run_job(
    channel: socket.socket, workspace: str, limits: dict[str, Any], job: bytes
) -> tuple[dict[str, Any], tuple[bytes, ...]]:
    """Runs one job in a child and reports how it ended: facts only, no judgement."""
    os.mkdir(workspace, 0o700)
    pipes = [os.pipe() for _ in range(3)]  # results, stdout, stderr
    started = time.monotonic()
    worker = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_answer(worker, workspace, [write for _, write in pipes], limits, job)
    for _, write in pipes:
        os.close(write)
    watch = Watch(channel, pid, [read for read, _ in pipes], limits, started)
    try:
        watch.until_end()
    finally:
        wall_seconds = time.monotonic() - started
        with contextlib.suppress(
            ProcessLookupError, PermissionError
        ):  # it may have died before it led a group
            os.killpg(pid, signal.SIGKILL)
        status, usage = end_children()[pid]
        watch.drain()
        for read, _ in pipes:
            os.close(read)
        remove_folder(workspace)
    reply = {
        "killed": watch.killed,
        "exit": os.waitstatus_to_exitcode(status),
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "wall_seconds": wall_seconds,
        "lengths": [len(blob) for blob in watch.kept],
    }
    return reply, tuple(bytes(blob) for blob in watch.kept)


def _become_answer(
    worker: int, workspace: str, writes: list[int], limits: dict[str, Any], job: bytes
) -> NoReturn:
    try:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != worker:
            os._exit(1)
        os.setsid()
        os.chdir(workspace)
        results, stdout, stderr = writes
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        if results != harness.RESULT_FD:
            os.dup2(results, harness.RESULT_FD)
        os.closerange(harness.RESULT_FD + 1, 256)
        harness.run_answer(limits, job)
    finally:
        os._exit(1)


class Watch:
    """Reads what a child writes, bounded, and kills it at its limits.

    `kept` holds results, stdout and stderr; `killed` is None or the limit that was reached.
    """

    def __init__(
        self, channel: socket.socket, pid: int, reads: list[int], limits: dict[str, Any], started: float
    ) -> None:
        self._channel, self._pid, self._limits, self._started = channel, pid, limits, started
        self._reads = {read: index for index, read in enumerate(reads)}
        self._seen = [0, 0, 0]
        self.kept = [bytearray(), bytearray(), bytearray()]
        self.killed: str | None = None
        for read in reads:
            os.set_blocking(read, False)

    def until_end(self) -> None:
        """Returns when the child has ended by itself or has reached a limit."""
        ended = os.pidfd_open(self._pid)
        try:
            poll = select.poll()
            poll.register(ended, select.POLLIN)
            poll.register(self._channel, select.POLLRDHUP | select.POLLHUP)
            # Most answers end within the first tick and leave less than a pipe holds: no wake-up for them.
            timeout, next_check = FIRST_TICK_SECONDS, 0.0
            while self.killed is None:
                for descriptor, _ in poll.poll(timeout * 1000):
                    if descriptor == ended:
                        return
                    if descriptor == self._channel.fileno():
                        raise ParentGone
                    if not self._read(descriptor):
                        poll.unregister(descriptor)
                if timeout == FIRST_TICK_SECONDS:
                    timeout = TICK_SECONDS
                    for read in self._reads:
                        poll.register(read, select.POLLIN)
                now = time.monotonic()
                if self.killed is None and now >= next_check:
                    next_check = now + TICK_SECONDS
                    self.killed = self._exceeded()
        finally:
            os.close(ended)

    def drain(self) -> None:
        """Reads what is left in the pipes once every writer is dead."""
        for read in self._reads:
            while self._read(read):
                continue

    def _exceeded(self) -> str | None:
        if cpu_seconds(self._pid) > self._limits["cpu_seconds"]:
            return "cpu"
        if time.monotonic() - self._started > self._limits["wall_seconds"]:
            return "wall"
        if len(descendants(os.getpid(), at_most=MAX_PROCESSES + 1)) > MAX_PROCESSES:
            return "processes"
        return None

    def _read(self, descriptor: int) -> bool:
        """Takes what one pipe holds now; False at its end."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        index = self._reads[descriptor]
        self._seen[index] += len(chunk)
        keep = MAX_RESULT_BYTES if index == 0 else self._limits["output_bytes"]
        self.kept[index] += chunk[: max(0, keep - len(self.kept[index]))]
        if self._seen[index] > (keep if index == 0 else keep * MAX_OUTPUT_FACTOR):
            self.killed = "output"
        return bool(chunk)


def end_children() -> dict[int, tuple[int, Any]]:
    """Kills and reaps an answer and all that it left behind; exit status and usage by process id.

    What a dead process leaves behind becomes our child, so this ends when no child is left.
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
            for child in children(os.getpid()):
                kill(child)


def send_frame(channel: socket.socket, header: dict[str, Any], *blobs: bytes) -> None:
    """Sends one frame: length, JSON header, newline, bytes."""
    body = b"".join((json.dumps(header).encode("ascii"), b"\n", *blobs))
    channel.sendall(LENGTH.pack(len(body)) + body)


def receive_frame(channel: socket.socket) -> tuple[dict[str, Any], bytes] | None:
    """The next frame's header and bytes; None when the other side has closed."""
    prefix = _receive_exactly(channel, LENGTH.size)
    body = prefix and _receive_exactly(channel, LENGTH.unpack(prefix)[0])
    if not body:
        return None
    header, _, blob = body.partition(b"\n")
    return json.loads(header), blob


def _receive_exactly(channel: socket.socket, count: int) -> bytes | None:
    received = bytearray()
    while len(received) < count:
        chunk = channel.recv(min(count - len(received), 1 << 20))
        if not chunk:
            return None
        received += chunk
    return bytes(received)
