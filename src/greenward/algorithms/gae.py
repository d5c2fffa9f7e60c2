"""Generalised advantage estimation (Schulman et al. 2015, arXiv 1506.02438)."""

from __future__ import annotations

import numpy as np


def generalised_advantages(
    rewards_T: np.ndarray, values_T: np.ndarray, *, discount: float, gae_lambda: float
) -> np.ndarray:
    """The advantage of each of the T steps of a trajectory (eq. 16), float64.

        A_t = sum over l of (discount * gae_lambda)^l * delta_{t+l}
        delta_t = r_t + discount * V(s_{t+1}) - V(s_t)

    `values_T` are of the states before each step. The state after the last one is terminal, its
    value 0. That holds for truncated answers, too: an answer is graded as it stands when it reaches
    the token limit and no reward can follow, so the limit is an end like any other, and a value of
    what might have come after it would credit the policy with rewards that it does not get.
    """
    advantages_T = np.zeros(len(rewards_T))
    advantage = next_value = 0.0
    for t in range(len(rewards_T) - 1, -1, -1):
        value = float(values_T[t])
        advantage = rewards_T[t] + discount * next_value - value + discount * gae_lambda * advantage
        advantages_T[t] = advantage
        next_value = value
    return advantages_T


def discounted_returns(rewards_T: np.ndarray, *, discount: float) -> np.ndarray:
    """The reward still to come at each of the T steps, that of the step included, float64."""
    return generalised_advantages(rewards_T, np.zeros(len(rewards_T)), discount=discount, gae_lambda=1.0)
