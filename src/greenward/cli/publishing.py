"""`greenward push`: a checkpoint goes to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

import click

from greenward.cli.arguments import run_argument
from greenward.text import visible


@click.command()
@run_argument
@click.option(
    "--repo", required=True, metavar="OWNER/NAME", help="The model repository; made if it is missing."
)
@click.option("--checkpoint", default="best", help="best, last or a name such as step_000020.")
@click.option("--public", is_flag=True, help="Make the repository public; it is private otherwise.")
@click.option("--dry-run", is_flag=True, help="List the files and print the card; send nothing.")
def push(run: Path, *, repo: str, checkpoint: str, public: bool, dry_run: bool) -> None:
    """Send a checkpoint of RUN to the Hugging Face Hub: the model, its tokenizer and its card.

    The token is HF_TOKEN, from the environment or `.env`, or that of `hf auth login`. The trainer's state,
    answers, logs and keys are never sent.

    \b
    greenward push runs/quickstart --repo me/quickstart --dry-run
    """
    from greenward.recipes import push as hub

    pushed = hub.push(run, repo, checkpoint=checkpoint, private=not public, dry_run=dry_run)
    sizes = {name: file.stat().st_size for name, file in pushed.files.items()}
    sizes[hub.CARD] = len(pushed.card.encode())
    for name, size in sizes.items():
        click.echo(visible(f"{size:>15,}  {name}"))
    click.echo(f"{sum(sizes.values()):>15,}  bytes in all, of {pushed.checkpoint}")
    if pushed.url:
        click.echo(f"Sent to {pushed.repo}: {pushed.url}")
    else:
        click.echo(visible(f"\n{pushed.card}"))
        click.echo(f"Nothing was sent to {pushed.repo} ({'private' if pushed.private else 'public'}).")
