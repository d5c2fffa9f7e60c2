"""The process in which logs are read and runs are diagnosed, as the server asks it: one request at a time."""

from __future__ import annotations

import json
import subprocess
import threading
from contextlib import suppress
from typing import Any

from greenward.common.processes import python_module

SECONDS_FOR_ONE = 600.0  # of a worker that does not answer; on a busy machine it may wait long


class WorkerProcess:
    """`greenward.ui.worker` as a process that is started when it is missing. Use `close` at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def ask(self, request: Any) -> Any:
        """The answer to a request. A process that hangs is ended.

        Raises `OSError` or `ValueError` where there is no answer.
        """
        with self._lock:
            if self._closed:
                raise OSError("The server ends.")
            if self._process is None or self._process.poll() is not None:
                self._process = subprocess.Popen(
                    python_module("greenward.ui.worker"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                    start_new_session=True,  # a Ctrl-C is for the server, which ends it
                )
            process = self._process
            assert process.stdin is not None and process.stdout is not None
            late = threading.Timer(SECONDS_FOR_ONE, process.kill)
            late.start()
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                return json.loads(process.stdout.readline())
            except (OSError, ValueError):  # it ended, or is about to: the next request is for another one
                process.kill()
                process.wait()
                raise
            finally:
                late.cancel()

    def close(self) -> None:
        """End the process."""
        self._closed = True
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
                self._process.wait()
