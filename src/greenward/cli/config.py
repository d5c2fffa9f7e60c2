"""`greenward config`: what a recipe comes to, and whether it can be right."""

from __future__ import annotations

import click

from greenward.cli.arguments import overrides_argument, recipe_argument


@click.group()
def config() -> None:
    """Show or check a recipe."""


@config.command()
@recipe_argument
@overrides_argument
def show(recipe: str, overrides: tuple[str, ...]) -> None:
    """Print every key of CONFIG as resolved, defaults included."""
    from greenward.config.loading import dump, load_recipe

    click.echo(dump(load_recipe(recipe, overrides)), nl=False)


@config.command()
@recipe_argument
@overrides_argument
def check(recipe: str, overrides: tuple[str, ...]) -> None:
    """Say whether CONFIG can be trained with, and if not, why."""
    from greenward.config.loading import find_recipe, load_recipe

    load_recipe(recipe, overrides)
    click.echo(f"{find_recipe(recipe)}: good.")


@config.command()
def schema() -> None:
    """Print the JSON Schema of a recipe, for editors."""
    from greenward.config.loading import schema_json

    click.echo(schema_json())
