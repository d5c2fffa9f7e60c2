"""`greenward show`: one task of an evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.errors import RunError

if TYPE_CHECKING:
    from greenward.evaluation.rows import EvaluationRow


@click.command()
@click.argument("task_id", metavar="TASK_ID")
@click.option(
    "--in", "folder", type=click.Path(path_type=Path), required=True, help="The evaluation's folder."
)
@click.option("--sample", type=click.IntRange(min=0), help="Which answer.  [default: the first that failed]")
def show(task_id: str, folder: Path, sample: int | None) -> None:
    """Show what was asked, what was answered, and the first test that failed: expected and got.

    \b
    greenward show HumanEval/11 --in runs/eval/mine-humaneval+
    """
    from greenward.text import visible

    click.echo(visible(text_of(folder, task_id, sample)))


def text_of(folder: Path, task_id: str, sample: int | None = None) -> str:
    """The task as text, with what a model wrote as it was written.

    Without `sample`, the first answer that failed, else the first. Raises `RunError` for a folder without
    an evaluation and for a task or sample that it does not hold, naming the nearest.
    """
    from greenward.evaluation.folder import PROMPTS, RESULTS, SAMPLES, read_rows

    if not (folder / RESULTS).is_file():
        raise RunError(
            f"{folder} holds no evaluation ({RESULTS}).",
            remedy="Give the folder that `greenward eval` or `greenward grade` wrote to.",
        )
    row, of_task = _chosen(folder, read_rows(folder / RESULTS), task_id, sample)
    answer = _first(folder / SAMPLES, task_id=task_id, sample=row.sample)
    prompt = _first(folder / PROMPTS, task_id=task_id).get("prompt", "")
    passed = sum(one.success is True for one in of_task)
    lines = [
        f"{task_id}, answer {row.sample}: {row.status.value} ({passed} of {len(of_task)} answers pass)",
        _block("Prompt", prompt),
        _block("Answer", answer.get("completion", "")),
    ]
    if answer.get("solution") not in (None, answer.get("completion")):
        lines.append(_block("Program that was run", answer["solution"]))
    lines.append(f"Tests passed: {row.tests_passed} of {row.tests} in {row.cpu_seconds:.2f} CPU s")
    if row.truncated:
        lines.append("The answer was cut off at the token limit.")
    if row.extraction_failure:
        lines.append(f"No program: {row.extraction_failure}")
    if row.first_failure:
        lines.append(f"First failing test: {row.first_failure}")
    if row.error_class or row.error_message:
        lines.append(f"Error: {row.error_class or ''} {row.error_message}".replace("  ", " "))
    return "\n".join(lines)


def _chosen(
    folder: Path, rows: list[EvaluationRow], task_id: str, sample: int | None
) -> tuple[EvaluationRow, list[EvaluationRow]]:
    """The row of the sample (of the first that failed, if none is named), and all rows of its task."""
    from difflib import get_close_matches

    of_task = sorted((row for row in rows if row.task_id == task_id), key=lambda row: row.sample)
    if not of_task:
        near = get_close_matches(task_id, {row.task_id for row in rows}, n=3)
        remedy = f"Nearest: {', '.join(near)}." if near else None
        raise RunError(f"{folder}: no answer to {task_id!r} was judged.", remedy=remedy)
    if sample is None:
        return min(of_task, key=lambda row: row.success is True), of_task
    for row in of_task:
        if row.sample == sample:
            return row, of_task
    there = ", ".join(str(row.sample) for row in of_task)
    raise RunError(f"{folder}: there is no answer {sample} to {task_id}.", remedy=f"There are {there}.")


def _first(path: Path, **wanted: Any) -> dict[str, Any]:
    from greenward.runs.files import read_jsonl

    return next((row for row in read_jsonl(path).rows if wanted.items() <= row.items()), {})


def _block(title: str, text: str) -> str:
    lines = "\n".join(f"    {line}" for line in text.rstrip().split("\n"))
    return f"{title}:\n{lines}\n"
