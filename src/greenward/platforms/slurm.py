"""Slurm: a recipe as a batch script, or a grid of runs as an array, and its submission.

The job asks for a signal before its time limit, passes it to the training, which stops at a checkpoint, and
goes back to the queue; `train --resume` then goes on. Sources: man sbatch, man srun, man scontrol of 22.05.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from greenward.config.grid import GridRun
from greenward.errors import ConfigError, RunError
from greenward.runs.files import writing
from greenward.runs.output import claim_folder

# What stands in a line of #SBATCH, which no shell reads and no quotes protect.
_PLAIN = {
    "partition": (r"[\w.,-]+", "names with commas between"),
    "account": (r"[\w.@+-]+", "a name"),
    "gpus": (r"(?:[\w.-]+:)?\d+", "a number, or a type and a number such as h100:4"),
    "memory": (r"\d+[KMGT]?", "a number and K, M, G or T, such as 32G"),
    "time": (
        r"\d+-\d+(:\d+){0,2}|\d+(:\d+){0,2}", "minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S, such as 04:00:00"
    ),
    "sbatch": (r"--[a-z][\w-]*(?:[= ][^\x00-\x1f\x7f]*)?", "an option of sbatch, such as --constraint=h100"),
}  # fmt: skip


@dataclass(frozen=True)
class SlurmOptions:
    """What a job asks for, and where it runs. Raises `ConfigError` for what Slurm would not take.

    `gpus` and `memory` are those of each node, `time` as Slurm writes it; `stop_before` is how many seconds
    before its end the training is told to stop, `requeues` how often the job goes back to the queue at most.
    `venv`, `modules` and `container` (an Apptainer image) make the environment, else this interpreter.
    """

    partition: str | None = None
    account: str | None = None
    nodes: int = 1
    gpus: str = "0"
    cpus: int | None = None
    memory: str | None = None
    time: str = "04:00:00"
    stop_before: int = 300
    requeues: int = 100
    jobs: int | None = None
    logs: Path = Path("logs")
    venv: Path | None = None
    modules: tuple[str, ...] = ()
    container: Path | None = None
    accelerate_config: Path | None = None
    cache: Path | None = None
    offline: bool = False
    sbatch: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (pattern, expected) in _PLAIN.items():
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None and not re.fullmatch(pattern, value):
                    raise ConfigError(f"--{name}: expected {expected}, found {value!r}.")
        if self.stop_before >= (limit := seconds_of(self.time)):
            raise ConfigError(
                f"--stop-before {self.stop_before} s leaves no time of the {limit} s of --time {self.time}.",
                remedy="Give more than a step, an evaluation and a checkpoint take, and less than --time.",
            )
        if self.nodes > 1 and not self.processes:
            raise ConfigError(f"--nodes {self.nodes} without --gpus: several nodes train on GPUs only.")
        if self.venv is not None and self.container is not None:
            raise ConfigError("--venv and --container exclude each other: the image has its own environment.")

    @property
    def processes(self) -> int:
        """GPUs of all nodes, each of which is trained on by one process."""
        return self.nodes * int(self.gpus.rpartition(":")[2])


def seconds_of(time: str) -> int:
    """The seconds of a time limit in one of Slurm's forms."""
    days, dash, clock = time.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    units = (3600, 60, 1) if dash or len(parts) == 3 else (60, 1)
    return int(days or 0) * 86400 + sum(part * unit for part, unit in zip(parts, units, strict=False))


def render(recipe: str, runs: Sequence[GridRun], output: Path | None, options: SlurmOptions) -> str:
    """The batch script that trains `recipe` in `output`; several runs are an array with a folder for each.

    It is submitted from the folder in which the command line was written: paths may be relative.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # of a shell script, where values are quoted by `quote`
        loader=PackageLoader("greenward.platforms", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["join_quoted"] = shlex.join
    named = re.sub(r"[^\w.-]+", "_", Path(recipe).stem, flags=re.ASCII)
    return environment.get_template("job.sh.j2").render(
        options=options,
        name=f"greenward-{named}",
        array=len(runs) > 1,
        runs=[_arguments(recipe, run, output) for run in runs],
        program=_program(options),
    )


def _arguments(recipe: str, run: GridRun, output: Path | None) -> list[str]:
    place = [] if output is None else ["--output", str(output / run.folder)]
    return ["--resume", *place, "--", recipe, *run.overrides]


def _program(options: SlurmOptions) -> list[str]:
    """The Python of the environment, with what starts it in its container."""
    if options.container is not None:
        gpus = ["--nv"] if options.processes else []
        return ["apptainer", "exec", *gpus, str(options.container), "python"]
    return ["python"] if options.venv is not None or options.modules else [sys.executable]


def submit(script: str, logs: Path) -> str:
    """Submit a script by sbatch from the current folder; the id of the job. Raises `RunError`."""
    claim_folder(logs, "logs")
    with writing(str(logs)):
        tempfile.TemporaryFile(dir=logs).close()
    try:
        done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise RunError(
            "there is no sbatch here: this machine is no login node of a Slurm cluster.",
            remedy="`greenward slurm render` prints the script, to be submitted elsewhere.",
        ) from None
    if done.returncode != 0:
        raise RunError(f"sbatch submitted nothing: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip().partition(";")[0]  # in a federation the cluster's name follows
