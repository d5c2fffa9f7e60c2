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
from greenward.runs.files import dump_json, write_atomically

TRUTH_FILE = "faults.json"


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


@contextmanager
def recorded_truth(run: Path, faults: Sequence[Fault], *, seed: int) -> Iterator[None]:
    """Write what is planted to faults.json in `run`: at once, and as it has come out when the block ends.

    No file without faults. Diagnostics never read it: they are measured against it.
    """

    def write() -> None:
        if faults:
            record = {"seed": seed, "faults": {fault.name: fault.truth() for fault in faults}}
            write_atomically(run / TRUTH_FILE, dump_json(record, indent=2).encode())

    write()
    try:
        yield
    finally:
        write()
