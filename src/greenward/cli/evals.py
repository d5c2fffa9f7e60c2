"""`greenward evals`: how good is what a run learned, over training?"""

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


@click.command()
@run_option
@click.option(
    "--suite",
    default="code",
    show_default=True,
    help="code: everything; or the name of a suite that RUN was evaluated on.",
)
@output_dir_option("code_eval.html, .md and .json (named for the suite)")
@fail_on_option
@alpha_option
@json_option
@click.pass_context
def evals(
    context: click.Context,
    *,
    run: Path,
    suite: str,
    output_dir: Path | None,
    fail_on: Severity,
    alpha: float,
    as_json: bool,
) -> None:
    """Examine how good what RUN learned is, over training.

    Held-out and suite evaluations before and after, paired by problem; quality, failures, length and
    variety of the answers in training. Exit code: 0 nothing wrong, 1 findings at or above --fail-on, 2 an
    error or too little data to tell. `greenward eval` evaluates a model; this reads what a run recorded.

    \b
    greenward evals --run runs/one --suite code --output-dir code_eval
    """
    from greenward.diagnostics.evals import diagnose_evals
    from greenward.diagnostics.report import diagnosis_report
    from greenward.reports.write import write_report
    from greenward.runs.trackers import tracker_name

    diagnosis = diagnose_evals(run, suite, alpha=alpha)
    written: list[Path] = []
    if output_dir is not None:
        paths = write_report(diagnosis_report(diagnosis), output_dir, f"{tracker_name(suite)}_eval")
        written = list(paths.values())
    show_and_exit(context, diagnosis, written, as_json=as_json, fail_on=fail_on)
