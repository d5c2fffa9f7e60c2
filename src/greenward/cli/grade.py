"""`greenward grade`: answers from elsewhere on a suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import click

from greenward.cli.evaluation_options import chosen_grading, finish, grading_options


@click.command()
@click.argument("samples", metavar="SAMPLES", type=click.Path(path_type=Path))
@click.option("--suite", required=True, help="mbpp, mbpp+, humaneval, humaneval+, quixbugs, a file …")
@click.option(
    "--extract",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    show_default=True,
    help="Take programs out of text; auto: if most answers hold code fences.",
)
@grading_options
def grade(samples: Path, suite: str, extract: Literal["auto", "always", "never"], **chosen: Any) -> None:
    """Run answers that were sampled elsewhere and report how many are right.

    SAMPLES is a JSON Lines file of {"task_id", "completion"} (continues the prompt) or {"task_id",
    "solution"} (a whole program), several lines for a task if there are several answers, or EvalPlus's
    folder TASK_ID/N.py. Not all problems need an answer. More answers may be added to the file later:
    the same command grades what is new.

    \b
    greenward grade samples.jsonl --suite humaneval+
    greenward grade samples.jsonl --suite mbpp+ --eval-results --out graded
    """
    from greenward import api

    finish(
        api.grade(
            samples,
            suite,
            k=chosen["k"],
            extract=extract,
            skip_bad_rows=chosen["skip_bad_rows"],
            output=chosen["out"],
            quiet=chosen["quiet"],
            **chosen_grading(chosen),
        ),
        chosen,
    )
