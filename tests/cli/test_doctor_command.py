"""`greenward doctor`: the layers of this machine, for people and for programs."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.config.loading import PRESETS
from greenward.sandbox import pool
from greenward.sandbox.isolation import PORTABLE_LAYERS, Layer, Level
from greenward.sandbox.pool import LocalExecutor


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # refuses at once


def test_doctor_names_every_layer_and_the_level():
    found, _ = pool.inspect_sandbox()
    shown = CliRunner().invoke(cli, ["doctor"])
    assert shown.exit_code == (0 if found.level.suffices(Level.B) else 1)
    assert f"isolation level {found.level.value}" in shown.output
    assert all(layer.value in shown.output for layer in Layer)
    for label in ("GPU", "preset", "memory", "disk", "Slurm", "hub           not reachable", "[vllm]"):
        assert f"  {label}" in shown.output


def test_doctor_as_json():
    shown = CliRunner().invoke(cli, ["doctor", "--json"])
    found = json.loads(shown.stdout)
    machine, sandbox = found["machine"], found["sandbox"]
    assert machine["preset"] in PRESETS and machine["cores"] >= 1 and machine["available_mb"] > 0
    assert machine["extras"]["tensorboard"].keys() == {"tensorboard"} and machine["hub_reachable"] is False
    assert set(sandbox["layers"]) == {layer.value for layer in Layer}
    assert sandbox["answer_ms"] > 0


def test_doctor_says_how_to_get_what_is_missing_and_exits_with_1(monkeypatch):
    def without_the_core(workers, **options):
        return LocalExecutor(workers, layers=PORTABLE_LAYERS, **options)

    monkeypatch.setattr(pool, "LocalExecutor", without_the_core)
    shown = CliRunner().invoke(cli, ["doctor"], terminal_width=200)
    assert shown.exit_code == 1
    words = " ".join(shown.output.split())
    assert "isolation level C" in words
    assert "landlock: it was left out. To have it, use Linux 5.13" in words
    assert "container or virtual machine" in words


@pytest.mark.parametrize("level", ["E", "b", 2])
def test_a_recipe_with_an_unknown_level_is_refused(level):
    from greenward.common.errors import ConfigError
    from greenward.config.loading import load_recipe

    with pytest.raises(ConfigError, match="require"):
        load_recipe("quickstart", [f"sandbox.require={level}"])
