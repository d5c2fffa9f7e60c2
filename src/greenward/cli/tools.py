"""Defines the commands for reports, asking and publishing models, machines and the sandbox's server."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from greenward.cli.options import (
    COUNT,
    LEVEL,
    PATH,
    Commands,
    FloatRange,
    checkpoint_option,
    dtype_option,
    flag,
    folder_option,
    json_option,
    overrides_argument,
    recipe_argument,
    run_argument,
)
from greenward.common.control_groups import usable_cores
from greenward.common.errors import ConfigError, RunError
from greenward.common.terminal import echo, echo_json

if TYPE_CHECKING:
    from greenward.hardware.detection import Machine


Form = Literal["terminal", "html", "markdown", "json"]
FORMS = get_args(Form)


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=PATH)
@click.option(
    "--format", "form", type=click.Choice(FORMS), help="How the report is shown.  [default: terminal]"
)
@folder_option(
    "--output", "The folder of the page.  [default: reports/RUN; of several, reports/overlay]", "report"
)
@folder_option("--export", "Write every chart as SVG and CSV, every table as CSV and JSON Lines.", "report")
@flag("--png", help="With --export: every chart as PNG, too, drawn by a Chromium browser of this machine.")
@flag("--overwrite", help="Replace exported files of the same names.")
def report(
    runs: tuple[Path, ...],
    *,
    form: Form | None,
    output: Path | None,
    export: Path | None,
    png: bool,
    overwrite: bool,
) -> None:
    """Show the report of RUN: a run directory, a study, a sweep, or the folder of an evaluation.

    Several runs are overlaid in one report; several evaluations are compared with the first. terminal,
    markdown and json are printed. html writes report.html, report.md and report.json, not into RUN, and
    prints the path of the page. --export prints the names of the files that it wrote, and the report only
    with --format. `greenward ui` shows runs while they train.

    \b
    greenward report runs/mine
    greenward report runs/one runs/two --format html
    greenward report runs/eval/before runs/eval/after --format html
    greenward report runs/mine --export figures
    """
    from greenward.reports.comparison import are_evaluations, comparison_report
    from greenward.reports.export import write_export
    from greenward.reports.recorded import report_of
    from greenward.reports.render import print_report
    from greenward.reports.write import render, usual_folder, write_report

    folder = output or (usual_folder(runs[0]) if len(runs) == 1 else Path("reports/overlay"))
    if (overwrite or png) and export is None:
        named = "--overwrite" if overwrite else "--png"
        raise click.UsageError(f"{named} concerns --export: give its folder.")
    if are_evaluations(runs):
        from greenward.evaluation.compare import compare, read_evaluation

        first, *others = map(read_evaluation, runs)
        made = comparison_report(runs, [compare(first, other) for other in others])
    else:
        made = report_of(*runs)
    if export is not None:
        echo("\n".join(map(str, write_export(made, export, overwrite=overwrite, png=png))))
        if form is None:
            return
    if form == "html":
        echo(write_report(made, folder)["html"])
    elif form in ("markdown", "json"):
        (echo_json if form == "json" else echo)(render(made, form))
    else:
        print_report(made)


def _steps(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    """A text that means a step or a range of steps, whose ends are in order."""
    from greenward.runs.selection import step_range

    if text is None:
        return None
    try:
        first, last = step_range(text)
    except RunError as error:
        raise click.BadParameter(str(error)) from None
    if first is not None and last is not None and first > last:
        raise click.BadParameter(f"the range {text!r} ends before it begins")
    return text


@click.command()
@run_argument
@click.option("--where", default="", show_default=False, help="Conditions joined by &, as in the example.")
@click.option("--step", callback=_steps, help="A step (12) or a range (10-20, 10-, -20).")
@click.option("--status", "statuses", multiple=True, help="Such as passed, failed, timeout; may be repeated.")
@click.option("--task", default="", show_default=False, help="A part of the task's id.")
@click.option("--reward-min", type=float, help="The least reward.")
@click.option("--reward-max", type=float, help="The largest reward.")
@click.option(
    "--around", type=click.IntRange(0), metavar="STEP", help="The kept steps before and from STEP on."
)
@click.option("--window", type=COUNT, default=3, help="Kept steps on each side of --around.")
@click.option(
    "--sort",
    "sorted_by",
    type=click.Choice(("reward", "advantage", "length")),
    help="The largest first.  [default: in the order of training]",
)
@flag("--smallest", help="The smallest of --sort first.")
@click.option("--page", type=COUNT, default=1)
@click.option("--page-size", type=click.IntRange(1, 1000), default=10, help="Answers on a page.")
@click.option("--format", "form", type=click.Choice(("terminal", "markdown", "json")), default="terminal")
def rollouts(
    run: Path, *, where: str, step: str | None, around: int | None, window: int, sorted_by: str | None,
    smallest: bool, statuses: tuple[str, ...], task: str, reward_min: float | None, reward_max: float | None,
    page: int, page_size: int, form: Any,
) -> None:  # fmt: skip
    """Show the answers that RUN kept while it trained, oldest first.

    The other options are short for conditions of --where, which are those of an address of `greenward ui`
    (docs/ui.md): step, status, task, problem, stop, error, group, reward, advantage, tokens, length, passed,
    term.NAME, reward.ROLE, groups, same, mixed, text, and sort.

    \b
    greenward rollouts runs/mine --step 12 --status failed
    greenward rollouts runs/mine --where 'step=40-&stop=length&sort=-tokens'
    greenward rollouts runs/mine --around 120 --sort reward --smallest
    """
    from greenward.reports.render import print_report
    from greenward.reports.rollouts import Rollouts, steps_around
    from greenward.reports.write import render
    from greenward.runs.selection import Condition, parse_query

    if around is not None and step is not None:
        raise click.UsageError("Give one of --step and --around.")
    if smallest and sorted_by is None:
        raise click.UsageError("--smallest needs --sort: the smallest of what?")
    if around is not None:
        step = "{}-{}".format(*steps_around(run, around, window))
    given = {
        ("step", "="): step,
        ("status", "="): ",".join(status.replace(" ", "_") for status in statuses),
        ("task", "="): task,
        ("reward", ">="): None if reward_min is None else f"{reward_min!r}",
        ("reward", "<="): None if reward_max is None else f"{reward_max!r}",
    }
    wanted = parse_query(where, strict=True)
    wanted = wanted.with_conditions(*(Condition(*key, value) for key, value in given.items() if value))
    if sorted_by is not None:
        wanted = replace(wanted, sort=sorted_by if smallest else f"-{sorted_by}")
    found = Rollouts(run, wanted, page_size)
    if form == "terminal":
        print_report(found.report(page))
        if page < found.pages:
            echo(f"Page {page} of {found.pages}; the next one: --page {page + 1}")
    else:
        (echo_json if form == "json" else echo)(render(found.report(page), form))


@click.command("runs")
@click.argument("folder", metavar="[FOLDER]", type=PATH, default=Path("runs"))
@json_option
def runs_(folder: Path, *, as_json: bool) -> None:
    """List the runs in FOLDER (runs): state, newest figures, size.

    Below them stands what can be deleted; nothing is deleted. A run is running while a process writes it,
    failed if a sweep noted that, finished if its summary says so, and otherwise interrupted: `greenward
    train` with --resume goes on with it. What can be deleted is needed neither by a resume nor by a report.
    Links are not followed.

    \b
    greenward runs
    greenward runs runs/rates --json
    """
    from greenward.reports.listing import listing_report
    from greenward.reports.render import print_report
    from greenward.runs.files import dump_json
    from greenward.runs.listing import list_runs

    found, notes = list_runs(folder)
    if as_json:
        record = {"folder": str(folder), "runs": [asdict(one) for one in found], "notes": notes}
        echo_json(dump_json(record, indent=2))
    else:
        print_report(listing_report(folder, found, notes))


@click.command()
@run_argument
@click.option(
    "--repo", required=True, metavar="OWNER/NAME", help="The model repository; made if it is missing."
)
@click.option("--checkpoint", default="best", help="best, last or a name such as step_000020.")
@flag("--public", help="Make the repository public; it is private otherwise.")
@flag("--dry-run", help="List the files and print the card; send nothing.")
def push(run: Path, *, repo: str, checkpoint: str, public: bool, dry_run: bool) -> None:
    """Send a checkpoint of RUN to the Hugging Face Hub: the model, its tokenizer and its card.

    The token is HF_TOKEN, from the environment or `.env`, or that of `hf auth login`. The trainer's state,
    answers, logs and keys are never sent.

    \b
    greenward push runs/quickstart --repo me/quickstart --dry-run
    """
    from greenward.runs import publish as hub

    pushed = hub.push(run, repo, checkpoint=checkpoint, private=not public, dry_run=dry_run)
    sizes = {name: file.stat().st_size for name, file in pushed.files.items()}
    sizes[hub.CARD] = len(pushed.card.encode())
    for name, size in sizes.items():
        echo(f"{size:>15,}  {name}")
    echo(f"{sum(sizes.values()):>15,}  bytes in all, of {pushed.checkpoint}")
    if pushed.url:
        echo(f"Sent to {pushed.repo}: {pushed.url}")
    else:
        echo(f"\n{pushed.card}")
        echo(f"Nothing was sent to {pushed.repo} ({'private' if pushed.private else 'public'}).")


@click.command()
@click.argument("model")
@click.option("--gguf", "file", required=True, type=PATH, help="The file to write.")
@click.option(
    "--type",
    "kind",
    type=click.Choice(("F32", "BF16", "F16", "Q8_0")),
    help="Of matrices.  [default: that of the weights; F16 for adapters and quantised models]",
)
@checkpoint_option
@flag("--overwrite", help="Replace a GGUF file of that name.")
def export(model: str, *, file: Path, kind: str | None, checkpoint: str | None, overwrite: bool) -> None:
    """Write MODEL as a file that llama.cpp, Ollama and LM Studio run.

    MODEL is a run directory, a model folder, a GGUF file, an adapter, which is merged, or a Hugging Face id,
    of the families Qwen2, Qwen3 and Llama. The tokenizer must be one that llama.cpp has.

    \b
    greenward export runs/mine --gguf mine.gguf
    greenward export runs/mine --checkpoint best --gguf mine-q8.gguf --type Q8_0
    """
    from greenward.models.catalog import find_model, write_gguf

    found = find_model(model, checkpoint)
    written = write_gguf(found, file, kind=kind, overwrite=overwrite)
    echo(f"{file}: {written}, {file.stat().st_size:,} bytes")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Examine this machine: GPUs, memory, disk, network, extras, and the layers of isolation around answers.

    Every layer is tested by an attempt. The exit code is 1 if answers cannot be isolated at level B, which
    training requires by default.
    """
    from greenward.hardware.detection import detect, reaches_hub
    from greenward.models.kernels.build import build
    from greenward.runs.machine import collect_provenance
    from greenward.sandbox.isolation import Layer, Level
    from greenward.sandbox.pool import inspect_sandbox

    found, online = detect(), reaches_hub()
    gpus = [{**asdict(gpu), "bfloat16": gpu.bfloat16} for gpu in found.gpus]
    facts = {**vars(found), "extras": dict(found.extras), "gpus": gpus, "hub_reachable": online}
    built = build()
    machine = {**collect_provenance(), **facts, "preset": found.preset, "warnings": found.warnings}
    machine["kernels"] = {"compiled": built.library is not None, "reason": built.reason}
    isolation, answer_ms = inspect_sandbox()
    if as_json:
        layers = {
            layer.value: {
                "in_force": layer in isolation.layers,
                "stops": layer.stops,
                "reason": "" if layer in isolation.layers else isolation.reason(layer),
            }
            for layer in Layer
        }
        sandbox = {"level": isolation.level.value, "layers": layers, "answer_ms": answer_ms}
        echo_json(json.dumps({"machine": machine, "sandbox": sandbox}, indent=2))
    else:
        _print(machine, found, isolation, answer_ms)
    if not isolation.level.suffices(Level.B):
        raise SystemExit(1)


@click.group(cls=Commands)
def kernels() -> None:
    """Kernels in C that compute small models on CPUs."""


@kernels.command("build")
def build_kernels() -> None:
    """Compile the kernels for this machine and test them against torch, again if that has been done.

    Training does so by itself when they are missing. Without a compiler, or when the test fails, torch
    computes, and the exit code is 1.
    """
    from greenward.models.kernels.build import build

    built = build(anew=True)
    echo(f"{built.library}: {built.reason}" if built.library else f"No kernels: {built.reason}.")
    raise SystemExit(0 if built.library else 1)


def _rows(machine: dict[str, Any], found: Machine) -> Iterator[tuple[str, str]]:
    """What is printed of a machine: labels and values."""
    limit = f", limited to the time of {found.cpu_limit:g}" if found.cpu_limit else ""
    yield "system", f"{machine['system']}, {machine['cpu_count']} CPUs, {machine['device']}"
    yield "cores", f"{found.cores} for this process{limit}"
    yield "memory", f"{found.memory_mb:,} MiB, {found.available_mb:,} MiB available"
    yield "disk", f"{found.disk_free_gb:,.1f} GiB free here"
    for gpu in found.gpus:
        numbers = "bfloat16, float16" if gpu.bfloat16 else "float16 (no bfloat16)"
        yield "GPU", f"{gpu.name}, {gpu.memory_mb:,} MiB, {numbers}"
    if not found.gpus:
        yield "GPU", "none"
    yield "preset", f"{found.preset} (for pretrained models; docs/machines.md)"
    yield "Slurm", ", ".join(f"{key} {value}" for key, value in (found.slurm or {}).items()) or "none"
    yield "site", f"{found.site}: no connection from its nodes" if found.site else "none that is known"
    yield "offline", f"yes: {found.offline} (model.offline, no W&B)" if found.offline else "no"
    yield "W&B", "a key is there" if found.wandb_key else "no key (WANDB_API_KEY, .env or ~/.netrc)"
    yield "hub", "reachable" if machine["hub_reachable"] else "not reachable: models must be in the cache"
    yield "models", f"{found.model_cache} ({'writable' if found.model_cache_writable else 'not writable'})"
    kernels = machine["kernels"]
    yield "kernels", kernels["reason"] if kernels["compiled"] else f"none: {kernels['reason']}"
    yield "python", machine["python"]
    yield "packages", ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    for extra, packages in found.extras.items():
        there = [f"{name} {version}" for name, version in packages.items() if version]
        yield f"[{extra}]", ", ".join(there) or f"not installed: pip install 'greenward[{extra}]'"


def _print(machine: dict[str, Any], found: Machine, isolation: Any, answer_ms: float) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from greenward.sandbox.isolation import Layer, Level

    console = Console()
    console.print()
    console.print(Text("Machine", style="bold green"))
    for label, value in _rows(machine, found):
        console.print(Text(f"  {label:13} {value}"))
    for warning in found.warnings:
        console.print(Text(f"  {warning}", style="yellow"))
    console.print()
    console.print(Text(f"Sandbox: isolation level {isolation.level.value}", style="bold green"))
    console.print(Text(f"  {isolation.level.meaning}; {answer_ms:.1f} ms for a trivial answer", style="dim"))
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in ("layer", "in force", "what it stops"):
        table.add_column(heading)
    for layer in Layer:
        mark = Text("yes", style="green") if layer in isolation.layers else Text("no", style="red")
        table.add_row(layer.value, mark, layer.stops)
    console.print(table)
    for layer in Layer:
        if layer not in isolation.layers:
            reason = isolation.reason(layer)
            console.print(Text(f"  {layer.value}: {reason}. To have it, {layer.remedy}.", style="yellow"))
    if not isolation.level.suffices(Level.B):
        console.print(Text(isolation.warning, style="bold red"))


@click.command()
@recipe_argument
@overrides_argument
@click.option("--gpu", required=True, metavar="NAME", help="v100, a100, h100, h200, l4, 4090, …")
@click.option("--gpus", type=COUNT, default=1, help="How many.")
@click.option("--price", type=FloatRange(min=0), help="Price of one GPU for one hour.")
@click.option("--prompt-tokens", type=COUNT, default=512)
def plan(recipe: str, overrides: tuple[str, ...], **how: Any) -> None:
    """Estimate memory, time and cost of CONFIG on GPUs, from data sheets. Nothing is measured.

    \b
    greenward plan quickstart --gpu h100 --gpus 8 --price 2.5 model=Qwen/Qwen2.5-7B
    """
    from greenward.models.memory import plan_lines

    for line in plan_lines(recipe, overrides, **how):
        echo(line)


@click.group(cls=Commands)
def sandbox() -> None:
    """The sandbox for answers, as a server."""


@sandbox.command()
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, help="0: a free one.")
@click.option(
    "--token-env", metavar="NAME", help="Environment variable with the token that clients must send."
)
@click.option("--workers", type=COUNT, help="Answers at a time.  [default: the cores]")
@click.option("--require", type=LEVEL, default="B", help="Least isolation level.")
@click.option("--package", "packages", multiple=True, help="What answers may import; may be repeated.")
@click.option("--memory-mb", type=click.IntRange(64), default=1024, help="Of a /run_code program.")
@click.option("--max-jobs", type=COUNT, default=1024, help="In flight; more get 429.")
@click.option("--max-body-mb", type=COUNT, default=64, help="Of a request.")
def serve(
    host: str, port: int, *, token_env: str | None, workers: int | None, require: str,
    packages: tuple[str, ...], memory_mb: int, max_jobs: int, max_body_mb: int,
) -> None:  # fmt: skip
    """Run code that is sent by HTTP, until interrupted.

    POST /run_code takes Python programs in the form of SandboxFusion; POST /run_jobs takes the jobs of a
    training with sandbox.backend=http. A token is required unless the address is the loopback.
    """
    from greenward.sandbox.http import SandboxServer, serve
    from greenward.sandbox.isolation import Level
    from greenward.sandbox.remote import JobServer

    token = os.environ.pop(token_env, "") if token_env else None
    if token == "":
        raise ConfigError(f"--token-env: the environment variable {token_env} is not set.")
    with JobServer(workers or usable_cores(), require=Level(require), packages=packages) as jobs:
        limits = {"max_jobs": max_jobs, "max_body_bytes": max_body_mb << 20, "memory_bytes": memory_mb << 20}
        server = SandboxServer(jobs, host, port, token=token, **limits)
        level = jobs.isolation.level.value
        echo(f"Serving on http://{host}:{server.server_port} at level {level}, {jobs.workers} workers.")
        serve(server)


@click.command()
@click.argument("model", metavar="MODEL")
@click.argument("prompt", metavar="PROMPT")
@flag("--raw", help="Continue PROMPT as a text, without the chat template.")
@checkpoint_option
@click.option("--max-tokens", type=COUNT, default=512, help="Of an answer; fewer where the model ends.")
@click.option("--temperature", type=FloatRange(min=0), default=0.0)
@click.option("--top-p", type=FloatRange(0, 1, min_open=True), default=1.0)
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--n", "count", type=COUNT, default=1, help="Answers.")
@dtype_option(default="auto")
@click.option("--device", default="auto", help="cpu, cuda, cuda:1 …")
def sample(
    model: str, prompt: str, *, raw: bool, checkpoint: str | None, max_tokens: int, temperature: float,
    top_p: float, seed: int, count: int, dtype: str, device: str,
) -> None:  # fmt: skip
    """Ask MODEL one question and print its answer as it comes.

    MODEL is a run directory, a model folder, a GGUF file or a Hugging Face id. PROMPT is put into its chat
    template where it has one; - reads it from the standard input. Answers alone go to the standard output,
    what is said of them to the standard error.

    \b
    greenward sample models/smollm2.gguf "Write a function that reverses a string."
    greenward sample runs/mine - --n 4 --temperature 0.8 < question.txt
    greenward sample my-base-model "def add(a, b):" --raw --max-tokens 40
    """
    if count > 1 and temperature == 0:
        raise click.UsageError(f"--n {count} at temperature 0 draws the same answer {count} times.")
    from greenward.common.errors import ConfigError
    from greenward.runs.progress import Progress

    text = sys.stdin.read() if prompt == "-" else prompt
    with Progress() as progress, progress.during(f"loading torch and {model}"):
        from greenward.models.catalog import find_model
        from greenward.models.devices import resolve_device
        from greenward.models.policy import Policy
        from greenward.rollouts.protocols import SamplingParams

        found = find_model(model, checkpoint)
        computed_on = resolve_device(device, key="--device")
        policy = Policy.for_inference(found.folder, dtype=dtype, device=computed_on)
    tokenizer = policy.tokenizer
    ids = tokenizer.render_question(text, raw=raw)
    if not ids:
        raise ConfigError("The prompt is empty.", remedy="Give a question, or the beginning of a text.")
    if (room := policy.max_positions - len(ids)) < 1:
        raise ConfigError(
            f"The prompt has {len(ids)} tokens, and the model {policy.max_positions} positions."
        )
    piece = tokenizer.answer_stream()
    shown = ""

    def show(newest: list[int]) -> None:
        nonlocal shown
        new = piece(newest[0])
        shown += new
        echo(new, nl=False)

    began = time.perf_counter()
    ((*answers,),) = policy.sample(
        [ids],
        count,
        SamplingParams(min(max_tokens, room), temperature, top_p),
        seed=seed,
        on_ids=show if count == 1 else None,
    )
    seconds = time.perf_counter() - began
    for one in answers:
        answer = tokenizer.decode_answer(one.token_ids)
        echo(answer.removeprefix(shown))
        echo(f"{len(one.token_ids)} tokens, ended by {one.stop_reason.value}", err=True)
    tokens = sum(len(one.token_ids) for one in answers)
    style = "as a text" if raw or tokenizer.chat_template is None else "in the chat template"
    speed = f"{tokens} tokens in {seconds:.1f} s ({tokens / seconds:,.0f} a second)"
    stored = f" ({found.quantization})" if found.quantization else ""
    echo(
        f"{found.name}{stored}: {len(ids)} tokens asked {style}; {speed}, {policy.computed_in} on "
        f"{policy.device}",
        err=True,
    )
