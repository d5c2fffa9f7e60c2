"""`greenward diff`: where two runs begin to differ."""

from __future__ import annotations

from pathlib import Path

import click

_EXIT_CODES = {
    "same": 0,
    "no systematic difference": 0,
    "diverged": 1,
    "not reproducible": 1,
    "cannot tell": 2,
}


def _names(_context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [name for value in values for name in map(str.strip, value.split(",")) if name]


@click.command()
@click.option("--a", "a", metavar="RUN", required=True, type=click.Path(path_type=Path))
@click.option("--b", "b", metavar="RUN", required=True, type=click.Path(path_type=Path))
@click.option("--signals", multiple=True, callback=_names, help="Names, with commas.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write diff_report.json and diff_report.md here, too.",
)
@click.pass_context
def diff(
    context: click.Context, *, a: Path, b: Path, signals: list[str], as_json: bool, output_dir: Path | None
) -> None:
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
    from greenward.diagnostics.diff_report import diff_report, write_diff
    from greenward.reports.write import render

    found = diff_runs(a, b, signals)
    if as_json:
        click.echo(render(diff_report(found), "json"), nl=False)
    else:
        from greenward.reports.render_terminal import print_report

        print_report(diff_report(found))
    if output_dir is not None:
        for path in write_diff(found, output_dir):
            click.echo(f"Wrote {path}", err=True)
    context.exit(_EXIT_CODES[found.verdict])
