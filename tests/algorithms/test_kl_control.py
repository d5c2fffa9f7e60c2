from __future__ import annotations

import math

import pytest

from greenward.algorithms.coefficients import KLCoefficient


def test_adaptive_coefficient_follows_ziegler() -> None:
    """arXiv 1909.08593, section 2.2, by hand: errors +0.2 (clipped), -0.2 (clipped), +0.1, 0."""
    control = KLCoefficient(0.1, target=0.02, horizon=1000)
    found = []
    for kl in (0.5, 0.0, 0.022, 0.02):
        control.update(kl, episodes=50)
        found.append(control.value)
    expected = [0.1 * 1.01, 0.1 * 1.01 * 0.99, 0.1 * 1.01 * 0.99 * 1.005, 0.1 * 1.01 * 0.99 * 1.005]
    assert found == pytest.approx(expected, rel=1e-12)


def test_without_a_target_the_coefficient_stays() -> None:
    control = KLCoefficient(0.1, target=None, horizon=10_000)
    control.update(100.0, episodes=10_000)
    assert control.value == 0.1


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
