"""Games as PettingZoo sees them: its own tests, rewards against the rules, and illegal actions."""

from __future__ import annotations

import importlib
import random
import sys
import warnings

import numpy as np
import pytest

from greenward.common.errors import ConfigError
from greenward.tasks.self_play.games import KuhnPoker, SimpleNegotiation, TicTacToe

pytest.importorskip("pettingzoo", reason="the extra `games` is not installed")
from pettingzoo.test import api_test, seed_test

from greenward.tasks.self_play.pettingzoo_env import pettingzoo_env

GAMES = [TicTacToe, KuhnPoker, SimpleNegotiation]
WINS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


@pytest.mark.parametrize("game", GAMES)
def test_the_tests_of_pettingzoo_pass(game) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on names of agents, and that an observation is a mapping
        api_test(pettingzoo_env(game()), num_cycles=200)
        seed_test(lambda: pettingzoo_env(game()), num_cycles=50)


def play_randomly(env, seed):
    """The moves of a game as (agent, text seen, number of the action), and the total rewards."""
    rng = random.Random(seed)
    env.reset(seed=seed)
    moves, totals = [], dict.fromkeys(env.possible_agents, 0.0)
    for agent in env.agent_iter():
        seen, reward, over, _, info = env.last()
        totals[agent] += reward
        action = None if over else rng.choice(np.flatnonzero(seen["action_mask"]).tolist())
        if not over:
            moves.append((agent, info["text"], action))
            assert bytes(seen["observation"]).rstrip(b"\0").decode() == info["text"]
        env.step(action)
    return moves, totals


@pytest.mark.parametrize("game", GAMES)
def test_rewards_sum_to_zero_and_equal_seeds_give_equal_games(game) -> None:
    env = pettingzoo_env(game())
    for seed in range(20):
        moves, totals = play_randomly(env, seed)
        assert sum(totals.values()) == 0
        assert play_randomly(pettingzoo_env(game()), seed) == (moves, totals)


def test_tictactoe_rewards_the_owner_of_a_line() -> None:
    env = pettingzoo_env(TicTacToe())
    for seed in range(50):
        moves, totals = play_randomly(env, seed)
        marks = {cell: "XO"[number % 2] for number, (_, _, cell) in enumerate(moves)}
        lines = {marks.get(a) for a, b, c in WINS if marks.get(a) == marks.get(b) == marks.get(c)} - {None}
        expected = {"X": 1.0, "O": -1.0}[lines.pop()] if lines else 0.0
        assert totals == {"first": expected, "second": -expected}
        assert [agent for agent, _, _ in moves] == (["first", "second"] * 5)[: len(moves)]


def test_kuhn_poker_pays_the_pot() -> None:
    payoffs = {"cc": 1, "bl": 2, "cbl": 2}  # the higher card wins; c check, b bet, l call
    env = pettingzoo_env(KuhnPoker())
    for seed in range(60):
        moves, totals = play_randomly(env, seed)
        history = "".join("cblf"[action] for _, _, action in moves)
        cards = {agent: text.split()[1] for agent, text, _ in moves}
        if history.endswith("f"):
            expected = 1.0 if history == "bf" else -1.0
        else:
            expected = payoffs[history] * (
                1.0 if "JQK".index(cards["first"]) > "JQK".index(cards["second"]) else -1.0
            )
        assert totals["first"] == expected


@pytest.mark.parametrize("role", [0, 1])
def test_an_illegal_action_loses_what_the_game_says(role) -> None:
    env = pettingzoo_env(TicTacToe())
    env.reset(seed=0)
    for action in [4, 4] if role else [0, 1, 0]:
        env.step(action)
    assert env.rewards == ({"first": 1, "second": -1} if role else {"first": -1, "second": 1})
    assert all(env.terminations.values())


def test_another_agent_sees_its_own_card_and_has_no_action() -> None:
    env = pettingzoo_env(KuhnPoker())
    env.reset(seed=1)
    assert env.observe("first")["action_mask"].tolist() == [1, 1, 0, 0]
    assert env.observe("second")["action_mask"].tolist() == [0, 0, 0, 0]
    assert env.infos["first"]["text"] != env.infos["second"]["text"]


def test_a_game_that_does_not_list_its_actions_is_refused() -> None:
    class Open(TicTacToe):
        actions = ()

    with pytest.raises(ConfigError, match="does not list its actions"):
        pettingzoo_env(Open())


def test_a_missing_extra_is_named(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "greenward.tasks.self_play.pettingzoo_env")
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"pip install 'greenward\[games\]'"):
        importlib.import_module("greenward.tasks.self_play.pettingzoo_env")
