"""`greenward report`: the views of a finished (or running) run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--format",
    "view",
    type=click.Choice(("terminal", "html", "markdown", "json")),
    default="terminal",
    show_default=True,
)
def report(run: Path, view: Literal["terminal", "html", "markdown", "json"]) -> None:
    """Show the report of RUN: a run directory, a study, or the folder of an evaluation.

    terminal, markdown and json are printed. html writes report.html, report.md and report.json into
    RUN and prints the path of the page.
    """
    from greenward.reports.render_terminal import print_report
    from greenward.reports.write import render, report_of, write_report

    if view == "html":
        click.echo(write_report(report_of(run), run)["html"])
    elif view == "terminal":
        print_report(report_of(run))
    else:
        click.echo(render(report_of(run), view))
