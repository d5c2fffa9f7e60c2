from __future__ import annotations

import pytest
import torch
from transformers import get_scheduler

from greenward.algorithms.coefficients import learning_rate_factor


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
