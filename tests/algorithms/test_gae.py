from __future__ import annotations

import numpy as np
import pytest

from greenward.algorithms.critic import discounted_returns, generalised_advantages


def equation_16(rewards: np.ndarray, values: np.ndarray, discount: float, gae_lambda: float) -> np.ndarray:
    """arXiv 1506.02438, eq. 16, summed out in O(T^2); the state after the last step is worth 0."""
    following = np.append(values[1:], 0.0)
    deltas = rewards + discount * following - values
    steps = len(rewards)
    return np.array(
        [sum((discount * gae_lambda) ** (k - t) * deltas[k] for k in range(t, steps)) for t in range(steps)]
    )


@pytest.mark.parametrize("length", [1, 2, 7, 40])
@pytest.mark.parametrize(("discount", "gae_lambda"), [(1.0, 0.95), (0.9, 0.5), (0.99, 1.0), (1.0, 0.0)])
def test_equals_the_sum_of_equation_16(length: int, discount: float, gae_lambda: float) -> None:
    rng = np.random.default_rng(length)
    rewards, values = rng.normal(size=(2, length))
    found = generalised_advantages(rewards, values, discount=discount, gae_lambda=gae_lambda)
    np.testing.assert_allclose(found, equation_16(rewards, values, discount, gae_lambda), atol=1e-12)


def test_lambda_0_is_the_temporal_difference_error() -> None:
    rewards, values = np.random.default_rng(0).normal(size=(2, 9))
    found = generalised_advantages(rewards, values, discount=0.9, gae_lambda=0.0)
    np.testing.assert_allclose(found, rewards + 0.9 * np.append(values[1:], 0) - values)


def test_lambda_1_is_the_return_less_the_value() -> None:
    rewards, values = np.random.default_rng(0).normal(size=(2, 9))
    found = generalised_advantages(rewards, values, discount=0.9, gae_lambda=1.0)
    np.testing.assert_allclose(found, discounted_returns(rewards, discount=0.9) - values)


def test_returns_are_the_discounted_reward_to_go() -> None:
    returns = discounted_returns(np.array([1.0, 0.0, 4.0]), discount=0.5)
    np.testing.assert_allclose(returns, [1 + 0.25 * 4, 0.5 * 4, 4])
