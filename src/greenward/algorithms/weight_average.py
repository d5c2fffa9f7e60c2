"""A running average of the policy's weights, which is often better than the newest ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from greenward.algorithms.callbacks import Callback
from greenward.environments.episode import Episode
from greenward.policies.policy import Policy


class WeightAverage(Callback):
    """Keeps `policy`, the exponential moving average of the weights of `trained`, in float32.

    Of an adapted policy it averages the adapter's factors, whose product is nearly the average of the change.

    After step t, counted from 1, it becomes d * average + (1 - d) * weights, d = min(`decay`, (1 + t) /
    (10 + t)), so that the weights of the start are soon forgotten.
    """

    name = "weight_average"

    def __init__(self, trained: Policy, decay: float) -> None:
        self.policy = trained.trainable_copy()
        self._trained = trained
        self._decay = decay

    @torch.no_grad()
    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        decay = min(self._decay, (1 + step) / (10 + step))
        for average, newest in zip(self.policy.parameters(), self._trained.parameters(), strict=True):
            if newest.requires_grad:
                average.lerp_(newest, 1 - decay)
        self.policy.version = self._trained.version

    def state_dict(self) -> dict[str, Any]:
        return dict(self.policy.state_dict())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_state_dict(state)
