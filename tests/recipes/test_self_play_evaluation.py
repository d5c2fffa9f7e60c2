"""Evaluations of self-play: by its own runs, of games and of suites of code."""

from __future__ import annotations

from pathlib import Path

import pytest

from greenward.config.loading import load_recipe
from greenward.recipes.train import train
from greenward.runs.reading import read_recorded_run, read_summary
from tiny_model import DATA, TINY_MODEL

SUITE = str(DATA / "held_out.json")
SMALL = (
    *TINY_MODEL,
    "model.device=cpu",
    "model.dtype=float32",
    "self_play.games=[tictactoe, kuhn_poker, negotiation]",
    "self_play.evaluation_games=6",
    "sampling.max_tokens=4",
    "model.shape.max_positions=96",
    "warm_start.max_steps=2",
    "training.max_steps=2",
    "training.num_generations=4",
    "training.prompts_per_step=3",
    "training.threads=1",
    "sandbox={workers: 1, require: D}",
    f"evaluation.suites=[{{name: {SUITE}, max_tokens: 8}}]",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self_play") / "run"
    assert train(load_recipe("spiral_self_play", SMALL), folder, quiet=True)
    return folder


def test_every_game_and_every_suite_of_code_is_measured_at_the_start_and_at_the_end(run: Path) -> None:
    notes: list[str] = []
    recorded = read_recorded_run(run, notes)
    assert not notes and not recorded.evaluations
    assert recorded.suites.keys() == {"tictactoe", "kuhn_poker", "negotiation", "held_out"}
    for name, evaluations in recorded.suites.items():
        assert [one["step"] for one in evaluations] == [0, 2], name
    figures = {name: set(evaluations[-1]["metrics"]) for name, evaluations in recorded.suites.items()}
    assert "pass@1" in figures["held_out"]
    assert {"lines/first/lost", "random/second/not_lost"} <= figures["tictactoe"]
    assert {"exploitability", "value"} <= figures["kuhn_poker"]
    assert recorded.suites["kuhn_poker"][0]["games"] == 6
    summary = read_summary(run)
    assert summary is not None and summary["suites"].keys() == recorded.suites.keys()
