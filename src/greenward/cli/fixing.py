"""`greenward fix`: repairs a file whose tests fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from greenward.cli.arguments import (
    COUNT,
    PATH,
    POSITIVE,
    FloatRange,
    api_key_options,
    endpoint_name,
    json_option,
)
from greenward.text import visible

EXIT_NOT_FIXED = 1


@click.command()
@click.argument("file", type=PATH)
@click.option("--tests", required=True, type=PATH, help="A file or folder of unittest or pytest.")
@click.option("--model", required=True, metavar="RUN|ID", help="A run, a model, or what --base-url serves.")
@click.option("--base-url", metavar="URL", help="Of an OpenAI-compatible server, which serves MODEL.")
@api_key_options
@click.option("--n", "answers", type=click.IntRange(1, 1000), default=8, help="Repairs to try.")
@click.option("--temperature", type=FloatRange(min=0), default=0.8)
@click.option("--max-tokens", type=COUNT, help="Of an answer.  [default: 1024, or as trained]")
@click.option(
    "--form",
    type=click.Choice(("function", "search_replace", "diff")),
    help="What the model writes: the whole program, or edits.  [default: as trained, else search_replace]",
)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--timeout", type=POSITIVE, default=10.0, help="CPU seconds for all tests.")
@click.option(
    "--package", "packages", multiple=True, help="What the code may import besides the standard library."
)
@click.option("--device", default="auto")
@click.option("--yes", is_flag=True, help="Apply the repair without asking.")
@json_option
def fix(
    file: Path, *, base_url: str | None, model: str, tests: Path, yes: bool, as_json: bool, **chosen: Any
) -> None:
    """Let a model repair FILE so that its tests pass.

    The tests run in the sandbox. If they fail, the model writes N repairs, which the tests judge; the diff of
    the best is shown with its verdict, and applied when you confirm. Exit code 1: no repair passes all tests.

    \b
    greenward fix shop/prices.py --tests tests --model runs/code_repair
    greenward fix prices.py --tests test_prices.py --model Qwen/Qwen2.5-Coder-7B-Instruct \\
        --base-url http://localhost:8000/v1
    """
    from greenward.recipes.fix import FixOptions, find_repair

    name = endpoint_name(base_url, model) if base_url else model
    repair = find_repair(file, tests, name, FixOptions(**chosen))
    best = repair.selection.verdict if repair.selection else None
    verdicts = repair.selection.verdicts if repair.selection else ()
    total, passed_before = len(repair.before.tests_passed), sum(repair.before.tests_passed)
    answers_passed = sum(one.passed for one in verdicts)
    if as_json:
        record = {
            "passed": repair.passed,
            "before": repair.before.status.value,
            "tests": total,
            "tests_passed_before": passed_before,
            "tests_passed": sum((best or repair.before).tests_passed),
            "answers": len(verdicts),
            "answers_passed": answers_passed,
            "diff": repair.diff(),
            "applied": bool(repair.changes) and yes,
        }
        if record["applied"]:
            repair.apply()
        click.echo(json.dumps(record))
    elif repair.selection is None:
        click.echo(f"{file}: all {total} tests pass. There is nothing to repair.")
    else:
        click.echo(f"{file}: {passed_before} of {total} tests pass.\n  {repair.failure}")
        click.echo(f"{answers_passed} of {len(verdicts)} answers pass all tests.")
        if best is None or not repair.changes:
            click.echo("No answer passes more tests than the file itself.")
        else:
            click.echo(f"\n{visible(repair.diff(), 1 << 20)}")
            click.echo(f"Best: {best.status.value}, {sum(best.tests_passed)} of {total} tests pass.")
            if not yes and not sys.stdin.isatty():
                click.echo("Nothing was changed (--yes applies the repair).")
            elif yes or click.confirm("Apply it?"):
                repair.apply()
                click.echo("Applied.")
    if not repair.passed:
        raise SystemExit(EXIT_NOT_FIXED)
