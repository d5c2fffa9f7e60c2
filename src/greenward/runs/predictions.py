"""predictions.jsonl: what a reward model predicted, and what grading then found.

One row a step: `predicted`, a probability of passing for each graded answer, and `passed`, 1 or 0 in
the same order. Predictions are made before the answers of the step are trained on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from greenward.errors import RunError
from greenward.runs.files import JsonRows, append_line, dump_json, read_jsonl, write_atomically

FILE_NAME = "predictions.jsonl"
DECIMALS = 6


class PredictionsFile:
    """Appends the predictions of a run, a step at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, step: int, predicted: Sequence[float], passed: Sequence[bool]) -> None:
        """Append the row of `step`; nothing for a step without predictions."""
        if len(predicted) == 0:
            return
        row = {
            "step": step,
            "predicted": [round(float(value), DECIMALS) for value in predicted],
            "passed": [int(value) for value in passed],
        }
        append_line(self.path, dump_json(row))

    def truncate_after(self, step: int) -> None:
        """Drop every row newer than `step`, and a torn last line."""
        if self.path.exists():
            kept = [row for row in read_jsonl(self.path).rows if row["step"] <= step]
            write_atomically(self.path, "".join(dump_json(row) + "\n" for row in kept).encode())


@dataclass(frozen=True)
class Predictions:
    """All predictions of a run, one entry each, in the order of the file."""

    steps: tuple[int, ...]
    predicted: tuple[float, ...]
    passed: tuple[int, ...]


def read_predictions(run: Path, newest: int | None = None) -> Predictions:
    """The predictions of the run at `run`; empty where it made none.

    With `newest`, only the last whole steps that have about so many (all of a step or none, one step at
    least), without holding more in memory.

    Raises:
        RunError: a row that is not of this shape, or a broken line that is not the last one.
    """
    rows: deque[tuple[int, list[float], list[int]]] = deque()
    count = 0
    for number, row in enumerate(JsonRows(run / FILE_NAME), start=1):
        step, predicted, passed = row.get("step"), row.get("predicted"), row.get("passed")
        if not (
            isinstance(step, int)
            and _are_numbers(predicted)
            and _are_numbers(passed)
            and len(predicted) == len(passed)
        ):
            raise RunError(
                f"{run / FILE_NAME}, row {number}: expected a step, and predicted and passed of one length",
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
