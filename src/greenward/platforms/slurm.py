"""Slurm: a recipe as a batch script, or a grid of runs as an array, and its submission.

The job asks for a signal before its time limit, passes it to the training, which stops at a checkpoint, and
goes back to the queue; `train --resume` then goes on. Sources: man sbatch, man srun, man scontrol of 22.05.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from greenward.config.grid import GridRun
from greenward.errors import ConfigError, RunError
from greenward.runs.files import writing

_TIME = re.compile(r"(?:(?P<d>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+))?)?"
                   r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+)|(?P<m>\d+)(?::(?P<s>\d+))?)")  # fmt: skip
_PLAIN = {  # what stands in a line of #SBATCH, which no shell reads and no quotes protect
    "partition": r"[\w.,-]+",
    "account": r"[\w.@+-]+",
    "gpus": r"(?:[\w.-]+:)?\d+",
    "memory": r"\d+[KMGT]?",
    "extra": r"--[a-z][\w-]*(?:[= ][^\x00-\x1f\x7f]*)?",
}
_EXPECTED = {
    "partition": "names with commas between",
    "account": "a name",
    "gpus": "a number, or a type and a number such as h100:4",
    "memory": "a number and K, M, G or T, such as 32G",
    "extra": "an option of sbatch such as --constraint=h100",
}


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
    extra: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, pattern in _PLAIN.items():
            given = getattr(self, name)
            for value in given if isinstance(given, tuple) else (given,):
                if value is not None and not re.fullmatch(pattern, value):
                    option = "sbatch" if name == "extra" else name
                    raise ConfigError(f"--{option}: expected {_EXPECTED[name]}, found {value!r}.")
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
    """The seconds of a time limit: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S. Raises `ConfigError`."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise ConfigError(
            f"--time: expected minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S (such as 04:00:00), found {time!r}."
        )
    unit = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    return sum(int(part) * unit[name[-1]] for name, part in match.groupdict().items() if part)


def render(recipe: str, runs: Sequence[GridRun], output: Path | None, options: SlurmOptions) -> str:
    """The batch script that trains `recipe` in `output`; several runs are an array with a folder for each.

    It is submitted from the folder in which the command line was written: paths may be relative. Raises
    `RunError` where the logs cannot be written.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    _check_logs(options.logs)
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
    """What precedes `-m greenward` or the arguments of `accelerate launch`."""
    if options.container is not None:
        gpus = ["--nv"] if options.processes else []
        return ["apptainer", "exec", *gpus, str(options.container), "python"]
    return ["python"] if options.venv is not None or options.modules else [sys.executable]


def _check_logs(logs: Path) -> None:
    """Raises `RunError` for a folder that cannot be made or written; makes none."""
    there = next(one for one in (logs.absolute(), *logs.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise RunError(
            f"--logs {logs}: {there} is no folder that can be written.", remedy="Choose another folder."
        )


def submit(script: str, logs: Path) -> str:
    """Submit a script by sbatch from the current folder; the id of the job. Raises `RunError`."""
    with writing(str(logs)):
        logs.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(["sbatch", "--parsable"], input=script, capture_output=True, text=True)
    except FileNotFoundError:
        raise RunError(
            "there is no sbatch here: this machine is no login node of a Slurm cluster.",
            remedy="`greenward slurm render` prints the script, to be submitted elsewhere.",
        ) from None
    if done.returncode != 0:
        raise RunError(f"sbatch refused the job: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip().partition(";")[0]  # in a federation the cluster's name follows
