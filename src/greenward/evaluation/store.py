"""Stores answers and their verdicts in the folder of an evaluation, and reads and writes EvalPlus's files.

The folder of an evaluation holds every verdict that had arrived, whenever the process is killed:
    settings.json     what must be the same when the evaluation is resumed
    provenance.json   versions and machine, one entry per session
    prompts.jsonl     each problem's prompt as the model saw it
    samples.jsonl     the answers
    results.jsonl     what became of each
    summary.json      the figures; report.html, report.md, report.json

A folder of samples holds `TASK_ID/N.py`, with `_` for each `/` of the id.
`eval_results.json` is as EvalPlus 0.3.1 writes it; without added tests, `plus_status` is null.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from greenward.common.errors import Closeable, ProblemError, RunError
from greenward.common.files import expecting, expects
from greenward.common.text import encodable
from greenward.evaluation.answer_rows import PROGRAMS, REMEDY, answer_rows, field_of_answers, texts_of
from greenward.evaluation.samples import EvaluationRow, EvaluationRows, Sample, SampleKey
from greenward.grading.extracted import Extracted, explained, is_prose
from greenward.grading.verdict import Status
from greenward.problems.problem import Case, Problem, ProblemSet, StdioCase
from greenward.problems.rows import Row, read_text, refuse
from greenward.runs.files import (
    JsonRows,
    append_row,
    force,
    read_json,
    to_json,
    write_json,
    write_rows,
    writing,
)
from greenward.runs.output import RunLock, check_folder, claim_folder

SETTINGS, PROVENANCE, SUMMARY = "settings.json", "provenance.json", "summary.json"
PROMPTS, SAMPLES, RESULTS = "prompts.jsonl", "samples.jsonl", "results.jsonl"


class EvaluationFolder(EvaluationRows, Closeable):
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
        self.path, self.place = path, str(path)
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
        with expecting("the samples of an evaluation", self.path / SAMPLES, RunError):
            for row in self._whole_rows(SAMPLES):
                sample = Sample.from_json(row, problems)
                self.samples[sample.key] = sample
        count = 0
        with expecting("the results of an evaluation", self.path / RESULTS, RunError):
            for row in self._whole_rows(RESULTS):
                judged = EvaluationRow.from_json(row)
                count += 1
                if judged.success is not None and judged.key in self.samples:
                    self.rows[judged.key] = judged
        if len(self.rows) < count:
            write_rows(self.path / RESULTS, (row.to_json() for row in self.rows.values()))

    def _whole_rows(self, name: str) -> Iterator[dict[str, Any]]:
        """The rows of a file, from which a torn last line is cut: it would spoil the next one."""
        rows = JsonRows(self.path / name)
        yield from rows
        if rows.torn is not None:
            write_rows(rows.path, JsonRows(rows.path))

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

    def sync(self) -> None:
        """Forces answers and verdicts onto the disk, before a summary that counts them."""
        files = (self.path / SAMPLES, self.path / RESULTS)
        with writing(self.place):
            force([file for file in files if file.exists()])

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        """Writes a JSON file, whole or not at all."""
        write_json(self.path / name, record)

    def close(self) -> None:
        """Lets others write the folder."""
        self._lock.release()


def refuse_other_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Raises `RunError` if `path` holds answers of an evaluation with other settings, or something else."""
    check_folder(path, "evaluation")
    if (before := read_json(path / SETTINGS)) is None:
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


def read_rows(path: Path) -> Iterator[EvaluationRow]:
    """The rows of a `results.jsonl`, one at a time; a torn last line is left out. Raises `RunError`."""
    with expecting("the results of an evaluation", path, RunError):
        for row in JsonRows(path):
            yield EvaluationRow.from_json(row)


Extract = Literal["auto", "always", "never"]
OnUnknown = Callable[[ProblemError], None]

MAX_ANSWERS = 200_000  # at once; each takes about 4 KB of memory
EVALPLUS_RESULTS = "eval_results.json"


def demand_samples(path: Path) -> None:
    """Raises `ProblemError` if there is neither a file nor a folder at `path`."""
    if not path.exists():
        raise ProblemError(f"{path}: there is no such file or folder of answers.", remedy=REMEDY)


@expects("a file of answers", ProblemError)
def read_samples(path: Path, problems: ProblemSet, on_unknown: OnUnknown = refuse) -> list[Sample]:
    """The answers in a file or folder, in its order.

    The last line of a file may be torn, as a killed writer leaves it; it is then left out. A row or folder
    of an unknown task id is given as an error to `on_unknown`, and left out if that returns. Raises
    `ProblemError` naming file and line for a line that is not a sample, and a sample that occurs twice.
    """
    demand_samples(path)
    read = _of_folder if path.is_dir() else _of_file
    samples = list(islice(read(path, problems, on_unknown), MAX_ANSWERS + 1))
    if len(samples) > MAX_ANSWERS:
        remedy = "Put them into several files, and grade one after the other."
        raise ProblemError(f"{path}: there are more than {MAX_ANSWERS:,} answers in it.", remedy=remedy)
    if not samples:
        raise ProblemError(f"{path}: there is no sample in it.", remedy=REMEDY)
    return samples


def extracted(samples: Sequence[Sample], mode: Extract) -> tuple[list[Sample], str]:
    """The samples with the programs in their texts, and a line that says what was done, if anything.

    As in `greenward eval`, by `extract_code`. With `auto`, an answer that is Python as it stands stays as it
    is, and so does one in which no program is found.
    """
    if mode == "never":
        return list(samples), ""
    always = mode == "always"
    found = [
        _with_program(one, keep=not always) if is_prose(one.code) or (always and one.code) else one
        for one in samples
    ]
    changed = sum(one is not sample for one, sample in zip(found, samples, strict=True))
    if not changed:
        return found, ""
    why = "read" if always else "no Python as they stand"
    what = f"{changed} of {len(samples)} answers are {why}: the programs in them are judged"
    return found, f"{what} (--extract never judges them as they are)"


def _with_program(sample: Sample, *, keep: bool) -> Sample:
    from greenward.grading.answers import extract_code  # most files hold programs

    # A completion continues the prompt, which is no part of what the model wrote.
    completed = sample.code == sample.problem.starter_code + sample.text
    taken = extract_code(sample.text if completed else sample.code or "", sample.problem)
    return sample if taken.code is None and keep else replace(sample, extracted=taken)


def _of_file(path: Path, problems: ProblemSet, on_unknown: OnUnknown) -> Iterator[Sample]:
    seen: dict[SampleKey, Row] = {}
    counts: Counter[str] = Counter()
    unknown = 0
    for row in answer_rows(path, problems):
        field = "task_id" if "task_id" in row.values else "question_id"
        problem = problems.find(task_id := row.text(field))
        if problem is None:
            what = f"names no problem of {problems.name}: {task_id!r}"
            near = "" if unknown else problems.nearest(task_id)  # of one of them: there may be many
            left_out = "--skip-bad-rows leaves out answers to other problems."
            unknown += 1
            on_unknown(row.error(field, what, remedy=" ".join(filter(None, (near, left_out)))))
            continue
        reason = row.text("extraction_failure", default="")
        truncated = row.values.get("truncated") is True
        for code, text in _programs(row, problem):
            number = row.values.get("sample", counts[problem.task_id])
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise row.error("sample", f"must be a number from 0 on, found {number!r}")
            counts[problem.task_id] += 1
            sample = Sample(problem, number, text, Extracted(code, reason, rule="given"), truncated)
            if sample.key in seen:
                given = f"gives number {number} of {problem.task_id}, which {seen[sample.key].place} has"
                raise row.error("sample", given)
            seen[sample.key] = row
            yield sample


def _programs(row: Row, problem: Problem) -> Iterator[tuple[str | None, str]]:
    """(program, what was written) of each answer in a row."""
    field = field_of_answers(row)
    for given in texts_of(row, field):
        text = None if given is None else encodable(given)
        if field in PROGRAMS:
            yield text, _completion(row) if "completion" in row.values else text or ""
        else:
            yield None if text is None else _continued(problem, text), text or ""


def _continued(problem: Problem, completion: str) -> str:
    """The prompt and its continuation; where that is no program, a completion that is one by itself.

    LeetCodeDataset's completions repeat the class that the starter code begins.
    """
    program = problem.starter_code + completion
    if not is_prose(program) or is_prose(completion):
        return program
    from greenward.grading.answers import extract_code

    return completion if extract_code(completion, problem, "chat").code else program


def _completion(row: Row) -> str:
    value = row.values["completion"]
    if not isinstance(value, str):
        raise row.error("completion", "must be text")
    return encodable(value)


def _of_folder(path: Path, problems: ProblemSet, on_unknown: OnUnknown) -> Iterator[Sample]:
    by_name = {problem.task_id.replace("/", "_"): problem for problem in problems}
    for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
        if folder.name not in by_name:
            near = get_close_matches(folder.name, by_name, n=3)
            # `.git`, `.ipynb_checkpoints`, `__pycache__`, and whatever else holds no answers.
            if folder.name.startswith((".", "__")) or not (near or any(folder.glob("*.py"))):
                continue
            remedy = f"Nearest: {', '.join(near)}." if near else "Expected TASK_ID/N.py, with _ for each /."
            on_unknown(ProblemError(f"{folder}: names no problem of {problems.name}.", remedy=remedy))
            continue
        files = (file for file in folder.glob("*.py") if not file.name.startswith((".", "__")))
        for file in sorted(files, key=lambda file: (len(file.stem), file.stem)):
            if not file.stem.isdecimal() or str(int(file.stem)) != file.stem:
                raise ProblemError(f"{file}: expected a number for a name, as in 0.py.")
            program = read_text(file, within=path)
            yield Sample(by_name[folder.name], int(file.stem), program, Extracted(program, rule="given"))


def evalplus_results(found: EvaluationRows, summary: Mapping[str, Any]) -> dict[str, Any]:
    """The record of all answers. One that the infrastructure lost has failed, as in pass@k.

    The inputs of failed tests are those of the first 100.
    """
    evaluated: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, row in sorted(found.rows.items()):
        evaluated[row.task_id].append(_answer(found.samples[key], row))
    metrics = {name: metric["value"] for name, metric in summary["metrics"].items()}
    base = {name.removeprefix("base_"): value for name, value in metrics.items() if name.startswith("base_")}
    whole = {name: value for name, value in metrics.items() if not name.startswith("base_")}
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "hash": summary["data_hash"],
        "eval": dict(evaluated),
        "pass_at_k": {"base": base, "plus": whole} if base else {"base": whole},
    }


def _answer(sample: Sample, row: EvaluationRow) -> dict[str, Any]:
    base_tests = sample.problem.base_tests
    added = base_tests is not None
    base_failed = [index for index in row.failed_tests if base_tests is None or index < base_tests]
    return {
        "task_id": row.task_id,
        "solution": sample.code or "",
        "base_status": _status(row.base_passed if added else row.success, row),
        "plus_status": _status(row.success, row) if added else None,
        "base_fail_tests": [_input(sample.problem, index) for index in base_failed],
        "plus_fail_tests": [_input(sample.problem, one) for one in row.failed_tests[len(base_failed) :]],
    }


def _status(passed: bool | None, row: EvaluationRow) -> str:
    return "pass" if passed else "timeout" if row.status is Status.TIMEOUT else "fail"


def _input(problem: Problem, index: int) -> Any:
    """The arguments of a test as JSON can hold them; of a test that is code, the code."""
    test = problem.tests[index]
    if isinstance(test, Case):
        return json.loads(json.dumps(test.args, default=repr, skipkeys=True))
    return test.stdin if isinstance(test, StdioCase) else test.source


def text_of(folder: Path, task_id: str, sample: int | None = None) -> str:
    """The task as text, with what a model wrote as it was written.

    Without `sample`, the first answer that failed, else the first. Raises `RunError` for a folder without
    an evaluation and for a task or sample that it does not hold, naming the nearest.
    """
    if not (folder / RESULTS).is_file():
        raise RunError(
            f"{folder} holds no evaluation ({RESULTS}).",
            remedy="Give the folder that `greenward eval` or `greenward grade` wrote to.",
        )

    def first(name: str, **wanted: Any) -> dict[str, Any]:
        return next((row for row in JsonRows(folder / name) if wanted.items() <= row.items()), {})

    def block(title: str, text: str) -> str:
        lines = "\n".join(f"    {line}" for line in text.rstrip().split("\n"))
        return f"{title}:\n{lines}\n"

    with expecting("the files of an evaluation", folder, RunError):
        of_task, others = [], set[str]()
        with expecting("the results of an evaluation", folder / RESULTS, RunError):
            for found in JsonRows(folder / RESULTS):  # of which there may be many
                if found["task_id"] == task_id:
                    of_task.append(EvaluationRow.from_json(found))
                else:
                    others.add(str(found["task_id"]))
        of_task.sort(key=lambda row: row.sample)
        if not of_task:
            near = get_close_matches(task_id, others, n=3)
            remedy = f"Nearest: {', '.join(near)}." if near else None
            raise RunError(f"{folder}: no answer to {task_id!r} was judged.", remedy=remedy)
        failed_first = sorted(of_task, key=lambda row: row.success is True)
        row = next((row for row in failed_first if sample in (None, row.sample)), None)
        if row is None:
            remedy = f"There are {', '.join(str(row.sample) for row in of_task)}."
            raise RunError(f"{folder}: there is no answer {sample} to {task_id}.", remedy=remedy)
        answer = first(SAMPLES, task_id=task_id, sample=row.sample)
        passed = sum(one.success is True for one in of_task)
        lines = [
            f"{task_id}, answer {row.sample}: {row.status.value} ({passed} of {len(of_task)} answers pass)",
            block("Prompt", first(PROMPTS, task_id=task_id).get("prompt", "")),
            block("Answer", answer.get("completion", "")),
        ]
        if answer.get("solution") not in (None, answer.get("completion")):
            lines.append(block("Program that was run", answer["solution"]))
        lines.append(f"Tests passed: {row.tests_passed} of {row.tests} in {row.cpu_seconds:.2f} CPU s")
        if rule := explained(answer.get("extraction", "")):
            lines.append(f"The program is {rule}.")
        if row.truncated:
            lines.append("The answer was cut off at the token limit.")
        if row.extraction_failure:
            lines.append(f"No program: {row.extraction_failure}")
        if row.first_failure:
            lines.append(f"First failing test: {row.first_failure}")
        if row.error_class or row.error_message:
            lines.append(f"Error: {row.error_class or ''} {row.error_message}".replace("  ", " "))
        return "\n".join(lines)
