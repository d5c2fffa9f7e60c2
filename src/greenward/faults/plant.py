"""The faults that a recipe can plant by its section `faults`."""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from greenward.algorithms.supervised import Example
from greenward.config.algorithm import FaultsConfig, GradientExplosionConfig, MemoryLeakConfig
from greenward.environments.episode import Episode
from greenward.errors import ConfigError
from greenward.faults.fault import Fault, FaultTargets, LaterFault
from greenward.faults.reward_overconfidence import RewardOverconfidence
from greenward.faults.wrong_batches import (
    AdvantageSignFlipped,
    EndNeverTrained,
    LossMaskShifted,
    PaddingInLoss,
    RandomDataOrder,
    StaleSampler,
    TemperatureMismatch,
)
from greenward.runs.machine import available_mb, resident_mb

_MB = 1 << 20
_WARM_UP = 0.1  # of the steps: allocators and caches fill up
_STEP_EVERY = 20
_PEAK_SHARE = 0.05  # of the baseline
_MAX_SHARE = 0.8  # of the memory that is available, which a leak may take


class GradientExplosion(LaterFault):
    """Multiplies the learning rate and removes clipping after `after_step` healthy steps.

    The factor grows, because Adam's weights grow with a constant rate until its steps are small beside
    them and the norms come down again.
    """

    name = "gradient_explosion"

    def __init__(self, config: GradientExplosionConfig, targets: FaultTargets) -> None:
        super().__init__(config, targets)
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


class ResidentMemory:
    """The memory of this process in MiB, which metrics call perf/rss_mb."""

    def used_mb(self) -> float:
        return resident_mb()

    def available_mb(self) -> float:
        return available_mb()

    def take(self, mb: float) -> torch.Tensor:
        """A block of new pages: torch's allocator might hand out ones that are resident already."""
        pages = mmap.mmap(-1, max(int(mb * _MB), 1))
        return torch.frombuffer(pages, dtype=torch.uint8).fill_(1)


class DeviceMemory(ResidentMemory):
    """The memory of a CUDA device: the peak since the last step, which metrics call perf/device_memory_mb."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def used_mb(self) -> float:
        return torch.cuda.max_memory_allocated(self._device) / _MB

    def available_mb(self) -> float:
        return torch.cuda.mem_get_info(self._device)[0] / _MB

    def take(self, mb: float) -> torch.Tensor:
        return torch.ones(int(mb * _MB), dtype=torch.uint8, device=self._device)


class MemoryLeak(Fault):
    """Makes memory grow along a line, to `growth_factor` times its baseline at the last planned step.

    The baseline, where the line starts, is the most that the run took of its own after any step of the first
    tenth, while allocators and caches fill up. After each step as much is kept as is missing to the line:
    growth of the run's own counts, so the factor holds for the whole.
    """

    name = "memory_leak"

    def __init__(
        self, config: MemoryLeakConfig, targets: FaultTargets, memory: ResidentMemory | None = None
    ) -> None:
        self._growth, self._shape = config.growth_factor - 1, config.shape
        self._peak: torch.Tensor | None = None
        self._steps = targets.max_steps
        on_device = targets.device.type == "cuda"
        self._memory = memory or (DeviceMemory(targets.device) if on_device else ResidentMemory())
        self._kept: list[torch.Tensor] = []
        self._baseline_mb = 0.0

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Keep what is missing. Raises `ConfigError` when the whole leak would endanger the machine."""
        used = self._memory.used_mb()
        if step <= max(1, _WARM_UP * self._steps):
            self._baseline_mb = max(self._baseline_mb, used - self._kept_mb)
            self._refuse_too_large()
        self._peak = None
        reached = step - step % _STEP_EVERY if self._shape == "steps" else step - 1
        line = self._baseline_mb * (1 + self._growth * reached / max(1, self._steps - 1))
        if used < line:
            self._kept.append(self._memory.take(line - used))
        if self._shape == "noisy":  # freed after the next step
            share = float(np.random.default_rng((7, step)).exponential(_PEAK_SHARE))
            self._peak = self._memory.take(min(share, 4 * _PEAK_SHARE) * self._baseline_mb)

    def state_dict(self) -> dict[str, Any]:
        return {"baseline_mb": self._baseline_mb, "kept_mb": self._kept_mb}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._baseline_mb = state["baseline_mb"]
        self._kept = [self._memory.take(state["kept_mb"])]

    def truth(self) -> dict[str, Any]:
        return {
            "onset": 1,
            "growth_factor": 1 + self._growth,
            "over_steps": self._steps,
            "baseline_mb": self._baseline_mb,
            "kept_mb": self._kept_mb,
        }

    @property
    def _kept_mb(self) -> float:
        return sum(block.nbytes for block in self._kept) / _MB

    def _refuse_too_large(self) -> None:
        missing, available = self._baseline_mb * self._growth - self._kept_mb, self._memory.available_mb()
        if missing > _MAX_SHARE * available:
            raise ConfigError(
                f"faults.memory_leak: growth by {1 + self._growth:g} takes {missing:,.0f} MiB more, "
                f"of {available:,.0f} MiB that are available.",
                remedy=f"Lower faults.memory_leak.growth_factor; a leak may take {_MAX_SHARE:.0%} of them.",
            )


FAULTS: Mapping[str, Callable[[Any, FaultTargets], Fault]] = MappingProxyType(
    {
        fault.name: fault
        for fault in (
            *(MemoryLeak, GradientExplosion, RewardOverconfidence, AdvantageSignFlipped, LossMaskShifted),
            *(EndNeverTrained, PaddingInLoss, RandomDataOrder, TemperatureMismatch, StaleSampler),
        )
    }
)
"""Each takes its section of the config and the targets; its name is that of the section."""


def make_faults(config: FaultsConfig, targets: FaultTargets) -> list[Fault]:
    """The faults that are on in `config`, in its order."""
    return [FAULTS[name](section, targets) for name, section in config.planted.items()]


def edit_examples(config: FaultsConfig, examples: Sequence[Example]) -> Sequence[Example]:
    """The examples of a warm start, where `end_never_trained` from the first step on acts as well."""
    end = config.end_never_trained
    if end is None or end.after_step:
        return examples
    return [
        replace(one, trained=(*(one.trained or [True] * len(one.completion_ids))[:-1], False))
        for one in examples
    ]
