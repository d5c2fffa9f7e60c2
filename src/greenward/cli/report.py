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
    from greenward.reports.content import load_report
    from greenward.reports.evaluation import is_evaluation, load_evaluation
    from greenward.reports.evaluation_views import print_evaluation
    from greenward.reports.terminal import print_report
    from greenward.reports.write import render, write_all_reports

    if view == "html":
        click.echo(write_all_reports(run)["html"])
    elif view != "terminal":
        click.echo(render(run, view))
    elif is_evaluation(run):
        print_evaluation(load_evaluation(run))
    else:
        print_report(load_report(run))
