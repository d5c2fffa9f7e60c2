"""What a format of logs is, and what its reader gives: rows, and what else the files say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_NAME = 256  # characters; longer names are left out
MAX_CELL = 10_000_000  # characters of one row
STEP_KEYS = (
    "step", "global_step", "train/global_step", "trainer/global_step", "training/global_step", "_step",
    "training_step", "iteration", "progress/batch", "update", "Step",
)  # fmt: skip
_MAX_DEPTH = 8

Row = dict[str, Any]


@dataclass
class Log:
    """What the files of a run say beside its rows; complete once all rows were taken."""

    format: str
    config: Mapping[str, Any] | None = None
    session: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Format:
    """A format of logs: `file_names` is a pattern of them, `magic` the first bytes where there are any.

    `rows` reads the files of one run in their order: its rows, under the names of its tracker, oldest first.
    A row may hold a part of a step only. What else the files say goes into the `Log`. `step_keys` are the
    names under which the format counts steps, the best first; rows are counted where none has one. `runs`
    gives the names of the runs in files of the format, where one file may hold several. `whole_folder` says
    that the files of a folder belong to one run.
    """

    name: str
    file_names: str
    rows: Callable[[list[Path], str, Log], Iterator[Row]]
    step_keys: tuple[str, ...] = STEP_KEYS
    magic: bytes = b""
    whole_folder: bool = True
    runs: Callable[[Path], list[str]] | None = None


def number_in(text: str) -> float | None:
    """The number that a text is, None for any other text."""
    try:
        return float(text)
    except ValueError:
        return None


def flat(row: Row) -> Row:
    """The row with nested mappings as `outer/inner`; those named `data` or `metrics` give no name."""
    if dict not in map(type, row.values()):
        return row
    found: Row = {}

    def collect(values: Mapping[str, Any], prefix: str, depth: int) -> None:
        for key, value in values.items():
            if isinstance(value, dict):
                if depth < _MAX_DEPTH and len(prefix) + len(key) <= MAX_NAME:
                    container = key in ("data", "metrics", "logs", "history") and not prefix
                    collect(value, prefix if container else f"{prefix}{key}/", depth + 1)
            else:
                found.setdefault(f"{prefix}{key}", value)

    collect(row, "", 0)
    return found
