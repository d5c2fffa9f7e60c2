"""The numbers of a run as arrays: read once, then only what is new, and kept in the user's cache folder.

A file that was only appended to is told from one that was cut or replaced by its inode, its size and the
bytes before its old end. Reading stops after a time, so that a page shows the first part of a large file at
once and asks again. Nothing is ever written into the folder of a run.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import numpy as np

from greenward.common.errors import RunError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, UNEXPECTED, leads_out, lines, open_file
from greenward.diagnostics.readers.names import translated
from greenward.runs.answers import (
    NAMES,
    AnswerColumns,
    Codes,
    FileRows,
    modified,
    parsed_row,
    read_rows_at,
    rows_of_file,
)
from greenward.runs.files import from_json_number
from greenward.runs.prompts import Prompts
from greenward.runs.reading import CONFIG, METRICS, ROLLOUTS, is_step, step_name, steps_in
from greenward.ui.cache import Cache
from greenward.ui.catalog import Place, stamp

FORMAT = 2
SECONDS_AT_ONCE = 0.6
MAX_HELD_BYTES = 250 << 20  # in memory, of all runs
MAX_KEYS = 4000
_TAIL = 64
_ROWS_AT_ONCE = 4000
_WORTH_KEEPING = 1 << 20  # bytes of files, below which they are simply read again


class Metrics:
    """The columns of metrics.jsonl: `steps` [N] and a column [N] for each key, NaN where a row lacks it.

    `share` is how much of the file was read. `dropped` counts rows that a resumed run cut off while it was
    open here, `broken` lines that are no row, `non_finite` the values that are no finite number. `theirs` are
    the log's own names of keys that have another here.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Begin as if nothing of the file had been read."""
        self.steps = np.zeros(0, np.int64)
        self.values: dict[str, np.ndarray] = {}
        self.theirs: dict[str, str] = {}
        self.offset = 0
        self.inode = 0
        self.size = 0
        self.tail = b""
        self.dropped = self.broken = self.non_finite = 0
        self.saved = 0
        self._before = 0  # rows that were known of a file that is being read again

    @property
    def share(self) -> float:
        return 1.0 if self.size == 0 else min(1.0, self.offset / self.size)

    @property
    def nbytes(self) -> int:
        return int(self.steps.nbytes + sum(one.nbytes for one in self.values.values()))

    def update(self, place: Place, until: float) -> None:
        """Read what is new until a moment of `time.monotonic`. Raises `OSError`."""
        file = place.path / METRICS
        if not file.exists():
            return
        with open_file(file, MAX_LOG_BYTES, within=place.root) as opened:
            status = os.fstat(opened.fileno())
            opened.seek(max(0, self.offset - _TAIL))
            before = opened.read(min(_TAIL, self.offset))
            if status.st_ino != self.inode or status.st_size < self.offset or before != self.tail:
                before_rows = len(self.steps)
                self._forget()
                self._before, self.inode = before_rows, status.st_ino
            self.size = status.st_size
            opened.seek(self.offset)
            self._read(opened, until)
            if self._before and self.share == 1.0:
                self.dropped, self._before = max(0, self._before - len(self.steps)), 0
            opened.seek(max(0, self.offset - _TAIL))
            self.tail = opened.read(min(_TAIL, self.offset))

    def _read(self, opened: BinaryIO, until: float) -> None:
        rows: list[dict[str, Any]] = []
        parts: list[tuple[np.ndarray, dict[str, np.ndarray]]] = []
        keys = dict.fromkeys(self.values)
        for number, line in enumerate(lines(opened, MAX_LINE_BYTES), 1):
            if number % _ROWS_AT_ONCE == 0 and time.monotonic() > until:
                break
            if not line.endswith(b"\n"):  # torn, or longer than any line that is read
                opened.seek(-1, os.SEEK_CUR)
                if opened.read(1) != b"\n":
                    self.size = self.offset  # the last line, which is being written or was cut
                    break
            self.offset = opened.tell()
            row = parsed_row(line)
            if row is None or not is_step(row.get("step")):
                self.broken += bool(line.strip())
                continue
            rows.append(row)
            if len(rows) >= _ROWS_AT_ONCE:
                parts.append(self._part(rows, keys))
                rows = []
        if rows:
            parts.append(self._part(rows, keys))
        if parts:
            self._extend(parts, keys)

    def _part(
        self, rows: list[dict[str, Any]], keys: dict[str, None]
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The steps of some rows, and a column for each key that has a number in one; `keys` get new ones."""
        count = len(rows)
        lists: dict[str, list[float]] = {}
        given: Counter[str] = Counter()
        for place, row in enumerate(rows):
            for key, value in row.items():
                if type(value) is not float:
                    value = from_json_number(value)
                    if type(value) not in (float, int):
                        continue
                    value = float(value) if abs(value) < 1e300 or value != value else math.inf
                column = lists.get(key)
                if column is None:
                    if key == "step" or (key not in keys and len(keys) >= MAX_KEYS):
                        continue
                    keys[key] = None
                    column = lists[key] = [math.nan] * count
                column[place] = value
                given[key] += 1
        with np.errstate(over="ignore"):  # beyond single precision is infinite
            columns = {key: np.array(column).astype(np.float32) for key, column in lists.items()}
        self.non_finite += sum(given[key] - int(np.isfinite(one).sum()) for key, one in columns.items())
        return np.array([row["step"] for row in rows], np.int64), columns

    def _extend(self, parts: list[tuple[np.ndarray, dict[str, np.ndarray]]], keys: dict[str, None]) -> None:
        """Add parts, all at once: to copy what is known for each of them takes time that grows as n²."""
        before = len(self.steps)
        self.steps = np.concatenate([self.steps, *(steps for steps, _ in parts)])
        for key in keys:
            every = np.full(len(self.steps), np.nan, np.float32)
            every[:before] = self.values.get(key, np.nan)
            begin = before
            for steps, columns in parts:
                if key in columns:
                    every[begin : begin + len(steps)] = columns[key]
                begin += len(steps)
            self.values[key] = every

    def save(self, opened: BinaryIO) -> None:
        head = {
            "format": FORMAT,
            "keys": list(self.values),
            **{name: getattr(self, name) for name in ("offset", "inode", "broken", "non_finite")},
            "tail": self.tail.hex(),
        }
        table = np.stack(list(self.values.values())) if self.values else np.zeros((0, len(self.steps)))
        np.savez(opened, head=_head(head), steps=self.steps, table=table.astype(np.float32))

    def load(self, file: Path) -> None:
        """What was kept, if it is whole and of this format. `update` finds out whether it still holds."""
        with open_file(file, MAX_LOG_BYTES) as opened, np.load(opened, allow_pickle=False) as found:
            head = json.loads(found["head"].tobytes())
            if head["format"] != FORMAT:
                return
            steps, table = found["steps"], found["table"]
        if table.shape != (len(head["keys"]), len(steps)):
            return
        self.steps, self.values = steps, dict(zip(head["keys"], table, strict=True))
        self.offset, self.inode, self.tail = head["offset"], head["inode"], bytes.fromhex(head["tail"])
        self.broken, self.non_finite = head["broken"], head["non_finite"]
        self.saved = self.offset


class Answers:
    """The columns of the answers of a run, and which files they were read from.

    `converted` is the share of another trainer's answers that are in those files.
    """

    def __init__(self) -> None:
        self.path = self.root = Path()
        self.converted = 1.0
        self.problems: tuple[str, ...] = ()
        self.columns = AnswerColumns()
        self.files: dict[int, tuple[int, int, int]] = {}  # by step
        self.waiting: deque[tuple[int, Path]] = deque()
        self.folder: tuple[int, int, int] = (-1, 0, 0)
        self.dropped = 0
        self.read_bytes = 0
        self.saved = 0
        self.unread: dict[int, str] = {}  # by step, why a file cannot be read

    @property
    def share(self) -> float:
        every = len(self.files) + len(self.waiting)
        return self.converted * (len(self.files) / every if every else 1.0)

    @property
    def whys(self) -> list[str]:
        """Why some answers cannot be read."""
        return [*self.problems, *self.unread.values()]

    def read(
        self, places: Sequence[int] | np.ndarray, texts: Sequence[str] = ()
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """(place, row) of answers, as `read_rows_at` gives them."""
        return read_rows_at(self.path, self.columns, places, within=self.root, texts=texts)

    @property
    def nbytes(self) -> int:
        columns = self.columns
        arrays = (columns.steps, columns.rows, columns.offsets, columns.sizes, columns.same, columns.prompts)
        return sum(one.nbytes for one in (*arrays, *columns.numbers.values(), *columns.names.values()))

    def update(self, place: Place, until: float) -> None:
        """Read what is new until a moment of `time.monotonic`. Raises `OSError` for a folder that is a link.

        A file that cannot be read is named in `unread`, and hides no other.
        """
        self.path, self.root = place.path, place.root
        folder = place.path / ROLLOUTS
        if leads_out(folder, place.root):
            raise OSError(None, "it is a link that leads out of its folder", str(folder))
        newest = max(self.files, default=None)
        found = stamp(folder)
        if found != self.folder or time.time() - modified(folder) < 2:
            listed = steps_in(folder)
            self._drop_changed({step: stamp(file) for step, file in listed})
            self.waiting = deque((step, file) for step, file in listed if step not in self.files)
            self.folder = found
        elif newest is not None and not self.waiting:
            file = folder / f"{step_name(newest)}.jsonl"
            if (
                stamp(file) != self.files[newest]
            ):  # a recorder appends to it, which does not change the folder
                self._drop_changed({**self.files, newest: stamp(file)})
                self.waiting = deque([(newest, file)])
        self.columns.extend(self._read(place, until))

    def _read(self, place: Place, until: float) -> Iterator[FileRows]:
        """The rows of each file that waits, of one at least."""
        is_first = True
        while self.waiting and (is_first or time.monotonic() < until):
            is_first = False
            step, file = self.waiting.popleft()
            status = stamp(file)
            try:
                found = rows_of_file(file, step, place.root)
                yield found
                self.columns.broken += len(found.broken)
            except (OSError, RunError) as error:
                self.unread[step] = str(error)
            self.files[step] = status
            self.read_bytes += status[1]

    def _drop_changed(self, listed: dict[int, tuple[int, int, int]]) -> None:
        """Forget the answers of the first file that changed or is gone, and of all after it.

        The columns stay in the order of the steps.
        """
        changed = [step for step, status in self.files.items() if listed.get(step) != status]
        last = max(self.files, default=0)
        late = [step for step in listed if step not in self.files and step < last]
        if not changed and not late:
            return
        first = min(changed + late)
        kept = self.columns.steps < first
        self.dropped = int(len(kept) - kept.sum()) if any(step not in listed for step in changed) else 0
        self.columns.keep(kept)
        self.files = {step: status for step, status in self.files.items() if step < first}
        self.unread = {step: why for step, why in self.unread.items() if step < first}

    def save(self, opened: BinaryIO) -> None:
        columns = self.columns
        head = {
            "format": FORMAT,
            "numbers": list(columns.numbers),
            "codes": {name: columns.codes[name].names for name in NAMES},
            "files": [[step, *status] for step, status in self.files.items() if step not in self.unread],
            "broken": columns.broken,
        }
        np.savez(
            opened,
            head=_head(head),
            steps=columns.steps,
            rows=columns.rows,
            offsets=columns.offsets,
            sizes=columns.sizes,
            same=columns.same,
            prompts=columns.prompts,
            numbers=np.stack(list(columns.numbers.values())),
            names=np.stack([columns.names[name] for name in NAMES]),
        )

    def load(self, file: Path) -> None:
        """What was kept, if it is whole and of this format. `update` finds out whether it still holds."""
        with open_file(file, MAX_LOG_BYTES) as opened, np.load(opened, allow_pickle=False) as found:
            head = json.loads(found["head"].tobytes())
            if head["format"] != FORMAT:
                return
            arrays = {name: found[name] for name in found.files if name != "head"}
        count = len(arrays["steps"])
        if any(array.shape[-1] != count for array in arrays.values()):
            return
        columns = AnswerColumns(
            arrays["steps"], arrays["rows"], arrays["offsets"], arrays["sizes"], arrays["same"],
            arrays["prompts"],
            dict(zip(head["numbers"], arrays["numbers"], strict=True)),
            dict(zip(NAMES, arrays["names"], strict=True)),
            {name: Codes(names) for name, names in head["codes"].items()},
            head["broken"],
        )  # fmt: skip
        self.columns = columns
        self.files = {step: (inode, size, time_ns) for step, inode, size, time_ns in head["files"]}


class KeptPrompts(Prompts):
    """The places of the prompts of a run, kept like its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.saved = 0

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.table)

    def read_on(self, place: Place, until: float) -> None:
        """Read what is new until a moment of `time.monotonic`. Raises `RunError`."""
        self.update(place.path, place.root, until)

    def save(self, opened: BinaryIO) -> None:
        head = {"format": FORMAT, "offset": self.offset, "inode": self.inode, "tail": self.tail.hex()}
        keys, offsets, sizes = self.table
        np.savez(opened, head=_head(head), keys=keys, offsets=offsets, sizes=sizes)

    def load(self, file: Path) -> None:
        """What was kept, if it is whole and of this format. `update` finds out whether it still holds."""
        with open_file(file, MAX_LOG_BYTES) as opened, np.load(opened, allow_pickle=False) as found:
            head = json.loads(found["head"].tobytes())
            arrays = found["keys"], found["offsets"], found["sizes"]
        if head["format"] == FORMAT and len({len(one) for one in arrays}) == 1:
            self.table = arrays
            self.offset, self.inode, self.tail = head["offset"], head["inode"], bytes.fromhex(head["tail"])
            self.saved = self.offset


def _head(head: dict[str, Any]) -> np.ndarray:
    text = json.dumps(head).encode("utf-8", "surrogatepass")
    return np.frombuffer(text, np.uint8)


def _translated(found: Metrics) -> Metrics:
    """The same, with greenward's names for those of another trainer."""
    ours = copy(found)
    ours.values, theirs, _ = translated(found.values, {})
    ours.theirs = {key: name for key, name in theirs.items() if key != name}
    return ours


Kept = Metrics | Answers | KeptPrompts


class Store:
    """The arrays of the runs that were asked for last, at most `MAX_HELD_BYTES` of them in memory."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._held: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._locks: dict[tuple[str, str], threading.Lock] = {}
        self._lock = threading.Lock()

    def metrics(self, place: Place) -> Metrics:
        """The metrics of a run, as far as they could be read in a short time. Raises `OSError`.

        Those that a recorder wrote for another trainer have greenward's names and units.
        """
        found = self._updated(place, "metrics", Metrics)
        assert isinstance(found, Metrics)
        return found if os.path.lexists(place.path / CONFIG) else _translated(found)

    def answers(self, place: Place) -> Answers:
        """The answers of a run, as far as they could be read in a short time.

        Raises `OSError` for a folder that is a link.
        """
        found = self._updated(place, "answers", Answers)
        assert isinstance(found, Answers)
        return found

    def prompts(self, place: Place) -> KeptPrompts:
        """Where the prompts of a run lie, as far as could be read in a short time. Raises `RunError`."""
        found = self._updated(place, "prompts", KeptPrompts)
        assert isinstance(found, KeptPrompts)
        return found

    def _updated(
        self, place: Place, what: str, kind: type[Metrics | Answers | KeptPrompts]
    ) -> Metrics | Answers | KeptPrompts:
        key = (place.id, what)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            file = self._cache.file(place.path, what)
            found = self._held.get(key)
            if found is None:
                found = kind()
                if file is not None and file.is_file():
                    with suppress(
                        OSError, EOFError, BadZipFile, zlib.error, NotImplementedError, *UNEXPECTED
                    ):
                        found.load(file)
            until = time.monotonic() + SECONDS_AT_ONCE
            if isinstance(found, KeptPrompts):
                found.read_on(place, until)
            else:
                found.update(place, until)
            done = found.read_bytes if isinstance(found, Answers) else found.offset
            if found.share == 1.0 and done - found.saved > _WORTH_KEEPING:
                self._cache.write(file, found.save)
                found.saved = done
            with self._lock:
                self._held[key] = found
                self._held.move_to_end(key)
                while len(self._held) > 1 and sum(o.nbytes for o in self._held.values()) > MAX_HELD_BYTES:
                    self._held.popitem(last=False)
            return found


MAX_POINTS = 4000
MAX_WINDOW = 100_000


@dataclass(frozen=True)
class Curve:
    """A curve as it is drawn, in at most B buckets of its N rows, so that no extreme is lost.

    x, and the mean, least and largest value of each bucket, all [B]. `raw` says that each is one point.
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    raw: bool


def curve(x_N: np.ndarray, y_N: np.ndarray, points: int) -> Curve:
    """The curve in at most `points` buckets of equal numbers of rows; values that are NaN are left out."""
    known = ~np.isnan(y_N)
    x, y = x_N[known].astype(np.float64), y_N[known].astype(np.float64)
    if len(x) <= points:
        return Curve(x, y, y, y, True)
    starts = np.unique((np.arange(points) * (len(x) / points)).astype(np.int64))
    sizes = np.diff(np.append(starts, len(x)))
    finite = np.isfinite(y)
    sums = np.add.reduceat(np.where(finite, y, 0.0), starts)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(counts > 0, sums / counts, np.nan)
    low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    return Curve(x[starts + sizes // 2], mean, low, high, False)


def smoothed(y_N: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` values around each, of those that are finite; shape [N]."""
    window = min(max(1, window), MAX_WINDOW)
    finite = np.isfinite(y_N)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, y_N, 0.0), dtype=np.float64)])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(y_N))
    low = np.maximum(places - window // 2, 0)
    high = np.minimum(places + (window + 1) // 2, len(y_N))
    number = counts[high] - counts[low]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(number > 0, (sums[high] - sums[low]) / number, np.nan)
