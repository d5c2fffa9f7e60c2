"""Safety net: the help of every command is what was recorded, to the letter.

To record it anew after a change of what a command offers:

    PYTHONPATH=tests python tests/system/test_recorded_help.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.cli.rldk import rldk

SHOW = "--show"
RECORD = Path(__file__).with_name("recorded_help.txt")


def _helps(program: click.Group, *path: str) -> Iterator[str]:
    """The help of a command of a program and of all its commands, each under a line with its name."""
    arguments = [*path[1:], "--help"]
    result = CliRunner().invoke(program, arguments, prog_name=path[0], terminal_width=100)
    assert result.exit_code == 0, result.output
    yield f"$ {' '.join(path)} --help\n{result.output}\n"
    command: click.Command = program
    for name in path[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from _helps(program, *path, name)


def helps() -> str:
    return "".join([*_helps(cli, "greenward"), *_helps(rldk, "rldk")])


def test_every_command_offers_what_was_recorded() -> None:
    # In a process of its own: click keeps a command's option for help as the first test made it.
    done = subprocess.run([sys.executable, __file__, SHOW], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == RECORD.read_text(encoding="utf-8").splitlines()


if __name__ == "__main__":
    if SHOW in sys.argv:
        print(helps(), end="")
    else:
        RECORD.write_text(helps(), encoding="utf-8")
