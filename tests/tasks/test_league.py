"""The league: whom the policy meets, who leaves, what is state; and which opponent plays which game."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from greenward.config.sections import ShapeConfig
from greenward.models.policy import Policy
from greenward.models.tokenizer import train_tokenizer
from greenward.rollouts.protocols import POLICY, Episode, StopReason, Turn
from greenward.tasks.opponents import League
from greenward.tasks.self_play.environment import Opponents
from greenward.tasks.self_play.games import RandomPlayer

SHAPE = ShapeConfig(layers=1, hidden_size=8, heads=1, kv_heads=1, intermediate_size=8, max_positions=16)


def league(size: int = 3, hardness: float = 1.0, seed: int = 0) -> tuple[League, Policy, dict[str, Any]]:
    policy = Policy.random(SHAPE, train_tokenizer(["X 0 1"], 258), seed=seed, device="cpu")
    players: dict[str, Any] = {POLICY: policy}
    return League(policy, players, size=size, hardness=hardness, seed=3), policy, players


def results(member: str, *rewards: float, group: int = 0, scored: bool = True) -> list[Episode]:
    """Games in which the policy gained `rewards` against a member."""
    turn = Turn("first", (1,), np.array([2]), np.zeros(1), np.ones(1, bool), StopReason.END, 0, POLICY)
    return [
        Episode((turn,), {"first": reward, "second": -reward}, group, "game/league", "over", scored=scored,
                extra={"opponent": member})
        for reward in rewards
    ]  # fmt: skip


def test_members_are_met_in_proportion_to_how_hard_they_are() -> None:
    """PFSP: (1 - s)^p + 0.05, with s = 0.9 s + 0.1 (share of points) for each group of games."""
    one, _, _ = league(hardness=2.0)
    one.add()
    one.add()
    one.record(results("league/0", 1.0, 1.0) + results("league/1", -1.0, 0.0, group=1))
    one.record(results("league/0", 1.0, group=2) + results("league/2", 1.0, scored=False))
    scores = {"league/0": 0.9 * (0.9 * 0.5 + 0.1) + 0.1, "league/1": 0.9 * 0.5 + 0.1 * 0.25, "league/2": 0.5}
    assert one.state_dict()["scores"] == pytest.approx(scores)
    weights = {name: (1 - score) ** 2 + 0.05 for name, score in scores.items()}
    met = Counter(one.member(group) for group in range(2000))
    for name, weight in weights.items():
        assert met[name] / 2000 == pytest.approx(weight / sum(weights.values()), abs=0.05)
    assert [one.member(group) for group in range(20)] == [one.member(group) for group in range(20)]


def test_without_hardness_and_where_every_game_is_drawn_all_are_met_alike() -> None:
    for hardness in (0.0, 1.0):
        one, _, _ = league(hardness=hardness)
        one.add()
        for group in range(50):
            one.record(results("league/0", 0.0, 0.0, group=group) + results("league/1", 0.0, group=group))
        assert set(one.state_dict()["scores"].values()) == {0.5}
        met = Counter(one.member(group) for group in range(2000))
        assert abs(met["league/0"] - 1000) < 120


def test_a_member_that_always_loses_is_still_met() -> None:
    one, _, _ = league(hardness=4.0)
    one.add()
    for group in range(200):
        one.record(results("league/0", 1.0, group=group))
    assert 0 < sum(one.member(group) == "league/0" for group in range(500)) < 250


def test_the_oldest_leaves_and_members_do_not_learn_with_the_policy() -> None:
    one, policy, players = league(size=2)
    start = next(policy.parameters()).clone()
    for _ in range(3):
        with torch.no_grad():
            next(policy.parameters()).add_(1.0)
        one.add()
    assert set(players) == {POLICY, "league/2", "league/3"} and one.newest == "league/3"
    for name, added in (("league/2", 2.0), ("league/3", 3.0)):
        assert torch.allclose(next(players[name].parameters()), start + added)


def test_the_state_holds_members_scores_and_the_count() -> None:
    one, policy, players = league(size=2)
    policy.version = 7
    one.add()
    one.add()
    one.record(results("league/2", 1.0))
    state = one.state_dict()
    json.dumps(state["scores"])
    other, _, others = league(size=2, seed=1)
    other.load_state_dict(state)
    assert set(others) == set(players) and others["league/2"].version == 7
    for name in ("league/1", "league/2"):
        for mine, theirs in zip(players[name].parameters(), others[name].parameters(), strict=True):
            assert torch.equal(mine, theirs)
    assert [other.member(group) for group in range(50)] == [one.member(group) for group in range(50)]
    other.add()
    assert other.newest == "league/3" and set(others) == {POLICY, "league/2", "league/3"}


@pytest.mark.parametrize("games", [1, 2, 7, 10, 512])
def test_opponents_get_their_share_of_a_group_to_within_one_game(games: int) -> None:
    shares = {"self": 0.3, "run": 0.0, "league": 2.1, "random": 0.6}
    one, _, _ = league()
    found = Opponents(shares, {"random": RandomPlayer()}, one).of_group(4, games)
    counts = Counter(name for name, _ in found)
    assert len(found) == games and counts["run"] == 0
    assert all(abs(counts[name] - games * share / 3) < 1 for name, share in shares.items())
    seats = dict(found)
    assert seats.get("self", POLICY) == POLICY and seats.get("league", one.member(4)) == one.member(4)
