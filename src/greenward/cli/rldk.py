"""Defines `rldk`, which offers the diagnostics under the command names that users of the RLDK tools know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from greenward import __version__
from greenward.cli.diagnose import map_option, run_options
from greenward.cli.main import DIAGNOSING, SETTINGS, Main, run
from greenward.cli.options import PATH, OutputFile, json_option
from greenward.common.terminal import echo, echo_json
from greenward.common.text import visible

if TYPE_CHECKING:
    from greenward.diagnostics.finding import Diagnosis


@click.group(cls=Main, context_settings=SETTINGS)
@click.version_option(__version__, message="%(prog)s (greenward) %(version)s")
def rldk() -> None:
    """Diagnose training runs; the same commands as in `greenward`, and views of parts of them."""


for command in DIAGNOSING:
    rldk.add_command(command)


@rldk.command()
@run_options
@click.option("--output", "-o", type=OutputFile(), help="The file.  [default: standard output]")
def ingest(path: Path, mapping: dict[str, str], run_name: str | None, output: Path | None) -> None:
    """Write a log of any known format as JSON lines, one row a step, under greenward's names."""
    from greenward.diagnostics.diagnose import metrics_as_rows
    from greenward.diagnostics.readers import read_run_signals
    from greenward.runs.files import write_atomically

    signals = read_run_signals(path, mapping=mapping, run_name=run_name)
    content = metrics_as_rows(signals)
    if output is None:
        echo_json(content.decode(), nl=False)
    else:
        write_atomically(output, content)
    for note in signals.notes:
        echo(f"! {note}", err=True)


@rldk.command("validate-format")
@run_options
def validate_format(path: Path, mapping: dict[str, str], run_name: str | None) -> None:
    """Say what a log is read as: its format, steps, and which names are known."""
    from greenward.diagnostics.readers import read_run_signals

    signals = read_run_signals(path, mapping=mapping, run_name=run_name)
    echo(f"{signals.format}: {len(signals.steps):,} steps, {signals.steps[0]} to {signals.steps[-1]}")
    for name in sorted(signals.values):
        theirs = signals.theirs.get(name)
        source = f" (from {visible(theirs, 80)})" if theirs else ""
        echo(f"  {visible(name, 80)}{source}: {int(signals.recorded[name].sum()):,} values")
    for note in signals.notes:
        echo(f"! {note}")


def _view(diagnosis: Diagnosis, view: str) -> NoReturn:
    """What `card` and the commands of one check show of a diagnosis."""
    from greenward.diagnostics.finding import selected
    from greenward.diagnostics.findings import FINDINGS
    from greenward.diagnostics.findings.updates import IMPOSSIBLE_VALUE

    by_name = {name: finding for name, finding in FINDINGS.items() if view in finding.views}
    values = by_name.pop(IMPOSSIBLE_VALUE.name)  # of the signals that the view is about
    signals = {name for one in by_name.values() for name in selected(one.signals, diagnosis.run)}
    found = [
        one
        for one in diagnosis.findings
        if one.name in by_name or (one.name == values.name and not signals.isdisjoint(one.signals))
    ]
    for one in found:
        since = f" from step {one.onset}" if one.onset else ""
        echo(f"{one.severity.upper()}: {one.title}{since}. {one.measured}")
    if not found:
        made = {check for card in diagnosis.cards for check in card.checked}
        names = {check.partition(" (")[0].replace(" ", "-") for check in made}
        ranged = {f"{values.name.replace('-', ' ')} ({name})" for name in signals}
        checked = not names.isdisjoint(by_name) or not made.isdisjoint(ranged)
        echo("Nothing wrong was found." if checked else "Not checked: the run has not logged what it needs.")
    raise SystemExit(1 if any(one.severity != "info" for one in found) else 0)


@rldk.command()
@click.argument("kind", type=click.Choice(("determinism", "drift", "reward")))
@click.argument("run_a", type=PATH)
@click.argument("run_b", type=PATH, required=False)
@map_option
def card(kind: str, run_a: Path, run_b: Path | None, *, mapping: dict[str, str]) -> None:
    """Show one part of a diagnosis of RUN_A, or how RUN_B differs from it.

    A card of determinism compares two repetitions; of one run, it says what keeps that from being repeated.
    Exit code: 1 findings or a difference, else 0.
    """
    from greenward.diagnostics.diagnose import diagnose_run
    from greenward.diagnostics.proof import audit_environment

    if run_b is not None:
        from greenward.cli.diagnose import DIFF_EXIT_CODES
        from greenward.diagnostics.diff import diff_runs

        found = diff_runs(run_a, run_b, mapping=mapping)
        echo(found.headline)
        raise SystemExit(DIFF_EXIT_CODES[found.verdict])
    if kind == "determinism":
        for line in audit_environment(run_a):
            echo(line)
        echo("Whether it repeats is shown by a second run (RUN_B), or by check-determinism.")
        return
    _view(diagnose_run(run_a, mapping=mapping), kind)


def _view_command(name: str, about: str) -> None:
    @rldk.command(name, help=about)
    @run_options
    def view(path: Path, mapping: dict[str, str], run_name: str | None) -> None:
        from greenward.diagnostics.diagnose import diagnose_run

        _view(diagnose_run(path, mapping=mapping, run_name=run_name), name)


_view_command("length-bias", "Whether the reward of RUN follows the length of answers.")
_view_command(
    "kl-drift", "Whether the policy of RUN runs away from its reference, or sampler and learner differ."
)


@rldk.command("log-scan")
@run_options
@click.option("--rules", default="grpo_safe", help="A preset or a YAML file.")
def log_scan(path: Path, mapping: dict[str, str], run_name: str | None, rules: str) -> None:
    """List the alarms of `greenward monitor --once` over RUN, as JSON lines."""
    from dataclasses import asdict

    from greenward.diagnostics.monitor import Monitor
    from greenward.diagnostics.readers import read_run_signals
    from greenward.runs.files import dump_json

    signals = read_run_signals(path, mapping=mapping, run_name=run_name)
    monitor = Monitor(rules, say=lambda text: None)
    monitor.follow(signals, ended=True)
    for alarm in monitor.found:
        echo_json(dump_json(asdict(alarm)))
    raise SystemExit(1 if monitor.found else 0)


@rldk.command("reward-drift")
@click.argument("a", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("b", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@json_option
def reward_drift(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare the scores that two reward models give to the same prompts.

    A and B are JSON lines with `prompt` and `score`. A shift, a change of scale and a change of order are
    told apart: the last one changes what is learned.
    """
    from greenward.diagnostics.calibration import compare_scores

    found = compare_scores(a, b)
    if as_json:
        echo_json(json.dumps(vars(found)))
        return
    echo(found.headline)
    for name, value in vars(found).items():
        echo(f"  {name.replace('_', ' '):24}{value:.4g}")


@rldk.command("env-audit")
@click.argument("path", metavar="RUN", type=PATH)
def env_audit(path: Path) -> None:
    """Say what of the environment of RUN keeps it from being repeated: versions, machine, settings of
    libraries.
    """
    from greenward.diagnostics.proof import audit_environment

    for line in audit_environment(path):
        echo(line)


def main() -> NoReturn:
    """Run the command line and exit as `greenward` does."""
    run(rldk, "rldk")
