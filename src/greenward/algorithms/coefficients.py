"""Numbers that change while a run goes on: KL and entropy coefficients, and the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

from greenward.algorithms.stateful import Stateful

ENTROPY_RATE = 0.05
"""The largest change of the logarithm of the entropy coefficient after one batch."""

ENTROPY_RANGE = 100.0
"""The entropy coefficient stays within this factor of its first value, so that it can always return."""


class _Coefficient(Stateful):
    """A coefficient that is fixed, or steered to `target` by what is measured on each batch."""

    _saved: ClassVar = {"value": "value"}

    def __init__(self, first: float, *, target: float | None) -> None:
        self.value = self._first = first
        self._target = target


class KLCoefficient(_Coefficient):
    """The coefficient of the KL term or penalty: fixed, or steered to `target` nats per token.

    After a batch of n episodes with measured KL the coefficient is multiplied by
    1 + clip(KL / target - 1, ±0.2) * n / horizon (Ziegler et al. 2019, arXiv 1909.08593, section 2.2;
    there KL is per episode).
    """

    def __init__(self, first: float, *, target: float | None, horizon: int) -> None:
        super().__init__(first, target=target)
        self._horizon = horizon

    def update(self, kl: float, *, episodes: int) -> None:
        """Take in the KL of the batch that the present coefficient was used on; NaN is ignored."""
        if self._target is not None and not math.isnan(kl):
            error = min(max(kl / self._target - 1, -0.2), 0.2)
            self.value *= 1 + error * episodes / self._horizon


class EntropyCoefficient(_Coefficient):
    """The coefficient of the entropy bonus: fixed, or steered to `target` nats per token.

    After each batch with measured entropy H the coefficient is multiplied by
    exp(`ENTROPY_RATE` * clip(1 - H / target, ±1)): a step on its logarithm along the gradient with which Soft
    Actor-Critic tunes its temperature (Haarnoja et al. 2018, arXiv 1812.05905, eq. 18), here relative
    to the target and bounded.
    """

    def update(self, entropy: float) -> None:
        """Take in the entropy of the batch that the present coefficient was used on; NaN is ignored."""
        if self._target is not None and not math.isnan(entropy):
            error = min(max(1 - entropy / self._target, -1.0), 1.0)
            steered = self.value * math.exp(ENTROPY_RATE * error)
            self.value = min(max(steered, self._first / ENTROPY_RANGE), self._first * ENTROPY_RANGE)


def learning_rate_factor(
    schedule: str, step: int, total_steps: int, warmup_steps: int = 0, *, final: float = 0.0
) -> float:
    """The factor in [0, 1] on the peak learning rate at step 0, 1, …, `total_steps` - 1.

    It rises linearly from 1 / `warmup_steps` at step 0 to 1, so that no step is lost to a rate of 0,
    and then stays (`constant`) or falls to `final` just after the last step (`linear`, `cosine`).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return final + (1 - final) * _DECAYS[schedule](min(progress, 1.0))


_DECAYS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    }
)
