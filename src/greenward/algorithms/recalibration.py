"""Online recalibration: probabilities that stay right while what they are about moves on.

A classifier that is fitted again and again to recent examples is surer of new ones than it should
be. Its own predictions, made before their outcomes were known, say by how much: logistic regression
of the outcomes on the newest of those logits (Platt 1999) gives the slope and intercept that the
next ones are corrected by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]

_PRIOR = 4.0  # weight of "no correction": slope 1, intercept 0
_NEWTON_STEPS = 20


class OnlineRecalibration:
    """Corrects logits by what became of the `window` newest ones."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._logits: Floats = np.empty(0)
        self._outcomes: Floats = np.empty(0)
        self.slope, self.intercept = 1.0, 0.0

    def correct(self, logits: Floats) -> Floats:
        return self.slope * logits + self.intercept

    def learn(self, logits: Floats, outcomes: Floats) -> None:
        """Take in logits before correction, and their outcomes (0 or 1)."""
        self._logits = np.concatenate((self._logits, logits))[-self._window :]
        self._outcomes = np.concatenate((self._outcomes, outcomes))[-self._window :]
        self.slope, self.intercept = fit_recalibration(self._logits, self._outcomes)

    def state_dict(self) -> dict[str, Any]:
        return {"logits": torch.from_numpy(self._logits), "outcomes": torch.from_numpy(self._outcomes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._logits, self._outcomes = state["logits"].numpy(), state["outcomes"].numpy()
        self.slope, self.intercept = fit_recalibration(self._logits, self._outcomes)


def fit_recalibration(logits: Floats, outcomes: Floats) -> tuple[float, float]:
    """Slope and intercept of the most probable P(outcome) = sigmoid(slope · logit + intercept).

    Both have normal priors around "no correction" (1 and 0), so that few or separable outcomes give
    finite answers. Newton's method on a strictly convex function.
    """
    design = np.column_stack((logits, np.ones_like(logits)))
    prior = np.array([1.0, 0.0])
    weights = prior
    for _ in range(_NEWTON_STEPS):
        rates = 1 / (1 + np.exp(-np.clip(design @ weights, -500, 500)))
        gradient = design.T @ (rates - outcomes) + _PRIOR * (weights - prior)
        curvature = (design.T * (rates * (1 - rates))) @ design + _PRIOR * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-10:
            break
    return float(weights[0]), float(weights[1])
