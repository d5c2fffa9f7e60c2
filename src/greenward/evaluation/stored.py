"""Reads how often each problem was solved from stored evaluations: ours, old and new, and EvalPlus's.

Judges nothing: the statuses are taken as they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from greenward.errors import RunError
from greenward.evaluation.evalplus_files import EVALPLUS_RESULTS
from greenward.evaluation.folder import RESULTS, SETTINGS, read_rows
from greenward.grading.verdict import Status
from greenward.runs.files import read_json
from greenward.runs.reading import by_problem, read_evaluations


class AnswerCounts(NamedTuple):
    """The answers to one problem: how many there are, how many passed, how many the infrastructure lost."""

    answers: int = 0
    passed: int = 0
    infrastructure: int = 0


@dataclass(frozen=True)
class StoredEvaluation:
    """One evaluation: where it lies, its suite and settings as far as known, its counts by task id."""

    name: str
    suite: str | None
    problems: Mapping[str, AnswerCounts]
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_evaluation(path: Path) -> StoredEvaluation:
    """The evaluation at `path`.

    `path` is an evaluation's folder (or its results.jsonl), a run directory (its last evaluation), a
    run's evaluation record, or EvalPlus's eval_results.json (or a folder that holds one; with added
    tests an answer passes if it passes those, too). A torn last line is left out.

    Raises `RunError` for a path that is none of these, a row of another form, and an answer that occurs
    twice.
    """
    try:
        return _read(path)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise RunError(f"{path}: a row is not of the form of an evaluation ({what}).") from None


def _read(path: Path) -> StoredEvaluation:
    if path.is_dir():
        for name in (RESULTS, EVALPLUS_RESULTS):
            if (path / name).is_file():
                return read_evaluation(path / name)
        evaluations = read_evaluations(path)
        if not evaluations:
            raise RunError(
                f"{path}: there is no evaluation in this folder.",
                remedy=f"Expected {RESULTS}, {EVALPLUS_RESULTS}, or the evaluations of a run on problems; "
                "runs on games are shown side by side by `greenward report RUN RUN`.",
            )
        return _of_record(path, evaluations[-1])
    if not path.is_file():
        raise RunError(f"{path}: there is no such file or folder.")
    if path.suffix == ".jsonl":
        settings = read_json(path.parent / SETTINGS) or {}
        rows = ((row.task_id, row.sample, _counts(row.success)) for row in read_rows(path))
        return StoredEvaluation(str(path.parent), settings.get("suite"), _by_task(path, rows), settings)
    record = read_json(path) or {}
    if isinstance(record.get("eval"), dict):
        rows = (
            # There is no status of added tests when only the original ones were run.
            (task_id, number, _counts({one["base_status"], one.get("plus_status") or "pass"} == {"pass"}))
            for task_id, answers in record["eval"].items()
            for number, one in enumerate(answers)
        )
        return StoredEvaluation(str(path), None, _by_task(path, rows))
    if isinstance(record.get("rows"), list):
        return _of_record(path, by_problem(record))
    raise RunError(
        f"{path}: neither an evaluation of ours nor one of EvalPlus's (no 'rows' and no 'eval').",
        remedy=f"Give a folder that `greenward eval` has written, or an {EVALPLUS_RESULTS}.",
    )


def _of_record(path: Path, record: Mapping[str, Any]) -> StoredEvaluation:
    rows = []
    for row in record["rows"]:
        lost = sum(one["status"] == Status.INFRASTRUCTURE.value for one in row["answers"])
        rows.append((row["task_id"], 0, AnswerCounts(len(row["answers"]), row["passed"], lost)))
    settings = {name: record[name] for name in ("samples", "temperature") if name in record}
    return StoredEvaluation(str(path), record.get("suite"), _by_task(path, rows), settings)


def _counts(success: bool | None) -> AnswerCounts:
    return AnswerCounts(answers=1, passed=int(success is True), infrastructure=int(success is None))


def _by_task(path: Path, rows: Iterable[tuple[str, int, AnswerCounts]]) -> dict[str, AnswerCounts]:
    found: dict[str, AnswerCounts] = {}
    seen: set[tuple[str, int]] = set()
    for task_id, number, new in rows:
        if (task_id, number) in seen:
            raise RunError(f"{path}: answer {number} to {task_id} occurs twice.")
        seen.add((task_id, number))
        found[task_id] = AnswerCounts(*map(sum, zip(found.get(task_id, AnswerCounts()), new, strict=True)))
    return found
