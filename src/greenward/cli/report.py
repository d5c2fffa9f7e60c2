"""`greenward report`: the views of a finished (or running) run."""

from __future__ import annotations

from pathlib import Path

import click

FORMATS = ("terminal", "html", "markdown", "json")


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(FORMATS), default="terminal", show_default=True)
def report(run: Path, form: str) -> None:
    """Show the report of RUN.

    All its views are written anew; the one asked for is printed, or its path if it is a file to open.
    """
    from greenward.reports import write_all_reports

    write_all_reports(run)
