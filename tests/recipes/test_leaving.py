"""What leaves the machine is named in the first line of a run, with the switch that keeps it here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from greenward.cli.main import main
from greenward.common.http import is_on_this_machine
from greenward.config.loading import load_recipe, parse_recipe, shipped_recipes
from greenward.recipes.leaving import leaving_line
from greenward.rollouts.endpoint import Endpoint
from tiny_model import REINFORCED

RULES = """
rules:
  - {id: low, signal: reward/mean, below: 0, actions: [warn, {webhook: MY_HOOK}]}
actions: [{run: "notify me"}]
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    Path("rules.yaml").write_text(RULES)
    Path("quiet.yaml").write_text("rules: [{id: low, signal: reward/mean, below: 0, actions: [warn, stop]}]")


@pytest.mark.parametrize("name", shipped_recipes())
def test_nothing_of_a_shipped_recipe_leaves(name: str) -> None:
    assert leaving_line(load_recipe(name)) is None


SENT = {
    "wandb": (["tracking.wandb.mode=online"], "Weights & Biases"),
    "trackio": (["tracking.trackio.space_id=me/runs"], "me/runs"),
    "mlflow": (["tracking.mlflow.uri=https://tracker.example:5000/x"], "tracker.example:5000"),
    "sandbox": (
        ["sandbox.backend=http", "sandbox.http.urls=[https://judge.example, http://127.0.0.1:1]"],
        "judge.example",
    ),
    "ray": (["sandbox.backend=ray"], "Ray cluster"),
    "vllm": (
        ["rollouts.engine=server", "rollouts.server.base_url=http://gpu.example:8000"],
        "gpu.example:8000",
    ),
    "hub": (["model=owner/name"], "the name owner/name to the Hugging Face hub"),
    "alarms": (["monitor.rules=rules.yaml"], "by run and webhook"),
}


@pytest.mark.parametrize("kind", SENT)
def test_what_leaves_is_named_and_its_switch_keeps_it_here(kind: str) -> None:
    overrides, where = SENT[kind]
    line = leaving_line(load_recipe("quickstart", overrides))
    assert line is not None and line.startswith("Leaves this machine: ")
    assert where in line
    assert "127.0.0.1" not in line
    switches = re.findall(r"([a-z_]+(?:\.[a-z_]+)+=[\w]+)", line.partition("(")[2])
    assert switches
    assert leaving_line(load_recipe("quickstart", [*overrides, *switches])) is None


@pytest.mark.parametrize(
    "overrides",
    [
        ["tracking.wandb.mode=offline"],
        ["tracking.trackio.project=mine"],
        ["tracking.mlflow.uri=http://localhost:5000"],
        ["tracking.mlflow.experiment=mine"],
        ["sandbox.backend=http", "sandbox.http.urls=[http://localhost:8080, 'http://[::1]:8080']"],
        ["monitor.rules=quiet.yaml"],
        ["monitor.rules=rules.yaml", "monitor.enabled=false"],
        ["model=owner/name", "model.offline=true"],
    ],
)
def test_what_stays_here_is_not_named(overrides: list[str]) -> None:
    assert leaving_line(load_recipe("quickstart", overrides)) is None


def test_a_server_of_mlflow_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load_recipe("quickstart", ["tracking.mlflow.experiment=mine"])
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:secret@tracker.example")
    line = leaving_line(recipe)
    assert line is not None and "tracker.example" in line and "secret" not in line
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert leaving_line(recipe) is None


def test_the_hub_is_not_asked_where_its_variable_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert leaving_line(load_recipe("quickstart", ["model=owner/name"])) is None


def test_addresses_in_other_places_are_named_with_their_key() -> None:
    recipe = parse_recipe(
        "task: self_play\nself_play: {games: [kuhn_poker], opponents: "
        "{self: 1, 'm@https://play.example/v1': 1, 'm@http://localhost:1/v1': 1}}\n"
    )
    line = leaving_line(recipe)
    assert line is not None
    assert "requests to play.example" in line and "self_play.opponents" in line and "localhost" not in line
    recipe = load_recipe(
        "quickstart", ["rewards=[{name: 'mine:ask', options: {url: 'https://llm.example/v1'}}]"]
    )
    line = leaving_line(recipe)
    assert line is not None and "llm.example" in line and "rewards" in line


@pytest.mark.parametrize(
    ("address", "is_here"),
    [
        ("http://localhost:8000", True),
        ("http://127.0.0.1/v1", True),
        ("https://[::1]:1", True),
        ("http://127.8.8.8", True),
        ("http://0.0.0.0.example", False),
        ("http://localhost.example", False),
        ("http://10.0.0.1", False),
        ("https://[not an address", False),
        ("", False),
    ],
)
def test_which_addresses_are_this_machine(address: str, is_here: bool) -> None:
    assert is_on_this_machine(address) is is_here


def test_prompts_to_a_model_behind_a_server_are_named() -> None:
    there = Endpoint("model@https://api.example/v1").leaving_line
    assert there is not None and "https://api.example/v1" in there
    assert Endpoint("model@http://localhost:1/v1").leaving_line is None


def test_it_is_the_first_line_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MY_HOOK", "https://hooks.example/secret")
    with pytest.raises(SystemExit) as stopped:
        main(["train", "quickstart", *REINFORCED, "monitor.rules=rules.yaml", "evaluation.enabled=false",
              "training.max_steps=1", "--output", str(tmp_path / "run")])  # fmt: skip
    assert stopped.value.code in (0, None)
    report, said = capsys.readouterr()
    assert said.partition("\n")[2].startswith("Leaves this machine: alarms")  # after that torch is loaded
    assert "secret" not in report + said
