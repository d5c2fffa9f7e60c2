"""A function of the user's own in a process that can be stopped: the caller's side.

The process is started once, imports `module:function` and then answers requests of plain data, so that
a hang, a crash or a print of the function does not reach the caller. `function_server` is the other side.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from greenward.errors import RewardError
from greenward.sandbox.frames import receive_frame, send_frame
from greenward.text import visible

IMPORT_SECONDS = 120.0
# A shell that waits, so that the parent which an answer may signal is not the caller.
_SHIELD = ("/bin/sh", "-c", '"$@"; exit $?', "sh")


class FunctionHung(RewardError):
    """The function did not answer in time."""


class FunctionEnded(RewardError):
    """The function's process has ended."""


class FunctionProcess:
    """Runs `module:function` as `server`, the name of a module with a `main()`, presents it.

    `header` goes to the server with the function's name; `described` is what it says of the function.
    With `hostile_input` the function may run hostile code: what it prints is discarded, it works in an
    empty temporary folder, and a shell stands between it and this process.

    Raises `RewardError` when the function cannot be imported or is refused, takes too long
    (`FunctionHung`), or ends its process (`FunctionEnded`).
    """

    def __init__(
        self, function: str, server: str, header: Mapping[str, Any], *, hostile_input: bool = False
    ) -> None:
        self.function = function
        self._closed = False
        self._cleanup = contextlib.ExitStack()
        folder = self._cleanup.enter_context(_temporary_folder()) if hostile_input else None
        self._channel, theirs = socket.socketpair()
        main = f"from {server} import main; main()"
        with theirs:
            self._process = subprocess.Popen(
                [*(_SHIELD if hostile_input else ()), sys.executable, "-c", main, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if hostile_input else _stderr(),
                stderr=subprocess.DEVNULL if hostile_input else None,
                pass_fds=[theirs.fileno()],
                cwd=folder,
                env={**os.environ, **_environment(folder)},
                start_new_session=True,
            )
        try:
            self.described = self.ask({**header, "function": function}, b"", IMPORT_SECONDS)
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        """Whether the process (or the shell before it) still runs."""
        return not self._closed and self._process.poll() is None

    def ask(self, header: Mapping[str, Any], blob: bytes, timeout_seconds: float) -> dict[str, Any]:
        """What the server answers to one request. After an error the process is closed or goes on serving."""
        self._channel.settimeout(timeout_seconds)
        try:
            send_frame(self._channel, dict(header), blob)
            reply = receive_frame(self._channel)
        except TimeoutError:
            self.close()
            raise FunctionHung(
                f"{self.function} did not answer within {timeout_seconds:g} s.",
                remedy="Make it faster, or raise timeout_seconds of this reward term.",
            ) from None
        except OSError:
            reply = None
        if reply is None:
            self.close()
            raise FunctionEnded(
                f"{self.function}: its process ended (status {self._process.returncode}).",
                remedy="It leaves Python or crashes the interpreter: run it by hand on one answer.",
            )
        if "error" in reply[0]:
            # An exception's message may quote an answer: hostile text.
            message, remedy = visible(reply[0]["error"], 500), visible(reply[0]["remedy"], 2000)
            raise RewardError(f"{self.function}: {message}", remedy=remedy)
        return reply[0]

    def close(self) -> None:
        """Ends the process and those it has started. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended by itself
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._cleanup.close()

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self.close()


def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="greenward-", ignore_cleanup_errors=True)


def _environment(folder: str | None) -> dict[str, str]:
    path = os.pathsep.join(os.path.abspath(one) for one in sys.path)
    return {"PYTHONPATH": path} | ({"TMPDIR": folder} if folder else {})


def _stderr() -> int | None:
    """The descriptor of the standard error stream, which a test or a notebook may have replaced."""
    try:
        number = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return None
    return number if number >= 0 else None
