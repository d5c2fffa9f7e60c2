"""Options that `greenward eval` and `greenward grade` share, and the printing of their results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from greenward.api import EvaluationResult

EXIT_BELOW, EXIT_FAILED = 1, 2


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"expected positive whole numbers with commas between, found {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def grading_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options; `chosen_grading` and `finish` take them."""
    for option in reversed(
        (
            click.option("--k", callback=_numbers, help="pass@K for these K.  [default: of 1,5,10,100]"),
            click.option("--workers", type=click.IntRange(min=1), default=2, show_default=True),
            click.option(
                "--timeout",
                type=click.FloatRange(min=0, min_open=True),
                help="CPU seconds for one answer (contest suites: for one test). The limit of wall time is"
                " three times that.  [default: the suite's own times, else 10]",
            ),
            click.option(
                "--require",
                type=click.Choice(("A", "B", "C", "D")),
                default="B",
                show_default=True,
                help="Least level of isolation; see `greenward doctor`.",
            ),
            click.option(
                "--skip-bad-rows",
                is_flag=True,
                help="Leave out rows of the suite's file that cannot be used, and count them.",
            ),
            click.option(
                "--package",
                "packages",
                multiple=True,
                help="What answers may import besides the standard library.",
            ),
            click.option(
                "--recheck",
                type=click.IntRange(min=2),
                help="Judge every answer so many times more; name those whose verdict varies.",
            ),
            click.option("--eval-results", is_flag=True, help="Write EvalPlus's eval_results.json, too."),
            click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Where to write."),
            click.option("--json", "as_json", is_flag=True, help="Print summary.json, nothing else."),
            click.option(
                "--fail-under", type=click.FloatRange(0, 1), help="Exit with 1 if pass@1 is below this share."
            ),
            click.option("--quiet", is_flag=True, help="No progress and no tables."),
        )
    ):
        command = option(command)
    return command


def chosen_grading(chosen: dict[str, Any]) -> dict[str, Any]:
    """The options of the command line that say how answers are judged."""
    names = ("timeout", "workers", "require", "packages", "recheck", "eval_results")
    return {name: chosen[name] for name in names}


def finish(result: EvaluationResult, chosen: dict[str, Any]) -> None:
    """Print the result; exit with 2 if something asked for is missing, 1 if pass@1 is below --fail-under."""
    out, summary = result.folder, result.summary
    assert out is not None  # commands evaluate models and suites by name
    for failure in summary["failures"]:
        click.echo(f"Error: {failure}", err=chosen["as_json"] or chosen["quiet"])
    if chosen["as_json"]:
        click.echo(json.dumps(summary, indent=2))
    elif not chosen["quiet"]:
        from greenward.reports.evaluation import evaluation_report
        from greenward.reports.render_terminal import print_report

        print_report(evaluation_report(out))
        click.echo(f"Report: {out / 'report.html'}")
    if summary["failures"]:
        raise SystemExit(EXIT_FAILED)
    limit = chosen["fail_under"]
    if limit is None:
        return
    reached = summary["metrics"].get("pass@1", {}).get("value", 0.0)
    if reached < limit:
        click.echo(f"pass@1 is {reached:.3f}, below {limit:g}.", err=True)
        raise SystemExit(EXIT_BELOW)
