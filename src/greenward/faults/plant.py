"""From the section `faults` of a recipe to planted faults, and to faults.json in the run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from greenward.config.algorithm import FaultsConfig
from greenward.faults.fault import Fault, FaultTargets
from greenward.faults.gradient_explosion import GradientExplosion
from greenward.faults.memory_leak import MemoryLeak
from greenward.faults.reward_overconfidence import RewardOverconfidence
from greenward.runs.files import dump_json, write_atomically

TRUTH_FILE = "faults.json"

FAULTS: Mapping[str, Callable[[Any, FaultTargets], Fault]] = MappingProxyType(
    {fault.name: fault for fault in (MemoryLeak, GradientExplosion, RewardOverconfidence)}
)
"""Each takes its section of the config and the targets; its name is that of the section."""


def make_faults(config: FaultsConfig, targets: FaultTargets) -> list[Fault]:
    """The faults that are on in `config`, in its order."""
    return [FAULTS[name](section, targets) for name, section in config.planted.items()]


@contextmanager
def recorded_truth(run: Path, faults: Sequence[Fault], *, seed: int) -> Iterator[None]:
    """Write what is planted to faults.json in `run`: at once, and as it has come out when the block ends.

    No file without faults. Diagnostics never read it: they are measured against it.
    """
    if not faults:
        yield
        return
    _write(run, faults, seed)
    try:
        yield
    finally:
        _write(run, faults, seed)


def _write(run: Path, faults: Sequence[Fault], seed: int) -> None:
    record = {"seed": seed, "faults": {fault.name: fault.truth() for fault in faults}}
    write_atomically(run / TRUTH_FILE, dump_json(record, indent=2).encode())
