"""The database of Trackio: SQLite with one row of JSON for each logged step, and the runs of one project."""

from __future__ import annotations

import re
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from greenward.diagnostics.readers.log import MAX_CELL, Format, Log, Row, flat
from greenward.errors import DiagnosticsError
from greenward.user_files import open_file
from greenward.user_text import parse_json_text

_MAGIC = b"SQLite format 3\0"
_MOST_BYTES = 1 << 30  # of a database, and of its log
_TRIES = 3
# Of SQLite's virtual machine: reading a row takes some dozens, and a row at least some dozen bytes.
_LEAST_WORK, _WORK_PER_BYTE, _TICK = 200_000, 20, 1000


@contextmanager
def _private_copy(path: Path) -> Iterator[Path]:
    """A copy of a database with its write-ahead log. Raises `OSError` as `open_file` does.

    SQLite would write its files beside the database, and wait for a FIFO there. A trainer may move the log
    into the database while they are copied.
    """
    real = path.resolve()
    with TemporaryDirectory() as folder:
        for attempt in range(_TRIES):
            copied, changed = Path(folder, str(attempt)), real.stat().st_mtime_ns
            for side in ("", "-wal"):
                with (
                    suppress(FileNotFoundError),
                    open_file(real.with_name(real.name + side), _MOST_BYTES, within=real.parent) as file,
                    open(f"{copied}{side}", "wb") as copy,
                ):
                    shutil.copyfileobj(file, copy)
            if real.stat().st_mtime_ns == changed:
                break
        yield copied


def _query(path: Path, table: str, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of a query of one table. Raises `DiagnosticsError` for what is no database of Trackio.

    A database can hold programs (views, virtual tables, generated columns), and pages that name one another.
    A plain table is asked for, whose cells are stored as they are; the steps of work and the characters
    that are read are bounded by the size of the file.
    """
    try:
        with (
            _private_copy(path) as copy,
            closing(sqlite3.connect(f"{copy.as_uri()}?mode=ro", uri=True)) as database,
        ):
            size = chars = sum(one.stat().st_size for one in copy.parent.iterdir())
            work = _LEAST_WORK + _WORK_PER_BYTE * size
            if sys.version_info >= (3, 11):
                database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_CELL)
            ticks = iter(range(work // _TICK))
            database.set_progress_handler(lambda: next(ticks, None) is None, _TICK)
            database.execute("pragma trusted_schema = off")
            found = "select sql from sqlite_master where type = 'table' and name = ?"
            (made,) = database.execute(found, (table,)).fetchone() or ("",)
            columns = database.execute(f"pragma table_xinfo({table})").fetchall()
            if not re.match(r"create\s+table\b", made, re.IGNORECASE) or any(
                hidden for *_, hidden in columns
            ):
                raise DiagnosticsError(f"{path} has no table of {table} as Trackio makes it")
            for row in database.execute(query, values):
                chars -= sum(len(cell) for cell in row if isinstance(cell, (str, bytes)))
                if chars < 0:
                    raise DiagnosticsError(f"{path} gives more than it holds, so it is damaged")
                yield row
    except (
        sqlite3.Error,
        OSError,
        UnicodeDecodeError,
    ) as error:  # the last of a damaged schema that sqlite cites
        raise DiagnosticsError(f"{path} cannot be read as a database of Trackio: {error}") from None


def _runs(path: Path) -> list[str]:
    """The names of the runs, in the order of their first rows."""
    found = _query(path, "metrics", "select run_name from metrics group by run_name order by min(rowid)")
    return [str(name) for (name,) in found]


def _rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        try:
            found = list(
                _query(path, "configs", "select config from configs where run_name = ? limit 1", run)
            )
            log.config = _json(found[0][0]) if found else None
        except DiagnosticsError:
            log.notes.append(f"{path.name}: there is no table of configs")
    query = "select step, metrics from metrics where run_name = ? and length(metrics) < ? order by rowid"
    broken = 0
    for path in files:
        for step, cell in _query(path, "metrics", query, run, MAX_CELL):
            values = _json(cell)
            if values is None:
                broken += 1
            else:
                yield {**flat(values), "step": step}
    if broken:
        log.notes.append(f"{broken} row(s) cannot be read and were left out")


def _json(cell: Any) -> dict[str, Any] | None:
    try:
        value = parse_json_text(cell)
    except (ValueError, TypeError):
        return None
    return value if isinstance(value, dict) else None


TRACKIO = Format("Trackio", r".*\.(db|sqlite3?)", _rows, ("step",), _MAGIC, whole_folder=False, runs=_runs)
