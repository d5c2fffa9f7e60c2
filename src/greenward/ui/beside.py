"""The answers beside other trainers' logs: the worker converts them in the background once a page asks.

What the pages read of them lies in the cache, or for as long as the server runs where nothing is cached. At
most 1,000,000 answers or 1 GiB of a log are read, and each file again when it changes.

- Answers to one prompt at one step are a group. A problem without a name is called by the first line that was
  asked and a hash of its prompt.
- TRL's file has a column for each reward function and not their weights: the reward is the sum. Numbers of a
  row are its terms; further texts stand on the page of the answer.
- Where no file says which answers passed, the pages show rewards in place of it.
- Where a folder has logs of several trainings, the page says that nothing tells whose the answers are; those
  beside a log of several runs stand at the log as a whole.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from greenward.ui.cache import Cache
from greenward.ui.catalog import Place, stamp
from greenward.ui.conversion import sources
from greenward.ui.process import WorkerProcess

SECONDS_BETWEEN = 5.0  # looks for new files
SECONDS_OF_INTEREST = 10.0  # after a page asked last
MAX_FAILURES = 20  # of the worker, which leaves a file out that ends it again
_CHECKPOINT = re.compile(r"checkpoint-\d+")  # trainer_state.json lies in checkpoints, too


@dataclass
class _State:
    found: tuple[int, int, int]  # how many files there are, their size, and when the newest changed
    looked: float
    done: tuple[int, int, int] | None = None  # as `found`, when all was converted
    share: float = 0.0
    problems: tuple[str, ...] = ()
    asked: float = 0.0
    is_asked: bool = False


class BesideLogs:
    """What is known of the answers of logs. Use `close` at the end."""

    def __init__(self, cache: Cache, worker: WorkerProcess) -> None:
        self._cache, self._worker = cache, worker
        self._states: dict[str, _State] = {}
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1)
        self._closed = False

    def revision(self, place: Place) -> tuple[int, ...]:
        """What changes when there are other answers; false where there are none.

        Of a log of several runs, they are of none.
        """
        if not place.logs or place.inner is not None:
            return ()
        state = self._look(place)
        return state.found if state.found[0] else ()

    def _look(self, place: Place) -> _State:
        now = time.monotonic()
        with self._lock:
            state = self._states.get(place.id)
            if state is not None and now - state.looked < SECONDS_BETWEEN:
                return state
        with_files = {}
        with suppress(OSError):
            with_files = sources(_folder(place), place.root)
        stamps = [stamp(file) for files in with_files.values() for file in files]
        found = len(stamps), sum(one[1] for one in stamps), max((one[2] for one in stamps), default=0)
        with self._lock:
            state = self._states.setdefault(place.id, _State(found, now))
            state.found, state.looked = found, now
        return state

    def converted(self, place: Place) -> tuple[Place, float, tuple[str, ...]]:
        """Where the answers lie in greenward's form, which share of them is there, and what is not shown.

        What is new is asked for.
        """
        state = self._look(place)
        out = self._out(place)
        with self._lock:
            state.asked = time.monotonic()
            share = state.share if state.done == state.found else min(state.share, 0.99)
            if state.done != state.found and not state.is_asked and not self._closed:
                state.is_asked = True
                self._pool.submit(self._ask, place, state, out)
        return replace(place, path=out, root=out, logs=()), share, state.problems

    def _out(self, place: Place) -> Path:
        found = self._cache.folder_of(place.key, "answers")
        if found is None:
            found = self._cache.temporary(f"{place.id}.answers")
            found.mkdir(mode=0o700, exist_ok=True)
        return found

    def _ask(self, place: Place, state: _State, out: Path) -> None:
        """Have all of it converted, for as long as somebody looks."""
        request = {"answers": str(_folder(place)), "within": str(place.root), "out": str(out)}
        failures = 0
        try:
            while not self._closed and time.monotonic() - state.asked < SECONDS_OF_INTEREST:
                before = state.found
                try:
                    answer = self._worker.ask(request)
                    if not isinstance(answer, Mapping):
                        raise ValueError
                except (OSError, ValueError):
                    failures += 1
                    if failures < MAX_FAILURES:
                        continue
                    answer = {
                        "share": 1.0,
                        "problems": [
                            f"Not all answers could be read: what reads them failed {failures} times."
                        ],
                    }
                state.share, state.problems = answer["share"], tuple(answer["problems"])
                if state.share == 1.0:
                    state.done = before
                    return
        finally:
            state.is_asked = False

    def close(self) -> None:
        """Convert nothing more."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


def _folder(place: Place) -> Path:
    folder = place.logs[0].parent if place.logs[0].is_file() else place.logs[0]
    return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder
