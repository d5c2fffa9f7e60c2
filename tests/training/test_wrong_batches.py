"""Faults of what the trainer learns from: which turns they change, and since when."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from greenward.config.sections import BatchFaultConfig, FaultsConfig, TemperatureMismatchConfig
from greenward.rollouts.protocols import Episode, StopReason, Turn
from greenward.training.advantages import Advantages
from greenward.training.faults import FAULTS, Proxy, edit_examples
from greenward.training.protocols import Example


def episode(group, length):
    turn = Turn(
        "solver",
        (1, 2),
        np.arange(length),
        np.zeros(length, np.float32),
        np.ones(length, bool),
        next(iter(StopReason)),
        0,
    )
    return Episode((turn,), {"solver": 1.0}, group, "t", True, "passed", True)


@pytest.fixture
def episodes():
    return [episode(0, 3), episode(0, 5), episode(1, 4), episode(2, 2)]


def planted(name, episodes, config=None):
    collector = SimpleNamespace(collect=lambda step: (episodes, {"loss": 1.0}), state_dict=lambda: {"x": 1})
    trainer = SimpleNamespace(collector=collector, estimator=None)
    fault = FAULTS[name](config or BatchFaultConfig(after_step=2), SimpleNamespace(trainer=trainer))

    def collected(step):
        fault.on_step_begin(step)
        return trainer.collector.collect(step)[0]

    assert fault.truth()["onset"] == 3
    assert trainer.collector.state_dict() == {"x": 1}
    assert collected(2) == episodes  # not yet
    return collected(3)


def turns(found):
    return [one.turns[0] for one in found]


def test_the_last_token_is_never_trained_on(episodes):
    first, *_ = turns(planted("end_never_trained", episodes))
    assert first.policy_wrote_T.tolist() == [True, True, False]


def test_a_warm_start_never_trains_the_last_token_either_unless_the_fault_begins_later():
    examples = [Example((1,), (5, 6, 7)), Example((1,), (5, 6), (False, True))]
    edited = edit_examples(FaultsConfig(end_never_trained=BatchFaultConfig()), examples)
    assert [one.trained for one in edited] == [(True, True, False), (False, False)]
    assert [one.tokens for one in edited] == [2, 0]
    later = FaultsConfig(end_never_trained=BatchFaultConfig(after_step=1))
    assert edit_examples(later, examples) == edit_examples(FaultsConfig(), examples) == examples


def test_mask_and_targets_are_off_by_one(episodes):
    turn = turns(planted("loss_mask_shifted", episodes))[0]
    assert turn.policy_wrote_T.tolist() == [False, True, True] and turn.completion_ids.tolist() == [2, 0, 1]


def test_padding_is_trained_on(episodes):
    found = turns(planted("padding_in_loss", episodes))
    assert {len(turn.completion_ids) for turn in found} == {5} == {turn.policy_tokens for turn in found}
    assert found[0].completion_ids.tolist() == [0, 1, 2, 2, 2]


def test_the_temperature_is_another_one(episodes):
    config = TemperatureMismatchConfig(after_step=2, factor=2.0)
    assert {turn.temperature for turn in turns(planted("temperature_mismatch", episodes, config))} == {2.0}


def test_the_order_of_the_data_differs_each_time_and_a_group_is_lost(episodes):
    found = planted("random_data_order", episodes)
    assert len({one.group_id for one in found}) == 2


def test_advantages_get_the_other_sign(episodes):
    batch = Advantages([(np.array([1.0, -2.0]),)])
    trainer = SimpleNamespace(collector=None, estimator=lambda found: batch)
    fault = FAULTS["advantage_sign_flipped"](BatchFaultConfig(after_step=2), SimpleNamespace(trainer=trainer))
    fault.on_step_begin(2)
    assert trainer.estimator(episodes) is batch
    for step in (3, 4):  # not flipped back
        fault.on_step_begin(step)
        assert trainer.estimator(episodes).advantages[0][0].tolist() == [-1.0, 2.0]


def test_a_stale_sampler_is_renewed_seldom():
    class Weights:
        def __init__(self, version):
            self.version, self.synced = version, []

        def frozen_copy(self):
            return Weights(self.version)

        def sync(self, policy):
            self.synced.append(policy.version)

    policy = Weights(7)
    collector = SimpleNamespace(players={"policy": policy}, sync=lambda policy: 1 / 0)
    trainer = SimpleNamespace(collector=collector, policy=policy)
    config = replace_config(after_step=2, renewed_every=3)
    fault = FAULTS["stale_sampler"](config, SimpleNamespace(trainer=trainer))
    for step in range(1, 10):
        fault.on_step_begin(step)
        if step > 2:
            trainer.collector.sync(policy)  # does nothing
        policy.version += 1
    copy = collector.players["policy"]
    assert copy is not policy and copy.synced == [12, 15]
    metrics = {}
    fault.on_step_end(9, [], metrics)
    assert metrics == {"rollouts/staleness": 1.0}


def replace_config(**values):
    from greenward.config.sections import StaleSamplerConfig

    return StaleSamplerConfig(**values)


def test_turns_of_others_are_left_alone(episodes):
    other = replace(episodes[0], turns=(replace(episodes[0].turns[0], player="opponent"),))
    (found,) = planted("end_never_trained", [other])
    assert found.turns[0].policy_wrote_T.all()


def test_what_stands_in_front_can_be_copied():
    copied = copy.deepcopy(Proxy(SimpleNamespace(seed=[3]), collect=list))
    assert type(copied) is Proxy and copied.seed == [3] and copied.collect() == []
    assert not hasattr(copied, "absent")
