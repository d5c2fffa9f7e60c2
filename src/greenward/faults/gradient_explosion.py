"""A learning rate that jumps, and gradient clipping that goes, from one step on."""

from __future__ import annotations

import math
from typing import Any

from greenward.config.algorithm import GradientExplosionConfig
from greenward.faults.fault import Fault, FaultTargets


class GradientExplosion(Fault):
    """Multiplies the learning rate and removes clipping after `after_step` healthy steps.

    The factor grows, because Adam's weights grow with a constant rate until its steps are small beside
    them and the norms come down again.
    """

    name = "gradient_explosion"

    def __init__(self, config: GradientExplosionConfig, targets: FaultTargets) -> None:
        self._config = config
        self._trainer = targets.trainer
        self._training, self._critic_config = targets.trainer.training, targets.trainer.critic_config

    def on_step_begin(self, step: int) -> None:
        since = step - self._config.after_step - 1
        if since < 0:
            return
        factor = self._config.rate_factor * self._config.rate_growth**since
        changed: dict[str, Any] = {"learning_rate": factor * self._training.learning_rate}
        if self._config.remove_clip:
            changed["max_grad_norm"] = math.inf
        self._trainer.training = self._training.model_copy(update=changed)
        critic = self._critic_config
        if critic is not None and critic.learning_rate is not None:
            rate = {"learning_rate": factor * critic.learning_rate}
            self._trainer.critic_config = critic.model_copy(update=rate)

    def truth(self) -> dict[str, Any]:
        return {"onset": self._config.after_step + 1, **self._config.model_dump()}
