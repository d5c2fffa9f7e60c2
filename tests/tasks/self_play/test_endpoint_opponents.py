"""Self-play against a model behind a server: asked in its own way, and void games when it dies."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from greenward.common.errors import ConfigError, EngineError
from greenward.common.http import RetryPolicy
from greenward.config.loading import load_recipe
from greenward.recipes.run import train
from greenward.rollouts.endpoint import Endpoint
from greenward.rollouts.protocols import POLICY, SamplingParams
from greenward.runs.reading import read_metrics
from greenward.tasks.self_play.environment import GameEnvironment, MovePrompts, Opponents
from greenward.tasks.self_play.evaluation import Contestant, play_match
from greenward.tasks.self_play.games import TicTacToe
from greenward.tasks.self_play.task import served_contestant
from openai_server import OpenAIServer
from text_engine import TextEngine, table_of
from tiny_model import TINY_MODEL, CharacterTokenizer

SMALL = (
    *TINY_MODEL,
    "model.device=cpu",
    "model.dtype=float32",
    "warm_start.max_steps=2",
    "warm_start.batch_size=8",
    "training.num_generations=4",
    "training.prompts_per_step=2",
    "training.max_steps=2",
    "training.threads=1",
    "evaluation.enabled=false",
    "self_play.games=[kuhn_poker, tictactoe]",
)
QUICK = RetryPolicy(attempts=2, attempt_seconds=1.0, total_seconds=3.0, first_wait=0.01)


def first_move(prompt: str) -> str:
    move = re.search(r"Your possible moves: ([^,\n]+)", prompt)[1]
    return f"<think>first</think>\\boxed{{{move}}}"


@pytest.mark.slow
def test_games_are_trained_against_a_server_until_it_dies_and_are_void_then(tmp_path: Path) -> None:
    with OpenAIServer(first_move) as server:
        name = f"tiny@{server.url}"
        server.fault = lambda *_: "cut_at_once" if len(server.payloads) > 3 else None
        recipe = load_recipe("spiral_self_play", [*SMALL, f"self_play.opponents={{self: 1, '{name}': 1}}"])
        assert train(recipe, tmp_path / "run", quiet=True)
    rows = list(read_metrics(tmp_path / "run" / "metrics.jsonl").rows)
    assert len(rows) == 2
    assert any(0 < row["episodes/infrastructure"] <= 4 for row in rows)  # at most half of the 8 games
    assert name in (tmp_path / "run" / "report.html").read_text()


def test_a_server_is_asked_in_its_own_way_and_games_in_which_it_died_are_not_scored() -> None:
    game = TicTacToe()
    with OpenAIServer(first_move) as server:
        served = served_contestant(game, Endpoint(f"tiny@{server.url}", patience=QUICK), 0.7)
        table = replace(table_of(game), others={"served": (served.prompts, served.sampling)})
        environment = GameEnvironment(
            [table],
            Opponents({"served": 1.0}, {}),
            sampling=SamplingParams(max_tokens=3),
            games_per_group=4,
            seed=0,
        )
        players = {POLICY: TextEngine(random_cell, random=True), "served": served.engine}
        episodes = environment.collect(players, range(3), seed=0).episodes
        assert all(episode.scored for episode in episodes)
        assert all("\\boxed{move}" in one["messages"][0]["content"] for one in server.payloads)
        assert {(one["max_tokens"], one["temperature"]) for one in server.payloads} == {(512, 0.7)}
        assert not any("boxed" in prompt for batch in players[POLICY].batches for prompt in batch)
        assert {turn.player for episode in episodes for turn in episode.turns} == {POLICY, "served"}
        server.fault = lambda *_: "500"
        died = environment.collect(players, range(3), seed=0).episodes
        assert not any(episode.scored or any(episode.rewards.values()) for episode in died)


@pytest.mark.parametrize(
    "opponent, error, message",
    [
        ("tiny@http://127.0.0.1:9/v1", EngineError, "Is the server running"),
        ("tiny@http://me:sk-1@host/v1", ConfigError, "no user"),
        ("other@{url}", ConfigError, "It serves: tiny"),
    ],
)
def test_a_server_that_does_not_answer_is_refused_before_there_is_a_run(
    tmp_path, opponent, error, message
) -> None:
    with OpenAIServer(first_move) as server:
        name = opponent.format(url=server.url)
        recipe = load_recipe("spiral_self_play", [*SMALL, f"self_play.opponents={{'{name}': 1}}"])
        with pytest.raises(error, match=message):
            train(recipe, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def random_cell(text: str, generator: np.random.Generator) -> str:
    return str(generator.choice([cell for cell in text[1:].split() if cell.isdigit()]))


def test_games_in_which_the_server_dies_have_no_result() -> None:
    game = TicTacToe()
    prompts = MovePrompts(game, CharacterTokenizer(), "bare")
    contestant = Contestant(TextEngine(random_cell, random=True), prompts, SamplingParams(max_tokens=10))
    with OpenAIServer(first_move) as server:
        served = served_contestant(game, Endpoint(f"tiny@{server.url}", patience=QUICK), 1.0)
        whole = play_match(game, contestant, served, games=20, seed=1)
        assert [(one.games, one.void) for one in whole] == [(10, 0), (10, 0)]
        sent = len(server.payloads)
        server.fault = lambda *_: "500" if len(server.payloads) > sent + 50 else None
        died = play_match(game, contestant, served, games=20, seed=1)
    assert all(one.games + one.void == 10 for one in died)
    assert 0 < sum(one.void for one in died) < 20
    for one, before in zip(died, whole, strict=True):  # what ended before the server died stands
        assert (one.won <= before.won, one.drawn <= before.drawn, one.lost <= before.lost) == (True,) * 3
