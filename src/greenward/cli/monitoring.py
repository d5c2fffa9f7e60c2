"""`greenward monitor` and `watch`: a training that runs, followed by its files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from greenward.cli.arguments import COUNT, FloatRange, OutputFile, pick_option, run_argument
from greenward.errors import DiagnosticsError
from greenward.text import visible

if TYPE_CHECKING:
    from greenward.diagnostics.signals import RunSignals

_EVERY = click.option(
    "--every", type=FloatRange(0.1), default=5.0, help="Seconds between looks at the files."
)
_SHOWN = ("reward/mean", "pass_rate", "evaluation/score", "loss", "grad_norm", "entropy", "kl", "approx_kl",
          "clip/fraction", "importance/difference", "completion/mean_length", "completion/truncated",
          "groups/with_signal", "groups/without_signal", "learning_rate", "perf/tokens_per_second",
          "perf/rss_mb",
          "perf/device_memory_mb", "time/step")  # fmt: skip


@click.command()
@run_argument
@click.option("--rules", default="default", help="A preset or a YAML file (docs/monitor.md).")
@click.option(
    "--pid", type=COUNT, help="The process of the training: the action stop ends it, and its end ends this."
)
@click.option(
    "--alarms", type=OutputFile(appended="severity"), help="Append each alarm to this file as JSON."
)
@click.option("--once", is_flag=True, help="Read what is there, and end.")
@click.option(
    "--fail-on", type=click.Choice(("warning", "critical")), default="critical",
    help="Exit with 1 when an alarm of this weight was raised.",
)  # fmt: skip
@_EVERY
@pick_option
def monitor(run: Path, *, rules: str, pid: int | None, alarms: Path | None, fail_on: str, **how: Any) -> None:
    """Follow the log of RUN while it grows, and raise alarms.

    By tests of changes, whose chance of any false alarm in a healthy run is bounded, and by rules. RUN is
    anything that `greenward diagnose` reads. Ctrl-C ends it.

    \b
    greenward monitor runs/one
    greenward monitor outputs/ --rules grpo_safe --pid 4711
    """
    from greenward.diagnostics.monitor import Monitor

    watching = Monitor(rules, say=click.echo, alarms=alarms, pid=pid)
    seen = -1
    for signals in _followed(run, pid=pid, **how):
        watching.tests.kind = signals.kind
        new = signals.steps > seen
        for place in new.nonzero()[0].tolist():
            watching.log(int(signals.steps[place]), signals.row(place))
        seen = int(signals.steps[-1])
    for line in watching.silent_rules():
        click.echo(line, err=True)
    bad = [one for one in watching.found if one.severity == "critical" or fail_on == "warning"]
    if how["once"]:
        click.echo(f"{len(watching.found)} alarm(s) up to step {seen}.")
    raise SystemExit(1 if bad else 0)


@click.command()
@run_argument
@click.option("--once", is_flag=True, help="Show what is there, and end.")
@_EVERY
@pick_option
def watch(run: Path, **how: Any) -> None:
    """Show the signals of RUN in the terminal while it trains, with the diagnosis so far. Ctrl-C ends it."""
    from rich.live import Live

    from greenward.diagnostics.diagnose import diagnose_signals
    from greenward.diagnostics.signal_tests import Thresholds

    with Live(auto_refresh=False) as live:
        for signals in _followed(run, **how):
            headline = diagnose_signals(signals, Thresholds()).headline
            live.update(_view(signals, headline), refresh=True)


def _view(signals: RunSignals, headline: str) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from greenward.reports.figures import value_text
    from greenward.reports.render_terminal import spark_line

    table = Table(box=None, pad_edge=False)
    for column in ("Signal", "First", "", "Last"):
        table.add_column(column)
    for name in _SHOWN:
        if values := signals.series(name)[1].tolist():
            first, last = (value_text(value, "number") for value in (values[0], values[-1]))
            label, line = visible(signals.theirs.get(name, name), 40), Text(spark_line(values, 40), "cyan")
            table.add_row(Text(label), first, line, last)
    title = f"{signals.path.name}, step {signals.steps[-1]:,}"
    return Group(Text(visible(title), "bold"), Text(visible(headline)), table)


def _followed(
    run: Path, *, pick: str | None, every: float, once: bool, pid: int | None = None
) -> Iterator[RunSignals]:
    """The signals of the run, again whenever its files have grown, until the process `pid` has ended."""
    from greenward.diagnostics.readers import read_run_signals

    steps, said = -1, ""
    while True:
        alive = pid is None or _is_alive(pid)
        try:
            signals = read_run_signals(run, pick=pick)
        except DiagnosticsError as error:
            if once or not alive:
                raise
            if said != str(error):
                said = str(error)
                click.echo(f"Waiting: {visible(said)}", err=True)
        else:
            if int(signals.steps[-1]) != steps:
                steps = int(signals.steps[-1])
                yield signals
        if once or not alive:
            return
        time.sleep(every)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
