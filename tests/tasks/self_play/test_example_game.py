"""The game in examples/: its rules, its expert against theory, and that it is played and trained as it says."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from greenward.cli.main import cli
from greenward.tasks.self_play.games import ExpertPlayer, RandomPlayer, find_game

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def game(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(EXAMPLES)
    return find_game("nim:Nim")  # which plays random games to check it


def test_the_expert_wins_wherever_a_win_can_be_had(game: Any) -> None:
    @cache
    def value(state: Any) -> float:
        """Of the player to move, by search over all games."""
        if game.player(state) is None:
            return -1.0  # the other one took the last stone
        return max(-value(game.step(state, action)) for action in game.legal_actions(state))

    rng = random.Random(0)
    for stones in range(1, 11):
        after = game.step((stones, 0), game.expert_action((stones, 0), rng))
        assert -value(after) == value((stones, 0))


def test_the_first_player_of_two_experts_wins_and_gains_sum_to_nothing(game: Any) -> None:
    rng = random.Random(1)
    for players, must_win in (
        ((ExpertPlayer(), ExpertPlayer()), 0),
        ((RandomPlayer(), RandomPlayer()), None),
    ):
        for _ in range(20):
            state = game.start(rng)
            while (player := game.player(state)) is not None:
                state = game.step(state, players[player].act(game, state, rng))
            gains = game.returns(state)
            assert sum(gains) == 0
            assert must_win is None or gains[must_win] == 1


def test_it_is_played_in_the_terminal_as_its_text_says(game: Any) -> None:
    played = CliRunner().invoke(
        cli, ["play", "nim:Nim", "--role", "first", "--seed", "0"], input="2\n" + "1\n3\n2\n" * 4
    )
    assert played.exit_code == 0, played.output
    assert "You win" in played.output or "You lose" in played.output
