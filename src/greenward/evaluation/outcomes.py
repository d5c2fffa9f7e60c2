"""How often each problem was solved, read from what evaluations leave behind: ours and EvalPlus's.

Judges nothing: the statuses are taken as they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from greenward.errors import RunError
from greenward.evaluation.folder import EVALPLUS_RESULTS, RESULTS, SETTINGS, read_results
from greenward.grading.verdict import Family, Status
from greenward.runs.files import read_json
from greenward.runs.reading import read_evaluations

_EVALPLUS_PASS = "pass"


@dataclass(frozen=True)
class Tally:
    """The answers to one problem: how many there are, how many passed, how many the infrastructure lost."""

    answers: int = 0
    passed: int = 0
    infrastructure: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.answers + other.answers,
            self.passed + other.passed,
            self.infrastructure + other.infrastructure,
        )


@dataclass(frozen=True)
class Outcomes:
    """One evaluation: where it was read from, its suite and settings as far as known, its tallies by id."""

    name: str
    suite: str | None
    problems: Mapping[str, Tally]
    settings: Mapping[str, Any] = field(default_factory=dict)


def read_outcomes(path: Path) -> Outcomes:
    """The outcomes of an evaluation.

    `path` is an evaluation's folder (or its results.jsonl), a run directory (its last evaluation), a
    run's evaluation record, or EvalPlus's eval_results.json (or a folder that holds one; with added
    tests an answer passes if it passes those, too). A torn last line is left out.

    Raises `RunError` for a path that is none of these, a row of another form, and an answer that occurs
    twice.
    """
    if path.is_dir():
        for name in (RESULTS, EVALPLUS_RESULTS):
            if (path / name).is_file():
                return read_outcomes(path / name)
        evaluations = read_evaluations(path)
        if not evaluations:
            raise RunError(
                f"{path}: there is no evaluation in this folder.",
                remedy=f"Expected {RESULTS}, {EVALPLUS_RESULTS}, or the evaluations of a run.",
            )
        return _from_record(str(path), evaluations[-1])
    if not path.is_file():
        raise RunError(f"{path}: there is no such file or folder.")
    if path.suffix == ".jsonl":
        return _from_results(path)
    record = read_json(path) or {}
    if isinstance(record.get("eval"), dict):
        return _from_evalplus(path, record["eval"])
    if isinstance(record.get("rows"), list):
        return _from_record(str(path), record)
    raise RunError(
        f"{path}: neither an evaluation of ours nor one of EvalPlus's (no 'rows' and no 'eval').",
        remedy=f"Give a folder that `greenward eval` has written, or an {EVALPLUS_RESULTS}.",
    )


def _from_results(path: Path) -> Outcomes:
    settings = read_json(path.parent / SETTINGS) or {}
    rows = ((row.task_id, row.sample, _tally_of(row.status)) for row in read_results(path))
    return Outcomes(str(path.parent), settings.get("suite"), _tally(path, rows), settings)


def _tally_of(status: Status) -> Tally:
    if status.family is Family.INFRASTRUCTURE:
        return Tally(answers=1, infrastructure=1)
    return Tally(answers=1, passed=int(status is Status.PASSED))


def _from_record(name: str, record: Mapping[str, Any]) -> Outcomes:
    """From a run's evaluation, which counts the answers of each problem itself."""
    rows = (
        (row["task_id"], 0, Tally(len(row["answers"]), row["passed"], _lost(row["answers"])))
        for row in record["rows"]
    )
    settings = {name: record[name] for name in ("samples", "temperature") if name in record}
    return Outcomes(name, record.get("suite"), _tally(Path(name), rows), settings)


def _lost(answers: Iterable[Mapping[str, Any]]) -> int:
    return sum(answer["status"] == Status.INFRASTRUCTURE.value for answer in answers)


def _from_evalplus(path: Path, evaluated: Mapping[str, list[Mapping[str, Any]]]) -> Outcomes:
    rows = (
        (task_id, sample, Tally(1, int(_passed_evalplus(answer))))
        for task_id, answers in evaluated.items()
        for sample, answer in enumerate(answers)
    )
    return Outcomes(str(path), None, _tally(path, rows))


def _passed_evalplus(answer: Mapping[str, Any]) -> bool:
    added = answer.get("plus_status")  # None when only the original tests were run
    return answer["base_status"] == _EVALPLUS_PASS and added in (None, _EVALPLUS_PASS)


def _tally(path: Path, rows: Iterable[tuple[str, Any, Tally]]) -> dict[str, Tally]:
    tallies: dict[str, Tally] = {}
    seen: set[tuple[str, Any]] = set()
    for task_id, sample, tally in rows:
        if (task_id, sample) in seen:
            raise RunError(f"{path}: answer {sample} to {task_id} occurs twice.")
        seen.add((task_id, sample))
        tallies[task_id] = tallies.get(task_id, Tally()) + tally
    return tallies
