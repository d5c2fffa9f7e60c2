"""`greenward eval`: a model on a suite."""

from __future__ import annotations

from typing import Any, Literal

import click

from greenward.cli.evaluation_options import EXIT_BELOW, chosen_grading, finish, grading_options

SAMPLING = ("samples", "temperature", "top_p", "max_tokens", "fewshot", "seed", "dtype", "device")
STYLES: dict[str, Literal["completion", "chat"] | None] = {"base": "completion", "chat": "chat", "auto": None}


@click.command("eval")
@click.argument("model", metavar="MODEL", required=False)
@click.option(
    "--suite", help="mbpp, mbpp:test, humaneval+, families, a file …  [default: held out by MODEL's run]"
)
@click.option("--checkpoint", metavar="last|best|NAME", help="Of a run: best on held-out problems, or step_…")
@click.option(
    "--n", "samples", type=click.IntRange(min=1), default=1, show_default=True, help="Answers each."
)
@click.option("--temperature", type=click.FloatRange(min=0), help="[default: 0 for one answer, else 0.8]")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option(
    "--max-tokens", type=click.IntRange(min=1), help="[default: 512, or what the model has room for]"
)
@click.option("--limit", type=click.IntRange(min=1), help="Only so many problems, the same everywhere.")
@click.option("--ids", help="Only these problems, with commas between.")
@click.option("--fewshot", type=click.IntRange(min=0), default=0, show_default=True, help="MBPP's examples.")
@click.option("--style", type=click.Choice(tuple(STYLES)), default="auto", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--dtype", type=click.Choice(("auto", "float32", "bfloat16", "float16")))
@click.option("--device", help="cpu, cuda, cuda:1 …")
@click.option(
    "--show-prompt", is_flag=True, help="Print the first prompt as the model sees it; draw nothing."
)
@click.option("--check-references", is_flag=True, help="Judge the suite's own solutions (first, or alone).")
@grading_options
def eval_(model: str | None, **chosen: Any) -> None:
    """Sample a model's answers to a suite, run them, and report how many are right.

    MODEL is a run directory (its newest checkpoint), a model folder or a Hugging Face id. All files
    are in one folder. After an interruption the same command goes on and repeats nothing. Published
    figures differ by prompt, number of examples, temperature and time limit: all are recorded.

    \b
    greenward eval runs/demo/seed_0
    greenward eval Qwen/Qwen2.5-1.5B --suite mbpp:test --fewshot 3
    greenward eval runs/mine --suite humaneval+ --n 10 --k 1,5,10 --temperature 0.2 --out evaluations/mine
    """
    if model is None and not chosen["check_references"]:
        raise click.UsageError("name a MODEL (or --check-references alone).")

    from greenward import api
    from greenward.text import visible

    suite, grading = chosen["suite"], chosen_grading(chosen)
    which = {name: chosen[name] for name in ("checkpoint", "limit", "skip_bad_rows")} | {"ids": _ids(chosen)}
    if chosen["check_references"]:
        line, failures = api.check_references(suite, policy=model, **which, **grading)
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
    result = api.evaluate(
        model, suite, k=chosen["k"], output=chosen["out"], quiet=chosen["quiet"], **options, **grading
    )
    finish(result, chosen)


def _ids(chosen: dict[str, Any]) -> tuple[str, ...]:
    return tuple(part.strip() for part in (chosen["ids"] or "").split(",") if part.strip())
