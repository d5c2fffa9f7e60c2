"""Recipes and recorded configs of earlier versions: what becomes of their keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.common.errors import ConfigError
from greenward.config.loading import dump, load_recipe, parse_recipe
from greenward.config.upgrade import upgrade, upgraded_text

GRPO = {"name": "grpo"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"kind": "grpo"}, {"task": "functions", "algorithm": GRPO}),
        (
            {"kind": "sft", "warm_start": {}},
            {"task": "functions", "algorithm": {"name": "sft"}, "warm_start": {}},
        ),
        (
            {"kind": "ppo", "algorithm": {"clip_low": 0.1}},
            {"task": "functions", "algorithm": {"name": "ppo", "clip_low": 0.1}},
        ),
        (
            {"kind": "rejection", "algorithm": {"overlong": {}}, "rejection": {"epochs": 2}},
            {"task": "functions", "algorithm": {"name": "rejection", "overlong": {}, "epochs": 2}},
        ),
        (
            {"kind": "dqn", "agent": {"gamma": 0.9}},
            {"task": "token_mdp", "algorithm": {"name": "dqn", "gamma": 0.9}},
        ),
        ({"kind": "self_play"}, {"task": "self_play", "algorithm": GRPO}),
        ({"kind": "code_game"}, {"task": "code_game", "algorithm": GRPO}),
        (
            {"kind": "grpo", "problems": {"train": "bugs:families"}},
            {"task": "repair", "algorithm": GRPO, "problems": {"train": "bugs:families"}},
        ),
        (
            {"kind": "grpo", "problems": {"train": "modules"}},
            {"task": "spec", "algorithm": GRPO, "problems": {"train": "modules"}},
        ),
        (
            {"kind": "grpo", "problems": {"train": "vulnerabilities"}},
            {"task": "vulnerability", "algorithm": GRPO, "problems": {"train": "vulnerabilities"}},
        ),
        (
            {"kind": "grpo", "environment": {"answer": "diff"}},
            {"task": "repair", "algorithm": GRPO, "environment": {"answer": "diff"}},
        ),
        (
            {"kind": "grpo", "environment": {"answer": "function", "max_turns": 1, "tools": None}},
            {"task": "functions", "algorithm": GRPO, "environment": {"max_turns": 1}},
        ),
        (
            {
                "kind": "grpo",
                "environment": {"answer": "function", "max_turns": 1, "tools": {"max_calls": 3}},
            },
            {"task": "agent", "algorithm": GRPO, "tools": {"max_calls": 3}},
        ),
        ({"warm_start": {"misconception_rate": 0.25}}, {"warm_start": {"error_rate": 0.25}}),
        ({"algorithm": {"importance_cap": 1.5}}, {"algorithm": {"importance": {"high": 1.5}}}),
        ({"algorithm": {"importance_cap": None}}, {"algorithm": {}}),
        (
            {"vllm": {"enabled": True, "max_model_len": 8}},
            {"rollouts": {"engine": "vllm", "vllm": {"max_model_len": 8}}},
        ),
        (
            {"kind": "grpo", "pretrained": {"environment": {"tools": {"max_calls": 9}}}},
            {"task": "agent", "algorithm": GRPO, "pretrained": {"tools": {"max_calls": 9}}},
        ),
        (
            {
                "kind": "ppo",
                "problems": {"train": "mine.jsonl"},
                "rewards": [{"name": "detection"}],
                "environment": {"max_turns": 1},  # which this task does not have
            },
            {
                "task": "vulnerability",
                "algorithm": {"name": "ppo"},
                "problems": {"train": "mine.jsonl"},
                "rewards": [{"name": "detection"}],
            },
        ),
        (
            {"kind": "grpo", "pretrained": {"kind": "grpo", "problems": {"train": "modules"}}},
            {"task": "spec", "algorithm": GRPO, "pretrained": {"problems": {"train": "modules"}}},
        ),
        # grpo was the default kind, and the sources of problems told the task.
        (
            {"problems": {"train": "bugs:families"}},
            {"task": "repair", "algorithm": GRPO, "problems": {"train": "bugs:families"}},
        ),
        (
            {"environment": {"tools": {"max_calls": 3}}},
            {"task": "agent", "algorithm": GRPO, "tools": {"max_calls": 3}},
        ),
        ({"environment": {"answer": "function"}}, {"task": "functions", "algorithm": GRPO}),
        (
            {"extends": "mine.yaml", "problems": {"train": "bugs:families"}},
            {"extends": "mine.yaml", "problems": {"train": "bugs:families"}},
        ),
        (
            {"warm_start": {"misconception_rate": 0.5, "error_rate": 0.2}},
            {"warm_start": {"error_rate": 0.2}},
        ),
        ({"kind": "grpo", "task": "repair"}, {"task": "repair", "algorithm": GRPO}),
    ],
)
def test_keys_of_earlier_versions_have_their_present_place(old: dict[str, Any], new: dict[str, Any]) -> None:
    before = repr(old)
    assert upgrade(old) == new
    assert repr(old) == before  # which is not changed
    assert upgrade(new) == new


@pytest.mark.parametrize("wrong", [[1], "text", 3, None])
@pytest.mark.parametrize(
    "key",
    ["kind", "algorithm", "environment", "agent", "rejection", "vllm", "pretrained", "problems", "rewards"],
)
def test_what_is_no_section_raises_nothing(key: str, wrong: Any) -> None:
    for kind in ("grpo", "dqn", "rejection"):
        upgrade({"kind": kind, key: wrong})
        upgrade({"kind": kind, "pretrained": {key: wrong}})


OLD = """\
# What it is for.
kind: rejection
name: mine   # a name

algorithm: {overlong: {mask_truncated: true}}

# Which are kept.
rejection: {epochs: 2}

# Sampling.
sampling:
  max_tokens: 32   # short
"""


def test_a_file_is_rewritten_and_what_stays_keeps_its_comments(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(OLD)
    with pytest.raises(ConfigError, match=r"line 2: kind is of an earlier version") as caught:
        load_recipe(file)
    assert caught.value.remedy == f"greenward config upgrade {file} rewrites the file."
    done = CliRunner().invoke(cli, ["config", "upgrade", str(file)])
    assert done.exit_code == 0 and "rewritten" in done.output
    assert (tmp_path / "mine.yaml.old").read_text() == OLD
    text = file.read_text()
    assert all(comment in text for comment in ("# What it is for.", "# a name", "# Sampling.", "# short"))
    recipe = load_recipe(file)
    assert (recipe.task, recipe.algorithm.name) == ("functions", "rejection")
    assert (recipe.algorithm.epochs, recipe.algorithm.overlong.mask_truncated) == (2, True)  # type: ignore[attr-defined]
    assert "nothing to rewrite" in CliRunner().invoke(cli, ["config", "upgrade", str(file)]).output


@pytest.mark.parametrize(
    "section",
    ["vllm: {enabled: true}", "warm_start: {misconception_rate: 0.1}", "algorithm: {importance_cap: 2.0}"],
)
def test_a_recipe_with_one_old_key_names_the_command(section: str) -> None:
    name = section.partition(":")[0]
    with pytest.raises(ConfigError, match=rf"my.yaml, line 2: {name} is of an earlier version") as caught:
        parse_recipe(f"task: functions\n{section}\n", name="my.yaml")
    assert caught.value.remedy == "greenward config upgrade my.yaml rewrites the file."


@pytest.mark.parametrize(
    "text", ["kind: grpo\n\tseed: 1\n", "kind: grpo\nkind: ppo\n", "seed: 1\n---\nseed: 2\n"]
)
def test_what_is_not_yaml_is_refused_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    (tmp_path / "my.yaml").write_text(text)
    done = CliRunner().invoke(cli, ["config", "upgrade", str(tmp_path / "my.yaml")])
    assert isinstance(done.exception, ConfigError)
    assert "my.yaml, line" in str(done.exception) and "not valid YAML" in str(done.exception)
    assert [one.name for one in tmp_path.iterdir()] == ["my.yaml"]


def test_the_mode_of_a_file_is_kept_and_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_text(OLD)
    (tmp_path / "real.yaml").chmod(0o600)
    (tmp_path / "my.yaml").symlink_to("real.yaml")
    assert CliRunner().invoke(cli, ["config", "upgrade", str(tmp_path / "my.yaml")]).exit_code == 0
    assert (tmp_path / "my.yaml").is_symlink()
    for name in ("real.yaml", "real.yaml.old"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "real.yaml.old").read_text() == OLD


def test_a_text_that_looks_like_a_number_stays_a_text() -> None:
    recipe = parse_recipe(upgraded_text('{kind: grpo, name: "1e5"}'))
    assert recipe.name == "1e5"
    assert parse_recipe(dump(recipe)) == recipe


@pytest.mark.parametrize(
    "text", ["kind: grpo\ntask: repair\nseed: 1\n", "task: repair\nseed: 1\nkind: grpo\n"]
)
def test_a_task_beside_a_kind_is_kept(text: str) -> None:
    recipe = parse_recipe(upgraded_text(text))
    assert (recipe.task, recipe.algorithm.name, recipe.seed) == ("repair", "grpo", 1)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file, old = tmp_path / "mine.yaml", tmp_path / "mine.yaml.old"
    file.write_text(OLD)
    old.write_text("precious")
    assert CliRunner().invoke(cli, ["config", "upgrade", str(file)]).exit_code == 1
    assert (file.read_text(), old.read_text()) == (OLD, "precious")


@pytest.mark.parametrize(
    "text",
    [
        "{kind: grpo, seed: 3}",
        "kind: grpo\nmodel: &m {dtype: float32}\npretrained: {model: *m}\n",
        "kind: ppo",
    ],
)
def test_texts_that_cannot_be_cut_into_sections_are_written_anew(text: str) -> None:
    recipe = parse_recipe(upgraded_text(text))
    assert recipe.algorithm.name in ("grpo", "ppo") and parse_recipe(dump(recipe)) == recipe
