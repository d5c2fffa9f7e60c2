"""Keeps the answers that another trainer wrote beside its log in the form of a run of greenward's.

They are written into a folder of the cache, a file for each step, so that they are filtered, searched and
shown like all others. The worker does this, since a parquet file is parsed by a library that was not made for
hostile ones; a file that ends the worker twice is left out. What was converted is not read again until its
file changes; a file of many steps that grew is read on from its old end.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any

from greenward import __version__
from greenward.common.errors import GreenwardError
from greenward.common.files import MAX_LINE_BYTES, MAX_LOG_BYTES, UNEXPECTED, leads_out, lines, open_file
from greenward.common.parquet import has_pyarrow
from greenward.common.parsing import parse_json_text
from greenward.common.text import visible
from greenward.diagnostics.readers.answers import (
    find_file_of_many_steps,
    find_rollouts,
    kept_row,
    rows_in,
    step_in,
)
from greenward.runs.files import dump_json, json_object, write_atomically
from greenward.runs.reading import ROLLOUTS, is_step, step_name
from greenward.ui.cache import Stamp
from greenward.ui.catalog import stamp

RECORD = "sources.json"
READING = "reading.json"
"""Names the parquet files that are being read; it is there afterwards only where that ended the process."""
MAX_ENDS = 2  # of the process that read a file: once may be the end of the server
MAX_ROWS = 1_000_000  # of a log
MAX_BYTES = 1 << 30
MAX_ROWS_OF_FILE = 100_000
MAX_STEPS = 10_000
_MAX_RECORD_BYTES = 64 << 20
_ROWS_AT_ONCE = 500
_NOTHING = {"stamp": None, "offset": 0, "broken": 0}


def sources(folder: Path, within: Path) -> dict[int, list[Path]]:
    """The files with the answers of each step in a folder of another trainer's log.

    Under -1 stands the file that holds the answers of many steps.
    """
    by_step: dict[int, list[Path]] = defaultdict(list)
    for step, file in find_rollouts(folder):
        if is_step(step) and not leads_out(file, within):
            by_step[step].append(file)
    many = None if by_step else find_file_of_many_steps(folder, within)
    return dict(by_step) if many is None else {-1: [many]}


def keep_answers(folder: Path, within: Path, out: Path, seconds: float) -> dict[str, Any]:
    """Convert what is new in `folder`, for so long, into the folder `out`.

    Returns the `share` of it that is done, and `problems`: what is not shown, and why.
    """
    found = sources(folder, within)
    kept = _Kept(folder, out)
    kept.drop_all_but(found)
    if any(one.suffix == ".parquet" for files in found.values() for one in files) and not has_pyarrow():
        said = (
            "The answers are in parquet files, which need pyarrow: pip install pyarrow, and start this again."
        )
        return {"share": 1.0, "problems": [said]}
    until = time.monotonic() + seconds
    done = 0
    for step, files in sorted(found.items()):
        if kept.is_full:
            break
        done += kept.convert(files[0], within, until) if step < 0 else kept.convert_step(step, files, within)
        if time.monotonic() > until:
            break
    kept.write()
    left = len(found) - done if kept.is_full else 0
    return {"share": (done + left) / max(1, len(found)), "problems": kept.problems(left)}


class _Kept:
    """What was converted: of each step the stamps of its files, its rows and bytes, and what went wrong."""

    def __init__(self, folder: Path, out: Path) -> None:
        self._folder, self._out = folder, out
        self._steps: dict[int, dict[str, Any]] = {}
        self._many: dict[str, Any] = dict(_NOTHING)
        (out / ROLLOUTS).mkdir(parents=True, exist_ok=True, mode=0o700)
        record = _read_json(out / RECORD)
        try:
            if record["version"] == __version__:
                self._steps = {int(step): one for step, one in record["steps"].items()}
                self._many = record["many"]
        except UNEXPECTED:
            rmtree(out / ROLLOUTS)
            (out / ROLLOUTS).mkdir(mode=0o700)
            self._steps, self._many = {}, dict(_NOTHING)
        self._ended = _read_json(out / READING)
        self._rows, self._bytes = (
            sum(one[name] for one in self._steps.values()) for name in ("rows", "bytes")
        )

    @property
    def is_full(self) -> bool:
        return self._rows >= MAX_ROWS or self._bytes >= MAX_BYTES or len(self._steps) >= MAX_STEPS

    def _add(self, rows: int, size: int) -> None:
        self._rows, self._bytes = self._rows + rows, self._bytes + size

    def problems(self, left: int) -> list[str]:
        said = [one["problem"] for one in self._steps.values() if one["problem"]]
        if self._many["broken"]:
            said.append(f"{self._many['broken']:,} line(s) are no answers of a step and were left out.")
        if self.is_full:
            said.append(
                f"Not all answers are shown: of a log {MAX_ROWS:,} answers, {MAX_BYTES >> 30} GiB and "
                f"{MAX_STEPS:,} steps are the most that is kept; {left:,} file(s) were left out."
            )
        return said

    def drop_all_but(self, found: dict[int, list[Path]]) -> None:
        """Forget the steps whose files are gone; of a file of many steps all, once it was cut or replaced."""
        if -1 in found:
            before, now = self._many["stamp"], stamp(found[-1][0])
            if before is None or before[0] != now[0] or now[1] < self._many["offset"]:
                self._many = {**_NOTHING, "stamp": list(now)}
                gone = list(self._steps)
            else:
                gone = []
        else:
            self._many = dict(_NOTHING)
            gone = [step for step in self._steps if step not in found]
        for step in gone:
            known = self._steps.pop(step)
            self._add(-known["rows"], -known["bytes"])
            self._file(step).unlink(missing_ok=True)

    def convert_step(self, step: int, files: list[Path], within: Path) -> int:
        """Convert the files of a step, where they changed; 1 once that is done."""
        stamps: list[Stamp] = [stamp(file) for file in files]
        known = self._steps.get(step)
        if known is not None and known["stamps"] == [list(one) for one in stamps]:
            return 1
        rows, size, problem, content = 0, 0, "", []
        has_ended = False
        try:
            has_ended = self._begin(step, files, stamps)
            if has_ended:
                raise OSError(None, "the process that read it ended")
            for file in files:
                for line in self._rows_of(file, within):
                    rows, size = rows + 1, size + len(line)
                    content.append(line)
                    if rows == MAX_ROWS_OF_FILE or size > MAX_BYTES // 4:
                        problem = f"{self._name(file)}: the answers after the first {rows:,} are not shown."
                        break
        except (GreenwardError, OSError, TimeoutError, *UNEXPECTED) as error:
            said = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
            problem = visible(f"{self._name(files[0])}: {said.replace(str(files[0]), 'it')}", 300)
        (self._out / READING).unlink(missing_ok=True)
        write_atomically(self._file(step), b"".join(content), mode=0o600, forced=False)
        self._add(*((rows, size) if known is None else (rows - known["rows"], size - known["bytes"])))
        self._steps[step] = {"stamps": stamps, "rows": rows, "bytes": size, "problem": problem}
        if has_ended:  # which has to be known after the next one that does
            self.write()
        return 1

    def _begin(self, step: int, files: list[Path], stamps: list[Stamp]) -> bool:
        """Whether the files of a step ended the process before; notes parquet files before they are read."""
        if files[0].suffix != ".parquet":
            return False
        what = [step, [list(one) for one in stamps]]
        ends = int(self._ended["ends"]) if self._ended.get("what") == what else 0
        if ends < MAX_ENDS:
            record = dump_json({"what": what, "ends": ends + 1})
            write_atomically(self._out / READING, record.encode(), mode=0o600, forced=False)
        return ends >= MAX_ENDS

    def _rows_of(self, file: Path, within: Path) -> Iterator[bytes]:
        name = self._name(file)
        for number, row in enumerate(rows_in(file, within), 1):
            yield _line(row, name, number)

    def convert(self, file: Path, within: Path, until: float) -> int:
        """Convert the rows of a file of many steps that are new; 1 once all of them are."""
        with open_file(file, MAX_LOG_BYTES, within=within) as opened:
            opened.seek(self._many["offset"])
            rows = iter(lines(opened, MAX_LINE_BYTES))
            while not self.is_full:
                by_step: dict[int, list[bytes]] = defaultdict(list)
                taken = 0
                for line in islice(rows, _ROWS_AT_ONCE):
                    row = json_object(line)
                    is_last = not line.endswith(b"\n") and opened.tell() == os.fstat(opened.fileno()).st_size
                    if is_last and row is None:
                        break  # it is being written
                    taken += 1
                    self._many["offset"] = opened.tell()
                    step = None if row is None else step_in(row)
                    if row is None or step is None:
                        self._many["broken"] += bool(line.strip())
                    else:
                        by_step[step].append(_line(row, self._name(file), None))
                for step, found in by_step.items():
                    self._append(step, found)
                os.utime(self._out / ROLLOUTS)  # by which a reader sees that files in it grew
                if not taken:
                    return 1
                if time.monotonic() > until:
                    return 0
        return 1

    def _append(self, step: int, found: list[bytes]) -> None:
        if step not in self._steps:
            if len(self._steps) >= MAX_STEPS:
                return
            self._steps[step] = {"stamps": [], "rows": 0, "bytes": 0, "problem": ""}
        known = self._steps[step]
        descriptor = os.open(self._file(step), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as opened:
            opened.truncate(known["bytes"])  # without what was appended before a worker was ended
            opened.seek(known["bytes"])
            opened.writelines(found)
        size = sum(map(len, found))
        known["rows"], known["bytes"] = known["rows"] + len(found), known["bytes"] + size
        self._add(len(found), size)

    def _file(self, step: int) -> Path:
        return self._out / ROLLOUTS / f"{step_name(step)}.jsonl"

    def _name(self, file: Path) -> str:
        return visible(file.relative_to(self._folder).as_posix(), 200)

    def write(self) -> None:
        record = {"version": __version__, "steps": self._steps, "many": self._many}
        write_atomically(self._out / RECORD, dump_json(record).encode(), mode=0o600, forced=False)


def _read_json(file: Path) -> dict[str, Any]:
    try:
        with open_file(file, _MAX_RECORD_BYTES) as opened:
            found = parse_json_text(opened.read())
    except (OSError, *UNEXPECTED):
        return {}
    return found if isinstance(found, dict) else {}


def _line(row: Any, name: str, number: int | None) -> bytes:
    kept = kept_row(row)
    kept["source"] = name if number is None else f"{name}, row {number}"
    return f"{dump_json(kept)}\n".encode()
