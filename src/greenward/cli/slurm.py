"""`greenward slurm render` and `submit`: a recipe, or a grid of runs, as a job of a Slurm cluster."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from greenward.cli.arguments import (
    COUNT,
    PATH,
    folder_option,
    overrides_argument,
    recipe_argument,
    with_options,
)

_file = partial(click.option, type=PATH)
_count = partial(click.option, type=COUNT)
_seconds = partial(click.option, type=click.IntRange(1, 65535))
_several = partial(click.option, multiple=True)
_job_command = with_options(
    recipe_argument,
    overrides_argument,
    folder_option(
        "--output", "The run directory.  [default: runs/NAME; of a grid, runs/sweep]", "run", "runs"
    ),
    click.option("--partition", help="The partition, or several with commas between."),
    click.option("--account", help="The account that is charged."),
    _count("--nodes", default=1),
    click.option("--gpus", default="0", help="GPUs of each node: 4, or h100:4."),
    _count("--cpus", help="CPU cores of each node."),
    click.option("--memory", help="Memory of each node, such as 32G."),
    click.option("--time", default="04:00:00", help="The time limit of one session."),
    _seconds("--stop-before", default=300, help="How long before its end it is stopped."),
    click.option(
        "--requeues", type=click.IntRange(min=0), help="How often it goes on at most.  [default: 100]"
    ),
    _count("--jobs", help="Runs of a grid at a time.  [default: any]"),
    folder_option("--logs", "The folder of job_ID/training_output.log.  [default: logs]", "logs"),
    _file("--venv", help="A virtual environment.  [default: the one in use]"),
    _several("--module", "modules", help="A module to load; may be repeated."),
    _file("--container", help="An Apptainer image that holds greenward."),
    _file("--accelerate-config", help="A file of Accelerate, for several GPUs."),
    _file("--cache", help="The folder of downloaded models and data (HF_HOME)."),
    click.option("--offline", is_flag=True, help="Nodes have no network: read the cache only."),
    _several("--sbatch", help="A further option of sbatch; may be repeated."),
)


@click.group()
def slurm() -> None:
    """Train on a Slurm cluster: jobs that stop at a checkpoint before their time limit and go on."""


@slurm.command()
@_job_command
def render(recipe: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Print the batch script that trains with CONFIG.

    KEY=A,B and KEY=0..4 give a key several values, as for `sweep`: every combination is a task of an array.

    \b
    greenward slurm render quickstart --partition gpu --gpus 1 --time 12:00:00 > job.sh
    """
    click.echo(_script(recipe, overrides, options)[0], nl=False)


@slurm.command()
@_job_command
def submit(recipe: str, overrides: tuple[str, ...], **options: Any) -> None:
    """Submit the script that `render` prints, and print the id of the job."""
    from greenward.platforms.slurm import submit as submit_script

    click.echo(submit_script(*_script(recipe, overrides, options)))


def _script(recipe: str, overrides: tuple[str, ...], options: dict[str, Any]) -> tuple[str, Path]:
    """The script and the folder of its logs. Keys and values are checked; what the nodes have is not."""
    from greenward.config.grid import resolved_grid
    from greenward.platforms.slurm import SlurmOptions
    from greenward.platforms.slurm import render as render_script

    output = options.pop("output")
    job = SlurmOptions(**{name: value for name, value in options.items() if value is not None})
    runs = list(resolved_grid(recipe, overrides))
    if output is None and len(runs) > 1:
        output = Path("runs/sweep")
    return render_script(recipe, runs, output, job), job.logs
