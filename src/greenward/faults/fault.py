"""What a fault is, and the parts of a training that faults may disturb.

Steps are counted as in metrics.jsonl: the first one is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch


class LearnerKnobs(Protocol):
    """What faults may turn on a learner; it reads both at each update."""

    learning_rate_scale: float
    max_grad_norm: float


class RewardModelKnobs(Protocol):
    """What faults may turn and read on a reward model.

    It predicts sigmoid(`logit_scale` · logit). `last_logits` (not scaled) and `last_passed` are of the
    answers of the last step, in one order.
    """

    logit_scale: float

    @property
    def last_logits(self) -> npt.NDArray[np.floating[Any]]: ...

    @property
    def last_passed(self) -> npt.NDArray[Any]: ...


@dataclass(frozen=True)
class Handles:
    """The parts of one training that its faults may disturb."""

    learner: LearnerKnobs
    reward_model: RewardModelKnobs | None
    device: torch.device
    max_steps: int


class Fault(Protocol):
    """A bug that acts before or after the steps of a training. What a fault does not need does nothing."""

    name: str

    def before_step(self, step: int) -> None:
        """Disturb step `step`, which begins now."""

    def after_step(self, step: int) -> None:
        """Disturb what step `step`, which has ended, leaves behind."""

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go back to `state`."""

    def truth(self) -> dict[str, Any]:
        """What was planted, as plain data: its parameters, and `onset`, the first step it acts on.

        `onset` is None while it has not acted.
        """
        ...
