"""Calibrated predictions are made as overconfident as planned, on the pairs that follow."""

import copy

import numpy as np
import pytest
import torch

from greenward.config.sections import RewardOverconfidenceConfig
from greenward.diagnostics.calibration import calibration_score, measure_calibration
from greenward.training.faults import FaultTargets, RewardOverconfidence, scale_for

STEPS = 300


class Uncorrected:
    """The calibration of logits that need none."""

    def correct(self, logits):
        return logits

    def learn(self, logits, outcomes):
        pass


class SimulatedModel:
    """Calibrated logits of standard deviation 1, 16 answers a step; `drift` moves the pass rate up."""

    def __init__(self, seed=0, spread=1.0, drift=0.0):
        self.calibration = Uncorrected()
        self.predicted, self.passed = [], []
        self._rng = np.random.default_rng(seed)
        self._spread, self._drift = spread, drift

    def step(self, share_done, passed=None):
        logits = self._drift * (share_done - 0.5) + self._spread * self._rng.standard_normal(16)
        drawn = self._rng.random(16) < 1 / (1 + np.exp(-logits))
        outcomes = (drawn if passed is None else passed).astype(float)
        self.predicted.append(1 / (1 + np.exp(-np.clip(self.calibration.correct(logits), -500, 500))))
        self.passed.append(outcomes)
        self.calibration.learn(logits, outcomes)

    def score(self, steps):
        return calibration_score(np.concatenate(self.predicted[steps]), np.concatenate(self.passed[steps]))


def plant(model, level=0.65):
    config = RewardOverconfidenceConfig(calibration_score=level)
    return RewardOverconfidence(config, FaultTargets(None, model, torch.device("cpu"), STEPS))


def run(model, fault, first=0, last=STEPS):
    for step in range(first, last):
        model.step(step / STEPS)
        fault.on_step_end(step + 1, [], {})


@pytest.mark.parametrize(
    ("seed", "drift", "level"),
    [
        (1, 2.0, 0.65),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in ((0, 0.0, 0.65), (2, 2.0, 0.5))),
    ],
)
def test_the_predictions_of_the_run_and_of_its_second_half_are_on_the_level(seed, drift, level):
    model = SimulatedModel(seed, drift=drift)
    fault = plant(model, level)
    run(model, fault)
    assert model.score(slice(None)) == pytest.approx(level, abs=0.03)
    assert model.score(slice(STEPS // 2, None)) == pytest.approx(level, abs=0.05)
    truth = fault.truth()
    assert truth["reached"]
    assert truth["score_so_far"] == pytest.approx(model.score(slice(None)), abs=0.005)
    assert truth["onset"] == 14  # 13 steps of 16 answers make 200


def test_fresh_calibrated_pairs_scaled_by_the_solution_score_the_level():
    rng = np.random.default_rng(3)
    logits = rng.standard_normal(40_000)
    passed = (rng.random(40_000) < 1 / (1 + np.exp(-logits))).astype(float)
    scale = scale_for(logits[:20_000], passed[:20_000], 0.65)
    scaled = 1 / (1 + np.exp(-scale * logits[20_000:]))
    found = measure_calibration(scaled, passed[20_000:])
    assert found.score == pytest.approx(0.65, abs=0.03)
    assert found.slope.slope == pytest.approx(1 / scale, rel=0.1)


def test_a_head_that_is_too_often_right_cannot_be_brought_to_the_level_and_it_is_said():
    model = SimulatedModel(spread=8.0)
    fault = plant(model)
    run(model, fault, last=100)
    truth = fault.truth()
    assert not truth["reached"]
    assert truth["lowest_score"] > 0.65


def test_outcomes_of_one_kind_leave_the_model_as_it_is():
    model = SimulatedModel()
    fault = plant(model)
    for step in range(1, 40):
        model.step(0.0, passed=np.ones(16))
        fault.on_step_end(step, [], {})
    assert model.calibration.scale == 1.0
    assert fault.truth()["onset"] is None


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_outcomes_of_one_kind_from_the_middle_on_do_not_lift_the_score(seed):
    """As after a policy was torn apart: all answers fail, and the logits learn to say so."""
    first = SimulatedModel(seed, spread=1.5)
    planted = plant(first)
    run(first, planted, last=180)
    assert first.score(slice(None)) == pytest.approx(0.65, abs=0.03)
    for outcome in (0, 1):
        model, fault = copy.deepcopy((first, planted))
        model._drift, model._spread = (2 * outcome - 1) * 20.0, 0.3
        shifts = []
        for step in range(180, STEPS):
            model.step(0.8, passed=np.full(16, outcome))
            fault.on_step_end(step + 1, [], {})
            shifts.append(model.calibration.shift)
        assert model.score(slice(None)) == pytest.approx(0.65, abs=0.03)
        assert max(np.array(shifts) * (1 - 2 * outcome)) > 0  # towards the outcome that does not come
        assert fault.truth()["reached"]


def test_a_score_that_is_off_the_level_is_not_said_to_be_reached():
    model = SimulatedModel()
    fault = plant(model, level=0.65)
    run(model, fault, last=5)  # 80 answers: too few to steer
    assert not fault.truth()["reached"]


def test_a_resumed_fault_chooses_the_same_scales():
    whole = SimulatedModel(5)
    whole_fault = plant(whole)
    run(whole, whole_fault, last=40)
    saved = whole_fault.state_dict()
    resumed = SimulatedModel(5)
    for step in range(40):
        resumed.step(step / STEPS)  # the same random state, without the fault
    fault = plant(resumed)
    fault.load_state_dict(saved)
    run(resumed, fault, 40, 80)
    run(whole, whole_fault, 40, 80)
    assert resumed.calibration.scale == whole.calibration.scale > 1
    assert fault.truth() == whole_fault.truth()
