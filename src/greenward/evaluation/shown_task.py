"""One task of an evaluation as people read it: prompt, answer, first failing test."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from greenward.errors import RunError
from greenward.evaluation.folder import PROMPTS, RESULTS, SAMPLES, read_results
from greenward.evaluation.results import Result
from greenward.runs.files import read_jsonl


def show_task(folder: Path, task_id: str, sample: int | None = None) -> str:
    """The task as text. What a model wrote is in it as it was written: make it printable.

    Without `sample`, the first answer that failed, else the first. Raises `RunError` for a folder without
    an evaluation and for a task or sample that it does not hold, naming the nearest.
    """
    if not (folder / RESULTS).is_file():
        raise RunError(
            f"{folder} holds no evaluation ({RESULTS}).",
            remedy="Give the folder that `greenward eval` or `greenward grade` wrote to.",
        )
    results = read_results(folder / RESULTS)
    of_task = {result.sample: result for result in results if result.task_id == task_id}
    if not of_task:
        near = get_close_matches(task_id, {result.task_id for result in results}, n=3)
        raise RunError(
            f"{folder}: no answer to {task_id!r} was judged.",
            remedy=f"Nearest: {', '.join(near)}." if near else None,
        )
    if sample is None:
        sample = min(of_task, key=lambda number: (of_task[number].passed, number))
    if sample not in of_task:
        raise RunError(
            f"{folder}: there is no answer {sample} to {task_id}.",
            remedy=f"There are {', '.join(map(str, sorted(of_task)))}.",
        )
    result = of_task[sample]
    answer = _row(folder / SAMPLES, task_id=task_id, sample=sample)
    prompt = _row(folder / PROMPTS, task_id=task_id).get("prompt", "")
    passed = sum(one.passed for one in of_task.values())
    blocks = [
        f"{task_id}, answer {sample}: {result.status.value} ({passed} of {len(of_task)} answers pass)",
        _block("Prompt", prompt),
        _block("Answer", answer.get("completion", "")),
    ]
    if answer.get("solution") not in (None, answer.get("completion")):
        blocks.append(_block("Program that was run", answer["solution"]))
    return "\n".join([*blocks, *_findings(result)])


def _findings(result: Result) -> list[str]:
    told = [f"Tests passed: {result.tests_passed} of {result.tests} in {result.cpu_seconds:.2f} CPU s"]
    if result.truncated:
        told.append("The answer was cut off at the token limit.")
    if result.extraction_failure:
        told.append(f"No program: {result.extraction_failure}")
    if result.first_failure:
        told.append(f"First failing test: {result.first_failure}")
    if result.error_class or result.error_message:
        told.append(f"Error: {result.error_class or ''} {result.error_message}".replace("  ", " "))
    return told


def _block(title: str, text: str) -> str:
    lines = "\n".join(f"    {line}" for line in text.rstrip().split("\n"))
    return f"{title}:\n{lines}\n"


def _row(path: Path, **wanted: Any) -> dict[str, Any]:
    rows = (row for row in read_jsonl(path).rows if wanted.items() <= row.items())
    return next(rows, {})
