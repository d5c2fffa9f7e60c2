"""What a newcomer is told where a command does not do what was meant: what is there, and what to write."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

import greenward
from greenward.cli.main import cli, main
from greenward.common.errors import ConfigError
from greenward.config.completion import keys_called
from greenward.config.loading import all_recipes, fields_of


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that fails says, in one line."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ("train quickstart --max-steps 3", "Write training.max_steps=3 (or warm_start.max_steps=3)."),
        ("train quickstart --max_steps=3", "Write training.max_steps=3 (or warm_start.max_steps=3)."),
        ("train quickstart --num-generations 8 --quiet", "Write training.num_generations=8."),
        ("sweep quickstart --clip_high 0.28", "Write algorithm.clip_high=0.28."),
        ("demo --prompts-per-step", "Write training.prompts_per_step=…."),
        ("config show quickstart --training.max_steps 3", "Write training.max_steps=3."),
        ("launch quickstart --processes 2 --num-generations 8", "Write training.num_generations=8."),
    ],
)
def test_an_option_that_is_a_key_is_told_as_an_override(
    arguments: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    message = said(capsys, *shlex.split(arguments))
    assert "No such option" in message
    assert message.endswith(advice)


@pytest.mark.parametrize("arguments", ["train quickstart --no-such-key 3", "eval model --max-steps 3"])
def test_other_options_get_no_such_advice(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Write" not in said(capsys, *shlex.split(arguments))


def test_every_key_is_found_by_its_last_part() -> None:
    keys = {key for made in all_recipes().values() for key in fields_of(made)}
    for key in sorted(keys):
        last = key.rpartition(".")[2]
        assert all(one == last or one.endswith(f".{last}") for one in keys_called(last))
        if key.startswith("training."):
            assert key in keys_called(last.replace("_", "-"))


def evaluation(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("{}\n")
    (folder / "summary.json").write_text("{}")
    return folder


def test_a_folder_of_evaluations_is_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = evaluation(tmp_path / "my ev" / "one"), evaluation(tmp_path / "my ev" / "two")
    message = said(capsys, "report", str(tmp_path / "my ev"))
    assert "holds evaluations" in message
    commands = re.findall("`(greenward [^`]*)`", message)
    assert [shlex.split(command)[1:] for command in commands] == [
        ["report", str(one)],
        ["compare", str(one), str(two)],
    ]


def test_the_log_of_another_trainer_is_told_where_to_go(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "training.log"
    log.write_text(
        "".join(f"{{'loss': {1 / step}, 'reward': {step}, 'step': {step}}}\n" for step in range(1, 41))
    )
    message = said(capsys, "report", str(log))
    advised = [shlex.split(command)[1:] for command in re.findall("`(greenward [^`]*)`", message)]
    assert advised == [["diagnose", str(log)], ["watch", str(log)]]
    done = CliRunner().invoke(cli, advised[0])  # the advice is one that works
    assert "steps 40 (1 to 40)" in done.output


def test_an_empty_folder_is_neither(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "neither a run" in said(capsys, "report", str(tmp_path))


@pytest.mark.parametrize(
    ("sections", "shown", "nearest"),
    [
        ({"training": {"max_step": 2}}, "training={'max_step': 2}", "training.max_steps"),
        (
            {"algorithm": {"kl": {"coeficient": 0.1}}},
            "algorithm={'kl': {'coeficient': 0.1}}",
            "algorithm.kl.coefficient",
        ),
        ({"seed": "a"}, "seed='a'", ""),
    ],
)
def test_a_keyword_of_python_is_shown_as_it_was_written(
    sections: dict[str, object], shown: str, nearest: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        greenward.train("quickstart", output=tmp_path / "run", **sections)  # type: ignore[arg-type]
    assert shown in caught.value.message
    assert nearest in str(caught.value)
    assert json.dumps(shown) not in caught.value.message  # not as text within quotes
    with pytest.raises(ConfigError, match=r"training\.max_step=2"):
        greenward.train("quickstart", ["training.max_step=2"], output=tmp_path / "run")
