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

from greenward.logistic import fit_recalibration

Floats = npt.NDArray[np.float64]

_PRIOR = 4.0  # weight of "no correction": slope 1, intercept 0


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
        self._fit()

    def state_dict(self) -> dict[str, Any]:
        return {"logits": torch.from_numpy(self._logits), "outcomes": torch.from_numpy(self._outcomes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._logits, self._outcomes = state["logits"].numpy(), state["outcomes"].numpy()
        self._fit()

    def _fit(self) -> None:
        fit = fit_recalibration(self._logits, self._outcomes, prior_weight=_PRIOR)
        assert fit is not None  # the prior makes the maximum finite
        self.slope, self.intercept = fit.slope, fit.intercept
