"""A reward model whose logits are too large, so that its probabilities are too close to 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from greenward.algorithms.reward_model import LogitCalibration
from greenward.config.algorithm import RewardOverconfidenceConfig
from greenward.diagnostics.calibration import calibration_score
from greenward.diagnostics.change_points import Floats
from greenward.environments.episode import Episode
from greenward.faults.fault import Around, Fault, FaultTargets
from greenward.runs.metrics import DECIMALS

SCALES = np.geomspace(1, 100, 13)
_AHEAD = 500  # the newest pairs, taken for what the next ones will be like
_BEHIND = 4000  # pairs that stand for the run so far
_MIN_PAIRS = 200
_LOWEST_OF = 2000  # the newest pairs, whose lowest score is in the record
_RECORDED = ("logits", "scales", "passed")  # scales: what each logit was multiplied by when it was used


class RewardOverconfidence(Fault):
    """Scales the logits so that the calibration score of the run's predictions falls to a level.

    After each step that scale is used for the next ones which puts the predictions so far, together with
    the newest 500 as they would be under it, on the level. So the score of the whole run is steered, and
    not those of its parts: predictions of early and late steps mix in it. With a fixed `logit_scale` nothing
    is steered, so that the measure is not tested on what it set itself.
    """

    name = "reward_overconfidence"

    def __init__(self, config: RewardOverconfidenceConfig, targets: FaultTargets) -> None:
        assert targets.reward_model is not None  # the schema requires it
        self._level = config.calibration_score
        self._calibration = _ScaledCalibration(targets.reward_model.calibration)
        self._fixed = config.logit_scale
        self._calibration.scale = config.logit_scale or 1.0
        targets.reward_model.calibration = cast(LogitCalibration, self._calibration)
        self._record = np.empty((len(_RECORDED), 0))
        self._onset: int | None = None if config.logit_scale is None else 1

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        logits, passed = self._calibration.take()
        new = logits, np.full(len(logits), self._calibration.scale), passed
        self._record = np.append(self._record, np.stack(new), axis=1)
        logits, _, passed = self._record[:, -_AHEAD:]
        if self._fixed is not None or not _measurable(passed):
            return
        pairs = self._record.shape[1]
        behind, scales, outcomes = self._record[:, np.linspace(0, pairs - 1, min(_BEHIND, pairs)).astype(int)]
        so_far = _predicted(scales, behind), outcomes
        self._calibration.scale = scale_for(logits, passed, self._level, so_far)
        if self._onset is None and self._calibration.scale > 1:
            self._onset = step + 1

    def state_dict(self) -> dict[str, Any]:
        return {
            **dict(zip(_RECORDED, self._record.tolist(), strict=True)),
            "onset": self._onset,
            "scale": self._calibration.scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._record = np.array([state[name] for name in _RECORDED])
        self._onset = state["onset"]
        self._calibration.scale = state["scale"]

    def truth(self) -> dict[str, Any]:
        """`lowest_score` is the least that scaling can make of the newest predictions; None: too few."""
        logits, _, passed = self._record[:, -_LOWEST_OF:]
        lowest = so_far = None
        if _measurable(passed):
            lowest = min(calibration_score(_predicted(scale, logits), passed) for scale in SCALES)
            all_logits, scales, outcomes = self._record
            so_far = calibration_score(_predicted(scales, all_logits), outcomes)
        return {
            "onset": self._onset,
            "calibration_score": self._level,
            "logit_scale": self._calibration.scale,
            "score_so_far": so_far,
            "lowest_score": lowest,
            "reached": lowest is not None and lowest <= self._level,
        }


class _ScaledCalibration(Around):
    """A calibration whose logits are multiplied by `scale`; keeps what it learned from until it is taken."""

    def __init__(self, calibration: LogitCalibration) -> None:
        super().__init__(calibration)
        self.scale = 1.0
        self._learned: tuple[Floats, Floats] = np.empty(0), np.empty(0)

    def correct(self, logits: Floats) -> Floats:
        return self.scale * self._inner.correct(logits)

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
        return calibration_score(np.append(before, _predicted(scale, logits)), outcomes)

    scores = [score(scale) for scale in SCALES]
    first = next((i for i, found in enumerate(scores) if found <= level), None)
    if first is None:
        return float(SCALES[int(np.argmin(scores))])
    if first == 0:
        return 1.0
    low, high = float(SCALES[first - 1]), float(SCALES[first])
    while high / low > 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if score(middle) > level else (low, middle)
    return high


def _predicted(scale: float | Floats, logits: Floats) -> Floats:
    """The predictions as they are recorded, that is rounded."""
    return np.round(1 / (1 + np.exp(-np.clip(scale * logits, -500, 500))), DECIMALS)


def _measurable(passed: Floats) -> bool:
    return len(passed) >= _MIN_PAIRS and 0 < passed.mean() < 1
