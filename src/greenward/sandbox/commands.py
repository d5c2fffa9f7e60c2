"""Workspaces in a worker: folders that live as long as an episode, and commands that run in them.

A worker runs one command at a time, in a child behind all layers that may start processes. When the command
has ended, so have all its processes: only files live on. Files are read and written by such a child, too, so
that no symbolic link leads the worker anywhere.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from greenward.sandbox import harness
from greenward.sandbox.folders import remove_folder
from greenward.sandbox.layers.stack import OPEN_FILES, LayerStack
from greenward.sandbox.supervisor import MAX_FOLDER_BYTES, REMOVAL_SECONDS, Report, Supervisor
from greenward.sandbox.workspace import write_files

WORKSPACES_BYTES = 64 * MAX_FOLDER_BYTES  # of all workspaces of a worker, where a file system bounds them
MAX_READ_BYTES = 4 << 20
RESULT_BYTES = 7 * MAX_READ_BYTES  # as JSON a byte takes up to six
COMMAND_NICENESS = 5  # the worker must be ahead of what it ends
_SHELL = "/bin/sh"


class Workspaces(Supervisor):
    """The workspaces of one worker, each a folder in `workspace`, by their names."""

    def __init__(self, workspace: str, layers: LayerStack, owns_processes: bool) -> None:
        super().__init__(workspace, layers, owns_processes)
        self.folder_is_bounded = False  # all workspaces share one file system
        self._root = workspace
        self._old: list[str] = []  # folders of workspaces that were closed

    def serve(
        self, channel: socket.socket, limits: Mapping[str, Any], job: memoryview, calls: int | None
    ) -> Report:
        """Carries out one request and reports as `run` does.

        `limits` names the workspace and says whether it is new or old.
        Of a new one the folder is made first; an old one is removed, and nothing is run. What takes long to
        remove is removed in parts, at the next requests of these kinds.
        """
        self.workspace = os.path.join(self._root, limits["name"])
        if limits["is"] == "old":
            self._old.append(self.workspace)
        if limits["is"] != "open":
            self._remove_old()
        if limits["is"] == "old":
            return {"closed": True}, []
        if limits["is"] == "new":
            os.mkdir(self.workspace, 0o700)
        return self.run(channel, {**limits, "folder": self.workspace}, job, calls)

    def _clean(self) -> bool:
        """Files of a workspace stay."""
        return True

    def _remove_old(self) -> None:
        with contextlib.suppress(TimeoutError):
            while self._old:
                remove_folder(self._old[-1], REMOVAL_SECONDS)
                self._old.pop()

    def _act(self, limits: Mapping[str, Any], job: memoryview, stdins: list[int]) -> NoReturn:
        action, argument = json.loads(bytes(job))
        if action == "exec":
            os.nice(COMMAND_NICENESS)
        self.layers.apply(limits)
        os.closerange(harness.RESULT_FD + 1, OPEN_FILES)
        self._ready[0] = 1
        self._ready.close()
        if action == "exec":
            os.close(harness.RESULT_FD)
            os.dup2(1, 2)  # one stream, in the order of writing
            os.execve(_SHELL, ["sh", "-c", argument], _environment(self.workspace))
        found: Any = None
        try:
            if action in ("open", "write"):
                write_files(argument)
            else:
                found = dict(_texts(argument))
        except (OSError, ValueError) as error:
            found = str(error) or type(error).__name__
        with open(harness.RESULT_FD, "w", encoding="ascii") as file:
            json.dump(found, file)
        os._exit(0)


def _environment(folder: str) -> dict[str, str]:
    path = dict.fromkeys((os.path.join(sys.base_prefix, "bin"), "/usr/bin", "/bin"))
    return {
        "PATH": ":".join(path), "HOME": folder, "TMPDIR": folder, "LC_ALL": "C.UTF-8", "TZ": "UTC",
        "PYTHONDONTWRITEBYTECODE": "1", "PYTHONNOUSERSITE": "1", "PYTHONHASHSEED": "0",
    }  # fmt: skip


def _texts(paths: list[str] | None) -> Iterator[tuple[str, str | None]]:
    """The text of each of the files, None for one that is missing; or of all regular ones that are text.

    Of all, those are left out that do not fit into `MAX_READ_BYTES` beside the ones before; Python's come
    first. Raises `OSError`, and for a file of `paths` that is not UTF-8 text or does not fit `ValueError`.
    """
    left = MAX_READ_BYTES
    for path in sorted(_all_files(), key=lambda path: (path[-3:] != ".py", path)) if paths is None else paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | (os.O_NOFOLLOW if paths is None else 0))
        except FileNotFoundError:
            yield path, None
            continue
        with open(descriptor, "rb") as file:
            text = file.read(left + 1)
        problem = f"more than {MAX_READ_BYTES} bytes were to be read" if len(text) > left else None
        try:
            decoded = text.decode("utf-8")
        except UnicodeDecodeError:
            problem = problem or f"{path} is not text in UTF-8"
        if problem is None:
            left -= len(text)
            yield path, decoded
        elif paths is not None:
            raise ValueError(problem)


def _all_files() -> Iterator[str]:
    for folder, folders, names in os.walk("."):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (os.path.join(folder, name)[2:] for name in names):
            if stat.S_ISREG(os.lstat(path).st_mode):
                yield path
