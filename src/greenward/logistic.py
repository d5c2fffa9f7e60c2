"""Logistic recalibration: P(outcome) = sigmoid(slope · logit + intercept) (Cox 1958, Platt 1999).

The reward model corrects its predictions by it, and the diagnostics measure overconfidence by it: a slope
below 1 says that the logits are too large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_NEWTON_STEPS = 50
_CONVERGED = 1e-10
_SINGULAR = 1e12  # condition number of the information matrix


@dataclass(frozen=True)
class Recalibration:
    """A fit; `slope_error` is the standard error of the slope."""

    slope: float
    intercept: float
    slope_error: float


def fit_recalibration(logits: Floats, outcomes: Floats, *, prior_weight: float = 0.0) -> Recalibration | None:
    """The most probable slope and intercept for outcomes (0 or 1), by Newton's method.

    With a `prior_weight`, both have normal priors of this precision around "no correction" (1 and 0), so
    that few or separable outcomes give finite answers. Without one, None where there is no finite maximum.
    """
    design = np.column_stack((logits, np.ones_like(logits)))
    prior = np.array([1.0, 0.0])
    weights = prior if prior_weight else np.zeros(2)
    for _ in range(_NEWTON_STEPS):
        rates = 1 / (1 + np.exp(-np.clip(design @ weights, -500, 500)))
        gradient = design.T @ (rates - outcomes) + prior_weight * (weights - prior)
        curvature = (design.T * (rates * (1 - rates))) @ design + prior_weight * np.eye(2)
        if not prior_weight and np.linalg.cond(curvature) > _SINGULAR:
            return None
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < _CONVERGED:
            break
    else:
        if not prior_weight:
            return None
    slope_error = float(np.sqrt(np.linalg.inv(curvature)[0, 0]))
    return Recalibration(float(weights[0]), float(weights[1]), slope_error)
