"""Makes pictures of drawings by a browser of this machine, because greenward depends on nothing that could.

The browser is one of the Chromium family, without a window. It is told what to do through two pipes (its
DevTools protocol), gets each drawing as a `data:` address, and touches no network.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from greenward.common.errors import RunError

BROWSERS = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)  # fmt: skip
_OPTIONS = ("--headless", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu", "--hide-scrollbars")
_SCALE = 2  # points of the picture for one of the drawing
_SECONDS = 60.0  # for each answer of the browser
_ABOVE = 10  # those that the browser uses


def pictures(drawings: Iterable[str], width: int, height: int) -> Iterator[bytes]:
    """A PNG of each SVG of this size, at twice its points.

    Raises `RunError` where there is no browser, or it does not do what it is told.
    """
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise RunError(
            "PNG is drawn by a browser of the Chromium family, and none was found.",
            remedy="Install chromium or google-chrome, or leave out --png: SVG has the same charts.",
        )
    with _Browser(browser) as page:
        size = {"width": width, "height": height, "deviceScaleFactor": _SCALE, "mobile": False}
        page.ask("Emulation.setDeviceMetricsOverride", size)
        light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
        page.ask("Emulation.setEmulatedMedia", light)
        page.ask("Page.enable")
        for drawing in drawings:
            address = "data:image/svg+xml;base64," + base64.b64encode(drawing.encode()).decode()
            page.ask("Page.navigate", {"url": address})
            page.wait_for("Page.loadEventFired")
            yield base64.b64decode(page.ask("Page.captureScreenshot", {"format": "png"})["data"])


class _Browser:
    """A browser with one page, from entering until leaving."""

    def __init__(self, program: str) -> None:
        self._program, self._session, self._number = program, "", 0
        self._received, self._events = b"", list[str]()

    def __enter__(self) -> _Browser:
        with ExitStack() as stack:
            folder = tempfile.TemporaryDirectory(prefix="greenward-", ignore_cleanup_errors=True)
            profile = stack.enter_context(folder)
            read_by_it, self._commands = _pipe()
            self._replies, written_by_it = _pipe()
            for one in (self._commands, self._replies):
                stack.callback(os.close, one)
            as_root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # it refuses to run with its own one
            command = (self._program, *_OPTIONS, *as_root, f"--user-data-dir={profile}", "about:blank")
            nothing = [(os.POSIX_SPAWN_OPEN, one, os.devnull, os.O_RDWR, 0) for one in range(3)]
            pipes = [(os.POSIX_SPAWN_DUP2, read_by_it, 3), (os.POSIX_SPAWN_DUP2, written_by_it, 4)]
            process = os.posix_spawn(self._program, command, os.environ, file_actions=[*nothing, *pipes])
            stack.callback(os.waitpid, process, 0)
            stack.callback(os.kill, process, signal.SIGKILL)
            for one in (read_by_it, written_by_it):
                os.close(one)
            target = self.ask("Target.createTarget", {"url": "about:blank"})["targetId"]
            attached = self.ask("Target.attachToTarget", {"targetId": target, "flatten": True})
            self._session = attached["sessionId"]
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result of a command."""
        self._number += 1
        command = {"id": self._number, "method": method, "params": parameters or {}}
        if self._session:
            command["sessionId"] = self._session
        self._events.clear()
        message = json.dumps(command).encode() + b"\0"
        try:
            while message:
                message = message[os.write(self._commands, message) :]
        except OSError:
            raise self._failure("it ended") from None
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                if "result" not in answer:
                    raise self._failure(f"{method}: {answer.get('error', {}).get('message', '')}")
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer.get("method", ""))

    def wait_for(self, event: str) -> None:
        """Until an event that came with the last command, or comes after it."""
        while event not in self._events:
            self._events.append(self._next().get("method", ""))

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + _SECONDS
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                raise self._failure(f"it did not answer within {_SECONDS:g} s")
            block = os.read(self._replies, 1 << 20)
            if not block:
                raise self._failure("it ended")
            self._received += block
        message, _, self._received = self._received.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _failure(self, why: str) -> RunError:
        return RunError(
            f"{self._program} drew no PNG: {why}.", remedy="Leave out --png, and use the SVG files."
        )


def _pipe() -> tuple[int, int]:
    """Both ends of a pipe, above the descriptors that the browser expects them as."""
    ends = os.pipe()
    read, write = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _ABOVE) for one in ends)
    for one in ends:
        os.close(one)
    return read, write
