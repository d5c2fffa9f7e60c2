"""What a planted fault is, the parts of a training that it may disturb, and the record of its truth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from greenward.algorithms.callbacks import Callback
from greenward.algorithms.reward_model import RewardModel
from greenward.algorithms.trainer import RLTrainer
from greenward.runs.files import write_json

TRUTH_FILE = "faults.json"


@dataclass(frozen=True)
class FaultTargets:
    """The parts of one training that its faults may disturb."""

    trainer: RLTrainer
    reward_model: RewardModel | None
    device: torch.device
    max_steps: int


class Around:
    """Stands in front of a part of the training, which has all attributes that are not its `own`."""

    def __init__(self, inner: Any, **own: Any) -> None:
        self._inner = inner
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        if name == "_inner" or name.startswith("__"):  # a copy is asked for them before it has any
            raise AttributeError(name)
        return getattr(self._inner, name)


class Fault(Callback):
    """A bug that is planted in a training, as a callback of its steps."""

    def truth(self) -> dict[str, Any]:
        """What was planted, as plain data: its parameters, and `onset`, the first step it acts on.

        `onset` is None while it has not acted.
        """
        raise NotImplementedError


class LaterFault(Fault):
    """A fault that begins after the healthy steps `after_step` of its section of the config."""

    def __init__(self, config: Any, targets: FaultTargets) -> None:
        self._config, self._trainer = config, targets.trainer

    def truth(self) -> dict[str, Any]:
        return {"onset": self._config.after_step + 1, **self._config.model_dump()}


@contextmanager
def recorded_truth(run: Path, faults: Sequence[Fault], *, seed: int) -> Iterator[None]:
    """Write what is planted to faults.json in `run`: at once, and with the final values when the block ends.

    The file of a run that is resumed stays as it is until then, and whenever nothing has changed since the
    start: the values before the checkpoint is read are not the run's. No file without faults. Diagnostics
    never read it: they are measured against it.
    """

    def truth() -> dict[str, Any]:
        return {"seed": seed, "faults": {fault.name: fault.truth() for fault in faults}}

    at_start = truth()
    if faults and not (run / TRUTH_FILE).exists():
        write_json(run / TRUTH_FILE, at_start)
    try:
        yield
    finally:
        if truth() != at_start:
            write_json(run / TRUTH_FILE, truth())
