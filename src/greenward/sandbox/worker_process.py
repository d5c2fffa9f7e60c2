"""One worker as its pool sees it: a clean process, a socket to it, and a deadline."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import greenward
from greenward.errors import SandboxError
from greenward.sandbox.processes import descendants, kill
from greenward.sandbox.worker import receive_frame, send_frame

# Python ignores PYTHONHASHSEED under -I; with this environment, -s and no path to us, -I adds nothing.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "0"}
_BOOTSTRAP = (
    f"import sys; sys.path[0] = {str(Path(greenward.__file__).parent.parent)!r}; "
    "from greenward.sandbox.worker import main; del sys.path[0]; main()"
)


class WorkerLost(Exception):
    """The worker died, fell silent or garbled its report."""


class WorkerProcess:
    """A started worker; `folder` is its own and need not exist. Raises `SandboxError`."""

    def __init__(self, folder: str) -> None:
        if sys.platform != "linux":
            raise SandboxError(
                f"the sandbox needs Linux, not {sys.platform}.",
                remedy="Run greenward in a Linux container or VM.",
            )
        os.mkdir(folder, 0o700)
        self.deadline = float("inf")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the worker)
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-s",
                    "-S",
                    "-B",
                    "-c",
                    _BOOTSTRAP,
                    str(theirs.fileno()),
                    folder,
                    str(os.getpid()),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=ENVIRONMENT,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._channel.fileno()

    def wait_ready(self, timeout_seconds: float) -> None:
        """Returns when the worker serves. Raises `SandboxError` with its last words."""
        self._channel.settimeout(timeout_seconds)
        try:
            self.receive()
        except WorkerLost:
            self._process.kill()
            self._process.wait()
            self._errors.seek(0)
            words = self._errors.read()[-2000:].decode("utf-8", "replace").strip()
            raise SandboxError(
                f"a sandbox worker did not start within {timeout_seconds:g} s.",
                remedy=f"Its last words: {words or 'none'}",
            ) from None

    def send(
        self, header: dict[str, Any], payload: bytes, *, wall_seconds: float, grace_seconds: float
    ) -> None:
        """Hands over one job and sets the deadline. A worker that is gone shows at `receive`."""
        self.deadline = time.monotonic() + wall_seconds + grace_seconds
        self._channel.settimeout(grace_seconds)
        try:
            send_frame(self._channel, header, payload)
        except OSError:
            self.deadline = time.monotonic()

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The report that has begun to arrive. Raises `WorkerLost`."""
        try:
            report = receive_frame(self._channel)
        except (OSError, ValueError):
            raise WorkerLost from None
        if report is None:
            raise WorkerLost
        return report

    def close(self) -> None:
        """Lets the worker clean up and end; kills it if it does not."""
        self._channel.close()
        try:
            self._process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.kill()
        self._errors.close()

    def kill(self) -> None:
        """Ends the worker and all that it started, at once."""
        started = descendants(self.pid)
        self._process.kill()
        self._process.wait()
        for pid in started:
            kill(pid)
        self._channel.close()
        self._errors.close()
