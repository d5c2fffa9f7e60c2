"""Plants bugs in a training, as a recipe's section `faults` says, and records what was planted.

A fault is a class that has the name of its section, acts as a callback before or after a step on the parts of
the training in `FaultTargets`, and says in `truth` what it planted. It replaces a public attribute of the
trainer or of the reward model, never a function.
"""

from __future__ import annotations

import math
import mmap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from greenward.common.errors import ConfigError
from greenward.config.sections import (
    BatchFaultConfig,
    FaultsConfig,
    GradientExplosionConfig,
    MemoryLeakConfig,
    RewardOverconfidenceConfig,
    StaleSamplerConfig,
)
from greenward.diagnostics.calibration import calibration_score
from greenward.diagnostics.change_points import Floats
from greenward.models.policy import Policy
from greenward.rollouts.protocols import POLICY, Episode, Turn
from greenward.runs.directory import DECIMALS
from greenward.runs.files import write_json
from greenward.runs.machine import available_mb, resident_mb
from greenward.training.advantages import Estimator
from greenward.training.collector import Collector
from greenward.training.protocols import Callback, Example
from greenward.training.reward_model import OnlineRecalibration, RewardModel
from greenward.training.trainer import RLTrainer

TRUTH_FILE = "faults.json"


@dataclass(frozen=True)
class FaultTargets:
    """The parts of one training that its faults may disturb."""

    trainer: RLTrainer
    reward_model: RewardModel | None
    device: torch.device
    max_steps: int


class Proxy:
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


class _BatchFault(LaterFault):
    """A fault that begins after `after_step`; a subclass edits the turns that the policy is trained on."""

    def __init__(self, config: BatchFaultConfig, targets: FaultTargets) -> None:
        super().__init__(config, targets)
        self._step = 0
        collector = targets.trainer.collector

        def collect(step: int) -> tuple[list[Episode], dict[str, float]]:
            episodes, metrics = collector.collect(step)
            return self._wrong(episodes) if self._step > config.after_step else episodes, metrics

        targets.trainer.collector = cast(Collector, Proxy(collector, collect=collect))

    def on_step_begin(self, step: int) -> None:
        self._step = step

    def _wrong(self, episodes: list[Episode]) -> list[Episode]:
        return [
            replace(one, turns=tuple(self._turn(turn) if turn.trained else turn for turn in one.turns))
            for one in episodes
        ]

    def _turn(self, turn: Turn) -> Turn:
        raise NotImplementedError


class LossMaskShifted(_BatchFault):
    """Trains on each token's neighbour: mask and targets of the loss are off by one."""

    name = "loss_mask_shifted"

    def _turn(self, turn: Turn) -> Turn:
        shifted = np.zeros_like(turn.policy_wrote_T)
        shifted[1:] = turn.policy_wrote_T[:-1]
        kept = shifted if shifted.any() else turn.policy_wrote_T
        return replace(turn, policy_wrote_T=kept, completion_ids=np.roll(turn.completion_ids, 1))


class EndNeverTrained(_BatchFault):
    """Leaves the last token of each answer out of the loss: ending is never rewarded."""

    name = "end_never_trained"

    def _turn(self, turn: Turn) -> Turn:
        places = np.flatnonzero(turn.policy_wrote_T)
        if len(places) < 2:
            return turn
        mask = turn.policy_wrote_T.copy()
        mask[places[-1]] = False
        return replace(turn, policy_wrote_T=mask)


class PaddingInLoss(_BatchFault):
    """Fills answers up to the length of the longest with their last token, which is trained on as well."""

    name = "padding_in_loss"

    def _wrong(self, episodes: list[Episode]) -> list[Episode]:
        turns = [turn for one in episodes for turn in one.turns if turn.trained]
        self._longest = max((len(turn.completion_ids) for turn in turns), default=0)
        return super()._wrong(episodes)

    def _turn(self, turn: Turn) -> Turn:
        missing = self._longest - len(turn.completion_ids)
        if missing <= 0:
            return turn
        last = np.full(missing, turn.completion_ids[-1], turn.completion_ids.dtype)
        return replace(
            turn,
            completion_ids=np.concatenate((turn.completion_ids, last)),
            logprobs_T=np.concatenate((turn.logprobs_T, np.zeros(missing, turn.logprobs_T.dtype))),
            policy_wrote_T=np.concatenate((turn.policy_wrote_T, np.ones(missing, bool))),
        )


class TemperatureMismatch(_BatchFault):
    """Says that the tokens were sampled at another temperature than they were."""

    name = "temperature_mismatch"

    def _turn(self, turn: Turn) -> Turn:
        return replace(turn, temperature=turn.temperature * self._config.factor)


class AdvantageSignFlipped(LaterFault):
    """Turns the sign of all advantages: what is better is made rarer."""

    name = "advantage_sign_flipped"

    def on_step_begin(self, step: int) -> None:
        estimator = self._trainer.estimator
        if step > self._config.after_step and not isinstance(estimator, FlippedEstimator):
            self._trainer.estimator = cast(Estimator, FlippedEstimator(estimator))


class FlippedEstimator(Proxy):
    """An estimator whose advantages have the other sign."""

    def __call__(self, episodes: Sequence[Episode]) -> Any:
        found = self._inner(episodes)
        return replace(found, advantages=[tuple(-one for one in turns) for turns in found.advantages])


class StaleSampler(LaterFault):
    """Samples with a copy of the weights that is renewed every `renewed_every` steps only."""

    name = "stale_sampler"

    def __init__(self, config: StaleSamplerConfig, targets: FaultTargets) -> None:
        super().__init__(config, targets)
        self._copy: Policy | None = None
        self._since = 0

    def on_step_begin(self, step: int) -> None:
        if step <= self._config.after_step:
            return
        policy = self._trainer.policy
        if self._copy is None:
            self._copy = policy.frozen_copy()
            self._copy.version, self._since = policy.version, step
            collector = self._trainer.collector  # in which the copy plays the policy and is not renewed
            collector.players[POLICY] = self._copy  # type: ignore[index]
            self._trainer.collector = cast(Collector, Proxy(collector, sync=lambda policy: None))
        elif step - self._since >= self._config.renewed_every:
            self._copy.sync(policy)
            self._copy.version, self._since = policy.version, step

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Log how old the weights are, as a trainer with a queue does."""
        if self._copy is not None:
            metrics["rollouts/staleness"] = float(self._trainer.policy.version - self._copy.version)


class RandomDataOrder(_BatchFault):
    """Draws the order of the episodes from the clock, so that no repetition gives the same numbers."""

    name = "random_data_order"

    def _wrong(self, episodes: list[Episode]) -> list[Episode]:
        groups = sorted({one.group_id for one in episodes})
        order = np.random.default_rng(time.time_ns()).permutation(len(groups))
        place: Mapping[Any, int] = {group: int(order[i]) for i, group in enumerate(groups)}
        kept = [one for one in episodes if place[one.group_id]]  # one group, another each time, is lost
        return sorted(kept or episodes, key=lambda one: place[one.group_id])


SCALES = np.geomspace(1, 100, 13)
_AHEAD = 500  # the newest pairs, taken for what the next ones will be like
_BEHIND = 4000  # pairs that stand for the run so far
_MIN_PAIRS = 200
_LOWEST_OF = 2000  # the newest pairs, whose lowest score is in the record
# What was done to each logit when it was used: it was multiplied by its scale, then its shift was added.
_RECORDED = ("logits", "scales", "shifts", "passed")
_EXACT = 0.03  # how far the score of a run may be from the level
_LARGEST_LOGIT = 20.0  # beyond it predictions are 0 or 1 as they are recorded


class RewardOverconfidence(Fault):
    """Scales the logits so that the calibration score of the run's predictions falls to a level.

    After each step that scale is used for the next ones which puts the predictions so far, together with
    the newest 500 as they would be under it, on the level. So the score of the whole run is steered, and
    not those of its parts: predictions of early and late steps mix in it. Scaling makes a prediction more
    certain of what it says already, which is right where the newest 200 outcomes are alike, as those of a
    policy that another fault has torn apart. There the logits of the next step are moved towards the other
    outcome instead, by what keeps the score on the level if they are as those of the last one. With a fixed
    `logit_scale` nothing is steered, so that the measure is not tested on what it set itself.
    """

    name = "reward_overconfidence"

    def __init__(self, config: RewardOverconfidenceConfig, targets: FaultTargets) -> None:
        assert targets.reward_model is not None  # the schema requires it
        self._level = config.calibration_score
        self._calibration = _ScaledCalibration(targets.reward_model.calibration)
        self._fixed = config.logit_scale
        self._calibration.scale = config.logit_scale or 1.0
        targets.reward_model.calibration = cast(OnlineRecalibration, self._calibration)
        self._record = np.empty((len(_RECORDED), 0))
        self._onset: int | None = None if config.logit_scale is None else 1

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        logits, passed = self._calibration.take()
        used = self._calibration.scale, self._calibration.shift
        new = np.broadcast_arrays(logits, *used, passed)
        self._record = np.append(self._record, np.stack(new), axis=1)
        if self._fixed is not None or not _measurable(self._record[-1]):
            return
        if _measurable(self._record[-1, -_MIN_PAIRS:]):
            pairs = self._record.shape[1]
            behind = self._record[:, np.linspace(0, pairs - 1, min(_BEHIND, pairs)).astype(int)]
            so_far = _predicted(*behind[:-1]), behind[-1]
            ahead, _, _, outcomes = self._record[:, -_AHEAD:]
            self._calibration.scale = scale_for(ahead, outcomes, self._level, so_far)
            self._calibration.shift = 0.0
        elif len(passed):
            so_far = _predicted(*self._record[:-1]), self._record[-1]
            self._calibration.scale = 1.0
            self._calibration.shift = shift_for(logits, passed, self._level, so_far)
        if self._onset is None and (self._calibration.scale, self._calibration.shift) != (1.0, 0.0):
            self._onset = step + 1

    def state_dict(self) -> dict[str, Any]:
        return {
            **dict(zip(_RECORDED, self._record.tolist(), strict=True)),
            "onset": self._onset,
            "scale": self._calibration.scale,
            "shift": self._calibration.shift,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._record = np.array([state[name] for name in _RECORDED])
        self._onset = state["onset"]
        self._calibration.scale, self._calibration.shift = state["scale"], state["shift"]

    def truth(self) -> dict[str, Any]:
        """`lowest_score` is the least that scaling can make of the newest predictions; None: too few.

        `reached` says whether all predictions so far are on the level, as closely as steering is exact.
        """
        logits, _, _, passed = self._record[:, -_LOWEST_OF:]
        lowest = so_far = None
        if _measurable(passed):
            lowest = min(calibration_score(_predicted(logits, scale), passed) for scale in SCALES)
        if _measurable(self._record[-1]):
            so_far = calibration_score(_predicted(*self._record[:-1]), self._record[-1])
        return {
            "onset": self._onset,
            "calibration_score": self._level,
            "logit_scale": self._calibration.scale,
            "logit_shift": self._calibration.shift,
            "score_so_far": so_far,
            "lowest_score": lowest,
            "reached": so_far is not None and so_far <= self._level + _EXACT,
        }


class _ScaledCalibration(Proxy):
    """A calibration whose logits are multiplied by `scale`, then moved by `shift`.

    It keeps what it learned from until that is taken.
    """

    def __init__(self, calibration: OnlineRecalibration) -> None:
        super().__init__(calibration)
        self.scale, self.shift = 1.0, 0.0
        self._learned: tuple[Floats, Floats] = np.empty(0), np.empty(0)

    def correct(self, logits: Floats) -> Floats:
        return self.scale * self._inner.correct(logits) + self.shift

    def learn(self, logits: Floats, outcomes: Floats) -> None:
        self._learned = self._inner.correct(logits), outcomes
        self._inner.learn(logits, outcomes)

    def take(self) -> tuple[Floats, Floats]:
        """The corrected logits, not scaled, and outcomes of the last step; none where nothing was learned."""
        taken, self._learned = self._learned, (np.empty(0), np.empty(0))
        return taken


def scale_for(
    logits: Floats, passed: Floats, level: float, so_far: tuple[Floats, Floats] | None = None
) -> float:
    """The smallest factor from 1 on, on `logits`, at which the calibration score is down at `level`.

    The score is that of the predictions `so_far` (with their outcomes) and of the scaled ones together.
    Where no factor up to `SCALES[-1]` is large enough, the one with the lowest score: beyond it more and
    more predictions are recorded as exactly 0 or 1, in which the score no longer sees differences.
    """
    before, outcomes = (np.empty(0), np.empty(0)) if so_far is None else so_far
    outcomes = np.append(outcomes, passed)

    def score(scale: float) -> float:
        return calibration_score(np.append(before, _predicted(logits, scale)), outcomes)

    scores: list[float] = []
    for scale in SCALES:
        scores.append(score(scale))
        if scores[-1] <= level:
            break
    else:
        return float(SCALES[int(np.argmin(scores))])
    if len(scores) == 1:
        return 1.0
    low, high = float(SCALES[len(scores) - 2]), float(SCALES[len(scores) - 1])
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if score(middle) > level else (low, middle)
    return high


def shift_for(logits: Floats, passed: Floats, level: float, so_far: tuple[Floats, Floats]) -> float:
    """The smallest shift of `logits` at which the calibration score is down at `level`; 0 if it is already.

    All outcomes `passed` are alike, and the logits are moved towards the other one. The score is that of the
    predictions `so_far` (with their outcomes) and of the moved ones together. Where no shift is large enough,
    the largest.
    """
    before, outcomes = so_far[0], np.append(so_far[1], passed)

    def score(size: float) -> float:
        return calibration_score(np.append(before, _predicted(logits, 1.0, sign * size)), outcomes)

    sign = -1.0 if passed[0] else 1.0
    low, high = 0.0, float(np.abs(logits).max()) + _LARGEST_LOGIT
    if score(low) <= level:
        return 0.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (middle, high) if score(middle) > level else (low, middle)
    return sign * high


def _predicted(logits: Floats, scale: float | Floats, shift: float | Floats = 0.0) -> Floats:
    """The predictions as they are recorded, that is rounded."""
    return np.round(1 / (1 + np.exp(-np.clip(scale * logits + shift, -500, 500))), DECIMALS)


def _measurable(passed: Floats) -> bool:
    return len(passed) >= _MIN_PAIRS and 0 < passed.mean() < 1


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
        self._training = targets.trainer.training
        self._critic_config = getattr(targets.trainer, "critic_config", None)

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
            trainer: Any = self._trainer  # that of PPO
            trainer.critic_config = critic.model_copy(update=rate)


class ResidentMemory:
    """The memory of this process in MiB, which metrics call perf/rss_mb."""

    def used_mb(self) -> float:
        return resident_mb()

    def available_mb(self) -> float:
        return available_mb()

    def take(self, mb: float) -> torch.Tensor:
        """A block of new pages: torch's allocator might hand out ones that are resident already."""
        return torch.frombuffer(mmap.mmap(-1, max(int(mb * _MB), 1)), dtype=torch.uint8).fill_(1)


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
            missing, available = self._baseline_mb * self._growth - self._kept_mb, self._memory.available_mb()
            if missing > _MAX_SHARE * available:
                raise ConfigError(
                    f"faults.memory_leak: growth by {1 + self._growth:g} takes {missing:,.0f} MiB more, "
                    f"of {available:,.0f} MiB that are available.",
                    remedy="Lower faults.memory_leak.growth_factor; a leak may take "
                    f"{_MAX_SHARE:.0%} of them.",
                )
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
