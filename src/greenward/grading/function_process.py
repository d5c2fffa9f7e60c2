"""A function of the user's own in a process that can be stopped: both sides.

The process is started once, imports `module:function` and then answers requests, so that a hang, a crash
or a print of the function does not reach the caller. Requests are pickled: the process trusts its caller.
Replies are JSON: the caller does not trust the process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from greenward.errors import RewardError
from greenward.interruption import POLL_SECONDS, Stopped, check
from greenward.sandbox.frames import receive_frame, send_frame
from greenward.text import visible

IMPORT_SECONDS = 120.0
# A shell that waits, so that the parent which an answer may signal is not the caller.
_SHIELD = ("/bin/sh", "-c", '"$@"; exit $?', "sh")

Reply = dict[str, Any]
Handler = Callable[[Any], Reply]
Present = Callable[[Callable[..., Any], dict[str, Any]], tuple[Reply, Handler]]


class FunctionHung(RewardError):
    """The function did not answer in time."""


class FunctionEnded(RewardError):
    """The function's process has ended."""


class Refused(Exception):
    """A function that cannot serve: the message says why, the second argument what to do."""


class FunctionProcess:
    """Runs `module:function` in a process of its own, served by `present` (`serve`).

    `header` goes to `present` with the function's name; `described` is what it says of the function.
    With `hostile_input` the function may run hostile code: what it prints is discarded, it works in an
    empty temporary folder, and a shell stands between it and this process.

    Raises `RewardError` when the function cannot be imported or is refused, takes too long
    (`FunctionHung`), or ends its process (`FunctionEnded`).
    """

    def __init__(
        self, function: str, present: Present, header: Mapping[str, Any], *, hostile_input: bool = False
    ) -> None:
        self.function = function
        cleanup = contextlib.ExitStack()
        places = dict.fromkeys(map(os.path.abspath, (os.getcwd(), *sys.path)))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        folder = None
        if hostile_input:
            folder = cleanup.enter_context(
                tempfile.TemporaryDirectory(prefix="greenward-", ignore_cleanup_errors=True)
            )
            environment["TMPDIR"] = folder
        self._channel, theirs = socket.socketpair()
        main = (
            f"from {__name__} import serve; from {present.__module__} import {present.__name__} as present; "
            "serve(present)"
        )
        with theirs:
            self._process = subprocess.Popen(
                [*(_SHIELD if hostile_input else ()), sys.executable, "-c", main, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if hostile_input else None,
                stderr=subprocess.DEVNULL if hostile_input else None,
                pass_fds=[theirs.fileno()],
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self._end = weakref.finalize(self, _end, self._process, self._channel, cleanup)
        try:
            self.described = self.ask({**header, "function": function}, IMPORT_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process (or the shell before it) still runs."""
        return self._end.alive and self._process.poll() is None

    def ask(self, request: Any, timeout_seconds: float) -> Reply:
        """The server's reply to one request. After an error the process is closed or goes on serving."""
        self._channel.settimeout(timeout_seconds)
        try:
            send_frame(self._channel, {}, pickle.dumps(request))
            deadline = time.monotonic() + timeout_seconds
            while not select.select([self._channel], [], [], POLL_SECONDS)[0]:
                check()
                if time.monotonic() > deadline:
                    raise TimeoutError
            frame = receive_frame(self._channel)
        except TimeoutError:
            self.close()
            raise FunctionHung(
                f"{self.function} did not answer within {timeout_seconds:g} s.",
                remedy="Make it faster, or raise timeout_seconds of this reward term.",
            ) from None
        except OSError:
            frame = None
        except Stopped:  # its reply would be taken for that to the next request
            self.close()
            raise
        if frame is None:
            self.close()
            raise FunctionEnded(
                f"{self.function}: its process ended (status {self._process.returncode}).",
                remedy="It leaves Python or crashes the interpreter: run it by hand on one answer.",
            )
        reply = frame[0]
        if "error" in reply:
            # An exception's message may quote an answer: hostile text.
            message, remedy = visible(reply["error"], 500), visible(reply["remedy"], 2000)
            raise RewardError(f"{self.function}: {message}", remedy=remedy)
        return reply

    def close(self) -> None:
        """Ends the process and those it has started. Safe to call twice."""
        self._end()


def _end(process: subprocess.Popen[bytes], channel: socket.socket, cleanup: contextlib.ExitStack) -> None:
    channel.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended by itself
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    cleanup.close()


def serve(present: Present) -> None:
    """The other side: serves until the caller closes its end. The process's argument is the descriptor.

    `present` gets the imported function and the header; it gives what is told about the function and
    what answers each later request. Either may raise `Refused`.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(OSError):  # there is no standard error
        os.dup2(2, 1)  # what the function prints must not mix with the caller's output
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    handle: Handler | None = None
    while (frame := receive_frame(channel)) is not None:
        request = pickle.loads(frame[1])
        try:
            if handle is None:
                reply, handle = present(_load(request["function"]), request)
            else:
                reply = handle(request)
        except Refused as refusal:
            reply = {"error": refusal.args[0], "remedy": refusal.args[1]}
        send_frame(channel, reply)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _load(path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise Refused(
            f"its module could not be imported: {type(error).__name__}: {error}.",
            "Check the name, and that the module is installed or in the current directory.",
        ) from None
    function: Callable[..., Any] | None = getattr(module, function_name, None)
    if not callable(function):
        raise Refused(f"{module_name} has no function {function_name!r}.", "Write it as 'module:function'.")
    return function


def as_number(score: Any) -> float | str:
    """A number as a float; text that says what else it is."""
    if isinstance(score, (str, bytes)):
        return repr(score)[:80]
    try:
        return float(score)
    except (TypeError, ValueError, OverflowError):
        return f"a {type(score).__name__}"
