"""The critic's loss: squared error with PPO2's clipping."""

from __future__ import annotations

import torch
from torch import Tensor

from greenward.algorithms.losses import BatchTotals, LossOutput


def value_loss(
    values_BT: Tensor,
    old_values_BT: Tensor,
    returns_BT: Tensor,
    mask_BT: Tensor,
    totals: BatchTotals,
    *,
    clip: float | None,
) -> LossOutput:
    """Half the squared error of the values, averaged over the trained tokens of the whole batch.

    With `clip` c, the error of a token is the larger one of (V - R)^2 and (V_old + clip(V - V_old, ±c)
    - R)^2, as in the PPO2 of OpenAI Baselines: a value that has moved more than c towards its return
    has no gradient any more. The sums are `value/loss` and `value/clipped`, the share of such tokens.
    """
    error_BT = (values_BT - returns_BT).square()
    clipped_BT = torch.zeros_like(mask_BT)
    if clip is not None:
        near_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
        near_error_BT = (near_BT - returns_BT).square()
        clipped_BT = near_error_BT > error_BT
        error_BT = torch.max(error_BT, near_error_BT)
    half_BT = (error_BT / 2).masked_fill(~mask_BT, 0.0)
    return LossOutput(
        loss=half_BT.sum() / max(totals.tokens, 1),
        sums={"value/loss": half_BT.detach().sum(), "value/clipped": (clipped_BT & mask_BT).float().sum()},
        maxima={},
    )
