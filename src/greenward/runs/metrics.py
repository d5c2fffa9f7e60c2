"""metrics.jsonl: one flat JSON object per step, appended whole, never rewritten in place.

Keys are `name` or `group/name`. Everything that depends on the clock or the machine begins with
one of `TIMING_PREFIXES`, so two runs of one seed are equal exactly when their rows are equal
`without_timing`. NaN and infinities are the strings "NaN", "Infinity" and "-Infinity" in the
file, and floats again once read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from greenward.errors import RunError
from greenward.runs.files import (
    Lines,
    append_line,
    dump_json,
    from_json_number,
    read_jsonl,
    write_atomically,
    writing,
)

TIMING_PREFIXES = ("time/", "perf/")


def without_timing(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a row that a second run with the same seed must repeat."""
    return {key: value for key, value in row.items() if not key.startswith(TIMING_PREFIXES)}


def read_metrics(path: Path) -> Lines:
    """The rows of a metrics.jsonl, oldest first; a torn last line is reported, not an error.

    Raises:
        RunError: a broken line that is not the last one.
    """
    lines = read_jsonl(path)
    rows = tuple({key: from_json_number(value) for key, value in row.items()} for row in lines.rows)
    return Lines(rows, lines.torn)


class MetricsFile:
    """The writer of one metrics.jsonl. A torn last line, left by a kill, is cut off on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = read_jsonl(path)
        if lines.torn is not None:
            self._rewrite(lines.rows)
        self._last_step = _last_step(lines.rows)

    @property
    def last_step(self) -> int | None:
        """The newest step written, None before the first."""
        return self._last_step

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one row. `values` is flat: numbers, booleans, strings or None.

        Raises:
            RunError: a step older than the newest one, or a file system that refused.
            TypeError: a value that is not a scalar.
        """
        if self._last_step is not None and step < self._last_step:
            raise RunError(
                f"{self.path}: step {step} comes after step {self._last_step}",
                remedy=f"Call truncate_after({step - 1}) before going on from an earlier step.",
            )
        for key, value in values.items():
            if isinstance(value, (Mapping, list, tuple)):
                raise TypeError(f"metric {key!r} is a {type(value).__name__}; a row is flat")
        append_line(self.path, dump_json({"step": step, **values}))
        self._last_step = step

    def truncate_after(self, step: int) -> None:
        """Drop every row newer than `step`, atomically; the rows before keep their bytes' meaning."""
        rows = read_jsonl(self.path).rows
        kept = tuple(row for row in rows if row["step"] <= step)
        if len(kept) < len(rows):
            self._rewrite(kept)
        self._last_step = _last_step(kept)

    def sync(self) -> None:
        """Force the rows onto the disk (before a checkpoint that relies on them)."""
        if not self.path.exists():
            return
        with writing(str(self.path)):
            descriptor = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _rewrite(self, rows: tuple[dict[str, Any], ...]) -> None:
        write_atomically(self.path, "".join(dump_json(row) + "\n" for row in rows).encode())


def _last_step(rows: tuple[dict[str, Any], ...]) -> int | None:
    return rows[-1]["step"] if rows else None
