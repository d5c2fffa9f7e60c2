"""`greenward report` and `greenward rollouts`: what runs reached, and the answers they kept."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import click

from greenward.cli.arguments import COUNT, PATH, folder_option, run_argument

Form = Literal["terminal", "html", "markdown", "json"]
FORMS = get_args(Form)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="How the report is shown.  [default: terminal; html with --follow]",
)
@click.option("--follow", is_flag=True, help="Write the page of a running RUN anew until it ends.")
@folder_option(
    "--output", "The folder of the page.  [default: reports/RUN; of several, reports/overlay]", "report"
)
def report(runs: tuple[Path, ...], *, form: Form | None, follow: bool, output: Path | None) -> None:
    """Show the report of RUN: a run directory, a study, a sweep, or the folder of an evaluation.

    Several runs are overlaid in one report. terminal, markdown and json are printed. html writes report.html,
    report.md and report.json, not into RUN, and prints the path of the page. --follow keeps report.html up to
    date, which the browser reloads by itself; of a run that is not running it writes the page once.

    \b
    greenward report runs/mine
    greenward report runs/one runs/two --format html
    greenward report runs/mine --follow
    """
    from greenward.reports.overlay import overlay_report
    from greenward.reports.render_terminal import print_report
    from greenward.reports.write import follow as follow_run
    from greenward.reports.write import render, report_of, usual_folder, write_report

    folder = output or (usual_folder(runs[0]) if len(runs) == 1 else Path("reports/overlay"))
    if follow:
        if len(runs) > 1 or form not in (None, "html"):
            raise click.UsageError("--follow writes the page of one RUN: give one, without --format.")
        click.echo(follow_run(runs[0], folder, partial(click.echo, err=True)))
        return
    made = report_of(runs[0]) if len(runs) == 1 else overlay_report(runs)
    if form == "html":
        click.echo(write_report(made, folder)["html"])
    elif form in ("markdown", "json"):
        click.echo(render(made, form))
    else:
        print_report(made)


def _steps(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[int | None, int | None]:
    """The first and the last step of `12`, `10-20`, `10-` or `-20`."""
    match = re.fullmatch(r"(\d+)|(\d*)-(\d*)", text or "-")
    if match is None or text == "-":
        raise click.BadParameter(f"expected a step (12) or a range of steps (10-20, 10-, -20), not {text!r}")
    first, last = (match[1], match[1]) if match[1] else (match[2], match[3])
    if first and last and int(first) > int(last):
        raise click.BadParameter(f"the range {text!r} ends before it begins")
    return (int(first) if first else None, int(last) if last else None)


@click.command()
@run_argument
@click.option("--step", "steps", callback=_steps, help="A step (12) or a range (10-20, 10-, -20).")
@click.option("--status", "statuses", multiple=True, help="Such as passed, failed, timeout; may be repeated.")
@click.option("--task", default="", show_default=False, help="A part of the task's id.")
@click.option("--reward-min", type=float, default=float("-inf"), show_default=False, help="The least reward.")
@click.option(
    "--reward-max", type=float, default=float("inf"), show_default=False, help="The largest reward."
)
@click.option("--page", type=COUNT, default=1, help="html writes all pages.")
@click.option(
    "--page-size", type=click.IntRange(1, 1000), help="Answers on a page.  [default: 10; html: 100]"
)
@click.option("--format", "form", type=click.Choice(FORMS), default="terminal")
@folder_option("--output", "The folder of the pages.  [default: reports/RUN]", "report")
def rollouts(
    run: Path,
    *,
    steps: tuple[int | None, int | None],
    statuses: tuple[str, ...],
    page: int,
    page_size: int | None,
    form: Form,
    output: Path | None,
    **wanted: Any,
) -> None:
    """Show the answers that RUN kept while it trained, oldest first.

    html writes rollouts.html, rollouts-2.html …, not into RUN, and prints the path of the first.

    \b
    greenward rollouts runs/mine --step 12 --status failed
    greenward rollouts runs/mine --reward-min 0.5 --format html
    """
    from greenward.reports.render_terminal import print_report
    from greenward.reports.rollouts import RolloutFilter, Rollouts
    from greenward.reports.write import render, usual_folder

    names = tuple(status.replace(" ", "_") for status in statuses)
    found = Rollouts(
        run, RolloutFilter(*steps, names, **wanted), page_size or (100 if form == "html" else 10)
    )
    if form == "html":
        click.echo(found.write_html(output or usual_folder(run)))
    elif form == "terminal":
        print_report(found.report(page))
        if page < found.pages:
            click.echo(f"Page {page} of {found.pages}; the next one: --page {page + 1}")
    else:
        click.echo(render(found.report(page), form))
