"""Every command and key on the page for those who come from other systems exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.cli.rldk import rldk
from greenward.cli.train import aliased
from greenward.config.importing import import_config
from greenward.config.loading import Surroundings, all_recipes, field_at, load_recipe
from greenward.config.originals import MODELS

PAGE = (Path(__file__).parents[2] / "docs" / "migration.md").read_text("utf-8")
ROWS = [line.strip("|").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
# The first column is theirs.
SPANS = [span for row in ROWS for span in re.findall(r"`([^`]+)`", " | ".join(row[1:]))]
COMMANDS = list(dict.fromkeys(span for span in SPANS if re.match(r"(greenward|rldk) ", span)))
KEYS = list(
    dict.fromkeys(
        re.split("[=:]", span)[0]
        for span in SPANS
        if not span.endswith(".json")
        and re.match(
            r"(model|problems|training|sampling|evaluation|rewards|algorithm|tracking|faults|environment|reward)\.\w",
            span,
        )
    )
)


def parse(command: str) -> click.Context:
    """The context of a command that would run, made without running it."""
    program, *arguments = shlex.split(command)
    group: click.Command = {"greenward": cli, "rldk": rldk}[program]
    context = click.Context(group, info_name=program, **group.context_settings)
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
def test_every_command_parses_and_its_recipe_is_good(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if command in ("greenward train", "greenward eval"):
        return  # the name of a command, without its arguments
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "a.jsonl", "b.jsonl"):  # files that a command asks for before it runs
        (tmp_path / name).touch()
    (tmp_path / "config.yaml").write_text("model: 7b\nlearning_rate: 1e-5\n")
    try:
        context = parse(command)
    except click.exceptions.Exit as done:
        assert (command, done.exit_code) == ("rldk --version", 0)
        return
    if context.command.name == "train":
        given = context.params
        if given["config"] is not None:
            import_config(given["config"])
        else:
            overrides = [*aliased(given), *given["overrides"]]
            load_recipe(given["recipe"], overrides, machine=lambda: Surroundings("h100"))


@pytest.mark.parametrize("key", KEYS)
def test_every_key_exists(key: str) -> None:
    path = tuple(int(part) if part.isdigit() else part for part in key.split("."))
    assert any(field_at(made, path) is not None for made in all_recipes().values())


@pytest.mark.parametrize("option", ["--num_episodes", "--num-episodes"])
@pytest.mark.parametrize("model", ["runs/one", "--model runs/one"])
def test_evaluation_takes_the_options_of_the_original(option: str, model: str) -> None:
    given = parse(f"greenward eval {model} --problems eval_problems.json {option} 50").params
    assert given["samples"] == 50 and given["suite"] == "eval_problems.json"
    assert "runs/one" in (given["model"], given["served"])


def test_seven_billion_parameters_fit_one_gpu_by_the_documented_command() -> None:
    """The row of the original's command, planned for the GPUs that the pages name."""
    row = next(row for row in ROWS if "--model 7b" in row[0])
    command = next(span for span in re.findall(r"`([^`]+)`", row[1]) if span.startswith("greenward train"))
    overrides = [part for part in shlex.split(command) if "=" in part]
    model = f"model={MODELS['7b']}"
    for gpu, memory in (("h100", 80), ("a100-40", 40)):
        done = CliRunner().invoke(cli, ["plan", "ppo_code_fix", "--gpu", gpu, model, *overrides])
        assert done.exit_code == 0, done.output
        assert re.search(rf"GiB of {memory}.0 GiB: fits", done.output), done.output
        whole = CliRunner().invoke(cli, ["plan", "ppo_code_fix", "--gpu", gpu, model])
        assert "does NOT fit" in whole.output and "what fits: model.lora.r=16" in whole.output
