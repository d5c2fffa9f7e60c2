"""Which files below a folder are logs of trainings: asked of the worker in the background, and kept.

Files whose names tell a trainer or a tracker are logs in any case. Of others, 256 KiB from the beginning and
from the end are read, of JSON documents up to 8 MiB: a log has signals of a training with their steps. At
most 4,000 files are looked at, those with the names of logs first, and the list says so. Left out are
Markdown, HTML, excerpts of a few lines that name fewer than three signals, and logs whose signals have
unknown names: these are shown where they are named. A file is looked at once for its size and time of change.
One that grows stays what it was: a log is not read again for each step, and any other text only after a
while.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from greenward import __version__
from greenward.common.files import read_file
from greenward.common.parsing import parse_json_text
from greenward.ui.cache import Cache, Stamp
from greenward.ui.process import WorkerProcess

MAX_WAITING = 2000  # files
SECONDS_BETWEEN = 30.0  # looks at a file that changes
_MAX_RECORD = 16 << 20
_WORTH_KEEPING = 500  # files between two writings of what is kept


class _Seen(NamedTuple):
    stamp: Stamp
    is_log: bool
    at: float


class Recognized:
    """What is known of files. Use `close` at the end, after which nothing more is looked at."""

    def __init__(self, cache: Cache, worker: WorkerProcess) -> None:
        self._cache, self._worker = cache, worker
        self._seen: dict[Path, dict[str, _Seen]] = {}
        self._waiting: dict[tuple[Path, str], Stamp] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self.revision = 0

    @property
    def waiting(self) -> int:
        """How many files are still to be looked at."""
        return len(self._waiting)

    def is_log(self, name: str, folder: Path, stamp: Stamp) -> bool | None:
        """Whether the file `name`, below `folder`, is the log of a training; None while not known."""
        seen = self._of(folder).get(name)
        if seen is not None:
            grew = seen.stamp[0] == stamp[0] and seen.stamp[1] <= stamp[1]
            if seen.stamp == stamp or (grew and seen.is_log):
                return seen.is_log
            if time.monotonic() - seen.at < SECONDS_BETWEEN:
                return seen.is_log
        with self._changed:
            if len(self._waiting) < MAX_WAITING and not self._closed:
                self._waiting.setdefault((folder, name), stamp)
                self._changed.notify()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, daemon=True)
                    self._thread.start()
        return None if seen is None else seen.is_log

    def _of(self, folder: Path) -> dict[str, _Seen]:
        """What is known of the files below a folder, first as it was kept."""
        if folder not in self._seen:
            self._seen[folder] = {
                name: _Seen(*kept, float("-inf")) for name, kept in self._kept(folder).items()
            }
        return self._seen[folder]

    def _kept(self, folder: Path) -> Mapping[str, tuple[Stamp, bool]]:
        file = self._cache.file(folder, "files")
        if file is None or not file.is_file():
            return {}
        try:
            kept = parse_json_text(read_file(file, _MAX_RECORD))
            if kept["version"] != __version__:
                return {}
            return {
                str(name): ((int(inode), int(size), int(time_ns)), bool(is_log))
                for name, (inode, size, time_ns, is_log) in kept["files"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _work(self) -> None:
        unwritten: dict[Path, int] = {}
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                (folder, name), stamp = next(iter(self._waiting.items()))
            found = self._ask(folder / name, folder)
            self._of(folder)[name] = _Seen(stamp, found, time.monotonic())
            unwritten[folder] = unwritten.get(folder, 0) + 1
            with self._changed:
                is_last = len(self._waiting) == 1
                self.revision += found or is_last
                del self._waiting[folder, name]
            for one in [one for one, count in unwritten.items() if is_last or count >= _WORTH_KEEPING]:
                self._write(one)
                del unwritten[one]

    def _ask(self, path: Path, folder: Path) -> bool:
        try:
            return self._worker.ask({"log": str(path), "within": str(folder)}) is True
        except (OSError, ValueError):
            return False

    def _write(self, folder: Path) -> None:
        files: dict[str, list[Any]] = {
            name: [*seen.stamp, seen.is_log] for name, seen in [*self._of(folder).items()]
        }
        content = json.dumps({"version": __version__, "files": files}).encode("utf-8", "surrogatepass")
        self._cache.write(self._cache.file(folder, "files"), content)

    def close(self) -> None:
        """Look at nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify()
