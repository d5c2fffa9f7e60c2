"""A learning rate that jumps, and gradient clipping that goes, from one step on."""

from __future__ import annotations

import math
from typing import Any

from greenward.config.algorithm import GradientExplosionConfig
from greenward.faults.fault import Fault, Handles


class GradientExplosion(Fault):
    """Multiplies the learning rate and removes clipping after `after_step` healthy steps.

    The factor grows, because Adam's weights grow with a constant rate until its steps are small beside
    them and the norms come down again.
    """

    name = "gradient_explosion"

    def __init__(self, config: GradientExplosionConfig, handles: Handles) -> None:
        self._config = config
        self._learner = handles.learner

    def before_step(self, step: int) -> None:
        since = step - self._config.after_step - 1
        if since < 0:
            return
        self._learner.learning_rate_scale = self._config.rate_factor * self._config.rate_growth**since
        if self._config.remove_clip:
            self._learner.max_grad_norm = math.inf

    def truth(self) -> dict[str, Any]:
        return {"onset": self._config.after_step + 1, **self._config.model_dump()}
