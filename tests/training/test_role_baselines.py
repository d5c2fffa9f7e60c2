"""Role-conditioned advantages against sequences that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from greenward.rollouts.protocols import POLICY, Episode
from greenward.training.advantages import RoleBaselineEstimator
from learning import judged_episode, make_turn


def game(
    reward: float, *, task: str = "ttt/self", players: tuple[str, str] = (POLICY, POLICY), moves: int = 2
) -> Episode:
    """`moves` moves of two tokens by the first and second player in turn; the first gains `reward`."""
    turns = tuple(
        make_turn((1, 2), (number, 0), role=("first", "second")[number % 2], player=players[number % 2])
        for number in range(moves)
    )
    return replace(judged_episode(turns, {"first": reward, "second": -reward}), task_id=task)


def values(estimator: RoleBaselineEstimator, episodes: list[Episode]) -> list[tuple[float, ...]]:
    advantages = estimator(episodes).advantages
    assert all(len(turn) == 2 and turn[0] == turn[1] for turns in advantages for turn in turns)
    return [tuple(round(float(turn[0]), 6) for turn in turns) for turns in advantages]


def test_baselines_move_once_an_episode_and_each_role_has_its_own() -> None:
    """With decay 1/2: b_first goes 0, 0.5, 0.75, -0.125; b_second is its mirror image."""
    estimator = RoleBaselineEstimator(decay=0.5)
    assert values(estimator, [game(1.0), game(1.0), game(-1.0)]) == [(1, -1), (0.5, -0.5), (-1.75, 1.75)]
    assert estimator([game(0.0)]).metrics == pytest.approx(
        {"baseline/ttt/self/first": -0.0625, "baseline/ttt/self/second": 0.0625}
    )


def test_the_printed_order_scales_the_advantages_by_the_decay() -> None:
    estimator = RoleBaselineEstimator(decay=0.5, updated_first=True)
    games = [game(1.0), game(1.0), game(-1.0)]
    assert values(estimator, games) == [(0.5, -0.5), (0.25, -0.25), (-0.875, 0.875)]


def test_the_default_is_that_of_the_paper() -> None:
    """b = 0.95 b + 0.05 R: 0, 0.05, 0.0975."""
    estimator = RoleBaselineEstimator()
    assert values(estimator, [game(1.0)] * 3) == [(1, -1), (0.95, -0.95), (0.9025, -0.9025)]


def test_each_task_has_its_own_and_only_roles_of_the_policy_count() -> None:
    estimator = RoleBaselineEstimator(decay=0.5)
    against = "ttt/random"
    episodes = [
        game(1.0, task=against, players=(POLICY, "random")),
        game(1.0, task=against, players=("random", POLICY)),
        game(1.0, task=against, players=(POLICY, "random")),
        game(1.0),
    ]
    assert values(estimator, episodes) == [(1, 0), (0, -1), (0.5, 0), (1, -1)]


def test_games_without_a_result_move_no_baseline() -> None:
    estimator = RoleBaselineEstimator(decay=0.5)
    void = replace(game(1.0), scored=False)
    assert values(estimator, [void, game(1.0), void, game(1.0)]) == [(0, 0), (1, -1), (0, 0), (0.5, -0.5)]


def test_a_discounted_return_has_a_baseline_for_each_number_of_the_move() -> None:
    """Five moves: three of the first player (returns 1/4, 1/2, 1) and two of the second (-1/2, -1)."""
    estimator = RoleBaselineEstimator(decay=0.5, discount=0.5)
    assert values(estimator, [game(1.0, moves=5)]) == [(0.25, -0.5, 0.5, -1, 1)]
    # Two moves of each: 1/2 - 1/8, -1/2 + 1/4, 1 - 1/4, -1 + 1/2. The third baseline is not touched.
    assert values(estimator, [game(1.0, moves=4)]) == [(0.375, -0.25, 0.75, -0.5)]
    assert estimator.state_dict()["means"]["ttt/self/first#2"] == 0.5


def test_the_mean_of_a_position_is_over_its_turns_in_all_games() -> None:
    """The first move has the same prompt in all games, and the others have prompts of their own.

    Returns of the first role are 1, 1 and -1, so its mean is 1/3; a position met once is its own mean.
    """
    episodes = [game(reward) for reward in (1.0, 1.0, -1.0)]
    for number, episode in enumerate(episodes[1:], 3):
        first, second = episode.turns
        episodes[number - 2] = replace(episode, turns=(first, replace(second, prompt_ids=(number,))))
    found = values(RoleBaselineEstimator("position_mean"), episodes)
    assert found == [(round(2 / 3, 6), 0), (round(2 / 3, 6), 0), (round(-4 / 3, 6), 0)]
    # Discounted, with one prompt for all moves: 1/2, 1 and 0 of the first player, -1 and 0 of the second.
    halved = values(RoleBaselineEstimator("position_mean", discount=0.5), [game(1.0, moves=3), game(0.0)])
    assert halved == [(0, -0.5, 0.5), (-0.5, 0.5)]


def test_the_baselines_are_state() -> None:
    games = [game(1.0), game(-1.0), game(1.0, moves=3)]
    whole = RoleBaselineEstimator(decay=0.9, discount=0.7)
    straight = values(whole, games) + values(whole, games)
    first, second = (
        RoleBaselineEstimator(decay=0.9, discount=0.7),
        RoleBaselineEstimator(decay=0.9, discount=0.7),
    )
    found = values(first, games)
    state = first.state_dict()
    values(first, games)  # a state is a copy
    second.load_state_dict(state)
    assert found + values(second, games) == straight
    assert second.state_dict() == whole.state_dict()
