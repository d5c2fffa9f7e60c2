"""What a planted fault is, and the parts of a training that faults may disturb."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from greenward.algorithms.callbacks import Callback
from greenward.algorithms.reward_model import RewardModel
from greenward.algorithms.trainer import RLTrainer


@dataclass(frozen=True)
class FaultTargets:
    """The parts of one training that its faults may disturb."""

    trainer: RLTrainer
    reward_model: RewardModel | None
    device: torch.device
    max_steps: int


class Fault(Callback):
    """A bug that is planted in a training, as a callback of its steps."""

    def truth(self) -> dict[str, Any]:
        """What was planted, as plain data: its parameters, and `onset`, the first step it acts on.

        `onset` is None while it has not acted.
        """
        raise NotImplementedError
