"""The files with a row for each step: metrics.jsonl, and predictions.jsonl of a reward model.

A row is one JSON object, appended whole and never rewritten in place. metrics.jsonl is flat, with keys
`name` or `group/name`. Everything that depends on the clock or the machine begins with one of
`TIMING_PREFIXES`, so two runs of one seed are equal exactly when their rows are equal `without_timing`.
NaN and infinities are the strings "NaN", "Infinity" and "-Infinity" in the file, and floats again once read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from greenward.errors import RunError
from greenward.runs.files import (
    JsonRows,
    Lines,
    append_row,
    force,
    from_json_number,
    read_jsonl,
    write_rows,
    writing,
)
from greenward.runs.reading import is_step

TIMING_PREFIXES = ("time/", "perf/")
PREDICTIONS = "predictions.jsonl"
DECIMALS = 6  # of a prediction


def without_timing(row: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a row that a second run with the same seed must repeat."""
    return {key: value for key, value in row.items() if not key.startswith(TIMING_PREFIXES)}


def read_metrics(path: Path) -> Lines:
    """The rows of a metrics.jsonl, oldest first. Raises `RunError` for a broken line that is not the last."""
    lines = read_jsonl(path)
    rows = tuple({key: from_json_number(value) for key, value in row.items()} for row in lines.rows)
    return Lines(rows, lines.torn)


class StepFile:
    """The writer of a file with rows by step. A torn last line, left by a kill, is cut off on opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = read_jsonl(path)
        if lines.torn is not None:
            write_rows(path, lines.rows)
        self.last_step: int | None = None
        for number, row in enumerate(lines.rows, start=1):
            if not is_step(row.get("step")):
                raise RunError(f"{path}, row {number}: expected a step, found {str(row.get('step'))[:60]!r}")
            self.last_step = row["step"]

    def truncate_after(self, step: int) -> None:
        """Drop every row newer than `step`, atomically; the rows before keep their bytes' meaning."""
        rows = read_jsonl(self.path).rows
        kept = tuple(row for row in rows if row["step"] <= step)
        if len(kept) < len(rows):
            write_rows(self.path, kept)
        self.last_step = kept[-1]["step"] if kept else None

    def sync(self) -> None:
        """Force the rows onto the disk (before a checkpoint that relies on them)."""
        if self.path.exists():
            with writing(str(self.path)):
                force([self.path])

    def _append(self, row: Mapping[str, Any]) -> None:
        append_row(self.path, row)
        self.last_step = row["step"]


class MetricsFile(StepFile):
    """The writer of metrics.jsonl."""

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Append one row. `values` is flat: numbers, booleans, strings or None (else `TypeError`).

        Raises `RunError` for a step older than the newest one, and when the file system refuses.
        """
        if self.last_step is not None and step < self.last_step:
            raise RunError(
                f"{self.path}: step {step} comes after step {self.last_step}",
                remedy=f"Call truncate_after({step - 1}) before going on from an earlier step.",
            )
        for key, value in values.items():
            if isinstance(value, (Mapping, list, tuple)):
                raise TypeError(f"metric {key!r} is a {type(value).__name__}; a row is flat")
        self._append({"step": step, **values})


class PredictionsFile(StepFile):
    """The writer of predictions.jsonl: what a reward model predicted, and what grading then found.

    Predictions are made before the answers of the step are trained on.
    """

    def append(self, step: int, predicted: Sequence[float], passed: Sequence[bool]) -> None:
        """Append the row of `step`: a probability of passing for each graded answer, and whether it passed.

        A step without predictions has no row.
        """
        if len(predicted):
            chances = [round(float(value), DECIMALS) for value in predicted]
            self._append({"step": step, "predicted": chances, "passed": [int(value) for value in passed]})


@dataclass(frozen=True)
class Predictions:
    """All predictions of a run, one entry each, in the order of the file."""

    steps: tuple[int, ...]
    predicted: tuple[float, ...]
    passed: tuple[int, ...]


def read_predictions(run: Path, newest: int | None = None) -> Predictions:
    """The predictions of the run at `run`; empty where it made none.

    With `newest`, only the last whole steps that have about so many (all of a step or none, one step at
    least), without holding more in memory. Raises `RunError` for a row that is not of this shape.
    """
    rows: deque[tuple[int, list[float], list[int]]] = deque()
    count = 0
    for number, row in enumerate(JsonRows(run / PREDICTIONS), start=1):
        step, predicted, passed = row.get("step"), row.get("predicted"), row.get("passed")
        if not (
            is_step(step)
            and _are_numbers(predicted)
            and _are_numbers(passed)
            and len(predicted) == len(passed)
        ):
            raise RunError(
                f"{run / PREDICTIONS}, row {number}: expected a step, and predicted and passed of one length",
                remedy='A row is {"step": 3, "predicted": [0.8, 0.1], "passed": [1, 0]}.',
            )
        rows.append((step, predicted, passed))
        count += len(predicted)
        while newest is not None and len(rows) > 1 and count - len(rows[0][1]) >= newest:
            count -= len(rows.popleft()[1])
    return Predictions(
        tuple(step for step, predicted, _ in rows for _ in predicted),
        tuple(chance for _, predicted, _ in rows for chance in predicted),
        tuple(outcome for _, _, passed in rows for outcome in passed),
    )


def _are_numbers(values: object) -> TypeGuard[list[Any]]:
    return isinstance(values, list) and set(map(type, values)) <= {int, float}
