"""`greenward demo`: from random weights to passing tests, with other arms beside it."""

from __future__ import annotations

from pathlib import Path

import click

from greenward.cli.arguments import (
    output_option,
    overrides_argument,
    quiet_option,
    resume_command_on_interrupt,
)

QUICK = (
    "warm_start.max_steps=20",
    "training.max_steps=2",
    "evaluation.num_questions=16",
    "evaluation.samples=2",
    "evaluation.k=[1,2]",
)


def _seeds(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts) or len(set(map(int, parts))) != len(parts):
        raise click.BadParameter(f"expected different whole numbers with commas between, found {text!r}")
    return tuple(map(int, parts))


@click.command()
@overrides_argument
@click.option("--seeds", default="0,1", show_default=True, callback=_seeds, help="One run for each.")
@click.option("--quick", is_flag=True, help="A few steps only: shows that all works, teaches nothing.")
@click.option("--resume", is_flag=True, help="Continue an interrupted demo in the output directory.")
@output_option("runs/demo")
@quiet_option
def demo(
    overrides: tuple[str, ...],
    *,
    seeds: tuple[int, ...],
    quick: bool,
    resume: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    """Watch a small model learn to write Python.

    Warm start from random weights, then GRPO, rejection sampling and further supervised training for the
    same time each, and a report that compares them.
    """
    from greenward.recipes import demo as recipes

    options = (f"--seeds={','.join(map(str, seeds))}", *(["--quick"] if quick else []))
    with resume_command_on_interrupt("demo", *overrides, *options, output=output, quiet=quiet):
        finished = recipes.demo(
            output or Path("runs/demo"),
            seeds=seeds,
            overrides=(*QUICK, *overrides) if quick else overrides,
            quiet=quiet,
            resume=resume,
        )
        if not finished:
            raise KeyboardInterrupt
