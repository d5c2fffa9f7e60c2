"""`greenward eval` and `grade`: answers of a model, or from elsewhere, on a suite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from greenward.cli.arguments import (
    COUNT,
    LEVEL,
    PATH,
    POSITIVE,
    FloatRange,
    api_key_options,
    comma_separated,
    endpoint_name,
    folder_option,
    overwrite_option,
    with_options,
)
from greenward.text import visible

if TYPE_CHECKING:
    from greenward.api import EvaluationResult

EXIT_BELOW, EXIT_FAILED = 1, 2
JUDGING = ("timeout", "workers", "require", "packages", "recheck", "eval_results", "overwrite")
SAMPLING = ("samples", "temperature", "top_p", "max_tokens", "fewshot", "seed", "dtype", "device",
            "concurrency", "request_timeout", "api_key_env")  # fmt: skip
_PROBLEMS_ONLY = {"show_prompt", "check_references", "fail_under"}
STYLES: dict[str, Literal["completion", "chat"] | None] = {"base": "completion", "chat": "chat", "auto": None}


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"expected positive whole numbers with commas between, found {text!r}")
    return tuple(sorted({int(part) for part in parts}))


grading_options = with_options(
    click.option("--k", callback=_numbers, help="pass@K for these K.  [default: of 1,5,10,100]"),
    click.option("--workers", type=COUNT, default=2),
    click.option(
        "--timeout",
        type=POSITIVE,
        help="CPU seconds for one answer (contest suites: for one test). The limit of wall time is"
        " three times that.  [default: the suite's own times, else 10]",
    ),
    click.option(
        "--require", type=LEVEL, default="B", help="Least level of isolation; see `greenward doctor`."
    ),
    click.option(
        "--skip-bad-rows",
        is_flag=True,
        help="Leave out rows of the suite's file that cannot be used, and count them.",
    ),
    click.option(
        "--package", "packages", multiple=True, help="What answers may import besides the standard library."
    ),
    click.option(
        "--recheck",
        type=click.IntRange(min=2),
        help="Judge every answer so many times more; name those whose verdict varies.",
    ),
    click.option("--eval-results", is_flag=True, help="Write EvalPlus's eval_results.json, too."),
    folder_option("--out", "Where to write.", "evaluation"),
    overwrite_option,
    click.option("--json", "as_json", is_flag=True, help="Print summary.json, nothing else."),
    click.option("--fail-under", type=FloatRange(0, 1), help="Exit with 1 if pass@1 is below this share."),
    click.option("--quiet", is_flag=True, help="No progress and no tables."),
)
"""The options that both commands have; `_finish` takes them."""


@click.command("eval")
@click.argument("model", metavar="MODEL", required=False)
@click.option(
    "--suite",
    "--problems",
    "suite",
    help="mbpp, mbpp:test, humaneval+, families, a file …  [default: held out by MODEL's run]",
)
@click.option("--checkpoint", metavar="last|best|NAME", help="Of a run: best on held-out problems, or step_…")
@click.option("--n", "--num-episodes", "samples", type=COUNT, default=1, help="Answers each.")
@click.option("--epsilon", type=FloatRange(0, 1), help="Of kind dqn: share of random tokens.")
@click.option("--temperature", type=FloatRange(min=0), help="[default: 0 for one answer, else 0.8]")
@click.option("--top-p", type=FloatRange(0, 1, min_open=True), default=1.0)
@click.option("--max-tokens", type=COUNT, help="[default: 512, or what the model has room for]")
@click.option("--limit", type=COUNT, help="Only so many problems, the same everywhere.")
@click.option("--ids", callback=comma_separated, help="Only these problems, with commas between.")
@click.option("--fewshot", type=click.IntRange(min=0), default=0, help="MBPP's examples.")
@click.option("--style", type=click.Choice(tuple(STYLES)), default="auto")
@click.option("--seed", type=click.IntRange(min=0), help="[default: 0; a server gets none]")
@click.option("--base-url", metavar="URL", help="Of an OpenAI-compatible server, which serves MODEL.")
@click.option("--model", "served", metavar="MODEL", help="The same as MODEL, for --base-url.")
@click.option("--concurrency", type=click.IntRange(1, 512), help="Requests at a time.  [default: 8]")
@click.option("--request-timeout", type=POSITIVE, help="Seconds of one.  [default: 300]")
@api_key_options
@click.option("--dtype", type=click.Choice(("auto", "float32", "bfloat16", "float16")))
@click.option("--device", help="cpu, cuda, cuda:1 …")
@click.option(
    "--show-prompt", is_flag=True, help="Print the first prompt as the model sees it; draw nothing."
)
@click.option("--check-references", is_flag=True, help="Judge the suite's own solutions (first, or alone).")
@grading_options
def eval_(model: str | None, base_url: str | None, served: str | None, **chosen: Any) -> None:
    """Sample a model's answers to a suite, run them, and report how many are right.

    MODEL is a run directory (its newest checkpoint), a model folder, a Hugging Face id, or with --base-url a
    model of that server. A run of self-play is evaluated in its games, or in the one that --suite names; --n
    is then the number of games of a match. One of kind dqn writes a greedy program for each problem, and --n
    (50) with --epsilon.
    All files are in one folder. After an interruption the same command goes on and repeats nothing. Published
    figures differ by prompt, number of examples, temperature and time limit: all are recorded.

    \b
    greenward eval runs/demo/seed_0
    greenward eval Qwen/Qwen2.5-1.5B --suite mbpp:test --fewshot 3
    greenward eval runs/spiral_self_play --suite tictactoe
    greenward eval runs/mine --suite humaneval+ --n 10 --k 1,5,10 --temperature 0.2 --out evaluations/mine
    greenward eval --base-url http://localhost:8000/v1 --model Qwen/Qwen2.5-Coder-7B-Instruct --suite mbpp+
    """
    if served and (model or not base_url):
        raise click.UsageError("--model goes with --base-url; other models are the argument MODEL.")
    model = endpoint_name(base_url, model or served) if base_url else model
    if model is None and not chosen["check_references"]:
        raise click.UsageError("name a MODEL (or --check-references alone).")

    from greenward import api

    source = click.get_current_context().get_parameter_source
    given = {name for name in chosen if source(name) is click.core.ParameterSource.COMMANDLINE}
    if (
        model
        and (wrong := _PROBLEMS_ONLY & given)
        and (games := api.games_of(model, chosen["suite"], checkpoint=chosen["checkpoint"]))
    ):
        raise click.UsageError(
            f"{', '.join(sorted(wrong))} concerns problems of code, and {model} is evaluated in "
            f"{', '.join(games)}: leave it out, or name a --suite of code."
        )
    suite, grading = chosen["suite"], {name: chosen[name] for name in JUDGING}
    which = {name: chosen[name] for name in ("checkpoint", "limit", "skip_bad_rows", "ids")}
    if chosen["check_references"]:
        line, failures = api.check_references(suite, policy=None if base_url else model, **which, **grading)
        click.echo(line, err=chosen["as_json"])
        for failure in failures:
            click.echo(f"  {failure}", err=True)
        if failures:
            raise SystemExit(EXIT_BELOW)
    if model is None:
        return
    options = which | {name: chosen[name] for name in SAMPLING} | {"style": STYLES[chosen["style"]]}
    if chosen["show_prompt"]:
        shown = api.prompts(model, suite, **options)
        task_id, prompt = next(iter(shown["prompts"].items()))
        click.echo(f"# {task_id}, {shown['style']} style; all prompts: {shown['prompt_hash']}", err=True)
        click.echo(visible(prompt))
        return
    options["epsilon"] = chosen["epsilon"]
    asked = {name: value for name, value in (options | grading).items() if name in given}
    result = api.evaluate(model, suite, k=chosen["k"], output=chosen["out"], quiet=chosen["quiet"], **asked)
    _finish(result, chosen)


@click.command()
@click.argument("samples", metavar="SAMPLES", type=PATH)
@click.option("--suite", required=True, help="mbpp, mbpp+, humaneval, humaneval+, quixbugs, a file …")
@click.option(
    "--extract",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    help="Take programs out of text; auto: if most answers hold code fences.",
)
@grading_options
def grade(samples: Path, suite: str, extract: Literal["auto", "always", "never"], **chosen: Any) -> None:
    """Run answers that were sampled elsewhere and report how many are right.

    SAMPLES is a JSON Lines file of {"task_id", "completion"} (continues the prompt) or {"task_id",
    "solution"} (a whole program), several lines for a task if there are several answers, or EvalPlus's
    folder TASK_ID/N.py. Not all problems need an answer. More answers may be added to the file later:
    the same command grades what is new.

    \b
    greenward grade samples.jsonl --suite humaneval+
    greenward grade samples.jsonl --suite mbpp+ --eval-results --out graded
    """
    from greenward import api

    how = {name: chosen[name] for name in (*JUDGING, "k", "skip_bad_rows", "quiet")}
    result = api.grade(samples, suite, extract=extract, output=chosen["out"], **how)
    _finish(result, chosen)


def _finish(result: EvaluationResult, chosen: dict[str, Any]) -> None:
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
    limit, reached = chosen["fail_under"], summary["metrics"].get("pass@1", {}).get("value", 0.0)
    if limit is not None and reached < limit:
        click.echo(f"pass@1 is {reached:.3f}, below {limit:g}.", err=True)
        raise SystemExit(EXIT_BELOW)
