"""Defines the commands that evaluate answers, show and compare evaluations, and audit reward functions."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from greenward.cli.options import (
    COUNT,
    LEVEL,
    PATH,
    POSITIVE,
    FloatRange,
    api_key_options,
    comma_separated,
    endpoint_name,
    folder_option,
    json_option,
    overwrite_option,
    pairs,
    with_options,
)
from greenward.common.errors import RunError
from greenward.common.text import visible

if TYPE_CHECKING:
    from greenward.api import AuditReport, EvaluationResult, Trial
    from greenward.evaluation.compare import PairedComparison
    from greenward.evaluation.evaluate import EvaluationRow


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

    import greenward.api as api

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
    import greenward.api as api

    how = {name: chosen[name] for name in (*JUDGING, "k", "skip_bad_rows", "quiet")}
    _finish(api.grade(samples, suite, extract=extract, output=chosen["out"], **how), chosen)


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
        from greenward.reports.render import print_report

        print_report(evaluation_report(out))
        click.echo(f"Report: {out / 'report.html'}")
    if summary["failures"]:
        raise SystemExit(EXIT_FAILED)
    limit, reached = chosen["fail_under"], summary["metrics"].get("pass@1", {}).get("value", 0.0)
    if limit is not None and reached < limit:
        click.echo(f"pass@1 is {reached:.3f}, below {limit:g}.", err=True)
        raise SystemExit(EXIT_BELOW)


MAX_IDS = 40  # printed of each kind; --json has all


@click.command()
@click.argument("task_id", metavar="TASK_ID")
@click.option("--in", "folder", type=PATH, required=True, help="The evaluation's folder.")
@click.option("--sample", type=click.IntRange(min=0), help="Which answer.  [default: the first that failed]")
def show(task_id: str, folder: Path, sample: int | None) -> None:
    """Show what was asked, what was answered, and the first test that failed: expected and got.

    \b
    greenward show HumanEval/11 --in runs/eval/mine-humaneval+
    """
    click.echo(visible(text_of(folder, task_id, sample)))


def text_of(folder: Path, task_id: str, sample: int | None = None) -> str:
    """The task as text, with what a model wrote as it was written.

    Without `sample`, the first answer that failed, else the first. Raises `RunError` for a folder without
    an evaluation and for a task or sample that it does not hold, naming the nearest.
    """
    from greenward.common.files import expecting
    from greenward.evaluation.store import PROMPTS, RESULTS, SAMPLES, read_rows

    if not (folder / RESULTS).is_file():
        raise RunError(
            f"{folder} holds no evaluation ({RESULTS}).",
            remedy="Give the folder that `greenward eval` or `greenward grade` wrote to.",
        )
    with expecting("the files of an evaluation", folder, RunError):
        row, of_task = _chosen(folder, read_rows(folder / RESULTS), task_id, sample)
        answer = _first(folder / SAMPLES, task_id=task_id, sample=row.sample)
        prompt = _first(folder / PROMPTS, task_id=task_id).get("prompt", "")
        passed = sum(one.success is True for one in of_task)
        lines = [
            f"{task_id}, answer {row.sample}: {row.status.value} ({passed} of {len(of_task)} answers pass)",
            _block("Prompt", prompt),
            _block("Answer", answer.get("completion", "")),
        ]
        if answer.get("solution") not in (None, answer.get("completion")):
            lines.append(_block("Program that was run", answer["solution"]))
        lines.append(f"Tests passed: {row.tests_passed} of {row.tests} in {row.cpu_seconds:.2f} CPU s")
        if row.truncated:
            lines.append("The answer was cut off at the token limit.")
        if row.extraction_failure:
            lines.append(f"No program: {row.extraction_failure}")
        if row.first_failure:
            lines.append(f"First failing test: {row.first_failure}")
        if row.error_class or row.error_message:
            lines.append(f"Error: {row.error_class or ''} {row.error_message}".replace("  ", " "))
        return "\n".join(lines)


def _chosen(
    folder: Path, rows: list[EvaluationRow], task_id: str, sample: int | None
) -> tuple[EvaluationRow, list[EvaluationRow]]:
    """The row of the sample (of the first that failed, if none is named), and all rows of its task."""
    from difflib import get_close_matches

    of_task = sorted((row for row in rows if row.task_id == task_id), key=lambda row: row.sample)
    if not of_task:
        near = get_close_matches(task_id, {row.task_id for row in rows}, n=3)
        remedy = f"Nearest: {', '.join(near)}." if near else None
        raise RunError(f"{folder}: no answer to {task_id!r} was judged.", remedy=remedy)
    if sample is None:
        return min(of_task, key=lambda row: row.success is True), of_task
    for row in of_task:
        if row.sample == sample:
            return row, of_task
    there = ", ".join(str(row.sample) for row in of_task)
    raise RunError(f"{folder}: there is no answer {sample} to {task_id}.", remedy=f"There are {there}.")


def _first(path: Path, **wanted: Any) -> dict[str, Any]:
    from greenward.runs.files import read_jsonl

    return next((row for row in read_jsonl(path).rows if wanted.items() <= row.items()), {})


def _block(title: str, text: str) -> str:
    lines = "\n".join(f"    {line}" for line in text.rstrip().split("\n"))
    return f"{title}:\n{lines}\n"


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

    found = compare_evaluations(read_evaluation(a), read_evaluation(b), k=k)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        return
    for warning in _warnings(found):
        click.secho(visible(f"! {warning}"), fg="yellow")
    click.secho(visible(found.claim), bold=True)
    for side, name, rate in (("A", found.name_a, found.a), ("B", found.name_b, found.b)):
        interval = f"[{rate.low:.1%}, {rate.high:.1%}]"
        click.echo(visible(f"  {side}           pass@{found.k} {rate.value:6.1%} {interval:16} {name}"))
    points = found.difference
    interval = f"[{100 * points.low:+.1f}, {100 * points.high:+.1f}]"
    click.echo(f"  difference  {100 * points.value:+.1f} points, 95 % interval {interval}")
    if found.mid_p is not None:
        click.echo(f"  mid-p       {found.mid_p:.2g}")
    click.echo(f"  {_detectable(found)}")
    for label, ids in (("won by B", found.won), ("lost by B", found.lost)):
        more = f" … and {len(ids) - MAX_IDS} more" if len(ids) > MAX_IDS else ""
        click.echo(visible(f"  {label:11} {len(ids)}  {' '.join(ids[:MAX_IDS])}{more}".rstrip()))


def _warnings(found: PairedComparison) -> list[str]:
    warnings = [f"{name} differs: {x} in A, {y} in B" for name, (x, y) in found.other_settings.items()]
    if found.unpaired_a or found.unpaired_b:
        warnings.append(
            f"THE PROBLEMS DIFFER: {found.problems} are compared; {len(found.unpaired_a)} are only in A and "
            f"{len(found.unpaired_b)} only in B ({_some((*found.unpaired_a, *found.unpaired_b))})"
        )
    if found.too_few:
        warnings.append(
            f"{len(found.too_few)} problems left out: fewer than {found.k} answers on a side "
            f"({_some(found.too_few)})"
        )
    if found.infrastructure:
        warnings.append(
            f"{found.infrastructure} answers were lost to the infrastructure and count as not passed"
        )
    return warnings


def _some(ids: tuple[str, ...]) -> str:
    return " ".join(ids[:3]) + (" …" if len(ids) > 3 else "")


def _detectable(found: PairedComparison) -> str:
    if found.detectable is None:
        return f"{found.problems} problems are too few to show any difference (power 80 %, alpha 5 %)"
    return (
        f"the smallest difference that these {found.problems} problems can show (power 80 %, alpha 5 %): "
        f"{100 * found.detectable:.1f} points"
    )


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
    greenward audit greenward.grading.reward_terms:tests
    """
    import greenward.api as api

    if ":" not in function:
        how = {}  # a recipe says itself how its terms are called
    elif how["ground_truth"] == "auto":
        how["ground_truth"] = None
    report = api.audit(function, timeout_seconds=timeout_seconds, progress=_progress(), **how)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        _print_audit(report)
    if not report.sound:
        raise SystemExit(2 if report.says_nothing else 1)


def _progress() -> Any:
    """Counts answers on a terminal, and says nothing into a pipe."""
    if not sys.stderr.isatty():
        return lambda done, total: None
    return lambda done, total: click.echo(
        f"\r{done + 1} of {total} answers" + ("\r\033[K" if done + 1 == total else ""), err=True, nl=False
    )


def _print_audit(report: AuditReport) -> None:
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
