"""`greenward report`: the views of a finished (or running) run."""

from __future__ import annotations

from pathlib import Path

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
def report(run: Path, view: str) -> None:
    """Show the report of RUN.

    terminal, markdown and json are printed. html writes report.html, report.md and report.json into
    RUN and prints the path of the page.
    """
    from greenward import reports
    from greenward.reports.content import assemble
    from greenward.reports.json_view import render_json
    from greenward.reports.markdown import render_markdown
    from greenward.reports.record import read_report
    from greenward.reports.terminal import print_report

    if view == "html":
        click.echo(reports.write_all_reports(run)["html"])
        return
    content = assemble(read_report(run))
    if view == "terminal":
        print_report(content)
    else:
        click.echo(render_markdown(content) if view == "markdown" else render_json(content))
