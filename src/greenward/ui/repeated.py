"""Which logs in a folder are of one training: those whose signals have the same values.

A trainer prints what it also writes into a file of its own: `trainer_state.json` and the output that repeats
it are listed once, and the entry names both. The values of their signals are equal but for rounding,
schedules aside. Two trainings that lie side by side differ in what is random in them, though their schedules
may be equal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np

from greenward.diagnostics.readers.formats import may_be_log
from greenward.ui.cache import Stamp
from greenward.ui.catalog import Place, stamp
from greenward.ui.columns import Metrics
from greenward.ui.logs import LogStore

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
    """Remembers which logs were compared, until one of them is read anew."""

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
