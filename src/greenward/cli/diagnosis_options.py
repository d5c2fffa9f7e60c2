"""What `reward-health` and `evals` share: their options, and how they show and end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from greenward.cli.arguments import Decorator

if TYPE_CHECKING:
    from greenward.diagnostics.findings import Diagnosis
    from greenward.reports.document import Severity

run_option: Decorator = click.option(
    "--run", metavar="RUN", required=True, type=click.Path(path_type=Path), help="A run directory."
)
fail_on_option: Decorator = click.option(
    "--fail-on",
    type=click.Choice(("info", "warning", "critical")),
    default="critical",
    show_default=True,
    help="Exit with 1 for findings of this weight or above.",
)
json_option: Decorator = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
alpha_option: Decorator = click.option(
    "--alpha",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    help="The accepted chance of a false finding in a healthy run.",
)


def output_dir_option(what: str) -> Decorator:
    """`--output-dir DIR`."""
    return click.option(
        "--output-dir",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Write {what} here; files of the same names are replaced.",
    )


def show_and_exit(
    context: click.Context, diagnosis: Diagnosis, written: list[Path], *, as_json: bool, fail_on: Severity
) -> None:
    """Print the diagnosis and say by the exit code what was found."""
    from greenward.diagnostics.report import diagnosis_report
    from greenward.reports.write import render

    report = diagnosis_report(diagnosis)
    if as_json:
        click.echo(render(report, "json"), nl=False)
    else:
        from greenward.reports.render_terminal import print_report

        print_report(report)
        if diagnosis.findings and not written:
            click.echo("All actions, and what would confirm each: --output-dir or --json.")
    if written:
        more = f" and {len(written) - 1} more files beside it" if len(written) > 1 else ""
        click.echo(f"Wrote {written[0]}{more}", err=True)
    context.exit(diagnosis.exit_code(fail_on))
