"""`greenward train`: one recipe, one run directory."""

from __future__ import annotations

from pathlib import Path

import click

from greenward.cli.arguments import (
    output_option,
    overrides_argument,
    quiet_option,
    recipe_argument,
    resume_command_on_interrupt,
)


@click.command()
@recipe_argument
@overrides_argument
@click.option("--resume", is_flag=True, help="Continue the run in the output directory, exactly.")
@click.option("--dry-run", is_flag=True, help="Show settings, model size and first prompt; train nothing.")
@output_option("runs/NAME, the recipe's name")
@quiet_option
def train(
    recipe: str, overrides: tuple[str, ...], *, resume: bool, dry_run: bool, output: Path | None, quiet: bool
) -> None:
    """Train as CONFIG says.

    CONFIG is a YAML file or the name of a shipped recipe; KEY=VALUE overrides a key of it.

    \b
    greenward train quickstart
    greenward train my.yaml training.max_steps=50 rewards.0.weight=2
    greenward train my.yaml --resume
    """
    from greenward.config.loading import load_recipe

    resolved = load_recipe(recipe, overrides)

    from greenward.recipes import train as recipes

    if dry_run:
        recipes.dry_run(resolved)
        return
    with resume_command_on_interrupt("train", recipe, *overrides, output=output, quiet=quiet):
        finished = recipes.train(resolved, output or Path("runs") / resolved.name, resume=resume, quiet=quiet)
        if not finished:
            raise KeyboardInterrupt
