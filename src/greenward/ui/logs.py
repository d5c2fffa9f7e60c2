"""Logs of other trainers: their curves, the answers beside them, and which are of one training.

The worker reads the curves, whatever their format; they are kept as arrays. Names and units are greenward's,
so that sections, findings and comparisons mean the same for all runs; what the log calls a signal stands
beside it.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import UNEXPECTED
from greenward.diagnostics.readers import read_run_signals, run_names
from greenward.diagnostics.readers.formats import may_be_log
from greenward.diagnostics.signals import RunSignals
from greenward.ui.cache import Cache, Stamp
from greenward.ui.catalog import MAX_INNER, Place, stamp
from greenward.ui.columns import MAX_HELD_BYTES, MAX_KEYS, Answers, Metrics, Store
from greenward.ui.conversion import sources
from greenward.ui.process import WorkerProcess

SECONDS_BETWEEN = 5.0  # looks for new files
SECONDS_OF_INTEREST = 10.0  # after a page asked last
MAX_FAILURES = 20  # of the worker, which leaves a file out that ends it again
_CHECKPOINT = re.compile(r"checkpoint-\d+")  # trainer_state.json lies in checkpoints, too


@dataclass
class _Conversion:
    found: tuple[int, int, int]  # how many files there are, their size, and when the newest changed
    looked: float
    done: tuple[int, int, int] | None = None  # as `found`, when all was converted
    share: float = 0.0
    problems: tuple[str, ...] = ()
    asked: float = 0.0
    is_asked: bool = False


class BesideLogs:
    """The answers beside logs, which the worker converts once a page asks. Use `close` at the end.

    What the pages read of them lies in the cache, or for as long as the server runs where nothing is cached.
    At most 1,000,000 answers or 1 GiB of a log are read, and each file again when it changes.

    - Answers to one prompt at one step are a group. A problem without a name is called by the first line that
      was asked and a hash of its prompt.
    - TRL's file has a column for each reward function and not their weights: the reward is the sum. Numbers
      of a row are its terms; further texts stand on the page of the answer.
    - Where no file says which answers passed, the pages show rewards in place of it.
    - Where a folder has logs of several trainings, the page says that nothing tells whose the answers are;
      those beside a log of several runs stand at the log as a whole.
    """

    def __init__(self, cache: Cache, worker: WorkerProcess) -> None:
        self._cache, self._worker = cache, worker
        self._states: dict[str, _Conversion] = {}
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

    def _look(self, place: Place) -> _Conversion:
        now = time.monotonic()
        with self._lock:
            state = self._states.get(place.id)
            if state is not None and now - state.looked < SECONDS_BETWEEN:
                return state
        with_files = {}
        with suppress(OSError):
            with_files = sources(_folder_of_answers(place), place.root)
        stamps = [stamp(file) for files in with_files.values() for file in files]
        found = len(stamps), sum(one[1] for one in stamps), max((one[2] for one in stamps), default=0)
        with self._lock:
            state = self._states.setdefault(place.id, _Conversion(found, now))
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

    def _ask(self, place: Place, state: _Conversion, out: Path) -> None:
        """Have all of it converted, for as long as somebody looks."""
        request = {"answers": str(_folder_of_answers(place)), "within": str(place.root), "out": str(out)}
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


def _folder_of_answers(place: Place) -> Path:
    folder = place.logs[0].parent if place.logs[0].is_file() else place.logs[0]
    return folder.parent if _CHECKPOINT.fullmatch(folder.name) else folder


MAX_VALUES = 1 << 25  # of all curves of a log
_OWN_RUN = "."  # the run whose files lie in the folder itself, where those of others lie below it


class SeveralRunsError(DiagnosticsError):
    """A log of several runs. `names` has theirs."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(f"This log has {len(names)} runs.")
        self.names = names


def read_log(path: Path, inner: str | None) -> RunSignals:
    """The signals of the log at `path`, of its run `inner` where it has several.

    Raises `DiagnosticsError` where there is none, `SeveralRunsError` where one has to be named.
    """
    try:
        return read_run_signals(path, run_name=inner, takes_last=False)
    except DiagnosticsError:
        names = list(dict.fromkeys(run_names(path))) if inner is None else []
        if len(names) < 2:
            raise
        if path.is_dir() and _OWN_RUN in names:
            return read_run_signals(path, run_name=_OWN_RUN)
        raise SeveralRunsError(names[:MAX_INNER]) from None


def as_metrics(run: RunSignals) -> tuple[Metrics, int]:
    """The curves of a log, as many as are kept, and how many are not."""
    found = Metrics()
    found.steps = run.steps
    most = min(MAX_KEYS, MAX_VALUES // max(1, len(run.steps)))
    with np.errstate(over="ignore"):  # beyond single precision is infinite
        for name in list(run.values)[:most]:
            values = np.where(run.recorded[name], run.values[name], np.nan).astype(np.float32)
            found.values[name] = values
            found.non_finite += int(np.sum(run.recorded[name] & ~np.isfinite(values)))
    return found, len(run.values) - len(found.values)


class LogStore(Store):
    """The arrays of all runs; those of logs come from files that the worker wrote."""

    def __init__(self, cache: Cache, beside: BesideLogs | None = None) -> None:
        """Without `beside`, no log has answers."""
        super().__init__(cache)
        self._beside = beside
        self._kept = cache
        self._read: OrderedDict[str, tuple[Stamp, Metrics]] = OrderedDict()
        self._shared = threading.Lock()  # of the one above, which requests and the worker's thread use

    def file(self, place: Place) -> Path:
        """Where the curves of a log are kept: in the cache, or for as long as the server runs."""
        return self._kept.file(place.key, "log") or self._kept.temporary(f"{place.id}.log")

    def metrics(self, place: Place) -> Metrics:
        if not place.logs:
            return super().metrics(place)
        file = self.file(place)
        now = stamp(file)
        known = self._read.get(place.id)
        if known is not None and known[0] == now:
            return known[1]
        found = Metrics()
        if now[1]:
            with suppress(OSError, EOFError, BadZipFile, NotImplementedError, *UNEXPECTED):
                found.load(file)
        with self._shared:
            self._read[place.id] = (now, found)
            while len(self._read) > 1 and sum(one.nbytes for _, one in self._read.values()) > MAX_HELD_BYTES:
                self._read.popitem(last=False)
        return found

    def answers(self, place: Place) -> Answers:
        if not place.logs:
            return super().answers(place)
        if self._beside is None or not self._beside.revision(place):
            return Answers()
        kept, share, problems = self._beside.converted(place)
        found = super().answers(kept)
        found.converted, found.problems = share, problems
        return found

    def revision(self, place: Place) -> tuple[int, ...]:
        """What changes when there are other answers beside a log; false where there are none."""
        return () if self._beside is None else self._beside.revision(place)


MAX_IN_FOLDER = 12  # logs, above which they are not compared
FEWEST = 5  # different values of a signal that say something
_SHARE = 0.9  # of the values that have to agree
_RELATIVE = 1e-4  # of a value in single precision, or printed with five digits
_DIGITS = 7  # behind the point, above which nothing is taken for rounded
_OF_SPREAD = 0.1  # of what the rounding may be, so that values tell trainings apart
# What is the same in different trainings.
_SCHEDULES = ("learning_rate", "epoch", "time/", "perf/", "tokens/", "num_")


def are_of_one_training(a: Metrics, b: Metrics) -> bool:
    """Whether the curves of two logs are of one training, as far as they have signals of one name."""
    agreed = 0
    for name in a.values.keys() & b.values.keys():
        if name.startswith(_SCHEDULES):
            continue
        found = [_agree(x, y) for x, y in _pairs(a, b, name)]
        told = [one for one in found if one is not None]
        if told and not any(told):
            return False
        agreed += any(told)
    return agreed > 0


def _pairs(a: Metrics, b: Metrics, name: str) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """The values of a signal at the same steps, and in their order where there are as many: a printed log may
    count its rows.
    """
    known_a, known_b = (np.isfinite(one.values[name]) for one in (a, b))
    x, y = a.values[name][known_a], b.values[name][known_b]
    _, at_a, at_b = np.intersect1d(a.steps[known_a], b.steps[known_b], return_indices=True)
    yield x[at_a], y[at_b]
    if len(x) == len(y):
        yield x, y


def _agree(x_N: np.ndarray, y_N: np.ndarray) -> bool | None:
    """Whether most values are equal but for rounding; None where too few differ from each other to tell."""
    x, y = x_N.astype(np.float64), y_N.astype(np.float64)
    rounding = max(_rounding(x), _rounding(y))
    if len(x) < FEWEST or rounding > _OF_SPREAD * min(x.std(), y.std()):
        return None
    if min(len(np.unique(one.round(_DIGITS))) for one in (x, y)) < FEWEST:
        return None
    close = np.abs(x - y) <= 1.01 * rounding + _RELATIVE * np.maximum(np.abs(x), np.abs(y))
    return bool(close.mean() >= _SHARE)


def _rounding(values: np.ndarray) -> float:
    """By how much values were changed at most that were printed with a few digits behind the point."""
    for digits in range(_DIGITS):
        if np.allclose(values, values.round(digits), rtol=1e-6, atol=1e-9):
            return 0.5 * 10.0**-digits
    return 0.0


class Repeated:
    """Which logs in a folder are of one training: those whose signals have the same values.

    A trainer prints what it also writes into a file of its own: `trainer_state.json` and the output that
    repeats it are listed once, and the entry names both. The values of their signals are equal but for
    rounding, schedules aside. Two trainings that lie side by side differ in what is random in them, though
    their schedules may be equal. What was compared is remembered until one of the logs is read anew.
    """

    def __init__(self, store: LogStore) -> None:
        self._store = store
        self._compared: dict[tuple[str, str], tuple[Stamp, Stamp, bool]] = {}

    def others(self, places: Iterable[Place], signals: Mapping[str, int]) -> dict[str, list[Place]]:
        """The other logs of one training by the identifier of the one that is shown for them.

        That is the log of a trainer or tracker, or the one with the most `signals`: how many each log has
        that was read, by identifier.
        """
        by_folder: dict[Path, list[Place]] = defaultdict(list)
        for one in places:
            if one.logs and one.inner is None and one.id in signals:
                by_folder[folder_of(one)].append(one)
        found: dict[str, list[Place]] = {}
        for inside in by_folder.values():
            if 1 < len(inside) <= MAX_IN_FOLDER:
                best = sorted(inside, key=lambda one: (not _is_trackers(one), -signals[one.id], one.name))
                hidden: set[str] = set()
                for a, b in combinations(best, 2):
                    if not {a.id, b.id} & hidden and self._same(a, b):
                        hidden.add(b.id)
                        found.setdefault(a.id, []).append(b)
        return found

    def _same(self, a: Place, b: Place) -> bool:
        now = stamp(self._store.file(a)), stamp(self._store.file(b))
        known = self._compared.get((a.id, b.id))
        if known is None or known[:2] != now:
            known = *now, are_of_one_training(self._store.metrics(a), self._store.metrics(b))
            self._compared[a.id, b.id] = known
        return known[2]


def folder_of(place: Place) -> Path:
    """The folder in which a log lies, which is its own where its files share it."""
    return place.path if place.path != place.logs[0] else place.path.parent


def _is_trackers(place: Place) -> bool:
    return may_be_log(place.logs[0].parent, place.logs[0].name)[0]
