"""Defines the commands that diagnose runs, compare two, follow one that trains, and prove a cause."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from greenward.cli.options import (
    COUNT,
    PATH,
    POSITIVE,
    Decorator,
    FloatRange,
    OutputFile,
    alpha_option,
    comma_separated,
    fail_on_option,
    flag,
    folder_option,
    json_option,
    pairs,
    run_argument,
    run_name_option,
    show_report,
    with_options,
)
from greenward.common.errors import DiagnosticsError
from greenward.common.terminal import echo
from greenward.common.text import visible

if TYPE_CHECKING:
    from greenward.diagnostics.finding import Diagnosis
    from greenward.diagnostics.signals import RunSignals
    from greenward.reports.document import Severity


DIFF_EXIT_CODES = {
    "same": 0,
    "no systematic difference": 0,
    "diverged": 1,
    "not reproducible": 1,
    "cannot tell": 2,
}
_RUN: dict[str, Any] = {"metavar": "RUN", "required": True, "type": PATH}


map_option: Decorator = click.option(
    "--map",
    "mapping",
    multiple=True,
    metavar="THEIRS=OURS",
    callback=pairs,
    help="greenward's name for a name of the log, such as my_score=reward/mean; repeatable.",
)


def diagnosis_options(output: str) -> Decorator:
    """The options that `reward-health` and `evals` share; `output` names the files that they write."""
    return with_options(
        click.option("--run", help="A run directory.", **_RUN),
        folder_option("--output-dir", f"Write {output} here, in place of older ones.", "report"),
        fail_on_option("critical"),
        alpha_option,
        map_option,
        json_option,
    )


run_options = with_options(click.argument("path", metavar="RUN", type=PATH), run_name_option, map_option)
"""RUN of any format as `path`, `--run` and `--map`."""


@click.command()
@run_options
@fail_on_option("warning")
@alpha_option
@click.option("--memory-limit-mb", type=POSITIVE, help="MiB, for the time to out-of-memory.")
@click.option("--gpus", type=COUNT, help="GPUs of the run, for its GPU-hours.")
@click.option("--gpu-hour-cost", type=FloatRange(0), help="Price of one GPU-hour.")
@flag("--verbose", help="Print all: each topic, each action, what could not be checked.")
@folder_option("--output-dir", "Write diagnosis.html, .md and .json here.", "report")
@json_option
def diagnose(
    path: Path,
    *,
    output_dir: Path | None,
    fail_on: Severity,
    as_json: bool,
    verbose: bool,
    gpus: int | None,
    gpu_hour_cost: float | None,
    **settings: Any,
) -> None:
    """Say what is wrong with RUN, since when, and what to do: one verdict with one cause.

    RUN is a run directory, or the log of another trainer, as a file or a folder: trainer_state.json (TRL,
    transformers), verl, OpenRLHF, prime-rl, Tinker cookbook, TensorBoard, W&B, Trackio, MLflow, Aim, SB3,
    RLlib, ML-Agents, JSON lines, tables, notebooks, printed output; - reads what is pasted. Exit code: 0
    healthy, 1 findings at or above --fail-on, 2 an error or too little data to tell.

    \b
    greenward diagnose runs/one
    greenward diagnose outputs/checkpoint-500/trainer_state.json --output-dir diagnosis
    """
    from greenward.diagnostics.diagnose import diagnose_run

    if gpu_hour_cost is not None and gpus is None:
        raise click.UsageError("--gpu-hour-cost needs --gpus: how many GPUs the run used")
    _finish(
        diagnose_run(path, **settings), output_dir, "diagnosis", as_json=as_json, fail_on=fail_on,
        verbose=verbose, gpus=gpus, gpu_hour_cost=gpu_hour_cost,
    )  # fmt: skip


@click.command("reward-health")
@diagnosis_options("reward_health.html, .md and .json, each card, and training_metrics.jsonl")
@click.option(
    "--calibration-threshold",
    type=FloatRange(0, 1),
    default=0.7,
    help="A calibration score below it is a finding.",
)
@click.option(
    "--memory-limit-mb", type=POSITIVE, help="MiB, for the time to out-of-memory.  [default: the machine's]"
)
def reward_health(
    run: Path, *, output_dir: Path | None, fail_on: Severity, as_json: bool, **settings: Any
) -> None:
    """Examine whether the training of RUN and its reward are sound.

    Memory, speed, gradients, rewards and their balance, exploration, and the calibration of a reward
    model; each finding with evidence, onset and what to do. Exit code: 0 healthy, 1 findings at or above
    --fail-on, 2 an error or too little data to tell.

    \b
    greenward reward-health --run runs/one --output-dir code_analysis
    """
    from greenward.diagnostics.diagnose import diagnose_reward_health

    diagnosis = diagnose_reward_health(run, **settings)
    _finish(diagnosis, output_dir, "reward_health", as_json=as_json, fail_on=fail_on)


@click.command()
@diagnosis_options("code_eval.html, .md and .json (named for the suite)")
@click.option(
    "--suite", default="code", help="code: everything; or the name of a suite that RUN was evaluated on."
)
def evals(
    run: Path, *, suite: str, output_dir: Path | None, fail_on: Severity, as_json: bool, **settings: Any
) -> None:
    """Examine how good what RUN learned is, over training.

    Held-out and suite evaluations before and after, paired by problem; quality, failures, length and
    variety of the answers in training. Exit code: 0 nothing wrong, 1 findings at or above --fail-on, 2 an
    error or too little data to tell. `greenward eval` evaluates a model; this reads what a run recorded.

    \b
    greenward evals --run runs/one --suite code --output-dir code_eval
    """
    from greenward.diagnostics.diagnose import diagnose_evals
    from greenward.runs.trackers import tracker_name

    diagnosis, stem = diagnose_evals(run, suite, **settings), f"{tracker_name(suite)}_eval"
    _finish(diagnosis, output_dir, stem, as_json=as_json, fail_on=fail_on)


def _finish(
    diagnosis: Diagnosis,
    output_dir: Path | None,
    stem: str,
    *,
    as_json: bool,
    fail_on: Severity,
    verbose: bool = False,
    **cost: Any,
) -> NoReturn:
    """Write the diagnosis as files of the name `stem`, print it, and say by the exit code what was found."""
    from greenward.diagnostics.diagnose import diagnosis_report, write_reward_health

    report, written = diagnosis_report(diagnosis, **cost), list[Path]()
    if output_dir is not None and stem == "reward_health":
        written = write_reward_health(diagnosis, output_dir)
    elif output_dir is not None:
        from greenward.reports.write import write_report

        written = list(write_report(report, output_dir, stem).values())
    is_short = stem == "diagnosis" and not verbose
    show_report(report, as_json=as_json, brief=is_short, whole=verbose)
    if not (as_json or verbose):
        missing = len(diagnosis.gaps)
        unchecked = f"{missing} check{'s' if missing > 1 else ''} could not be made. " if missing else ""
        echo(f"{unchecked}Everything: {'--verbose, ' if is_short else ''}--output-dir or --json.")
    if written:
        more = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
        echo(f"Wrote {written[0]}{more}", err=True)
    raise SystemExit(diagnosis.exit_code(fail_on))


@click.command()
@click.argument("runs", metavar="[A] [B]", nargs=-1, type=PATH)
@click.option("--a", "a", type=PATH, help="The run A, where it is no argument.")
@click.option("--b", "b", type=PATH, help="The run B.")
@click.option(
    "--signals", multiple=True, callback=comma_separated, help="Names, with commas.  [default: all]"
)
@map_option
@json_option
@folder_option("--output-dir", "Write diff_report.json and diff_report.md here, too.", "report")
def diff(
    runs: tuple[Path, ...], *, a: Path | None, b: Path | None, signals: list[str],
    mapping: dict[str, str], as_json: bool, output_dir: Path | None,
) -> None:  # fmt: skip
    """Find where run B begins to differ from run A: the settings, and the first step of each signal.

    Runs that begin with equal numbers are compared value by value; others by a test that allows for
    autocorrelation and for the number of signals. Two runs of one seed and one config whose first numbers
    differ are not reproducible. Exit code: 0 no difference, 1 diverged or not reproducible, 2 an error or
    too little data to tell.

    \b
    greenward diff runs/one runs/two
    greenward diff --a runs/one --b runs/two --signals gradient_norm,code_score
    """
    left = list(runs)
    a = a or (left.pop(0) if left else None)
    b = b or (left.pop(0) if left else None)
    if a is None or b is None or left:
        raise click.UsageError("two runs are compared: greenward diff A B.")
    from greenward.diagnostics.diff import diff_report, diff_runs
    from greenward.reports.write import write_report

    found = diff_runs(a, b, signals, mapping=mapping)
    report = diff_report(found)
    show_report(report, as_json=as_json)
    if output_dir is not None:
        for path in write_report(report, output_dir, "diff_report", ("json", "markdown")).values():
            echo(f"Wrote {path}", err=True)
    raise SystemExit(DIFF_EXIT_CODES[found.verdict])


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
@click.option("--rules", default="default", help="A preset or a YAML file of limits and alerts.")
@click.option(
    "--pid", type=COUNT, help="The process of the training: the action stop ends it, and its end ends this."
)
@click.option(
    "--alarms", type=OutputFile(appended="severity"), help="Append each alarm to this file as JSON."
)
@click.option(
    "--webhook",
    metavar="NAME|ADDRESS",
    help="Send alarms there: an environment variable that holds the address, or the address.",
)
@click.option(
    "--webhook-format",
    type=click.Choice(("auto", "json", "slack", "discord")),
    default="auto",
    help="auto: by the host.",
)
@click.option("--webhook-role", metavar="ID", help="Role in Discord that a critical alarm mentions.")
@flag("--once", help="Read what is there, and end.")
@click.option(
    "--fail-on", type=click.Choice(("warning", "critical")), default="critical",
    help="Exit with 1 when an alarm of this weight was raised.",
)  # fmt: skip
@_EVERY
@run_name_option
@map_option
def monitor(
    run: Path, *, rules: str, pid: int | None, alarms: Path | None, webhook: str | None, webhook_format: str,
    webhook_role: str | None, fail_on: str, **how: Any,
) -> None:  # fmt: skip
    """Follow the log of RUN while it grows, and raise alarms.

    By tests of changes, whose chance of any false alarm in a healthy run is bounded, and by rules. An
    alarm of a test is provisional until the diagnosis of the rows so far confirms it. With --once, and when
    the process of --pid has ended, alarms are what `greenward diagnose` finds. RUN is anything that it reads.

    \b
    greenward monitor runs/one
    greenward monitor outputs/ --rules grpo_safe --pid 4711
    greenward monitor runs/one --webhook SLACK_WEBHOOK
    greenward monitor runs/one --rules alerts.yaml

    \b
    alerts.yaml:
        actions:                        # of the tests
          - warn                        # print; stop ends --pid
          - {webhook: CHAT_WEBHOOK}     # a variable with the address
          - {mail: me@example.org, smtp: "smtp://localhost"}
          - {shell: 'echo "$GREENWARD_ALARM" >> alarms.txt'}
        rules:                          # limits of your own
          - {id: kl, signal: kl, above: 0.3, window: 5}

    docs/monitor.md has every key; default, grpo_safe, grpo_strict, ppo_safe and ppo_strict are presets.
    """
    from pydantic import ValidationError

    from greenward.diagnostics.monitor import Monitor, Webhook

    hook = None
    if webhook is not None:
        try:
            chosen: dict[str, Any] = {"webhook": webhook, "format": webhook_format, "role": webhook_role}
            hook = Webhook(**chosen)
        except ValidationError as error:  # whose text would show the address
            wrong = error.errors()[0]["loc"][0]
            raise click.UsageError(
                "--webhook-role: expected the number of a role in Discord."
                if wrong == "role"
                else "--webhook: expected an address (https://…), or the name of an environment variable."
            ) from None
    watching = Monitor(rules, say=echo, alarms=alarms, pid=pid, webhook=hook, run=run.resolve().name)
    last = None
    for last in _followed(run, pid=pid, **how):
        if not how["once"]:
            watching.follow(last)
    if last is not None:
        watching.follow(last, ended=True)
    for line in watching.silent_rules():
        echo(line, err=True)
    told = [one for one in watching.found if not one.provisional]
    bad = [one for one in told if one.severity == "critical" or fail_on == "warning"]
    if how["once"] and last is not None:
        echo(f"{len(told)} alarm(s) up to step {last.steps[-1]}.")
    raise SystemExit(1 if bad else 0)


@click.command()
@run_argument
@flag("--once", help="Show what is there, and end.")
@_EVERY
@run_name_option
@map_option
def watch(run: Path, **how: Any) -> None:
    """Show the signals of RUN in the terminal while it trains, with the diagnosis so far. Ctrl-C ends it."""
    from rich.live import Live

    from greenward.diagnostics.diagnose import diagnose_signals
    from greenward.diagnostics.finding import Thresholds

    with Live(auto_refresh=False) as live:
        for signals in _followed(run, **how):
            headline = diagnose_signals(signals, Thresholds()).headline
            live.update(_view(signals, headline), refresh=True)


def _view(signals: RunSignals, headline: str) -> Any:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from greenward.reports.document import value_text
    from greenward.reports.render import spark_line

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
    run: Path, *, mapping: dict[str, str], run_name: str | None, every: float, once: bool,
    pid: int | None = None,
) -> Iterator[RunSignals]:  # fmt: skip
    """The signals of the run, again whenever its files have grown, until the process `pid` has ended."""
    from greenward.diagnostics.readers import read_run_signals

    steps, said = -1, ""
    while True:
        alive = pid is None or _is_alive(pid)
        try:
            # Values of two runs in one test would look like a change.
            signals = read_run_signals(run, mapping=mapping, run_name=run_name, takes_last=once)
        except DiagnosticsError as error:
            if once or not alive:
                raise
            if said != str(error):
                said = str(error)
                echo(f"Waiting: {said}", err=True)
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


_FINDING = click.option("--finding", metavar="NAME", help="The finding that is meant.  [default: the cause]")
_STEPS = click.option("--steps", type=COUNT, help="The last step of a replay.  [default: past the onset]")
_TRUST = flag(
    "--trust-code", "trusts_code", help="Use the code, commands and servers that RUN's config names."
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
@click.option("--compare", callback=comma_separated, help="Signals, with commas.  [default: all]")
def check_determinism(
    *,
    command: str,
    replicas: int,
    log: str,
    tolerance: float,
    timeout: float | None,
    compare: tuple[str, ...],
) -> None:
    """Run a command several times, and name the first step and signal that differ.

    Exit code: 0 equal, 1 different, 2 a command that failed or logged no metrics.

    \b
    greenward check-determinism -c "greenward train quickstart training.max_steps=5 --output {out}/run"
    """
    from greenward.diagnostics.proof import check_determinism

    found = check_determinism(
        command, replicas, log=log, tolerance=tolerance, seconds=timeout, signals=compare
    )
    for repetition, one in found.items():
        echo(
            f"DIFFERENT at step {one.step} in {one.signal}: {one.first:.8g} in run 1, {one.other:.8g} in run "
            f"{repetition}"
        )
    if not found:
        echo(f"DETERMINISTIC: {replicas} runs logged equal numbers (relative tolerance {tolerance:g}).")
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
    import tempfile

    from greenward.diagnostics.proof import replay

    with tempfile.TemporaryDirectory() as temporary:
        found = replay(run, output or Path(temporary) / "replay", **chosen)
    place = f"steps {found.first_step + 1} to {found.last_step}"
    if found.finding is not None:
        since = f" from step {found.finding.onset}" if found.finding.onset else ""
        echo(f"THE FAULT RETURNS: {found.finding.name}{since} in {place}.")
    else:
        echo(f"THE FAULT IS GONE in {place}: checkpoint, settings and seed alone do not lead to it.")
    if found.difference is None:
        echo("The numbers are those of the run.")
    else:
        step, signal, first, other = found.difference
        echo(f"The numbers differ from step {step} on, in {signal}: {first:.6g} in the run, {other:.6g} now.")
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
    import tempfile

    from greenward.diagnostics.proof import bisect_settings

    with tempfile.TemporaryDirectory() as temporary:
        found = bisect_settings(run, output or Path(temporary), say=echo, **chosen)
    cure = found.cure
    if not found.returns:
        echo("CANNOT TELL: the fault does not return when the run is repeated unchanged.")
    elif cure is None:
        echo(f"NO SINGLE SETTING cures {found.fault.name}; {len(found.trials)} were tried.")
    else:
        cured = f"CURED by {cure.key}: {cure.value} caused {found.fault.name}, {cure.reference} does not."
        echo(cured)
    raise SystemExit(0 if cure is not None else 1)


@click.command("diff-ckpt")
@click.argument("a", type=click.Path(exists=True, path_type=Path))
@click.argument("b", type=click.Path(exists=True, path_type=Path))
@json_option
def diff_ckpt(a: Path, b: Path, *, as_json: bool) -> None:
    """Compare the weights of two checkpoints: L2 and cosine of each tensor, the top movers first.

    Of a run directory, the newest checkpoint is taken.
    """
    from greenward.diagnostics.proof import checkpoint_report

    show_report(checkpoint_report(a, b), as_json=as_json)
