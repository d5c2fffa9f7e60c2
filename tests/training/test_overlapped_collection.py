"""Collecting ahead: what is sampled when, with which weights, and what a failure leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from greenward.common.errors import EngineError
from greenward.rollouts.protocols import POLICY, Collection, Episode, StopReason, Turn
from greenward.training.collector import Collector, OverlappedCollector

GROUPS, STEPS = 3, 4


class Engine:
    """Its weights are a number. They may not change while an environment samples."""

    def __init__(self) -> None:
        self.version = -1
        self.sampling = threading.Lock()

    def sync(self, policy: Any) -> None:
        assert self.sampling.acquire(blocking=False), "new weights while answers are sampled"
        self.version = policy.version
        self.sampling.release()


class Environment:
    """Rewards alternate within a group unless the group is in `dead`; `hold` is waited for before sampling."""

    def __init__(self, engine: Engine, dead: tuple[int, ...] = ()) -> None:
        self.calls: list[tuple[int, range, int]] = []
        self.hold: dict[int, threading.Event] = {}
        self.fail_at: int | None = None
        self._engine, self._dead = engine, dead

    def collect(self, players: Any, groups: range, *, seed: int, step: int = 0) -> Collection:
        with self._engine.sampling:
            if step in self.hold:
                assert self.hold[step].wait(30), "the trainer waits for what is sampled ahead"
            if step == self.fail_at:
                self.fail_at = None
                raise EngineError("the server has died")
            self.calls.append((step, groups, seed))
            rewards = [float(i * (group not in self._dead)) for group in groups for i in range(2)]
            version = self._engine.version
            return Collection(
                [episode(i // 2 + groups.start, r, version) for i, r in enumerate(rewards)], 0.1, 0
            )


def episode(group: int, reward: float, version: int) -> Episode:
    turn = Turn("r", (1,), np.array([2]), np.zeros(1, np.float32), np.ones(1, bool), StopReason.END, version)
    return Episode((turn,), {"r": reward}, group, "task", "passed")


def train(collector: Collector, policy: Any, steps: range = range(STEPS)) -> Iterator[list[Episode]]:
    """The episodes of each step, the policy as it is when it is trained on them."""
    for step in steps:
        collector.sync(policy)
        episodes, _ = collector.collect(step)
        yield episodes
        policy.version += 1


@pytest.fixture
def made() -> Iterator[tuple[OverlappedCollector, Environment, Any]]:
    engine = Engine()
    environment = Environment(engine)
    collector = OverlappedCollector(
        environment, {POLICY: engine}, groups_per_step=GROUPS, seed=5, steps=STEPS
    )
    yield collector, environment, SimpleNamespace(version=0)
    collector.close()


def test_the_next_step_is_sampled_during_the_update_with_weights_one_update_old(made: Any) -> None:
    collector, environment, policy = made
    environment.hold = {step: threading.Event() for step in range(1, STEPS)}
    staleness = []
    for step, episodes in enumerate(train(collector, policy)):
        staleness.append({policy.version - turn.policy_version for e in episodes for turn in e.turns})
        if step + 1 < STEPS:  # the update of this step: only now may the next one be sampled
            assert len(environment.calls) == step + 1
            environment.hold[step + 1].set()
    assert staleness == [{0}, {1}, {1}, {1}]
    assert [step for step, _, _ in environment.calls] == list(range(STEPS)), "nothing is sampled in vain"


@pytest.mark.parametrize("rounds", [1, 3])
def test_groups_and_seeds_are_those_of_collecting_in_step(rounds: int) -> None:
    found = []
    for kind in (Collector, OverlappedCollector):
        engine = Engine()
        environment = Environment(engine, dead=(0, 4, 5, 6, 7))
        more = {"steps": STEPS} if kind is OverlappedCollector else {}
        collector = kind(
            environment, {POLICY: engine}, groups_per_step=GROUPS, seed=5, max_rounds=rounds, **more
        )
        kept = [[e.group_id for e in episodes] for episodes in train(collector, SimpleNamespace(version=0))]
        collector.close()
        found.append((environment.calls, kept, collector.state_dict()))
    assert found[0] == found[1]


def test_a_resumed_collector_samples_again_what_was_under_way(made: Any) -> None:
    collector, environment, policy = made
    for _ in train(collector, policy, range(2)):
        pass
    state = collector.state_dict()
    assert state == {"groups_done": 2 * GROUPS}
    resumed = OverlappedCollector(
        environment, {POLICY: Engine()}, groups_per_step=GROUPS, seed=5, steps=STEPS
    )
    resumed.load_state_dict(state)
    (episodes,) = train(resumed, policy, range(2, 3))
    resumed.close()
    assert {e.group_id for e in episodes} == set(range(2 * GROUPS, 3 * GROUPS))


def test_a_failure_ahead_is_raised_by_the_step_that_needs_it_and_loses_no_groups(made: Any) -> None:
    collector, environment, policy = made
    environment.fail_at = 2
    steps = train(collector, policy)
    next(steps), next(steps)
    with pytest.raises(EngineError, match="has died"):
        next(steps)
    assert collector.state_dict() == {"groups_done": 2 * GROUPS}
    (episodes,) = train(collector, policy, range(2, 3))
    assert {e.group_id for e in episodes} == set(range(2 * GROUPS, 3 * GROUPS))
