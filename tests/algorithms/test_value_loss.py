from __future__ import annotations

import pytest
import torch

from greenward.algorithms.batches import BatchTotals
from greenward.algorithms.losses import value_loss

OLD = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
RETURNS = torch.tensor([[1.0, 1.0, -1.0], [0.0, 1.0, 9.0]])
MASK = torch.tensor([[True, True, True], [True, True, False]])
TOTALS = BatchTotals(sequences=2, tokens=5, max_completion_tokens=3)
VALUES = torch.tensor([[0.1, 0.5, 0.5], [0.05, 1.5, 100.0]])


def test_clipped_error_is_the_larger_one_and_stops_the_gradient() -> None:
    """By hand, clip 0.2: tokens 2 and 5 have moved past the clip towards their returns."""
    values = VALUES.clone().requires_grad_()
    output = value_loss(values, OLD, RETURNS, MASK, TOTALS, clip=0.2)
    errors = [0.9**2, max(0.5**2, 0.8**2), max(1.5**2, 1.2**2), 0.05**2, max(0.5**2, 0.8**2)]
    assert output.loss.item() == pytest.approx(sum(errors) / 2 / 5)
    assert output.sums["value/loss"].item() == pytest.approx(sum(errors) / 2)
    assert output.sums["value/clipped"].item() == 2
    output.loss.backward()
    expected = torch.tensor([[-0.9, 0.0, 1.5], [0.05, 0.0, 0.0]]) / 5
    torch.testing.assert_close(values.grad, expected)


def test_without_clip_it_is_half_the_mean_squared_error_over_trained_tokens() -> None:
    output = value_loss(VALUES, OLD, RETURNS, MASK, TOTALS, clip=None)
    assert output.loss.item() == pytest.approx(((VALUES - RETURNS)[MASK] ** 2).mean().item() / 2)
    assert output.sums["value/clipped"].item() == 0
