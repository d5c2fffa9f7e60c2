"""`rldk`: the diagnostics under the command name that users of the RLDK tools know."""

from __future__ import annotations

from typing import NoReturn

import click

from greenward import __version__
from greenward.cli.main import DIAGNOSING, InOrder, run


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="%(prog)s (greenward) %(version)s")
def rldk() -> None:
    """Diagnose training runs; the same commands as in `greenward`."""


for command in DIAGNOSING:
    rldk.add_command(command)


def main() -> NoReturn:
    """Run the command line and exit as `greenward` does."""
    run(rldk, "rldk")
