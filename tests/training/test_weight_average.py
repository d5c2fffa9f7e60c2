"""The running average of the weights against a closed form."""

from __future__ import annotations

import pytest
import torch

from greenward.config.sections import ShapeConfig
from greenward.models.policy import Policy
from greenward.models.tokenizer import Tokenizer
from greenward.training.loop import WeightAverage


@pytest.fixture
def policy(tokenizer: Tokenizer) -> Policy:
    shape = ShapeConfig(layers=1, hidden_size=8, heads=1, kv_heads=1, intermediate_size=8, max_positions=8)
    return Policy.random(shape, tokenizer, seed=0, device="cpu")


def move(policy: Policy, average: WeightAverage, step: int, by: float) -> None:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += by
    policy.version = step
    average.on_step_end(step, [], {})


@pytest.mark.parametrize("decay", [0.5, 0.98])
def test_it_is_the_sum_of_all_weights_with_geometric_shares(policy: Policy, decay: float) -> None:
    """After t steps each of size 1: start + sum over t of (1 - d_t) * t * the product of later d."""
    start = [parameter.clone() for parameter in policy.parameters()]
    average, steps = WeightAverage(policy, decay), 30
    for step in range(1, steps + 1):
        move(policy, average, step, 1.0)
    decays = [min(decay, (1 + step) / (10 + step)) for step in range(1, steps + 1)]
    products = [
        torch.tensor(decays[step:], dtype=torch.float64).prod().item() for step in range(1, steps + 1)
    ]
    expected = sum((1 - decays[step - 1]) * step * products[step - 1] for step in range(1, steps + 1))
    for before, found in zip(start, average.policy.parameters(), strict=True):
        assert torch.allclose(found, before + expected, rtol=1e-4)
    assert average.policy.version == steps


def test_the_trained_policy_is_left_alone_and_the_state_is_exact(policy: Policy) -> None:
    one = WeightAverage(policy, 0.9)
    for step in range(1, 4):
        move(policy, one, step, 0.5)
    trained = [parameter.clone() for parameter in policy.parameters()]
    other = WeightAverage(policy, 0.9)
    other.load_state_dict({name: value.clone() for name, value in one.state_dict().items()})
    for average in (one, other):
        average.on_step_end(4, [], {})
    for mine, theirs in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(mine, theirs) and not torch.equal(mine, trained[0])
    assert all(map(torch.equal, trained, policy.parameters()))
