"""`greenward reward-health`: is the training of a run sound, and its reward?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenward.cli.diagnosis_options import (
    alpha_option,
    fail_on_option,
    json_option,
    output_dir_option,
    run_option,
    show_and_exit,
)

if TYPE_CHECKING:
    from greenward.reports.document import Severity


@click.command("reward-health")
@run_option
@output_dir_option("reward_health.html, .md and .json, each card, and training_metrics.jsonl")
@click.option(
    "--calibration-threshold",
    type=click.FloatRange(0, 1),
    default=0.7,
    show_default=True,
    help="A calibration score below it is a finding.",
)
@click.option(
    "--memory-limit-mb",
    type=click.FloatRange(0, min_open=True),
    help="MiB, for the time to out-of-memory.  [default: the machine's]",
)
@fail_on_option
@alpha_option
@json_option
@click.pass_context
def reward_health(
    context: click.Context,
    *,
    run: Path,
    output_dir: Path | None,
    calibration_threshold: float,
    memory_limit_mb: float | None,
    fail_on: Severity,
    alpha: float,
    as_json: bool,
) -> None:
    """Examine whether the training of RUN and its reward are sound.

    Memory, speed, gradients, rewards and their balance, exploration, and the calibration of a reward
    model; each finding with evidence, onset and what to do. Exit code: 0 healthy, 1 findings at or above
    --fail-on, 2 an error or too little data to tell.

    \b
    greenward reward-health --run runs/one --output-dir code_analysis
    """
    from greenward.diagnostics.report import write_reward_health
    from greenward.diagnostics.reward_health import diagnose_reward_health

    diagnosis = diagnose_reward_health(
        run, calibration_threshold=calibration_threshold, memory_limit_mb=memory_limit_mb, alpha=alpha
    )
    written = [] if output_dir is None else write_reward_health(diagnosis, output_dir)
    show_and_exit(context, diagnosis, written, as_json=as_json, fail_on=fail_on)
