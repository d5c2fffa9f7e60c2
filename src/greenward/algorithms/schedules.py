"""Learning-rate schedules: the factor on the peak learning rate at each step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType


def learning_rate_factor(schedule: str, step: int, total_steps: int, warmup_steps: int = 0) -> float:
    """The factor in [0, 1] for step 0, 1, …, `total_steps` - 1.

    It rises linearly from 1 / `warmup_steps` at step 0 to 1, so that no step is lost to a rate of 0,
    and then stays (`constant`) or falls to 0 just after the last step (`linear`, `cosine`).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return _DECAYS[schedule](min(progress, 1.0))


_DECAYS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    }
)
