from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from greenward.grading.verdict import Status
from greenward.rollouts.protocols import Episode, Turn
from greenward.training.advantages import ESTIMATORS, CompletionRewardEstimator, group_signal
from learning import judged_episode, make_turn


def make_episode(
    reward: float | Mapping[str, float],
    group: int = 0,
    status: Status = Status.FAILED,
    turns: tuple[Turn, ...] = (make_turn((1, 2), range(3)),),
) -> Episode:
    rewards = reward if isinstance(reward, Mapping) else {"programmer": reward}
    return judged_episode(turns, rewards, group, status)


def first_values(name: str, episodes: list[Episode]) -> list[float]:
    return [float(turns[0][0]) for turns in ESTIMATORS[name](episodes).advantages]


REWARDS = [1.0, 0.0, 0.25, 0.25]


def test_baselines_are_those_of_the_papers() -> None:
    """GRPO divides by the sample deviation as TRL does, RLOO leaves the episode itself out."""
    rewards = torch.tensor(REWARDS, dtype=torch.float64)
    expected = {
        "grpo": ((rewards - rewards.mean()) / (rewards.std(unbiased=True) + 1e-4)).tolist(),
        "dr_grpo": [0.625, -0.375, -0.125, -0.125],
        "rloo": [r - np.mean(REWARDS[:i] + REWARDS[i + 1 :]) for i, r in enumerate(REWARDS)],
    }
    for name, values in expected.items():
        assert first_values(name, [make_episode(r) for r in REWARDS]) == pytest.approx(values)


def test_reinforce_has_one_baseline_for_the_whole_batch() -> None:
    episodes = [make_episode(1.0, group=0), make_episode(1.0, group=0), make_episode(0.0, group=1)]
    assert first_values("reinforce", episodes) == pytest.approx([1 / 3, 1 / 3, -2 / 3])


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_groups_are_not_each_others_baseline(name: str) -> None:
    alone = first_values(name, [make_episode(r) for r in REWARDS])
    mixed = [make_episode(r, group) for r in REWARDS for group in (0, 1)]
    other = [
        make_episode(10 * r + 5, e.group_id) if e.group_id else e
        for e, r in zip(mixed, np.repeat(REWARDS, 2), strict=True)
    ]
    assert first_values(name, other)[::2] == pytest.approx(alone)


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
def test_infrastructure_failure_is_not_a_reward(name: str) -> None:
    scored = [make_episode(r) for r in REWARDS]
    with_failure = [*scored, make_episode(0.0, status=Status.INFRASTRUCTURE)]
    values = first_values(name, with_failure)
    assert values[:-1] == first_values(name, scored)
    assert values[-1] == 0.0


@pytest.mark.parametrize("name", sorted(ESTIMATORS))
@given(reward=st.floats(-10, 10), size=st.integers(1, 9))
def test_equal_rewards_give_exactly_zero(name: str, reward: float, size: int) -> None:
    assert first_values(name, [make_episode(reward)] * size) == [0.0] * size


@given(rewards=st.lists(st.integers(-3, 3), min_size=2, max_size=8))
def test_group_advantages_sum_to_zero(rewards: list[int]) -> None:
    for name in ESTIMATORS:
        assert sum(first_values(name, [make_episode(float(r)) for r in rewards])) == pytest.approx(
            0, abs=1e-4
        )


def test_every_token_of_every_turn_gets_the_advantage_of_its_role() -> None:
    turns = tuple(make_turn((1, 2), range(n), role=role) for n, role in ((2, "solver"), (4, "critic")))
    episodes = [
        make_episode({"solver": 1.0, "critic": -3.0}, turns=turns),
        make_episode({"solver": 0.0, "critic": 3.0}, turns=turns),
    ]
    first, second = ESTIMATORS["dr_grpo"](episodes).advantages
    assert [a.tolist() for a in first] == [[0.5] * 2, [-3.0] * 4]
    assert [a.tolist() for a in second] == [[-0.5] * 2, [3.0] * 4]
    assert all(array.dtype == np.float32 for array in first)


def test_dead_groups_are_split_by_verdict() -> None:
    episodes = [
        *(make_episode(r, group=7) for r in (0.0, 1.0)),
        *(make_episode(1.0, group=3, status=Status.PASSED) for _ in range(2)),
        *(make_episode(0.0, group=5) for _ in range(2)),
        make_episode(0.5, group=2, status=Status.PASSED),
        make_episode(0.5, group=2, status=Status.FAILED),
        make_episode(0.0, group=9, status=Status.INFRASTRUCTURE),
        make_episode(0.0, group=4),
        make_episode(1.0, group=4, status=Status.INFRASTRUCTURE),
    ]
    found = group_signal(episodes)
    assert found == {
        7: "with_signal",
        3: "all_pass",
        5: "all_fail",
        2: "constant",
        9: "unscored",
        4: "all_fail",
    }
    assert list(found) == [7, 3, 5, 2, 9, 4]


def test_rewards_of_completions_are_compared_turn_by_turn() -> None:
    """Two agents that both fail: the first one's second call fails too, and the third agent made one call."""

    def episode(rewards: tuple[float, ...], total: float) -> Episode:
        wrote = np.array([True, True, False, True, False, True][: 2 * len(rewards)])
        turn = replace(make_turn((1, 2), range(len(wrote))), policy_wrote_T=wrote, completion_rewards=rewards)
        return make_episode(total, turns=(turn,))

    batch = [episode((1.0, 0.0, 0.0), 0.0), episode((1.0, 1.0, 0.0), 0.0), episode((0.0, 0.0), 1.0)]
    outcome = [a[0] for a in ESTIMATORS["grpo"](batch).advantages]
    found = [a[0] for a in CompletionRewardEstimator(ESTIMATORS["grpo"])(batch).advantages]
    first = np.array([1.0, 2.0, 0.0])  # the sum of the rewards from the first call on
    second = np.array([0.0, 1.0, 0.0])
    by_turn = [(one - one.mean()) / (one.std(ddof=1) + 1e-4) for one in (first, second)]
    for number in range(3):
        added = found[number] - outcome[number]
        assert added[:2] == pytest.approx(by_turn[0][number], abs=1e-5)
        assert added[2] == 0.0  # the output of a tool
        assert added[3] == pytest.approx(by_turn[1][number], abs=1e-5)
        assert not np.any(added[4:])  # the third completions have equal returns


def test_without_rewards_of_completions_nothing_is_added() -> None:
    batch = [make_episode(r) for r in REWARDS]
    found = CompletionRewardEstimator(ESTIMATORS["grpo"])(batch).advantages
    for one, other in zip(found, ESTIMATORS["grpo"](batch).advantages, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
