"""`greenward show` and `compare`: one task of an evaluation, and two evaluations paired by problem."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.cli.arguments import COUNT, PATH, json_option
from greenward.errors import RunError
from greenward.text import visible

if TYPE_CHECKING:
    from greenward.evaluation.comparison import PairedComparison
    from greenward.evaluation.rows import EvaluationRow

MAX_IDS = 40  # printed of each kind; --json has all


@click.command()
@click.argument("task_id", metavar="TASK_ID")
@click.option("--in", "folder", type=PATH, required=True, help="The evaluation's folder.")
@click.option("--sample", type=click.IntRange(min=0), help="Which answer.  [default: the first that failed]")
def show(task_id: str, folder: Path, sample: int | None) -> None:
    """Show what was asked, what was answered, and the first test that failed: expected and got.

    \b
    greenward show HumanEval/11 --in runs/eval/mine-humaneval+
    """
    click.echo(visible(text_of(folder, task_id, sample)))


def text_of(folder: Path, task_id: str, sample: int | None = None) -> str:
    """The task as text, with what a model wrote as it was written.

    Without `sample`, the first answer that failed, else the first. Raises `RunError` for a folder without
    an evaluation and for a task or sample that it does not hold, naming the nearest.
    """
    from greenward.evaluation.folder import RESULTS
    from greenward.user_files import expecting

    if not (folder / RESULTS).is_file():
        raise RunError(
            f"{folder} holds no evaluation ({RESULTS}).",
            remedy="Give the folder that `greenward eval` or `greenward grade` wrote to.",
        )
    with expecting("the files of an evaluation", folder, RunError):
        return _text_of(folder, task_id, sample)


def _text_of(folder: Path, task_id: str, sample: int | None) -> str:
    from greenward.evaluation.folder import PROMPTS, RESULTS, SAMPLES, read_rows

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


@click.command()
@click.argument("a", metavar="A", type=PATH)
@click.argument("b", metavar="B", type=PATH)
@click.option("--k", type=COUNT, default=1, help="Compare pass@K.")
@json_option
def compare(a: Path, b: Path, *, k: int, as_json: bool) -> None:
    """Test whether B is better than A, or whether chance explains the difference.

    A and B are folders that `greenward eval` or `greenward grade` has written, run directories (their
    last evaluation counts) or EvalPlus's eval_results.json. The problems that both answered are paired:
    exact McNemar test for one answer per problem, else a paired randomisation test.

    \b
    greenward compare evaluations/before evaluations/after
    greenward compare runs/base runs/trained --k 5
    """
    from greenward.evaluation.comparison import compare as compare_evaluations
    from greenward.evaluation.comparison import read_evaluation

    found = compare_evaluations(read_evaluation(a), read_evaluation(b), k=k)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)


def _print(found: PairedComparison) -> None:
    for warning in _warnings(found):
        click.secho(visible(f"! {warning}"), fg="yellow")
    click.secho(visible(found.claim), bold=True)
    for side, name, rate in (("A", found.name_a, found.a), ("B", found.name_b, found.b)):
        interval = f"[{rate.low:.1%}, {rate.high:.1%}]"
        click.echo(visible(f"  {side}           pass@{found.k} {rate.value:6.1%} {interval:16} {name}"))
    points = found.difference
    interval = f"[{100 * points.low:+.1f}, {100 * points.high:+.1f}]"
    click.echo(f"  difference  {100 * points.value:+.1f} points, 95 % interval {interval}")
    if found.mid_p is not None:
        click.echo(f"  mid-p       {found.mid_p:.2g}")
    click.echo(f"  {_detectable(found)}")
    for label, ids in (("won by B", found.won), ("lost by B", found.lost)):
        more = f" … and {len(ids) - MAX_IDS} more" if len(ids) > MAX_IDS else ""
        click.echo(visible(f"  {label:11} {len(ids)}  {' '.join(ids[:MAX_IDS])}{more}".rstrip()))


def _warnings(found: PairedComparison) -> list[str]:
    warnings = [f"{name} differs: {x} in A, {y} in B" for name, (x, y) in found.other_settings.items()]
    unpaired = len(found.unpaired_a) + len(found.unpaired_b)
    if unpaired:
        warnings.append(
            f"THE PROBLEMS DIFFER: {found.problems} are compared; {len(found.unpaired_a)} are only in A and "
            f"{len(found.unpaired_b)} only in B ({_some((*found.unpaired_a, *found.unpaired_b))})"
        )
    if found.too_few:
        warnings.append(
            f"{len(found.too_few)} problems left out: fewer than {found.k} answers on a side "
            f"({_some(found.too_few)})"
        )
    if found.infrastructure:
        warnings.append(
            f"{found.infrastructure} answers were lost to the infrastructure and count as not passed"
        )
    return warnings


def _some(ids: tuple[str, ...]) -> str:
    return " ".join(ids[:3]) + (" …" if len(ids) > 3 else "")


def _detectable(found: PairedComparison) -> str:
    if found.detectable is None:
        return f"{found.problems} problems are too few to show any difference (power 80 %, alpha 5 %)"
    return (
        f"the smallest difference that these {found.problems} problems can show (power 80 %, alpha 5 %): "
        f"{100 * found.detectable:.1f} points"
    )
