"""A reward model whose logits are too large: it is far surer than it is right."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.config.faults import RewardOverconfidenceConfig
from greenward.diagnostics.calibration import calibration_score
from greenward.faults.fault import Fault, Handles
from greenward.runs.predictions import DECIMALS

Floats = npt.NDArray[np.float64]

SCALES = np.geomspace(1, 100, 25)
_WINDOW = 2000  # pairs that the scale is solved on
_MIN_PAIRS = 200
_CORRECTION = 0.2  # how far from the level the next steps may aim, to bring the whole run to it


class RewardOverconfidence(Fault):
    """Scales the logits so that the calibration score of the run's predictions falls to a level.

    After each step the scale that puts the last 2,000 predictions on the level is used for the next
    ones. Since predictions of early and late steps mix in the score of the whole run, the steps to come
    aim as far on the other side of the level as the run is off it.
    """

    name = "reward_overconfidence"

    def __init__(self, config: RewardOverconfidenceConfig, handles: Handles) -> None:
        assert handles.reward_model is not None  # the schema requires it
        self._level = config.calibration_score
        self._model = handles.reward_model
        self._logits = np.empty(0)
        self._scales = np.empty(0)  # that each logit was multiplied by when it was used
        self._passed = np.empty(0)
        self._onset: int | None = None

    def after_step(self, step: int) -> None:
        logits = np.asarray(self._model.last_logits, float)
        self._logits = np.append(self._logits, logits)
        self._scales = np.append(self._scales, np.full(len(logits), self._model.logit_scale))
        self._passed = np.append(self._passed, np.asarray(self._model.last_passed, float))
        if not _measurable(self._passed[-_WINDOW:]):
            return
        aim = self._level + np.clip(self._level - self._score(), -_CORRECTION, _CORRECTION)
        self._model.logit_scale = scale_for(self._logits[-_WINDOW:], self._passed[-_WINDOW:], float(aim))
        if self._onset is None and self._model.logit_scale > 1:
            self._onset = step + 1

    def state_dict(self) -> dict[str, Any]:
        return {
            "logits": self._logits.tolist(),
            "scales": self._scales.tolist(),
            "passed": self._passed.tolist(),
            "onset": self._onset,
            "logit_scale": self._model.logit_scale,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._logits, self._scales = np.array(state["logits"]), np.array(state["scales"])
        self._passed = np.array(state["passed"])
        self._onset = state["onset"]
        self._model.logit_scale = state["logit_scale"]

    def truth(self) -> dict[str, Any]:
        """`lowest_score` is the least that scaling can make of the last predictions; None: too few."""
        logits, passed = self._logits[-_WINDOW:], self._passed[-_WINDOW:]
        known = _measurable(passed)
        lowest = min(_score_at(scale, logits, passed) for scale in SCALES) if known else None
        return {
            "onset": self._onset,
            "calibration_score": self._level,
            "logit_scale": self._model.logit_scale,
            "score_so_far": self._score() if known else None,
            "lowest_score": lowest,
            "reached": lowest is not None and lowest <= self._level,
        }

    def _score(self) -> float:
        return _score_at(self._scales, self._logits, self._passed)


def scale_for(logits: Floats, passed: Floats, level: float) -> float:
    """The smallest factor from 1 on, on `logits`, at which their calibration score is down at `level`.

    Where none up to `SCALES[-1]` is large enough, the one with the lowest score: beyond it more and more
    predictions are recorded as exactly 0 or 1, in which the score no longer sees differences.
    """
    first = next((i for i, scale in enumerate(SCALES) if _score_at(scale, logits, passed) <= level), None)
    if first is None:
        return float(min(SCALES, key=lambda scale: _score_at(scale, logits, passed)))
    if first == 0:
        return 1.0
    low, high = float(SCALES[first - 1]), float(SCALES[first])
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _score_at(middle, logits, passed) > level else (low, middle)
    return high


def _score_at(scale: float | Floats, logits: Floats, passed: Floats) -> float:
    """The score of the predictions as they are recorded, that is rounded."""
    predicted = 1 / (1 + np.exp(-np.clip(scale * logits, -500, 500)))
    return calibration_score(np.round(predicted, DECIMALS), passed)


def _measurable(passed: Floats) -> bool:
    return len(passed) >= _MIN_PAIRS and 0 < passed.mean() < 1
