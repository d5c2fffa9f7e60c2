"""The folder of one evaluation: files that anyone can read, appended to as verdicts arrive.

    settings.json     what must be the same when the evaluation is resumed
    provenance.json   versions and machine, one entry per session
    prompts.jsonl     each problem's prompt as the model saw it
    samples.jsonl     the answers
    results.jsonl     what became of each
    summary.json      the figures; report.html, report.md, report.json

Killed at any moment, the folder holds every verdict that had arrived.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from greenward.errors import RunError
from greenward.evaluation.drawing import Answer, AnswerKey
from greenward.evaluation.results import Result, sample_row
from greenward.grading.verdict import Family
from greenward.problems.problem import ProblemSet
from greenward.runs.files import append_line, dump_json, read_json, read_jsonl, write_atomically, writing
from greenward.runs.lock import RunLock

SETTINGS, PROVENANCE, SUMMARY = "settings.json", "provenance.json", "summary.json"
PROMPTS, SAMPLES, RESULTS = "prompts.jsonl", "samples.jsonl", "results.jsonl"
EVALPLUS_RESULTS = "eval_results.json"


class EvaluationFolder:
    """One evaluation, open for writing; made by `open`, given free by `close` or `with`.

    `samples` and `results` hold what is there already. Results that the infrastructure lost, or whose
    answer was lost with the machine's power, are forgotten on opening: those answers are judged again.
    """

    def __init__(self, path: Path, problems: ProblemSet, lock: RunLock) -> None:
        self.path = path
        self._lock = lock
        self.samples = _read_samples(path / SAMPLES, problems)
        self.results = _read_kept_results(path / RESULTS, self.samples)

    @classmethod
    def open(cls, path: Path, settings: Mapping[str, Any], problems: ProblemSet) -> EvaluationFolder:
        """Begin an evaluation at `path`, or go on with the one that is there.

        Raises `RunError` naming the settings that differ, for a folder that holds something else, and
        for one that another process writes.
        """
        refuse_other_settings(path, settings)
        with writing(str(path)):
            path.mkdir(parents=True, exist_ok=True)
        lock = RunLock(path)
        try:
            write_atomically(path / SETTINGS, dump_json(settings, indent=2).encode())
            return cls(path, problems, lock)
        except BaseException:
            lock.release()
            raise

    def add_session(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Note with what this session works; all sessions so far."""
        record = read_json(self.path / PROVENANCE) or {"sessions": []}
        record["sessions"].append(facts)
        self.write(PROVENANCE, record)
        sessions: list[dict[str, Any]] = record["sessions"]
        return sessions

    def write_prompts(self, prompts: Mapping[str, str]) -> None:
        """Keep the prompt of each problem, by task id."""
        rows = (dump_json({"task_id": task_id, "prompt": text}) + "\n" for task_id, text in prompts.items())
        write_atomically(self.path / PROMPTS, "".join(rows).encode())

    def add_samples(self, answers: Iterable[Answer]) -> None:
        """Append answers."""
        for answer in answers:
            append_line(self.path / SAMPLES, dump_json(sample_row(answer)))
            self.samples[answer.key] = answer

    def add_result(self, result: Result) -> None:
        """Append a result."""
        append_line(self.path / RESULTS, dump_json(result.to_json()))
        self.results[result.key] = result

    def write(self, name: str, record: Mapping[str, Any]) -> Path:
        """Write a JSON file, whole or not at all."""
        path = self.path / name
        write_atomically(path, dump_json(record, indent=2).encode())
        return path

    def close(self) -> None:
        """Give the folder free for other writers."""
        self._lock.release()

    def __enter__(self) -> EvaluationFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def refuse_other_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raises `RunError` if `path` holds an evaluation with other settings, or something else."""
    if path.is_file():
        raise RunError(f"{path} is a file; expected a folder to write to.")
    before = read_json(path / SETTINGS)
    if before is None:
        if path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir()):
            raise RunError(f"{path} holds something else than an evaluation.", remedy="Choose another --out.")
        return
    now = json.loads(dump_json(settings))
    differences = [
        f"    {key}: {json.dumps(before.get(key))} -> {json.dumps(now.get(key))}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if differences:
        raise RunError(
            "\n".join([f"{path} holds an evaluation with other settings:", *differences]),
            remedy="Go on with the old settings, or choose another --out.",
        )


def _read_samples(path: Path, problems: ProblemSet) -> dict[AnswerKey, Answer]:
    _cut_torn_line(path)
    samples = {}
    for row in read_jsonl(path).rows:
        answer = Answer(
            problems.by_id(row["task_id"]),
            row["sample"],
            row["completion"],
            row["solution"],
            row["extraction_failure"],
            row["truncated"],
        )
        samples[answer.key] = answer
    return samples


def _read_kept_results(path: Path, samples: Collection[AnswerKey]) -> dict[AnswerKey, Result]:
    _cut_torn_line(path)
    rows = read_results(path)
    kept = [row for row in rows if row.status.family is not Family.INFRASTRUCTURE and row.key in samples]
    if len(kept) < len(rows):
        write_atomically(path, "".join(dump_json(row.to_json()) + "\n" for row in kept).encode())
    return {row.key: row for row in kept}


def read_results(path: Path) -> list[Result]:
    """The rows of a `results.jsonl`; a torn last line is left out. Raises `RunError`."""
    try:
        return [Result.from_json(row) for row in read_jsonl(path).rows]
    except (KeyError, ValueError, TypeError) as error:
        raise RunError(f"{path}: not the results of an evaluation ({error!r}).") from None


def _cut_torn_line(path: Path) -> None:
    """Drop what follows the last line end: a killed writer's last words, which would spoil the next line."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        with writing(str(path)):
            os.truncate(path, whole)
