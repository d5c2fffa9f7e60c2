"""`greenward completion`: the script that makes a shell complete commands, recipes and keys."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a completion script for a shell.

    \b
    bash: greenward completion bash >> ~/.bashrc
    zsh:  greenward completion zsh >> ~/.zshrc
    fish: greenward completion fish > ~/.config/fish/completions/greenward.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices above are click's own
    click.echo(kind(context.find_root().command, {}, "greenward", "_GREENWARD_COMPLETE").source())
