"""`greenward doctor` and `completion`: this machine, its isolation of answers, and its shell."""

from __future__ import annotations

import json
from typing import Any

import click
from click.shell_completion import get_completion_class

from greenward.cli.arguments import json_option


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Examine this machine: versions, and the layers of isolation around answers.

    Every layer is tested by an attempt. The exit code is 1 if answers cannot be isolated at level B, which
    training requires by default.
    """
    from greenward.runs.machine import collect_provenance
    from greenward.sandbox.isolation import Layer, Level
    from greenward.sandbox.pool import inspect_sandbox

    machine = collect_provenance()
    isolation, answer_ms = inspect_sandbox()
    if as_json:
        layers = {
            layer.value: {
                "in_force": layer in isolation.layers,
                "stops": layer.stops,
                "reason": "" if layer in isolation.layers else isolation.reason(layer),
            }
            for layer in Layer
        }
        sandbox = {"level": isolation.level.value, "layers": layers, "answer_ms": answer_ms}
        click.echo(json.dumps({"machine": machine, "sandbox": sandbox}, indent=2))
    else:
        _print(machine, isolation, answer_ms)
    if not isolation.level.suffices(Level.B):
        raise SystemExit(1)


def _print(machine: dict[str, Any], isolation: Any, answer_ms: float) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from greenward.sandbox.isolation import Layer, Level

    console = Console()
    console.print()
    console.print(Text("Machine", style="bold green"))
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    for label, value in (
        ("system", f"{machine['system']}, {machine['cpu_count']} CPUs, {machine['device']}"),
        ("python", machine["python"]),
        ("packages", versions),
    ):
        console.print(Text(f"  {label:9} {value}"))
    console.print()
    console.print(Text(f"Sandbox: isolation level {isolation.level.value}", style="bold green"))
    console.print(Text(f"  {isolation.level.meaning}; {answer_ms:.1f} ms for a trivial answer", style="dim"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("layer", "in force", "what it stops"):
        table.add_column(heading)
    for layer in Layer:
        mark = Text("yes", style="green") if layer in isolation.layers else Text("no", style="red")
        table.add_row(layer.value, mark, layer.stops)
    console.print(table)
    for layer in Layer:
        if layer not in isolation.layers:
            reason = isolation.reason(layer)
            console.print(Text(f"  {layer.value}: {reason}. To have it, {layer.remedy}.", style="yellow"))
    if not isolation.level.suffices(Level.B):
        console.print(Text(isolation.warning, style="bold red"))


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
