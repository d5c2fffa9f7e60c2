"""`greenward problems`: problems from source code."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from greenward.cli.arguments import COUNT, LEVEL, FloatRange, folder_option, json_option, quiet_option


@click.group()
def problems() -> None:
    """Make problems for training and evaluation."""


@problems.command("from-source")
@click.argument("sources", metavar="PATH...", nargs=-1, required=True)
@folder_option("--out", "Where the problems are written.  [default: mined]", "problems")
@click.option("--limit", type=click.IntRange(min=2), help="Stop at so many problems.")
@click.option("--held-out", type=FloatRange(0, 1, True, True), default=0.2,
              help="Share of the problems that is held out, in files of their own.")  # fmt: skip
@click.option("--no-suites", is_flag=True, help="Use doctests alone; run no test suite.")
@click.option("--context", "context_chars", type=click.IntRange(min=0), default=4000,
              help="Characters of the file that a prompt shows around a function.")  # fmt: skip
@click.option("--package", "packages", multiple=True,
              help="What the source may import; repeatable.  [default: pytest, if there]")  # fmt: skip
@click.option("--workers", type=COUNT, help="Runs at a time.  [default: all processors]")
@click.option("--require", type=LEVEL, default="B",
              help="Least isolation of the sandbox.")  # fmt: skip
@click.option("--seed", type=click.IntRange(min=0), default=0)
@json_option
@quiet_option
def from_source(
    sources: tuple[str, ...], out: Path | None, as_json: bool, quiet: bool, **chosen: Any
) -> None:
    """Mine problems from Python source: a documented function, its body masked, and the tests that judge it.

    PATH is a folder (a package, or a project with its tests), a file, the name of an installed package, or
    stdlib. The functions and methods are those with doctests, or with tests that call them. All of it runs in
    the sandbox. A problem is kept if the original passes three times in a row, and neither an empty body nor
    one that returns a constant passes. DIR gets train.json, held_out.json, manifest.json, and left_out.jsonl
    with a line for each function that was left out and why.

    \b
    greenward problems from-source . --out mined
    greenward problems from-source stdlib --limit 200
    greenward train grpo_spec problems.train=mined/train.json problems.held_out=mined/held_out.json
    """
    import json

    from greenward.grading.mining import MiningOptions
    from greenward.recipes.mining import mine_problems

    which = {name: chosen.pop(name) for name in ("limit", "context_chars", "seed")}
    options = MiningOptions(suites=not chosen.pop("no_suites"), **which)
    chosen["packages"] = chosen["packages"] or None
    progress = _show_progress if sys.stderr.isatty() and not quiet else lambda *_: None
    result = mine_problems(sources, out or Path("mined"), options=options, progress=progress, **chosen)
    if as_json:
        counts = {"train": len(result.train), "held_out": len(result.held_out)}
        found = {"folder": str(result.folder), "problems": counts, "functions": result.functions}
        click.echo(json.dumps({**found, "left_out": dict(result.left_out)}, indent=2))
    elif not quiet:
        kept = len(result.train) + len(result.held_out)
        click.echo(f"{kept} problems of {result.functions} functions: {len(result.train)} to train on, "
                   f"{len(result.held_out)} held out ({result.folder})")  # fmt: skip
        for reason, count in result.left_out.items():
            click.echo(f"{count:8} {reason}")
        click.echo(f"         line by line: {result.folder / 'left_out.jsonl'}")
        sides = [side for side in ("train", "held_out") if getattr(result, side)]
        keys = [f"problems.{side}={result.folder / f'{side}.json'}" for side in sides]
        keys += [f"sandbox.packages=[{','.join(result.packages)}]"] if result.packages else []
        click.echo(f"Train on them: greenward train grpo_spec {shlex.join(keys)}")


def _show_progress(files: int, of: int, found: int) -> None:
    click.echo(f"\r\033[K{files} of {of} files, {found} problems", err=True, nl=files == of)
