"""Faults as callbacks of a training: what they change and when, resume, and the record of the truth."""

import json
import math

import pytest
import torch

from greenward.common.errors import ConfigError
from greenward.config.loading import parse_recipe
from greenward.config.sections import (
    CriticConfig,
    FaultsConfig,
    GradientExplosionConfig,
    RewardOverconfidenceConfig,
    TrainingConfig,
)
from greenward.training.faults import (
    FAULTS,
    Fault,
    FaultTargets,
    GradientExplosion,
    make_faults,
    recorded_truth,
)


class FakeTrainer:
    """The settings that an explosion replaces."""

    def __init__(self, critic_config=None):
        self.training = TrainingConfig(learning_rate=0.1, max_grad_norm=0.5)
        self.critic_config = critic_config


class FakeRewardModel:
    calibration = None


class Diary(Fault):
    """Counts what it sees."""

    name = "diary"

    def __init__(self):
        self.acted = 0

    def on_step_begin(self, step):
        self.acted += 1

    def truth(self):
        return {"onset": 1, "acted": self.acted}


def targets(trainer=None, reward_model=None, max_steps=500):
    return FaultTargets(trainer or FakeTrainer(), reward_model, torch.device("cpu"), max_steps)


def settings_by_step(trainer, fault, steps):
    found = []
    for step in steps:
        fault.on_step_begin(step)
        found.append((trainer.training.learning_rate, trainer.training.max_grad_norm))
    return found


def test_the_explosion_changes_rate_and_clip_from_the_step_after_the_last_healthy_one():
    trainer = FakeTrainer(CriticConfig(learning_rate=1.0, max_grad_norm=0.7))
    config = GradientExplosionConfig(after_step=3, rate_factor=20.0, rate_growth=1.5)
    found = settings_by_step(trainer, GradientExplosion(config, targets(trainer)), range(1, 7))
    assert [rate for rate, _ in found] == pytest.approx([0.1, 0.1, 0.1, 2.0, 3.0, 4.5])
    assert [clip for _, clip in found] == [0.5, 0.5, 0.5, math.inf, math.inf, math.inf]
    assert trainer.critic_config.learning_rate == pytest.approx(45.0)
    assert trainer.critic_config.max_grad_norm == 0.7


def test_the_explosion_needs_no_state_to_be_resumed_and_keeps_the_clip_when_told():
    trainer = FakeTrainer()
    settings = {"after_step": 3, "rate_factor": 20.0, "rate_growth": 1.0, "remove_clip": False}
    fault = GradientExplosion(GradientExplosionConfig(**settings), targets(trainer))
    fault.load_state_dict(fault.state_dict())
    assert settings_by_step(trainer, fault, [11]) == [(pytest.approx(2.0), 0.5)]
    assert fault.truth() == {"onset": 4, **settings}


def test_every_section_of_the_config_has_its_fault():
    assert list(FAULTS) == list(FaultsConfig.model_fields)


def test_all_are_off_by_default_and_empty_sections_turn_them_on():
    assert make_faults(parse_recipe("").faults, targets()) == []
    text = "reward_model: {}\nfaults: {memory_leak: {}, gradient_explosion: {}, reward_overconfidence: {}}\n"
    recipe = parse_recipe(text, ["training.max_steps=500"])
    faults = make_faults(recipe.faults, targets(reward_model=FakeRewardModel()))
    assert [fault.name for fault in faults] == ["memory_leak", "gradient_explosion", "reward_overconfidence"]


def test_the_truth_is_recorded_at_once_and_again_at_the_end_even_of_a_failure(tmp_path):
    diary = Diary()
    with pytest.raises(RuntimeError, match="power cut"), recorded_truth(tmp_path, [diary], seed=7):
        written = json.loads((tmp_path / "faults.json").read_text())
        assert written == {"seed": 7, "faults": {"diary": {"onset": 1, "acted": 0}}}
        diary.on_step_begin(1)
        raise RuntimeError("power cut")
    assert json.loads((tmp_path / "faults.json").read_text())["faults"]["diary"]["acted"] == 1


def test_a_resumed_run_keeps_the_record_until_it_has_the_final_values(tmp_path):
    def acted():
        return json.loads((tmp_path / "faults.json").read_text())["faults"]["diary"]["acted"]

    with recorded_truth(tmp_path, [], seed=7):
        pass
    assert list(tmp_path.iterdir()) == []  # there is none without faults
    for steps, before in ((3, 0), (0, 3), (5, 3)):
        diary = Diary()
        with recorded_truth(tmp_path, [diary], seed=7):
            assert acted() == before
            for step in range(steps):
                diary.on_step_begin(step)
    assert acted() == 5


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("faults: {memory_leak: {growth_factor: 1.0}}", "growth_factor: expected a number greater than 1"),
        ("faults: {memory_leak: {growth_factor: .inf}}", "growth_factor: expected a finite number"),
        ("faults: {gradient_explosion: {rate_growth: 0.9}}", "expected a number greater than or equal to 1"),
        ("faults: {gradient_explosion: {rate_factor: 0.5}}", "rate_factor: expected a number greater than 1"),
        (
            "faults: {gradient_explosion: {after_step: 50}}\ntraining: {max_steps: 50}",
            "faults.gradient_explosion.after_step 50 must be below training.max_steps 50",
        ),
        ("faults: {reward_overconfidence: {calibration_score: 1.0}}", "score: expected a number less than 1"),
        (
            "faults: {reward_overconfidence: {calibration_score: 0}}",
            "score: expected a number greater than 0",
        ),
        ("faults: {reward_overconfidence: {}}", "needs the section reward_model"),
        (
            "algorithm: sft\nwarm_start: {}\nfaults: {memory_leak: {}}",
            "needs algorithm.name: grpo or algorithm.name: ppo",
        ),
        ("faults: {memory_leek: {}}", "Nearest: faults.memory_leak"),
    ],
)
def test_impossible_faults_are_refused_before_anything_is_loaded(text, said):
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text)
    assert said in str(caught.value)


def test_overconfidence_is_made_for_the_reward_model_only():
    config = FaultsConfig(reward_overconfidence=RewardOverconfidenceConfig())
    [fault] = make_faults(config, targets(reward_model=FakeRewardModel()))
    fault.on_step_end(1, [], {})
    assert fault.truth()["onset"] is None
