"""`check-determinism`, `replay`, `bisect` and `diff-ckpt`: proof of a cause by training again, or by
weights.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import click

from greenward.cli.arguments import (
    COUNT,
    PATH,
    POSITIVE,
    FloatRange,
    comma_separated,
    folder_option,
    json_option,
    run_argument,
    show_report,
)
from greenward.text import visible

_FINDING = click.option("--finding", metavar="NAME", help="The finding that is meant.  [default: the cause]")
_STEPS = click.option("--steps", type=COUNT, help="The last step of a replay.  [default: past the onset]")
_TRUST = click.option(
    "--trust-code",
    "trusts_code",
    is_flag=True,
    help="Use the code, commands and servers that RUN's config names.",
)
_TRAIN_HERE = "Train here.  [default: a folder that is deleted afterwards]"


@click.command("check-determinism")
@click.option(
    "--cmd", "-c", "command", required=True, help="The command; {out} in it is a folder of its own."
)
@click.option("--replicas", "-r", type=click.IntRange(2), default=3, help="How often it is run.")
@click.option("--log", default="{out}", help="The log that it writes.")
@click.option("--tolerance", "-t", type=FloatRange(0), default=1e-6, help="Relative.")
@click.option("--timeout", type=POSITIVE, help="Seconds for each run.")
def check_determinism(
    *, command: str, replicas: int, log: str, tolerance: float, timeout: float | None
) -> None:
    """Run a command several times, and name the first step and signal that differ.

    Exit code: 0 equal, 1 different, 2 a command that failed or logged no metrics.

    \b
    greenward check-determinism -c "greenward train quickstart training.max_steps=5 --output {out}/run"
    """
    from greenward.diagnostics.proof import check_determinism

    found = check_determinism(command, replicas, log=log, tolerance=tolerance, seconds=timeout)
    for repetition, one in found.items():
        click.echo(
            f"DIFFERENT at step {one.step} in {one.signal}: {one.first:.8g} in run 1, {one.other:.8g} in run "
            f"{repetition}"
        )
    if not found:
        click.echo(f"DETERMINISTIC: {replicas} runs logged equal numbers (relative tolerance {tolerance:g}).")
    raise SystemExit(1 if found else 0)


@click.command()
@run_argument
@_FINDING
@_STEPS
@_TRUST
@folder_option("--output", _TRAIN_HERE, "run")
def replay(run: Path, *, output: Path | None, **chosen: Any) -> None:
    """Train RUN again from the last checkpoint before its fault, and see whether the fault returns.

    Exit code: 1 it returns, 0 it does not, 2 an error.
    """
    from greenward.diagnostics.proof import replay

    with tempfile.TemporaryDirectory() as temporary:
        found = replay(run, output or Path(temporary) / "replay", **chosen)
    place = f"steps {found.first_step + 1} to {found.last_step}"
    if found.finding is not None:
        since = f" from step {found.finding.onset}" if found.finding.onset else ""
        click.echo(f"THE FAULT RETURNS: {found.finding.name}{since} in {place}.")
    else:
        click.echo(f"THE FAULT IS GONE in {place}: checkpoint, settings and seed alone do not lead to it.")
    if found.difference is None:
        click.echo("The numbers are those of the run.")
    else:
        step, signal, first, other = found.difference
        click.echo(
            f"The numbers differ from step {step} on, in {signal}: {first:.6g} in the run, {other:.6g} now."
        )
    raise SystemExit(0 if found.finding is None else 1)


@click.command()
@run_argument
@click.option("--good", type=PATH, help="A run without the fault.  [default: the recipe]")
@click.option(
    "--keys", callback=comma_separated, help="The settings to try, with commas.  [default: all that differ]"
)
@_FINDING
@_STEPS
@_TRUST
@folder_option("--output", _TRAIN_HERE, "runs")
def bisect(run: Path, *, output: Path | None, **chosen: Any) -> None:
    """Find the setting that causes the fault of RUN, by short replays in which one is put back at a time.

    Exit code: 0 a setting was found that cures the fault, 1 none does alone, 2 an error.
    """
    from greenward.diagnostics.proof import bisect_settings

    with tempfile.TemporaryDirectory() as temporary:
        found = bisect_settings(
            run, output or Path(temporary), say=lambda text: click.echo(visible(text)), **chosen
        )
    cure = found.cure
    if not found.returns:
        click.echo("CANNOT TELL: the fault does not return when the run is repeated unchanged.")
    elif cure is None:
        click.echo(f"NO SINGLE SETTING cures {found.fault.name}; {len(found.trials)} were tried.")
    else:
        cured = f"CURED by {cure.key}: {cure.value} caused {found.fault.name}, {cure.reference} does not."
        click.echo(visible(cured))
    raise SystemExit(0 if cure is not None else 1)


@click.command("diff-ckpt")
@click.argument("a", type=click.Path(exists=True, path_type=Path))
@click.argument("b", type=click.Path(exists=True, path_type=Path))
@json_option
def diff_ckpt(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare the weights of two checkpoints: L2 and cosine of each tensor, the top movers first."""
    from greenward.diagnostics.checkpoint_diff import checkpoint_report

    show_report(checkpoint_report(a, b), as_json=as_json)
