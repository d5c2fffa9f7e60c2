"""The weight of the entropy bonus: fixed, or steered so that the policy keeps a target entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RATE = 0.05
"""The largest change of the logarithm of the coefficient after one batch."""

RANGE = 100.0
"""The coefficient stays within this factor of its first value, so that it can always return."""


class EntropyControl:
    """The coefficient of the entropy bonus: fixed, or steered to `target` nats per token.

    After each batch with measured entropy H the coefficient is multiplied by
    exp(`RATE` * clip(1 - H / target, ±1)): a step on its logarithm along the gradient with which Soft
    Actor-Critic tunes its temperature (Haarnoja et al. 2018, arXiv 1812.05905, eq. 18), here relative
    to the target and bounded.
    """

    def __init__(self, coefficient: float, target: float | None) -> None:
        self._first = coefficient
        self._target = target
        self.coefficient = coefficient

    def update(self, entropy: float) -> None:
        """Learn the entropy of the batch that the present coefficient was used on; NaN is ignored."""
        if self._target is None or math.isnan(entropy):
            return
        error = min(max(1 - entropy / self._target, -1.0), 1.0)
        steered = self.coefficient * math.exp(RATE * error)
        self.coefficient = min(max(steered, self._first / RANGE), self._first * RANGE)

    def state_dict(self) -> dict[str, Any]:
        return {"coefficient": self.coefficient}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.coefficient = state["coefficient"]
