"""Diagnoses of runs, made in the background, the newest and those that a page asks for first, and kept.

One worker at low priority makes them. A diagnosis that takes too long or a log that is too large is given up,
which is said in its place. A run that is being written is diagnosed again after a minute at the earliest.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from greenward import __version__
from greenward.common.files import open_file, read_file
from greenward.common.parsing import parse_json_text
from greenward.runs.reading import EVALUATIONS, METRICS
from greenward.ui.cache import Cache
from greenward.ui.catalog import Place, is_itself, stamp
from greenward.ui.process import WorkerProcess

SECONDS_BETWEEN = 60.0
MAX_LOG_BYTES_BY_ITSELF = 64 << 20
MAX_WAITING = 300
_MAX_RECORD = 4 << 20


class Verdicts:
    """What the diagnosis of each run says, as far as it was made. Use `close` at the end."""

    def __init__(self, cache: Cache, file_of_log: Callable[[Place], Path], worker: WorkerProcess) -> None:
        self._cache, self._file_of_log, self._worker = cache, file_of_log, worker
        self._found: dict[str, tuple[list[Any], float, dict[str, Any]]] = {}
        self._waiting: list[Place] = []
        self._lock = threading.Condition()
        self._closed = False
        self._busy = ""
        self.revision = 0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def get(self, place: Place, *, first: bool = False) -> dict[str, Any] | None:
        """The diagnosis of a run, None while there is none; a new one is asked for where it is out of date.

        That of another trainer's log says what was read, too. With `first` it is made before all others,
        whatever the size of the log.
        """
        key = _key(place)
        size = sum(of_file[1] for of_file in key)
        if not (size if place.logs else key[0][1]):
            return {"verdict": "no step yet", "headline": "No step is logged yet."}
        known = self._found.get(place.id)
        if known is None and (kept := self._kept(place)) is not None:
            known = self._found[place.id] = kept
        if known is not None and known[0] == key and self._has_curves(place, known[2]):
            return known[2]
        if known is None or time.monotonic() - known[1] > SECONDS_BETWEEN:
            if not first and (size if place.logs else key[0][1]) > MAX_LOG_BYTES_BY_ITSELF:
                return {"verdict": "not diagnosed", "headline": "A large log: open its page to diagnose it."}
            self._want(place, first)
        return None if known is None else {**known[2], "outdated": True}

    def _has_curves(self, place: Place, found: dict[str, Any]) -> bool:
        """Whether the curves that belong to what was read of a log are still there."""
        return "read" not in found or self._file_of_log(place).is_file()

    def _want(self, place: Place, first: bool) -> None:
        with self._lock:
            if place.id == self._busy:
                return
            queued = [one for one in self._waiting if one.id == place.id]
            if first:
                self._waiting = [place, *(one for one in self._waiting if one.id != place.id)]
            elif not queued and len(self._waiting) < MAX_WAITING:
                self._waiting.append(place)
            self._lock.notify()

    def _kept(self, place: Place) -> tuple[list[Any], float, dict[str, Any]] | None:
        file = self._cache.file(place.key, "diagnosis")
        if file is None or not file.is_file():
            return None
        try:
            kept = parse_json_text(read_file(file, _MAX_RECORD))
            if kept["version"] == __version__ and isinstance(kept["found"]["verdict"], str):
                return kept["key"], float("-inf"), kept["found"]
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def _work(self) -> None:
        while (place := self._next()) is not None:
            key = _key(place)
            found = self._ask(place)
            with self._lock:
                self._busy = ""
            self._found[place.id] = (key, time.monotonic(), found)
            self.revision += 1
            if not found.get("error"):  # another version, or a quieter machine, may do better
                text = json.dumps({"version": __version__, "key": key, "found": found}).encode()
                self._cache.write(self._cache.file(place.key, "diagnosis"), text)

    def _next(self) -> Place | None:
        """The next run to be diagnosed, once there is one; None at the end."""
        with self._lock:
            self._lock.wait_for(lambda: self._waiting or self._closed)
            if self._closed:
                return None
            place = self._waiting.pop(0)
            self._busy = place.id
            return place

    def _ask(self, place: Place) -> dict[str, Any]:
        """What the worker says of a run."""
        for file in place.logs or (place.path / METRICS,):
            try:
                with open_file(file, 1 << 62, within=place.root):
                    pass  # by no link that leads out of the folder
            except OSError as error:
                said = f"{file.name}: {error.strerror or error}"
                return {"verdict": "cannot tell", "headline": said, "error": True}
        try:
            found = self._worker.ask(self._request(place))
        except (OSError, ValueError):
            return {
                "verdict": "cannot tell",
                "headline": "The diagnosis was given up: it failed, or took too long.",
                "error": True,
            }
        if not is_itself(place):  # the worker reads by path, and may have followed a link that came meanwhile
            return {"verdict": "cannot tell", "headline": "The folder was moved.", "error": True}
        return dict(found)

    def _request(self, place: Place) -> str | dict[str, str | None]:
        if not place.logs:
            return str(place.path)
        return {"path": str(place.path), "inner": place.inner, "out": str(self._file_of_log(place))}

    def close(self) -> None:
        """Diagnose nothing more."""
        with self._lock:
            self._closed = True
            self._lock.notify()


def findings_in(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The findings of a diagnosis, causes and what followed from each, in their order."""
    return [one for cause in record.get("causes", ()) for one in (cause["finding"], *cause["consequences"])]


def _key(place: Place) -> list[Any]:
    if place.logs:
        return [list(stamp(file)) for file in place.logs]
    return [list(stamp(place.path / METRICS)), list(stamp(place.path / EVALUATIONS))]
