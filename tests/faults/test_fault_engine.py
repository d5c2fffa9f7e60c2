"""Faults around the steps of a method: when they act, what passes through, resume, and the record."""

import json
import math

import numpy as np
import pytest
import torch

from greenward.config.algorithm import FaultsConfig, GradientExplosionConfig, RewardOverconfidenceConfig
from greenward.config.loading import parse_recipe
from greenward.errors import ConfigError
from greenward.faults.fault import Fault, Handles
from greenward.faults.faulty_method import FaultyMethod
from greenward.faults.gradient_explosion import GradientExplosion
from greenward.faults.plant import FAULTS, make_faults, recorded_truth


class FakeLearner:
    learning_rate_scale = 1.0
    max_grad_norm = 0.5


class FakeRewardModel:
    logit_scale = 1.0
    last_logits = np.zeros(0)
    last_passed = np.zeros(0)


class FakeMethod:
    """Logs the knobs that each step is done with."""

    policy = "the policy"

    def __init__(self, learner):
        self.last_episodes = []
        self.done = 0
        self._learner = learner

    def step(self, step):
        self.done += 1
        self.last_episodes = [f"episode of {step}"]
        return {"rate": self._learner.learning_rate_scale, "clip": self._learner.max_grad_norm}

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


class Diary(Fault):
    """Counts what it sees."""

    name = "diary"

    def __init__(self):
        self.seen = []

    def before_step(self, step):
        self.seen.append(("before", step))

    def after_step(self, step):
        self.seen.append(("after", step))

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])

    def truth(self):
        return {"onset": 1, "acted": len(self.seen)}


def handles(learner=None, reward_model=None, max_steps=500):
    return Handles(learner or FakeLearner(), reward_model, torch.device("cpu"), max_steps)


def explosion(learner, **settings):
    return GradientExplosion(GradientExplosionConfig(**settings), handles(learner))


def test_faults_act_around_each_step_numbered_as_the_metrics_are():
    diary, method = Diary(), FakeMethod(FakeLearner())
    faulty = FaultyMethod(method, [diary])
    assert faulty.step(0) == {"rate": 1.0, "clip": 0.5}
    assert diary.seen == [("before", 1), ("after", 1)]
    assert (faulty.policy, faulty.last_episodes, method.done) == ("the policy", ["episode of 0"], 1)


def test_the_state_of_the_method_and_of_its_faults_comes_back():
    first = FaultyMethod(FakeMethod(FakeLearner()), [Diary()])
    first.step(0)
    method, diary = FakeMethod(FakeLearner()), Diary()
    FaultyMethod(method, [diary]).load_state_dict(first.state_dict())
    assert (method.done, diary.seen) == (1, [("before", 1), ("after", 1)])


def test_the_explosion_turns_both_knobs_from_the_step_after_the_last_healthy_one():
    learner = FakeLearner()
    faulty = FaultyMethod(
        FakeMethod(learner), [explosion(learner, after_step=3, rate_factor=20.0, rate_growth=1.5)]
    )
    rows = [faulty.step(step) for step in range(6)]
    assert [row["rate"] for row in rows] == [1.0, 1.0, 1.0, 20.0, 30.0, 45.0]
    assert [row["clip"] for row in rows] == [0.5, 0.5, 0.5, math.inf, math.inf, math.inf]


def test_the_explosion_goes_on_after_a_resume_and_keeps_the_clip_when_told():
    learner = FakeLearner()
    settings = {"after_step": 3, "rate_factor": 20.0, "rate_growth": 1.0, "remove_clip": False}
    fault = explosion(learner, **settings)
    fault.load_state_dict(fault.state_dict())
    FaultyMethod(FakeMethod(learner), [fault]).step(10)
    assert (learner.learning_rate_scale, learner.max_grad_norm) == (20.0, 0.5)
    assert fault.truth() == {"onset": 4, **settings}


def test_every_section_of_the_config_has_its_fault():
    assert list(FAULTS) == list(FaultsConfig.model_fields)


def test_all_are_off_by_default_and_empty_sections_turn_them_on():
    assert make_faults(parse_recipe("").faults, handles()) == []
    text = "reward_model: {}\nfaults: {memory_leak: {}, gradient_explosion: {}, reward_overconfidence: {}}\n"
    recipe = parse_recipe(text, ["training.max_steps=500"])
    faults = make_faults(recipe.faults, handles(reward_model=FakeRewardModel()))
    assert [fault.name for fault in faults] == ["memory_leak", "gradient_explosion", "reward_overconfidence"]


def test_the_truth_is_recorded_at_once_and_again_at_the_end_even_of_a_failure(tmp_path):
    diary = Diary()
    with pytest.raises(RuntimeError, match="power cut"), recorded_truth(tmp_path, [diary], seed=7):
        written = json.loads((tmp_path / "faults.json").read_text())
        assert written == {"seed": 7, "faults": {"diary": {"onset": 1, "acted": 0}}}
        diary.before_step(1)
        raise RuntimeError("power cut")
    assert json.loads((tmp_path / "faults.json").read_text())["faults"]["diary"]["acted"] == 1


def test_without_faults_there_is_no_record(tmp_path):
    with recorded_truth(tmp_path, [], seed=7):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("faults: {memory_leak: {growth_factor: 1.0}}", "growth_factor: expected a number more than 1"),
        ("faults: {memory_leak: {growth_factor: .inf}}", "growth_factor: expected a finite number"),
        ("faults: {gradient_explosion: {rate_growth: 0.9}}", "rate_growth: expected a number at least 1"),
        ("faults: {gradient_explosion: {rate_factor: 0.5}}", "rate_factor: expected a number more than 1"),
        (
            "faults: {gradient_explosion: {after_step: 50}}\ntraining: {max_steps: 50}",
            "faults.gradient_explosion.after_step 50 must be below training.max_steps 50",
        ),
        (
            "reward_model: {}\nfaults: {reward_overconfidence: {calibration_score: 1.0}}",
            "calibration_score: expected a number less than 1",
        ),
        (
            "reward_model: {}\nfaults: {reward_overconfidence: {calibration_score: 0}}",
            "calibration_score: expected a number more than 0",
        ),
        ("faults: {reward_overconfidence: {}}", "needs the section reward_model"),
        ("kind: sft\nwarm_start: {}\nfaults: {memory_leak: {}}", "needs kind: grpo or kind: ppo"),
        ("faults: {memory_leek: {}}", "Nearest: faults.memory_leak"),
    ],
)
def test_impossible_faults_are_refused_before_anything_is_loaded(text, said):
    with pytest.raises(ConfigError) as caught:
        parse_recipe(text)
    assert said in str(caught.value)


def test_overconfidence_is_made_for_the_reward_model_only():
    config = FaultsConfig(reward_overconfidence=RewardOverconfidenceConfig())
    [fault] = make_faults(config, handles(reward_model=FakeRewardModel()))
    fault.after_step(1)
    assert fault.truth()["onset"] is None
