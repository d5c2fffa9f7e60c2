"""What the help of groups says: every command, under a heading, with a whole sentence."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from greenward.cli.main import SECTIONS, cli
from greenward.cli.rldk import rldk
from greenward.config.loading import shipped_recipes


def groups(group: click.Group, *path: str) -> Iterator[tuple[str, ...]]:
    """The paths of a group and of all groups below it."""
    yield path
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from groups(command, *path, name)


@pytest.mark.parametrize("width", [50, 80, 200])
@pytest.mark.parametrize(
    ("program", "path"),
    [(program, path) for program in (cli, rldk) for path in groups(program)],
    ids=lambda value: " ".join(value) or "top" if isinstance(value, tuple) else value.name,
)
def test_summaries_are_whole_sentences_at_any_width(
    program: click.Group, path: tuple[str, ...], width: int
) -> None:
    said = CliRunner().invoke(program, [*path, "--help"], terminal_width=width).output
    words = " ".join(said.split())
    group: click.Command = program
    for name in path:
        assert isinstance(group, click.Group)
        group = group.commands[name]
    assert isinstance(group, click.Group)
    for name, command in group.commands.items():
        first_paragraph = " ".join((command.help or "").split("\n\n")[0].replace("\b", "").split())
        sentence = first_paragraph.split(". ")[0].rstrip(".")
        assert sentence
        assert f" {name} {sentence}." in words
    assert "..." not in said.partition("Options:")[2].replace("]...", "")


def test_each_command_stands_under_one_heading_in_its_order() -> None:
    said = CliRunner().invoke(cli, ["--help"]).output.partition("Options:")[2]
    lines = said.splitlines()
    shown: dict[str, list[str]] = {}
    for line in lines:
        if line and not line.startswith(" "):
            heading = line.rstrip(":")
        elif line.startswith("  ") and line[2:3].strip() and not line.startswith("  -"):
            shown.setdefault(heading, []).append(line.split()[0])
    assert shown == {heading: [one.name for one in commands] for heading, commands in SECTIONS.items()}
    assert sorted(name for names in shown.values() for name in names) == sorted(cli.commands)


def test_config_list_says_of_every_recipe_what_it_trains() -> None:
    lines = CliRunner().invoke(cli, ["config", "list"]).output.splitlines()
    listed = dict(line.split(maxsplit=1) for line in lines[:-1])
    assert list(listed) == list(shipped_recipes())
    for name, about in listed.items():
        first_line = shipped_recipes()[name].read_text(encoding="utf-8").splitlines()[0]
        assert about.endswith("."), f"the first line of {name} is to be a whole sentence"
        assert first_line == f"# {about}"
        assert len(about) <= 100  # one line beside the names
