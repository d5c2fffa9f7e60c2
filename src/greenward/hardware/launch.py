"""Starts other processes: a module in one, a training in several by Accelerate, and jobs of Slurm.

A module is never taken from the working folder. A job of Slurm asks for a signal before its time limit and
passes it to the training, which stops at a checkpoint; the job then goes back to the queue, and `train
--resume` goes on. Sources: man sbatch, man srun, man scontrol of 22.05.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from greenward.common.errors import ConfigError, RunError
from greenward.config.loading import GridRun, shipped_folder
from greenward.runs.files import writing
from greenward.runs.output import claim_folder

SHUTDOWN_SECONDS = 300
"""How long processes may take to end the step that they are in, and write a checkpoint, after Ctrl-C."""


def shipped_configs() -> dict[str, Path]:
    """The files for `accelerate launch` that come with greenward, by name."""
    return {file.stem: file for file in sorted((shipped_folder() / "accelerate").glob("*.yaml"))}


def launch_command(
    arguments: Sequence[str],
    *,
    processes: int,
    config: str = "ddp",
    machines: int = 1,
    machine_rank: int = 0,
    address: str | None = None,
) -> list[str]:
    """The command that runs `greenward train` with `arguments` in `processes` processes on all machines.

    `config` is a shipped file by name, or the path of another one. With several machines, the same command
    runs on each with its `machine_rank`, and `address` is HOST:PORT of the first. Raises `ConfigError` for
    what Accelerate could not launch, and where it or DeepSpeed is not installed.
    """
    shipped = shipped_configs()
    file = shipped.get(config, Path(config))
    if not file.is_file():
        raise ConfigError(f"--config: {config!r} is no file, and none of {', '.join(shipped)}.")
    if processes == 1 and config in ("fsdp2", "zero3"):
        raise ConfigError(
            f"{config} shares the weights out over processes, and there is one process.",
            remedy="Launch several (--processes 2), or train without a launcher.",
        )
    if processes % machines:
        raise ConfigError(f"--processes {processes} of all machines is no multiple of --machines {machines}.")
    if machines > 1 and ":" not in (address or ""):
        raise ConfigError(f"--machines {machines}: --address HOST:PORT of the first machine is missing.")
    for module, extra in (("accelerate", "'greenward[distributed]'"), ("deepspeed", "deepspeed")):
        if find_spec(module) is None and (module == "accelerate" or config == "zero3"):
            raise ConfigError(f"{module} is not installed.", remedy=f"pip install {extra}")
    train = ["-m", "greenward", "train", *arguments]
    if processes == 1:
        return [sys.executable, *train]
    host, _, port = (address or ":0").rpartition(":")  # port 0: any that is free
    where = ["--num_machines", str(machines), "--machine_rank", str(machine_rank)]
    where += ["--main_process_ip", host] if host else []
    return [
        *(sys.executable, "-m", __name__, "--config_file", str(file)),
        *("--num_processes", str(processes), *where, "--main_process_port", port, *train),
    ]


def launch(command: Sequence[str]) -> None:
    """Go on as `command`: this process becomes the launcher."""
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    os.environ["PYTHONSAFEPATH"] = "1"  # from Python 3.11 on, `-m` takes no module of the working folder then
    sys.stdout.flush()
    os.execv(command[0], list(command))


def main() -> None:
    """Accelerate's launcher, which ends with the exit code of the process that failed first.

    By itself it ends with 1 and a traceback of its own, below what the process said.
    """
    from accelerate.commands.launch import main as accelerate_launch
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        accelerate_launch()
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
        sys.exit(code if code >= 0 else 128 - code)
    except SignalException as error:
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main()


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

    @property
    def preset(self) -> str:
        """The preset of the GPUs as far as their type tells, else that of the smallest; `cpu` without any."""
        kind = self.gpus.rpartition(":")[0].lower()
        known = next((name for name in ("h100", "h200", "a100") if name in kind), "v100")
        return {"h200": "h100"}.get(known, known) if self.processes else "cpu"


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
        loader=PackageLoader("greenward.hardware", "."),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    environment.filters["join_quoted"] = shlex.join
    program = ["python"] if options.venv is not None or options.modules else [sys.executable]
    if options.container is not None:
        gpus = ["--nv"] if options.processes else []
        program = ["apptainer", "exec", *gpus, str(options.container), "python"]
    named = re.sub(r"[^\w.-]+", "_", Path(recipe).stem, flags=re.ASCII)
    places = [[] if output is None else ["--output", str(output / run.folder)] for run in runs]
    return environment.get_template("job.sh.j2").render(
        options=options,
        name=f"greenward-{named}",
        array=len(runs) > 1,
        runs=[["--resume", *at, "--", recipe, *run.overrides] for at, run in zip(places, runs, strict=True)],
        program=program,
    )


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
