"""Curves of other trainers' logs: read by the worker, whatever their format, and kept as arrays.

Names and units are greenward's, so that sections, findings and comparisons mean the same for all runs; what
the log calls a signal stands beside it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from greenward.common.errors import DiagnosticsError
from greenward.common.files import UNEXPECTED
from greenward.diagnostics.readers import read_run_signals, run_names
from greenward.diagnostics.signals import RunSignals
from greenward.ui.beside import BesideLogs
from greenward.ui.cache import Cache, Stamp
from greenward.ui.catalog import MAX_INNER, Place, stamp
from greenward.ui.columns import MAX_HELD_BYTES, MAX_KEYS, Answers, Metrics, Store

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
        return read_run_signals(path, run_name=inner)
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
