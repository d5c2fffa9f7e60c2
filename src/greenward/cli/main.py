"""The command line. Heavy modules are imported inside the commands only."""

from __future__ import annotations

import gc
import signal
import sys
import warnings
from collections.abc import Sequence
from io import StringIO, TextIOWrapper
from typing import Any, NoReturn

import click

from greenward import __version__
from greenward.cli.completion import completion
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
from greenward.cli.options import Commands
from greenward.cli.rldk_names import translated
from greenward.cli.selftest import selftest
from greenward.cli.tasks import fix, play, problems
from greenward.cli.tools import doctor, export, kernels, plan, push, report, rollouts, runs_, sample, sandbox
from greenward.cli.train import config, demo, import_, init, launch, slurm, sweep, train, validate_model
from greenward.cli.ui import ui
from greenward.common import interruption
from greenward.common.errors import GreenwardError, TrainingStopped
from greenward.common.terminal import echo, format_visible_warning
from greenward.common.text import visible, without_keys

EXIT_ERROR = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: the same command may succeed later
TRAINING_PACKAGES = frozenset({"torch", "tokenizers", "safetensors"})
SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "show_default": True,
    "token_normalize_func": lambda name: name.replace("_", "-"),
}
"""What holds for all commands: `-h`, defaults in the help, and underscores in names of options as hyphens."""


class Main(Commands):
    """All commands; the diagnostics take RLDK's names and options, too."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing:  # completion
            name, arguments = translated(args[0], args[1:], self.commands)
            args = [name, *arguments]
        return super().resolve_command(ctx, args)


@click.group(cls=Main, context_settings=SETTINGS)
@click.version_option(__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Reinforcement learning that turns failing tests green.

    Start with `greenward demo`, or `greenward train quickstart`.
    """


PROVING = (check_determinism, replay, bisect, diff_ckpt)
DIAGNOSING = (diagnose, reward_health, evals, diff, monitor, watch, *PROVING)
SECTIONS = {
    "Train": (demo, init, train, launch, sweep, slurm, config, import_, validate_model),
    "Evaluate": (eval_, grade, show, compare, audit),
    "Use a model": (sample, fix, play, export, push),
    "Diagnose": DIAGNOSING,
    "Look at runs": (ui, runs_, report, rollouts),
    "Data": (problems,),
    "Machines": (doctor, selftest, plan, sandbox, kernels, completion),
}
"""The commands under the headings of the help: what one wants to do."""
for heading, commands in SECTIONS.items():
    cli.add_section(heading, commands)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 finished, 2 a user's error, 130 interrupted (after a clean stop).

    75 means that a training stopped cleanly because its rollout engine failed, 141 that whoever read the
    output has left.
    """
    run(cli, "greenward", arguments)


def _of_key(error: click.NoSuchOption, arguments: Sequence[str]) -> click.UsageError:
    """The error for an option that is a key of recipes, where the command takes overrides."""
    command = error.ctx.command if error.ctx is not None else None
    if command is None or all(parameter.name != "overrides" for parameter in command.params):
        return error
    from greenward.config.completion import keys_called

    if not (keys := keys_called(error.option_name.lstrip("-"), arguments)):
        return error
    names = [SETTINGS["token_normalize_func"](one.partition("=")[0]) for one in arguments]
    place = names.index(error.option_name) if error.option_name in names else None
    value = "…"
    if place is not None:
        _, equals, after = arguments[place].partition("=")
        value = after if equals else next(iter(arguments[place + 1 :]), value)
    others = f" (or {', '.join(f'{key}={value}' for key in keys[1:])})" if keys[1:] else ""
    written = visible(f"{keys[0]}={value}{others}")
    return click.UsageError(f"No such option {error.option_name!r}. Write {written}.", error.ctx)


def run(group: click.Group, name: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a group of commands as the program `name`; see `main`."""
    # Imports, problems and logs allocate many objects and few cycles. The default threshold is 700.
    gc.set_threshold(50_000)
    warnings.formatwarning = format_visible_warning
    if isinstance(sys.stdout, TextIOWrapper):  # answers and paths hold characters that no terminal can show
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with interruption.stoppable(
            lambda: f"Stopping. {interruption.AGAIN}", signals=(signal.SIGINT,), ends_process=True
        ):
            sys.exit(group.main(arguments, prog_name=name, standalone_mode=False))
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):
            error = _of_key(error, sys.argv[1:] if arguments is None else arguments)
        said = StringIO()
        error.show(said)
        echo(said.getvalue(), err=True, nl=False)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):  # click makes the former of the latter
        echo("Interrupted.", err=True)
        sys.exit(interruption.EXIT_CODE)
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in TRAINING_PACKAGES:
            raise
        remedy = "Install what trains and loads models: pip install 'greenward[train]'"
        echo(f"Error: this command needs {package}, which is not installed.\n  {remedy}", err=True)
        sys.exit(EXIT_ERROR)
    except GreenwardError as error:
        echo(f"Error: {without_keys(str(error))}", err=True)
        sys.exit(EXIT_STOPPED if isinstance(error, TrainingStopped) else EXIT_ERROR)
    except OSError as error:  # 1 would be a finding of `diagnose`, or a score below --fail-under of `eval`
        where = f"{error.filename}: " if error.filename else ""
        echo(f"Error: {where}{error.strerror or error}", err=True)
        sys.exit(EXIT_ERROR)
