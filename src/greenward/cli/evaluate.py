"""Defines the commands that evaluate answers, show and compare evaluations, and audit reward functions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from greenward.cli.options import (
    COUNT,
    LEVEL,
    PATH,
    POSITIVE,
    FloatRange,
    api_key_options,
    base_url_option,
    checkpoint_option,
    comma_separated,
    dtype_option,
    endpoint_name,
    flag,
    folder_option,
    json_option,
    overwrite_option,
    pairs,
    with_options,
)
from greenward.common.terminal import echo, echo_json

if TYPE_CHECKING:
    from greenward.api import EvaluationResult


EXIT_BELOW, EXIT_FAILED = 1, 2
_WHICH = ("checkpoint", "limit", "skip_bad_rows", "ids")
_JUDGING = ("timeout", "workers", "require", "packages", "recheck", "eval_results", "overwrite", "show")
_PROBLEMS_ONLY = ("check_references", "fail_under", "show_prompt")
_PROMPTS = ("greenward", "evalplus", "livecodebench", "bigcodebench", "bigcodebench-instruct")
_ANSWERS = {"search_replace": "search_replace", "diff": "diff", "whole": "function"}
_STYLES = {"base": "completion", "chat": "chat", "auto": None}


def _numbers(_context: click.Context, _parameter: click.Parameter, text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"expected positive whole numbers with commas between, found {text!r}")
    return tuple(sorted({int(part) for part in parts}))


grading_options = with_options(
    click.option(
        "--k", callback=_numbers, help="pass@K for these K.  [default: of 1,5,10,100; 1 and N for N below 5]"
    ),
    click.option("--workers", type=COUNT, help="Answers at a time.  [default: one more than the cores]"),
    click.option(
        "--timeout",
        type=POSITIVE,
        help="CPU seconds for one answer (contest suites: for one test). The limit of wall time is"
        " three times that.  [default: the suite's own times, else 10]",
    ),
    click.option(
        "--require", type=LEVEL, default="B", help="Least level of isolation; see `greenward doctor`."
    ),
    flag("--skip-bad-rows", help="Leave out rows of files that cannot be used, and count them."),
    click.option(
        "--package", "packages", multiple=True, help="What answers may import besides the standard library."
    ),
    click.option(
        "--recheck",
        type=click.IntRange(min=2),
        help="Judge every answer so many times more; name those whose verdict varies.",
    ),
    flag("--eval-results", help="Write EvalPlus's eval_results.json, too."),
    folder_option("--out", "Where to write.", "evaluation"),
    overwrite_option,
    click.option(
        "--show", type=click.IntRange(min=0), default=0, help="Show the first N answers with their verdicts."
    ),
    flag("--json", "as_json", help="Print summary.json, nothing else."),
    click.option("--fail-under", type=FloatRange(0, 1), help="Exit with 1 if pass@1 is below this share."),
    flag("--quiet", help="No progress and no tables."),
)
"""The options that both commands have."""


@click.command("eval")
@click.argument("model", metavar="MODEL", required=False)
@click.option(
    "--suite",
    "--problems",
    "suite",
    help="mbpp, mbpp:test, humaneval+, families, a file …  [default: held out by MODEL's run]",
)
@checkpoint_option
@click.option(
    "--n", "--num-episodes", "--num_episodes", "samples", type=COUNT, default=1, help="Answers each."
)
@click.option("--epsilon", type=FloatRange(0, 1), help="With task token_mdp: share of random tokens.")
@click.option("--temperature", type=FloatRange(min=0), help="[default: 0 for one answer, else 0.8]")
@click.option("--top-p", type=FloatRange(0, 1, min_open=True), default=1.0)
@click.option("--max-tokens", type=COUNT, help="[default: 768, or what the model has room for]")
@click.option("--limit", type=COUNT, help="Only so many problems, the same everywhere.")
@click.option("--ids", callback=comma_separated, help="Only these problems, with commas between.")
@click.option("--fewshot", type=click.IntRange(min=0), default=0, help="MBPP's examples.")
@click.option(
    "--style", type=click.Choice(tuple(_STYLES)), default="auto", callback=lambda *of: _STYLES[of[-1]]
)
@click.option(
    "--prompt",
    type=click.Choice(_PROMPTS),
    help="Whose prompt.  [default: ours for our problems, else the suite's published one]",
)
@click.option(
    "--answer",
    type=click.Choice(tuple(_ANSWERS)),
    callback=lambda *of: of[-1] and _ANSWERS[of[-1]],
    help="Form of answers: edits of the problem's program, or the whole.  [default: as trained, else whole]",
)
@click.option("--seed", type=click.IntRange(min=0), help="[default: 0; a server gets none]")
@base_url_option
@click.option("--model", "served", metavar="MODEL", help="The same as MODEL.")
@click.option("--concurrency", type=click.IntRange(1, 512), help="Requests at a time.  [default: 8]")
@click.option("--request-timeout", type=POSITIVE, help="Seconds of one.  [default: 300]")
@api_key_options
@dtype_option()
@click.option("--device", help="cpu, cuda, cuda:1 …")
@flag("--show-prompt", help="Print the first prompt as the model sees it; draw nothing.")
@flag("--check-references", help="Judge the suite's own solutions (first, or alone).")
@grading_options
def eval_(
    model: str | None, *, base_url: str | None, served: str | None, suite: str | None, k: tuple[int, ...],
    out: Path | None, show_prompt: bool, check_references: bool, as_json: bool, fail_under: float | None,
    quiet: bool, **options: Any,
) -> None:  # fmt: skip
    """Sample a model's answers to a suite, run them, and report how many are right.

    MODEL is a run directory (its newest checkpoint), a model folder, a GGUF file, a Hugging Face id, or with
    --base-url a model of that server. A run of self-play is evaluated in its games, or in the one that
    --suite names; --n is then the number of games of a match. One of task token_mdp writes a greedy program
    for each problem, and --n (50) with --epsilon.
    All files are in one folder. After an interruption the same command goes on and repeats nothing. Published
    figures differ by prompt, number of examples, temperature and time limit: all are recorded.

    \b
    greenward eval runs/demo/seed_0
    greenward eval Qwen/Qwen2.5-1.5B --suite mbpp:test --fewshot 3
    greenward eval runs/spiral_self_play --suite tictactoe
    greenward eval runs/mine --suite humaneval+ --n 10 --k 1,5,10 --temperature 0.2 --out evaluations/mine
    greenward eval --base-url http://localhost:8000/v1 --model Qwen/Qwen2.5-Coder-7B-Instruct --suite mbpp+
    """
    if served and model:
        raise click.UsageError("MODEL is given twice: as the argument and as --model.")
    model = model or served
    model = endpoint_name(base_url, model) if base_url else model
    if model is None and not check_references:
        raise click.UsageError("name a MODEL (or --check-references alone).")
    if not (quiet or show_prompt):  # before the packages are loaded, which takes seconds
        who = f"the model {served or model}" if not base_url else f"{served or 'the model'} of the server"
        on = suite or "what its run held out"
        doing = f"Evaluating {who} on {on}" if model else f"Judging the solutions of {suite}"
        echo(f"{doing}{'; loading torch' if model and not base_url else ''}.", err=True)

    import greenward.api as api

    source = click.get_current_context().get_parameter_source
    wrong = [name for name in _PROBLEMS_ONLY if source(name) is ParameterSource.COMMANDLINE]
    given = {name: options[name] for name in options if source(name) is ParameterSource.COMMANDLINE}
    if model and wrong and (games := api.games_of(model, suite, checkpoint=options["checkpoint"])):
        raise click.UsageError(
            f"{', '.join(wrong)} concerns problems of code, and {model} is evaluated in "
            f"{', '.join(games)}: leave it out, or name a --suite of code."
        )
    if check_references:
        how = {name: given[name] for name in (*_WHICH, *_JUDGING) if name in given}
        line, failures = api.check_references(suite, policy=None if base_url else model, **how)
        echo(line, err=as_json)
        for failure in failures:
            echo(f"  {failure}", err=True)
        if failures:
            raise SystemExit(EXIT_BELOW)
    if model is None:
        return
    if show_prompt:
        asked = {name: given[name] for name in given if name not in (*_JUDGING, "epsilon")}
        shown = api.prompts(model, suite, **asked)
        task_id, prompt = next(iter(shown["prompts"].items()))
        named = f"{shown['prompt']} prompt, {shown['style']} style"
        echo(f"# {task_id}, {named}; all prompts: {shown['prompt_hash']}", err=True)
        echo(prompt)
        return
    result = api.evaluate(model, suite, k=k, output=out, quiet=quiet, **given)
    _finish(result, as_json=as_json, fail_under=fail_under, quiet=quiet)


@click.command()
@click.argument("samples", metavar="SAMPLES", type=PATH)
@click.option("--suite", required=True, help="mbpp, mbpp+, humaneval, humaneval+, quixbugs, a file …")
@click.option(
    "--extract",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    help="Take the programs out of answers; auto: of those that are no Python.",
)
@grading_options
def grade(
    samples: Path, suite: str, *, out: Path | None, as_json: bool, fail_under: float | None, quiet: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Run answers that were sampled elsewhere and report how many are right.

    SAMPLES is a JSON Lines file of {"task_id", "completion"} (continues the prompt) or {"task_id",
    "solution"} (a whole program), several lines for a task if there are several answers, or EvalPlus's
    folder TASK_ID/N.py. Not all problems need an answer. More answers may be added to the file later:
    the same command grades what is new.

    \b
    greenward grade samples.jsonl --suite humaneval+
    greenward grade samples.jsonl --suite mbpp+ --eval-results --out graded
    """
    if not quiet:
        echo(f"Judging the answers of {samples}.", err=True)
    import greenward.api as api

    result = api.grade(samples, suite, output=out, quiet=quiet, **options)
    _finish(result, as_json=as_json, fail_under=fail_under, quiet=quiet)


def _finish(result: EvaluationResult, *, as_json: bool, fail_under: float | None, quiet: bool) -> None:
    """Print the result; exit with 2 if something asked for is missing, 1 if pass@1 is below --fail-under."""
    out, summary = result.folder, result.summary
    assert out is not None  # commands evaluate models and suites by name
    for failure in summary["failures"]:
        echo(f"Error: {failure}", err=as_json or quiet)
    if as_json:
        echo_json(json.dumps(summary, indent=2))
    elif not quiet:
        from greenward.reports.evaluation import evaluation_report
        from greenward.reports.render import print_report

        print_report(evaluation_report(out))
        echo(f"Report: {out / 'report.html'}")
    if summary["failures"]:
        raise SystemExit(EXIT_FAILED)
    reached = summary["metrics"].get("pass@1", {}).get("value", 0.0)
    if fail_under is not None and reached < fail_under:
        echo(f"pass@1 is {reached:.3f}, below {fail_under:g}.", err=True)
        raise SystemExit(EXIT_BELOW)


@click.command()
@click.argument("task_id", metavar="TASK_ID")
@click.option("--in", "folder", type=PATH, required=True, help="The evaluation's folder.")
@click.option("--sample", type=click.IntRange(min=0), help="Which answer.  [default: the first that failed]")
def show(task_id: str, folder: Path, sample: int | None) -> None:
    """Show what was asked, what was answered, and the first test that failed: expected and got.

    \b
    greenward show HumanEval/11 --in runs/eval/mine-humaneval+
    """
    from greenward.evaluation.store import text_of

    echo(text_of(folder, task_id, sample))


@click.command()
@click.argument("a", metavar="A", type=PATH)
@click.argument("b", metavar="B", type=PATH)
@click.option("--k", type=COUNT, default=1, help="Compare pass@K.")
@json_option
def compare(a: Path, b: Path, *, k: int, as_json: bool) -> None:
    """Test whether B is better than A, or whether chance explains the difference.

    A and B are folders that `greenward eval` or `greenward grade` has written, run directories (their
    last evaluation counts) or EvalPlus's eval_results.json. The problems that both answered are paired:
    exact McNemar test for one answer per problem, else a paired randomisation test.

    \b
    greenward compare evaluations/before evaluations/after
    greenward compare runs/base runs/trained --k 5
    """
    from greenward.evaluation.compare import compare as compare_evaluations
    from greenward.evaluation.compare import read_evaluation
    from greenward.reports.evaluation import print_comparison

    found = compare_evaluations(read_evaluation(a), read_evaluation(b), k=k)
    if as_json:
        echo_json(json.dumps(found.to_json(), indent=2))
    else:
        print_comparison(found)


@click.command()
@click.argument("function", metavar="MODULE:FUNCTION|RECIPE|FOLDER")
@click.option(
    "--signature",
    type=click.Choice(("auto", "ours", "trl", "verl", "verifiers")),
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
@click.option(
    "--grader",
    metavar="COMMAND",
    help="Of FOLDER.  [default: python3 -m pytest -q, or unittest by its tests]",
)
@click.option(
    "--package",
    "packages",
    multiple=True,
    metavar="NAME",
    help="An installed package that the grader of FOLDER may import, besides pytest.",
)
@click.option("--solution", type=PATH, help="Of FOLDER: a folder with the solved tree.  [default: FOLDER]")
@click.option("--answer", "answers", multiple=True, metavar="PATH", help="What an answer writes in FOLDER.")
@click.option(
    "--restored", multiple=True, metavar="PATTERN", help="Paths in FOLDER that its grader puts back."
)
@flag("--all", "show_all", help="Show every answer that was judged wrongly.")
@json_option
def audit(function: str, *, timeout_seconds: float, show_all: bool, as_json: bool, **how: Any) -> None:
    """Try cheating answers on a reward function or grader.

    FUNCTION takes answers as TRL's reward functions do (completions, **columns), as those of verifiers
    (completion, answer, **kwargs), as verl's compute_score, or as ours. The first line says what kind of
    grader it is: executes code in its own process, pays for form only, looks for the text, permissive,
    strict, pays for brevity, sound …; then one example of each weakness. The exit code is 0 if it is sound,
    1 if it accepts a wrong answer, is broken by one, refuses a right one or pays answers in the wrong order,
    2 if FUNCTION cannot be used or never tells right from wrong.

    A name without a colon is a recipe (shipped, or a file): the weighted sum of its reward terms is audited.
    Of a FOLDER the command --grader is audited, in the sandbox, on trees that solve nothing.

    \b
    greenward audit quickstart
    greenward audit my_rewards:unit_tests
    greenward audit my_rewards:compute_score --data-source codecontests --ground-truth json
    greenward audit my_rewards:matches --column gold=reference
    greenward audit tasks/parser --solution solved/parser --grader "python3 grade.py"
    """
    import greenward.api as api
    from greenward.reports.evaluation import print_audit

    given = click.get_current_context().get_parameter_source
    asked = {name: how[name] for name in how if given(name) is ParameterSource.COMMANDLINE}
    is_folder = api.is_project(function)
    wrong = [name for name in asked if (name in _OF_FOLDERS) is not is_folder]
    if wrong and (is_folder or ":" in function):
        kind = "a folder" if is_folder else "a function"
        raise click.UsageError(f"{', '.join(wrong)} does not concern {kind}: leave it out.")
    if ":" not in function and not is_folder:
        asked = {}  # a recipe says itself how its terms are called
    elif asked.get("ground_truth") == "auto":
        del asked["ground_truth"]
    if not is_folder or given("timeout_seconds") is ParameterSource.COMMANDLINE:
        asked["timeout_seconds"] = timeout_seconds
    report = api.audit(function, progress=_progress(), **asked)
    if as_json:
        echo_json(json.dumps(report.to_json(), indent=2))
    else:
        print_audit(report, show_all=show_all)
    if not report.sound:
        raise SystemExit(2 if report.says_nothing else 1)


_OF_FOLDERS = ("grader", "packages", "solution", "answers", "restored")


def _progress() -> Any:
    """Counts answers on a terminal, and says nothing into a pipe."""
    if not sys.stderr.isatty():
        return lambda done, total: None
    return lambda done, total: click.echo(
        f"\r{done + 1} of {total} answers" + ("\r\033[K" if done + 1 == total else ""), err=True, nl=False
    )
