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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from greenward.closing import Closing
from greenward.errors import RunError
from greenward.evaluation.rows import EvaluationRow, EvaluationRows, Sample
from greenward.problems.problem import ProblemSet
from greenward.runs.files import append_row, read_json, read_jsonl, to_json, write_json, write_rows
from greenward.runs.lock import RunLock
from greenward.runs.output import check_folder, claim_folder
from greenward.user_files import expecting

SETTINGS, PROVENANCE, SUMMARY = "settings.json", "provenance.json", "summary.json"
PROMPTS, SAMPLES, RESULTS = "prompts.jsonl", "samples.jsonl", "results.jsonl"


class EvaluationFolder(EvaluationRows, Closing["EvaluationFolder"]):
    """The samples and rows of one evaluation in its files, open for writing; closed by `close` or `with`.

    Rows that the infrastructure lost, or whose sample was lost with the machine's power, are left out on
    opening: those answers are judged again. Raises `RunError` naming the settings that differ, for a
    folder that holds something else, and for one that another process writes. With `overwrite`, an
    evaluation that is there is deleted.
    """

    def __init__(
        self, path: Path, settings: Mapping[str, Any], problems: ProblemSet, *, overwrite: bool = False
    ) -> None:
        super().__init__()
        self.path = path
        check_folder(path, "evaluation")
        if not overwrite:
            refuse_other_settings(path, settings)
        claim_folder(path, "evaluation", overwrite=overwrite)
        self._lock = RunLock(path)
        try:
            write_json(path / SETTINGS, settings)
            self._read(problems)
        except BaseException:
            self._lock.release()
            raise

    def _read(self, problems: ProblemSet) -> None:
        for name in (SAMPLES, RESULTS):
            found = read_jsonl(self.path / name)
            if found.torn is not None:  # what a killed writer left would spoil the next line
                write_rows(self.path / name, found.rows)
        with expecting("the samples of an evaluation", self.path / SAMPLES, RunError):
            samples = [Sample.from_json(row, problems) for row in read_jsonl(self.path / SAMPLES).rows]
            self.samples = {sample.key: sample for sample in samples}
        rows = read_rows(self.path / RESULTS)
        self.rows = {row.key: row for row in rows if row.success is not None and row.key in self.samples}
        if len(self.rows) < len(rows):
            write_rows(self.path / RESULTS, (row.to_json() for row in self.rows.values()))

    def add_session(self, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Records the versions and the machine of this session; returns all sessions so far."""
        record = read_json(self.path / PROVENANCE) or {"sessions": []}
        with expecting("a list of sessions", self.path / PROVENANCE, RunError):
            sessions: list[dict[str, Any]] = record["sessions"]
            sessions.append(dict(facts))
        self.write(PROVENANCE, record)
        return sessions

    def write_prompts(self, prompts: Mapping[str, str]) -> None:
        """Writes the prompt of each problem, by task id."""
        rows = ({"task_id": task_id, "prompt": text} for task_id, text in prompts.items())
        write_rows(self.path / PROMPTS, rows)

    def add_samples(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            append_row(self.path / SAMPLES, sample.to_json())
            self.samples[sample.key] = sample

    def add_row(self, row: EvaluationRow) -> None:
        append_row(self.path / RESULTS, row.to_json())
        super().add_row(row)

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes a JSON file, whole or not at all."""
        write_json(self.path / name, record)

    def close(self) -> None:
        """Lets others write the folder."""
        self._lock.release()


def refuse_other_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raises `RunError` if `path` holds answers of an evaluation with other settings, or something else."""
    check_folder(path, "evaluation")
    before = read_json(path / SETTINGS)
    if before is None:
        return
    now = to_json(settings)
    differences = [
        f"    {key}: {json.dumps(before.get(key))} -> {json.dumps(now.get(key))}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]
    if differences and any((path / name).exists() for name in (SAMPLES, RESULTS)):
        raise RunError(
            "\n".join([f"{path} holds an evaluation with other settings:", *differences]),
            remedy="Go on with the old settings, replace it by --overwrite, or choose another --out.",
        )


def read_rows(path: Path) -> list[EvaluationRow]:
    """The rows of a `results.jsonl`; a torn last line is left out. Raises `RunError`."""
    with expecting("the results of an evaluation", path, RunError):
        return [EvaluationRow.from_json(row) for row in read_jsonl(path).rows]
