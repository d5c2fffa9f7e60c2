from __future__ import annotations

import math

import pytest
import torch
from transformers import get_scheduler

from greenward.config.sections import GRPOAlgorithmConfig
from greenward.training.optim import EntropyCoefficient, KLCoefficient, learning_rate_factor


def test_adaptive_coefficient_follows_ziegler() -> None:
    """arXiv 1909.08593, section 2.2, by hand: errors +0.2 (clipped), -0.2 (clipped), +0.1, 0."""
    control = KLCoefficient(0.1, target=0.02, horizon=1000)
    found = []
    for kl in (0.5, 0.0, 0.022, 0.02):
        control.update(kl, episodes=50)
        found.append(control.value)
    expected = [0.1 * 1.01, 0.1 * 1.01 * 0.99, 0.1 * 1.01 * 0.99 * 1.005, 0.1 * 1.01 * 0.99 * 1.005]
    assert found == pytest.approx(expected, rel=1e-12)


def test_without_a_target_the_coefficients_stay() -> None:
    kl, entropy = KLCoefficient(0.1, target=None, horizon=10_000), EntropyCoefficient(0.01, target=None)
    kl.update(100.0, episodes=10_000)
    entropy.update(0.0)
    assert (kl.value, entropy.value) == (0.1, 0.01)


def test_a_kl_that_is_not_finite_leaves_a_usable_coefficient() -> None:
    control = KLCoefficient(0.1, target=0.02, horizon=100)
    control.update(math.nan, episodes=10)
    assert control.value == 0.1
    control.update(math.inf, episodes=10)
    assert control.value == pytest.approx(0.1 * (1 + 0.2 * 10 / 100))


def test_coefficient_is_resumed() -> None:
    control, resumed = (KLCoefficient(0.1, target=0.02, horizon=100) for _ in range(2))
    control.update(1.0, episodes=10)
    resumed.load_state_dict(control.state_dict())
    assert resumed.value == control.value != 0.1


def test_entropy_coefficient_rises_below_the_target_and_falls_above_it() -> None:
    control = EntropyCoefficient(0.01, target=2.0)
    found = []
    for entropy in (1.0, 2.0, 3.0, 100.0, math.nan):
        control.update(entropy)
        found.append(math.log(control.value / 0.01))
    assert found == pytest.approx([0.05 * e for e in (0.5, 0.5, 0.0, -1.0, -1.0)])


def test_entropy_coefficient_can_return_from_a_long_excursion() -> None:
    control = EntropyCoefficient(0.01, target=1.0)
    for _ in range(1000):
        control.update(5.0)
    assert control.value == pytest.approx(1e-4)
    for _ in range(1000):
        control.update(0.0)
    assert control.value == pytest.approx(1.0)


def test_a_target_needs_a_first_coefficient() -> None:
    with pytest.raises(ValueError, match="entropy_coefficient is 0"):
        GRPOAlgorithmConfig(entropy_target=1.0)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_factors_after_warmup_equal_those_of_transformers(schedule: str) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    theirs = get_scheduler(name, optimizer, num_warmup_steps=5, num_training_steps=20)
    for step in range(20):
        if step >= 5:
            assert learning_rate_factor(schedule, step, 20, 5) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_warmup_rises_evenly_and_no_step_has_rate_zero() -> None:
    factors = [learning_rate_factor("cosine", step, 100, 4) for step in range(5)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_stays_at_zero_beyond_the_last_step(schedule: str) -> None:
    assert learning_rate_factor(schedule, 10, 10) == pytest.approx(0.0)
    assert learning_rate_factor(schedule, 50, 10) == pytest.approx(0.0)


@pytest.mark.parametrize(("schedule", "middle"), [("linear", 0.6), ("cosine", 0.6), ("constant", 1.0)])
def test_a_schedule_ends_at_its_final_share(schedule: str, middle: float) -> None:
    """Half-way between 1 and 0.2 is 0.6; a constant rate has no end."""
    assert learning_rate_factor(schedule, 0, 10, final=0.2) == pytest.approx(1.0)
    assert learning_rate_factor(schedule, 5, 10, final=0.2) == pytest.approx(middle)
    assert learning_rate_factor(schedule, 10, 10, final=0.2) == pytest.approx(0.2 if middle < 1 else 1.0)
