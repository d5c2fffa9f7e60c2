"""Replay memory against hand-computed examples and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from greenward.common.errors import CheckpointError
from greenward.tasks.token_mdp.dqn import PRIORITY_FLOOR, NStepWindow, ReplayBuffer, SumTree, Transition

LEGAL = np.array([True, False, True])


def state(number: float) -> np.ndarray:
    return np.full(2, number, np.float32)


def transition(number: int, reward: float = 0.0) -> Transition:
    return Transition(state(number), number % 3, reward, state(number + 1), LEGAL, 0.9)


def pushed(window: NStepWindow, rewards: list[float], **end: bool) -> list[Transition]:
    found = []
    for t, reward in enumerate(rewards):
        last = t == len(rewards) - 1
        ends = {
            "terminated": last and end.get("terminated", False),
            "truncated": last and end.get("truncated", False),
        }
        found += window.push(state(t), t, reward, state(t + 1), LEGAL, **ends)
    return found


def test_three_step_returns_equal_the_ones_computed_by_hand() -> None:
    found = pushed(NStepWindow(3, 0.5), [1.0, 2.0, 4.0, 8.0], terminated=True)
    # 1 + 2/2 + 4/4; 2 + 4/2 + 8/4; 4 + 8/2; 8
    assert [one.reward for one in found] == [3.0, 6.0, 8.0, 8.0]
    assert [one.action for one in found] == [0, 1, 2, 3]
    assert [one.discount for one in found] == [
        0.125,
        0.0,
        0.0,
        0.0,
    ]  # only the first sees a state that goes on
    assert [float(one.next_observation[0]) for one in found] == [3, 4, 4, 4]


def test_a_truncated_episode_keeps_the_value_of_its_last_state() -> None:
    found = pushed(NStepWindow(3, 0.5), [1.0, 2.0], truncated=True)
    assert [one.reward for one in found] == [2.0, 2.0]
    assert [one.discount for one in found] == [0.25, 0.5]


def test_an_unfinished_window_waits() -> None:
    assert pushed(NStepWindow(3, 0.5), [1.0, 2.0]) == []


def test_the_sum_tree_finds_what_a_walk_over_all_weights_finds() -> None:
    rng = np.random.default_rng(0)
    for capacity in (1, 2, 5, 8, 13):
        tree = SumTree(capacity)
        weights = rng.random(capacity) * (rng.random(capacity) < 0.7) + np.eye(capacity)[0]
        tree.set(np.arange(capacity), weights)
        assert tree.total == pytest.approx(weights.sum())
        points = rng.random(200) * weights.sum()
        by_walk = [int(np.argmax(np.cumsum(weights) > point)) for point in points]
        assert tree.find(points).tolist() == by_walk


def test_a_changed_weight_reaches_the_root() -> None:
    tree = SumTree(4)
    tree.set(np.arange(4), np.array([1.0, 2.0, 3.0, 4.0]))
    tree.set(np.array([1, 3]), np.array([5.0, 0.0]))
    assert tree.total == 9.0
    assert tree.find(np.array([0.5, 1.0, 5.9, 6.0])).tolist() == [0, 1, 1, 2]


def test_priorities_and_importance_weights_equal_the_ones_computed_by_hand() -> None:
    buffer = ReplayBuffer(4, 2, 3, priority_exponent=0.5)
    buffer.extend([transition(number) for number in range(4)])
    errors = np.array([1.0, 4.0, 9.0, 16.0]) - PRIORITY_FLOOR
    buffer.update_priorities(np.arange(4), -errors)  # their size counts; roots: 1, 2, 3, 4 of 10
    drawn = np.concatenate(
        [buffer.sample(64, 1.0, np.random.default_rng(seed)).indices for seed in range(50)]
    )
    assert np.bincount(drawn) / len(drawn) == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.01)
    batch = buffer.sample(64, 1.0, np.random.default_rng(0))
    by_hand = {0: 1.0, 1: 0.5, 2: 1 / 3, 3: 0.25}  # (4 · P)^-1 over its largest
    assert batch.weights_B.tolist() == pytest.approx([by_hand[index] for index in batch.indices])


def test_a_new_transition_has_the_highest_priority() -> None:
    buffer = ReplayBuffer(8, 2, 3, priority_exponent=1.0)
    buffer.extend([transition(0), transition(1)])
    buffer.update_priorities(np.array([0, 1]), np.array([5.0, 0.1]) - PRIORITY_FLOOR)
    buffer.extend([transition(2)])
    drawn = np.concatenate(
        [buffer.sample(32, 0.0, np.random.default_rng(seed)).indices for seed in range(40)]
    )
    assert np.bincount(drawn) / len(drawn) == pytest.approx(np.array([5.0, 0.1, 5.0]) / 10.1, abs=0.02)


def test_without_priorities_all_transitions_are_equally_likely() -> None:
    buffer = ReplayBuffer(4, 2, 3)
    buffer.extend([transition(number) for number in range(4)])
    buffer.update_priorities(np.arange(4), np.array([100.0, 0.0, 0.0, 0.0]))
    batch = buffer.sample(64, 0.4, np.random.default_rng(0))
    assert np.bincount(batch.indices).tolist() == [16, 16, 16, 16]
    assert batch.weights_B.unique().tolist() == [1.0]


def test_the_oldest_transitions_give_way_and_ages_count_from_the_newest() -> None:
    buffer = ReplayBuffer(3, 2, 3)
    buffer.extend([transition(number, reward=number) for number in range(5)])
    batch = buffer.sample(30, 0.0, np.random.default_rng(0))
    assert set(batch.rewards_B.tolist()) == {2.0, 3.0, 4.0}
    assert {(float(r), int(a)) for r, a in zip(batch.rewards_B, batch.ages, strict=True)} == {
        (2, 2),
        (3, 1),
        (4, 0),
    }
    assert batch.next_legal_BA.unique(dim=0).tolist() == [LEGAL.tolist()]


def test_a_restored_memory_draws_the_same_batches() -> None:
    buffer, restored = (ReplayBuffer(6, 2, 3, priority_exponent=0.6) for _ in range(2))
    buffer.extend([transition(number, reward=number) for number in range(9)])
    buffer.update_priorities(np.arange(6), np.arange(6.0))
    restored.load_state_dict(buffer.state_dict())
    for one in (buffer, restored):
        one.extend([transition(20)])
    first, second = (one.sample(16, 0.5, np.random.default_rng(1)) for one in (buffer, restored))
    assert first.indices.tolist() == second.indices.tolist()
    assert first.rewards_B.tolist() == second.rewards_B.tolist()
    assert first.weights_B.tolist() == second.weights_B.tolist()


def test_a_memory_of_another_size_is_refused() -> None:
    buffer = ReplayBuffer(6, 2, 3)
    buffer.extend([transition(0)])
    with pytest.raises(CheckpointError, match="does not fit"):
        ReplayBuffer(6, 5, 3).load_state_dict(buffer.state_dict())
