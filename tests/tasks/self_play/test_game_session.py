"""A game by texts ends as the rules say, whoever begins."""

from __future__ import annotations

import random

import pytest

from greenward.common.errors import ConfigError
from greenward.tasks.self_play.environment import GameSession
from greenward.tasks.self_play.games import TicTacToe


@pytest.mark.parametrize("seed", range(6))
def test_perfect_play_never_loses_and_illegal_moves_do(seed: int) -> None:
    game, rng = TicTacToe(), random.Random(seed)
    session = GameSession("tictactoe", "random", seed)
    assert session.role == game.roles[seed % 2]
    while not session.over:
        assert session.legal_moves and ", ".join(session.legal_moves) in session.prompt
        best = game.expert_action(session._state, rng)
        session.answer(f"<think>\\boxed{{9}}</think> \\boxed{{{best}}}")
    assert (
        session.outcome in ("won", "drawn") and session.reward == {"won": 1.0, "drawn": 0.0}[session.outcome]
    )
    assert session.prompt == session.outcome and session.legal_moves == []
    foul = GameSession("tictactoe", "expert", seed)
    foul.answer("I resign")
    assert (foul.outcome, foul.reward) == ("illegal", -game.forfeit)


def test_the_same_seed_is_the_same_game() -> None:
    prompts = [[GameSession("kuhn_poker", "random", seed).prompt for seed in range(20)] for _ in range(2)]
    assert prompts[0] == prompts[1] and len(set(prompts[0])) > 3
    with pytest.raises(ConfigError, match="random, expert"):
        GameSession("tictactoe", "nobody")
