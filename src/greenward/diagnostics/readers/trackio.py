"""The database of Trackio: SQLite with one row of JSON for each logged step, and the runs of one project."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from greenward.diagnostics.readers.log import MAX_CELL, Format, Log, Row, flat
from greenward.errors import DiagnosticsError
from greenward.user_text import parse_json_text

_MAGIC = b"SQLite format 3\0"


def _query(path: Path, query: str, *values: Any) -> Iterator[tuple[Any, ...]]:
    """Rows of a query. Raises `DiagnosticsError` for what is no database of Trackio."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = database.execute("select name from sqlite_master where type = 'table'")
            if ("metrics",) not in tables.fetchall():
                raise DiagnosticsError(f"{path} has no table of metrics, so it is no database of Trackio")
            yield from database.execute(query, values)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second of a damaged schema that sqlite cites
        raise DiagnosticsError(f"{path} cannot be read as a database of Trackio: {error}") from None


def _runs(path: Path) -> list[str]:
    """The names of the runs, in the order of their first rows."""
    found = _query(path, "select run_name from metrics group by run_name order by min(rowid)")
    return [str(name) for (name,) in found]


def _rows(files: list[Path], run: str, log: Log) -> Iterator[Row]:
    for path in files:
        try:
            found = list(_query(path, "select config from configs where run_name = ? limit 1", run))
            log.config = _json(found[0][0]) if found else None
        except DiagnosticsError:
            log.notes.append(f"{path.name}: there is no table of configs")
    query = "select step, metrics from metrics where run_name = ? and length(metrics) < ? order by rowid"
    broken = 0
    for path in files:
        for step, cell in _query(path, query, run, MAX_CELL):
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
