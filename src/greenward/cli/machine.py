"""`greenward doctor`, `plan` and `completion`: this machine, machines that are not at hand, and the shell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from greenward.cli.arguments import COUNT, FloatRange, json_option, overrides_argument, recipe_argument

if TYPE_CHECKING:
    from greenward.platforms.detection import Machine


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Examine this machine: GPUs, memory, disk, network, extras, and the layers of isolation around answers.

    Every layer is tested by an attempt. The exit code is 1 if answers cannot be isolated at level B, which
    training requires by default.
    """
    from greenward.platforms.detection import detect, reaches_hub
    from greenward.policies.kernels.build import build
    from greenward.runs.machine import collect_provenance
    from greenward.sandbox.isolation import Layer, Level
    from greenward.sandbox.pool import inspect_sandbox

    found, online = detect(), reaches_hub()
    gpus = [{**asdict(gpu), "bfloat16": gpu.bfloat16} for gpu in found.gpus]
    facts = {**vars(found), "extras": dict(found.extras), "gpus": gpus, "hub_reachable": online}
    built = build()
    machine = {**collect_provenance(), **facts, "preset": found.preset, "warnings": found.warnings}
    machine["kernels"] = {"compiled": built.library is not None, "reason": built.reason}
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
        _print(machine, found, isolation, answer_ms)
    if not isolation.level.suffices(Level.B):
        raise SystemExit(1)


@click.group()
def kernels() -> None:
    """Kernels in C that compute small models on CPUs."""


@kernels.command("build")
def build_kernels() -> None:
    """Compile the kernels for this machine and test them against torch, again if that has been done.

    Training does so by itself when they are missing. Without a compiler, or when the test fails, torch
    computes, and the exit code is 1.
    """
    from greenward.policies.kernels.build import build

    built = build(anew=True)
    click.echo(f"{built.library}: {built.reason}" if built.library else f"No kernels: {built.reason}.")
    raise SystemExit(0 if built.library else 1)


def _rows(machine: dict[str, Any], found: Machine) -> Iterator[tuple[str, str]]:
    """What is printed of a machine: labels and values."""
    limit = f", limited to the time of {found.cpu_limit:g}" if found.cpu_limit else ""
    yield "system", f"{machine['system']}, {machine['cpu_count']} CPUs, {machine['device']}"
    yield "cores", f"{found.cores} for this process{limit}"
    yield "memory", f"{found.memory_mb:,} MiB, {found.available_mb:,} MiB available"
    yield "disk", f"{found.disk_free_gb:,.1f} GiB free here"
    for gpu in found.gpus:
        numbers = "bfloat16, float16" if gpu.bfloat16 else "float16 (no bfloat16)"
        yield "GPU", f"{gpu.name}, {gpu.memory_mb:,} MiB, {numbers}"
    if not found.gpus:
        yield "GPU", "none"
    yield "preset", f"{found.preset} (for pretrained models; docs/machines.md)"
    yield "Slurm", ", ".join(f"{key} {value}" for key, value in (found.slurm or {}).items()) or "none"
    yield "site", f"{found.site}: no connection from its nodes" if found.site else "none that is known"
    yield "hub", "reachable" if machine["hub_reachable"] else "not reachable: models must be in the cache"
    yield "models", f"{found.model_cache} ({'writable' if found.model_cache_writable else 'not writable'})"
    kernels = machine["kernels"]
    yield "kernels", kernels["reason"] if kernels["compiled"] else f"none: {kernels['reason']}"
    yield "python", machine["python"]
    yield "packages", ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    for extra, packages in found.extras.items():
        there = [f"{name} {version}" for name, version in packages.items() if version]
        yield f"[{extra}]", ", ".join(there) or f"not installed: pip install 'greenward[{extra}]'"


def _print(machine: dict[str, Any], found: Machine, isolation: Any, answer_ms: float) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from greenward.sandbox.isolation import Layer, Level

    console = Console()
    console.print()
    console.print(Text("Machine", style="bold green"))
    for label, value in _rows(machine, found):
        console.print(Text(f"  {label:13} {value}"))
    for warning in found.warnings:
        console.print(Text(f"  {warning}", style="yellow"))
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
@recipe_argument
@overrides_argument
@click.option("--gpu", required=True, metavar="NAME", help="v100, a100, h100, h200, l4, 4090, …")
@click.option("--gpus", type=COUNT, default=1, help="How many.")
@click.option("--price", type=FloatRange(min=0), help="Price of one GPU for one hour.")
@click.option("--prompt-tokens", type=COUNT, default=512)
def plan(recipe: str, overrides: tuple[str, ...], **how: Any) -> None:
    """Estimate memory, time and cost of CONFIG on GPUs, from data sheets. Nothing is measured.

    \b
    greenward plan quickstart --gpu h100 --gpus 8 --price 2.5 model=Qwen/Qwen2.5-7B
    """
    from greenward.recipes.fitting import plan_lines

    for line in plan_lines(recipe, overrides, **how):
        click.echo(line)


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
