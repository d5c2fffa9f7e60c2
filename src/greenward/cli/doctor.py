"""`greenward doctor`: what this machine offers, and how well it contains answers."""

from __future__ import annotations

import json
from typing import Any

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> None:
    """Examine this machine: versions, and the layers of isolation around answers.

    Every layer is tried out, not looked up. Exit code 1 if answers cannot be isolated at the level
    that training asks for by default (B).
    """
    from greenward.runs.provenance import collect_provenance
    from greenward.sandbox.examination import examine

    machine, isolation = collect_provenance(), examine()
    if as_json:
        layers = {
            layer.value: {"in_force": layer.in_force, "stops": layer.stops, "reason": layer.reason}
            for layer in isolation.layers
        }
        sandbox = {"level": isolation.level.value, "layers": layers, "answer_ms": isolation.answer_ms}
        click.echo(json.dumps({"machine": machine, "sandbox": sandbox}, indent=2))
    else:
        _print(machine, isolation)
    if not isolation.contains_answers:
        raise SystemExit(1)


def _print(machine: dict[str, Any], isolation: Any) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

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
    console.print(
        Text(f"  {isolation.level.meaning}; {isolation.answer_ms:.1f} ms for a trivial answer", style="dim")
    )
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("layer", "in force", "what it stops"):
        table.add_column(heading)
    for layer in isolation.layers:
        mark = Text("yes", style="green") if layer.in_force else Text("no", style="red")
        table.add_row(layer.value, mark, layer.stops)
    console.print(table)
    for layer in isolation.layers:
        if not layer.in_force:
            console.print(
                Text(f"  {layer.value}: {layer.reason}. To have it, {layer.remedy}.", style="yellow")
            )
    if not isolation.contains_answers:
        console.print(Text(isolation.warning, style="bold red"))
