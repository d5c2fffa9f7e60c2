"""`greenward reward-health`, `evals` and `diff`: what is wrong with a run, and where two runs differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from greenward.cli.arguments import (
    PATH,
    POSITIVE,
    Decorator,
    FloatRange,
    alpha_option,
    comma_separated,
    fail_on_option,
    folder_option,
    json_option,
    pairs,
    pick_option,
    show_report,
    with_options,
)

if TYPE_CHECKING:
    from greenward.diagnostics.findings import Diagnosis
    from greenward.reports.document import Severity

DIFF_EXIT_CODES = {
    "same": 0,
    "no systematic difference": 0,
    "diverged": 1,
    "not reproducible": 1,
    "cannot tell": 2,
}
_RUN: dict[str, Any] = {"metavar": "RUN", "required": True, "type": PATH}


def diagnosis_options(output: str) -> Decorator:
    """The options that `reward-health` and `evals` share; `output` names the files that they write."""
    return with_options(
        click.option("--run", help="A run directory.", **_RUN),
        folder_option("--output-dir", f"Write {output} here, in place of older ones.", "report"),
        fail_on_option("critical"),
        alpha_option,
        json_option,
    )


run_options = with_options(
    click.argument("path", metavar="RUN", type=PATH),
    pick_option,
    click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="THEIRS=OURS",
        callback=pairs,
        help="greenward's name for a name of the log, such as my_score=reward/mean; repeatable.",
    ),
)
"""RUN of any format as `path`, `--pick` and `--map`."""


@click.command()
@run_options
@fail_on_option("warning")
@alpha_option
@click.option("--memory-limit-mb", type=POSITIVE, help="MiB, for the time to out-of-memory.")
@folder_option("--output-dir", "Write diagnosis.html, .md and .json here.", "report")
@json_option
def diagnose(
    path: Path, *, output_dir: Path | None, fail_on: Severity, as_json: bool, **settings: Any
) -> None:
    """Say what is wrong with RUN, since when, and what to do: one verdict with one cause.

    RUN is a run directory, or the log of another trainer, as a file or a folder: trainer_state.json (TRL,
    transformers), verl, OpenRLHF, prime-rl, Tinker cookbook, TensorBoard, W&B offline, Trackio, SB3, JSON
    lines, CSV, parquet, printed output. Exit code: 0 healthy, 1 findings at or above --fail-on, 2 an error
    or too little data to tell.

    \b
    greenward diagnose runs/one
    greenward diagnose outputs/checkpoint-500/trainer_state.json --output-dir diagnosis
    """
    from greenward.diagnostics.diagnose import diagnose_run

    _finish(diagnose_run(path, **settings), output_dir, "diagnosis", as_json=as_json, fail_on=fail_on)


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
    from greenward.diagnostics.reward_health import diagnose_reward_health

    diagnosis = diagnose_reward_health(run, **settings)
    _finish(diagnosis, output_dir, "reward_health", as_json=as_json, fail_on=fail_on)


@click.command()
@diagnosis_options("code_eval.html, .md and .json (named for the suite)")
@click.option(
    "--suite", default="code", help="code: everything; or the name of a suite that RUN was evaluated on."
)
def evals(
    run: Path, *, suite: str, output_dir: Path | None, fail_on: Severity, alpha: float, as_json: bool
) -> None:
    """Examine how good what RUN learned is, over training.

    Held-out and suite evaluations before and after, paired by problem; quality, failures, length and
    variety of the answers in training. Exit code: 0 nothing wrong, 1 findings at or above --fail-on, 2 an
    error or too little data to tell. `greenward eval` evaluates a model; this reads what a run recorded.

    \b
    greenward evals --run runs/one --suite code --output-dir code_eval
    """
    from greenward.diagnostics.evals import diagnose_evals
    from greenward.runs.trackers import tracker_name

    diagnosis, stem = diagnose_evals(run, suite, alpha=alpha), f"{tracker_name(suite)}_eval"
    _finish(diagnosis, output_dir, stem, as_json=as_json, fail_on=fail_on)


def _finish(
    diagnosis: Diagnosis, output_dir: Path | None, stem: str, *, as_json: bool, fail_on: Severity
) -> NoReturn:
    """Write the diagnosis as files of the name `stem`, print it, and say by the exit code what was found."""
    from greenward.diagnostics.report import diagnosis_report, write_reward_health
    from greenward.reports.write import write_report

    report, written = diagnosis_report(diagnosis), list[Path]()
    if output_dir is not None and stem == "reward_health":
        written = write_reward_health(diagnosis, output_dir)
    elif output_dir is not None:
        written = list(write_report(report, output_dir, stem).values())
    show_report(report, as_json=as_json)
    if diagnosis.findings and not written and not as_json:
        click.echo("All actions, and what would confirm each: --output-dir or --json.")
    if written:
        more = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
        click.echo(f"Wrote {written[0]}{more}", err=True)
    raise SystemExit(diagnosis.exit_code(fail_on))


@click.command()
@click.option("--a", "a", **_RUN)
@click.option("--b", "b", **_RUN)
@click.option(
    "--signals", multiple=True, callback=comma_separated, help="Names, with commas.  [default: all]"
)
@json_option
@folder_option("--output-dir", "Write diff_report.json and diff_report.md here, too.", "report")
def diff(a: Path, b: Path, *, signals: list[str], as_json: bool, output_dir: Path | None) -> None:
    """Find where run B begins to differ from run A: the settings, and the first step of each signal.

    Runs that begin with equal numbers are compared value by value; others by a test that allows for
    autocorrelation and for the number of signals. Two runs of one seed and one config whose first numbers
    differ are not reproducible. Exit code: 0 no difference, 1 diverged or not reproducible, 2 an error or
    too little data to tell.

    \b
    greenward diff --a runs/one --b runs/two
    greenward diff --a runs/one --b runs/two --signals gradient_norm,code_score
    """
    from greenward.diagnostics.diff import diff_runs
    from greenward.diagnostics.diff_report import diff_report
    from greenward.reports.write import write_report

    found = diff_runs(a, b, signals)
    report = diff_report(found)
    show_report(report, as_json=as_json)
    if output_dir is not None:
        for path in write_report(report, output_dir, "diff_report", ("json", "markdown")).values():
            click.echo(f"Wrote {path}", err=True)
    raise SystemExit(DIFF_EXIT_CODES[found.verdict])
