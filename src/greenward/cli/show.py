"""`greenward show`: one task of an evaluation."""

from __future__ import annotations

from pathlib import Path

import click


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
    from greenward.evaluation.shown_task import show_task
    from greenward.text import visible

    click.echo(visible(show_task(folder, task_id, sample)))
