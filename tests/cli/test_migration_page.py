"""Every command and key on the page for those who come from other systems exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from greenward.cli.main import cli
from greenward.cli.rldk import rldk
from greenward.cli.train import ALIASES
from greenward.config.loading import all_recipes, field_at, load_recipe

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text("utf-8")
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
SPANS = [span for row in ROWS for span in re.findall(r"`([^`]+)`", " | ".join(row[1:]))]
COMMANDS = list(dict.fromkeys(span for span in SPANS if re.match(r"(greenward|rldk) ", span)))
KEYS = list(
    dict.fromkeys(
        re.split("[=:]", span)[0]
        for span in SPANS
        if re.match(
            r"(model|problems|training|sampling|evaluation|rewards|algorithm|tracking|faults)\.\w", span
        )
    )
)


def parse(command: str) -> click.Context:
    """The context of a command that would run, made without running it."""
    program, *arguments = shlex.split(command)
    group: click.Command = {"greenward": cli, "rldk": rldk}[program]
    context = click.Context(group, info_name=program)
    while isinstance(group, click.Group):
        name, found, arguments = group.resolve_command(context, arguments)
        assert found is not None
        if isinstance(found, click.Group):  # `greenward problems` takes no options of its own
            context = click.Context(found, info_name=name, parent=context)
        else:
            context = found.make_context(name, arguments, parent=context)
        group = found
    return context


def test_the_page_has_commands_of_both_programs() -> None:
    assert len(COMMANDS) >= 18
    assert {command.split()[0] for command in COMMANDS} == {"greenward", "rldk"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_parses_and_its_recipe_is_good(command: str) -> None:
    if command in ("greenward train", "greenward eval"):
        return  # the name of a command, without its arguments
    context = parse(command)
    if context.command.name == "train":
        given = context.params
        aliases = [
            f"{key}={names.get(given[option], given[option])}"
            for option, (keys, names) in ALIASES.items()
            if given[option] is not None
            for key in keys
        ]
        load_recipe(given["recipe"], [*aliases, *given["overrides"]])


@pytest.mark.parametrize("key", KEYS)
def test_every_key_exists(key: str) -> None:
    path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    assert any(field_at(made, path) is not None for made in all_recipes().values())
