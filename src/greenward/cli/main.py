"""The command line. Heavy modules are imported inside the commands only."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

import click

from greenward import __version__
from greenward.cli.diagnose import (
    bisect,
    check_determinism,
    diagnose,
    diff,
    diff_ckpt,
    evals,
    monitor,
    replay,
    reward_health,
    watch,
)
from greenward.cli.evaluate import audit, compare, eval_, grade, show
from greenward.cli.selftest import selftest
from greenward.cli.tasks import fix, play, problems
from greenward.cli.tools import (
    completion,
    doctor,
    export,
    kernels,
    plan,
    push,
    report,
    rollouts,
    sample,
    sandbox,
)
from greenward.cli.train import config, demo, launch, slurm, sweep, train, validate_model
from greenward.cli.ui import ui
from greenward.common import interruption
from greenward.common.errors import GreenwardError, TrainingStopped
from greenward.common.text import visible, without_keys

EXIT_ERROR = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: the same command may succeed later
TRAINING_PACKAGES = frozenset({"torch", "tokenizers", "safetensors"})
SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
"""What holds for all commands: `-h`, and defaults in the help."""


class InOrder(click.Group):
    """A group whose help lists the commands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=InOrder, context_settings=SETTINGS)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Reinforcement learning that turns failing tests green.

    Start with `greenward demo`, or `greenward train quickstart`.
    """


LEARNING = (
    demo,
    train,
    launch,
    validate_model,
    sweep,
    slurm,
    sample,
    eval_,
    grade,
    show,
    compare,
    audit,
    fix,
    play,
)
PROVING = (check_determinism, replay, bisect, diff_ckpt)
DIAGNOSING = (diagnose, reward_health, evals, diff, monitor, watch, *PROVING)
REPORTING = (ui, report, rollouts, problems, push, export)
MACHINE = (config, sandbox, doctor, selftest, plan, kernels, completion)
for command in (*LEARNING, *DIAGNOSING, *REPORTING, *MACHINE):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 finished, 2 a user's error, 130 interrupted (after a clean stop).

    75 means that a training stopped cleanly because its rollout engine failed.
    """
    run(cli, "greenward", arguments)


def run(group: click.Group, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a group of commands as the program `name`; see `main`."""
    # Imports, problems and logs allocate many objects and few cycles. The default threshold is 700.
    gc.set_threshold(50_000)
    if isinstance(sys.stdout, TextIOWrapper):  # answers and paths hold characters that no terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with interruption.stoppable(
            lambda: f"Stopping. {interruption.AGAIN}", signals=(signal.SIGINT,), ends_process=True
        ):
            sys.exit(group.main(arguments, prog_name=name, standalone_mode=False))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):  # click makes the former of the latter
        click.echo("Interrupted.", err=True)
        sys.exit(interruption.EXIT_CODE)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in TRAINING_PACKAGES:
            raise
        remedy = "Install what trains and loads models: pip install 'greenward[train]'"
        click.echo(f"Error: this command needs {package}, which is not installed.\n  {remedy}", err=True)
        sys.exit(EXIT_ERROR)
    except GreenwardError as error:
        click.echo(f"Error: {visible(without_keys(str(error)))}", err=True)
        sys.exit(EXIT_STOPPED if isinstance(error, TrainingStopped) else EXIT_ERROR)
    except OSError as error:  # 1 would be a finding of `diagnose`, or a score below --fail-under of `eval`
        where = f"{error.filename}: " if error.filename else ""
        click.echo(f"Error: {visible(f'{where}{error.strerror or error}')}", err=True)
        sys.exit(EXIT_ERROR)
