"""`greenward audit`: which cheating answers a reward function or grader accepts."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from greenward.cli.arguments import POSITIVE, json_option, pairs
from greenward.text import visible

if TYPE_CHECKING:
    from greenward.api import AuditReport, Trial

_MARKS = {"accepted": "red", "poisoned": "red", "killed": "yellow", "hung": "yellow", "raised": "yellow"}


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION|RECIPE")
@click.option(
    "--signature",
    type=click.Choice(("auto", "ours", "trl", "verl")),
    default="auto",
    help="How FUNCTION is called.",
)
@click.option("--timeout", "timeout_seconds", type=POSITIVE, default=10.0, help="Seconds for each answer.")
@click.option(
    "--data-source",
    default="greenward/audit",
    metavar="NAME",
    help="What verl's data_source says: the name by which FUNCTION chooses a scorer.",
)
@click.option(
    "--ground-truth",
    type=click.Choice(("auto", "json", "assertions", "assertions-json", "json-lines")),
    default="auto",
    help="The form of the ground truth: an object {fn_name, inputs, outputs}, assert statements as text, a "
    "JSON list of these, or an object {input, output} on each line.",
)
@click.option(
    "--column",
    "columns",
    multiple=True,
    callback=pairs,
    metavar="THEIRS=OURS",
    help="Gives the column OURS under the name THEIRS. Repeatable.",
)
@json_option
def audit(function: str, *, timeout_seconds: float, as_json: bool, **how: Any) -> None:
    """Try cheating answers on a reward function or grader.

    FUNCTION takes answers as our reward functions do, as TRL's reward functions (prompts, completions,
    **columns), or as verl's compute_score. The report says which cheating answers it accepts and why that
    is wrong, which ones kill or hang it, and which right answers it refuses. The exit code is 0 if there
    are none of these, 1 if there are, 2 if FUNCTION cannot be used or never tells right from wrong.

    A name without a colon is a recipe (shipped, or a file): the weighted sum of its reward terms is audited.

    \b
    greenward audit quickstart
    greenward audit my_rewards:unit_tests
    greenward audit my_rewards:compute_score --data-source codecontests --ground-truth json
    greenward audit my_rewards:matches --column gold=reference
    greenward audit greenward.grading.reward_functions:tests
    """
    from greenward import api

    if ":" not in function:
        how = {}  # a recipe says itself how its terms are called
    elif how["ground_truth"] == "auto":
        how["ground_truth"] = None
    report = api.audit(function, timeout_seconds=timeout_seconds, progress=_progress(), **how)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print(report)
    if not report.sound:
        raise SystemExit(2 if report.says_nothing else 1)


def _progress() -> Any:
    """Counts answers on a terminal, and says nothing into a pipe."""
    if not sys.stderr.isatty():
        return lambda done, total: None
    return lambda done, total: click.echo(
        f"\r{done + 1} of {total} answers" + ("\r\033[K" if done + 1 == total else ""), err=True, nl=False
    )


def _print(report: AuditReport) -> None:
    click.echo(visible(f"{report.function}: {report.signature} signature, {report.presentation}"))
    if report.left_out:
        click.echo(f"Left out: tasks of {report.left_out}, where no right answer scored above a wrong one.")
    if not report.told_apart:
        click.secho("It never told right from wrong: is the data of the shape it expects?", bold=True)
        click.echo("--signature, --ground-truth, --data-source and --column change the data (docs/audit.md).")
    if report.says_nothing:
        given = ", ".join(sorted({str(trial.score) for trial in report.honest})[:5])
        click.echo(f"It gave {given} to {len(report.honest)} right answers, and no more to wrong ones.")
        return
    for heading, trials in (
        ("Cheating answers accepted", report.accepted),
        ("Answers that killed or hung it, or made it raise", report.broken_by),
        ("Right answers refused", report.false_refusals),
    ):
        if trials:
            click.secho(f"\n{heading}: {len(trials)}", bold=True)
            _print_trials(trials)
    verdict = (
        f"accepted {len(report.accepted)} of {len(report.cheats)} cheating answers, was broken by "
        f"{len(report.broken_by)}, refused {len(report.false_refusals)} of {len(report.honest)} right ones"
    )
    click.secho(f"\n{'Sound' if report.sound else 'NOT SOUND'}: {verdict}.", bold=True)


def _print_trials(trials: tuple[Trial, ...]) -> None:
    """By family: the reason once, then each answer."""
    for family in dict.fromkeys(trial.family for trial in trials):
        members = [trial for trial in trials if trial.family == family]
        click.echo(f"  {family}: {members[0].why}")
        for trial in members:
            outcome = click.style(f"{trial.outcome.value:8}", fg=_MARKS.get(trial.outcome.value))
            detail = f" ({trial.detail})" if trial.detail else ""
            click.echo(f"    {outcome} {visible(f'{trial.answer}, {trial.task_id}{detail}')}")
