"""The command that starts several processes of `greenward train` by Accelerate."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from greenward.config.loading import shipped_folder
from greenward.errors import ConfigError

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
