"""A loss and an advantage of one's own; docs/own_algorithm.md explains both.

    greenward train quickstart algorithm.loss=own_loss:penalised algorithm.advantage=own_loss:batch_scaled

Shapes: B answers, T tokens, padded; N answers of a step.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor


def penalised(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, total_tokens: int, clip_high: float
) -> Tensor:
    """-(ratio * A - |A| (ratio - 1)^2 / (2 clip_high)), the mean over all tokens; shape ().

    The penalty keeps the ratio near 1 without a bound beyond which the gradient is 0 (Simple Policy
    Optimization, arXiv 2401.16025). All tensors are 0 in the padding, which therefore adds nothing.
    """
    ratio_BT = (logprobs_BT - old_logprobs_BT).exp()
    penalty_BT = advantages_BT.abs() * (ratio_BT - 1).square() / (2 * clip_high)
    return (penalty_BT - ratio_BT * advantages_BT).sum() / total_tokens


def batch_scaled(rewards_N: np.ndarray, groups_N: np.ndarray) -> np.ndarray:
    """The reward less the mean of its group, divided by the deviation over the batch; shape (N,)."""
    means_N = np.array([rewards_N[groups_N == group].mean() for group in groups_N])
    return (rewards_N - means_N) / (rewards_N.std() + 1e-4)
