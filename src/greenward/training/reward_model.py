"""Implements a learned reward model: the chance that an answer passes all tests, read off hidden states.

The trunk is a frozen copy of the starting policy, so that what the head learned from an answer stays true.
Each step predicts before it learns: predictions are about answers that the head has not seen.
Shape suffixes: B answers, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from greenward.common.seeding import step_seed
from greenward.common.statistics import fit_recalibration
from greenward.config.sections import RewardModelConfig
from greenward.models.heads import RewardHead, answer_features
from greenward.models.policy import Policy
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import Episode, Turn
from greenward.runs.directory import PredictionsFile
from greenward.training.protocols import Callback, Stateful

TERM = "reward_model"
_RECALIBRATION_WINDOW = 1024
_PRIOR = 4.0  # weight of "no correction": slope 1, intercept 0

Floats = npt.NDArray[np.float64]


@dataclass(eq=False)
class RewardModel(Stateful):
    """Predicts P(all tests pass) of graded answers and learns from the verdicts.

    `trunk` is only read. `calibration` corrects the logits of the head before they become probabilities.
    """

    trunk: Policy
    config: RewardModelConfig
    _: KW_ONLY
    seed: int
    micro_batch_sequences: int = 64
    _saved: ClassVar = {
        "head": "_head",
        "optimizer": "_optimizer",
        "calibration": "calibration",
        "features": "_features_BF",
        "passed": "_passed_B",
    }

    def __post_init__(self) -> None:
        self.calibration = OnlineRecalibration(_RECALIBRATION_WINDOW)
        features = 2 * self.trunk.hidden_size
        self._head = RewardHead(
            features,
            self.config.hidden_size,
            generator=torch.Generator().manual_seed(step_seed(self.seed, 0, TERM)),
        )
        self._optimizer = torch.optim.AdamW(
            self._head.parameters(), lr=self.config.learning_rate, weight_decay=self.config.weight_decay
        )
        self._features_BF = torch.empty(0, features)
        self._passed_B = torch.empty(0)
        self._fresh: list[tuple[Tensor, Floats, Floats]] = []  # features, raw logits, outcomes

    @torch.no_grad()
    def predict(self, episodes: Sequence[Episode]) -> Floats:
        """The probability of passing for the last answer of the policy in each episode; kept for `learn`.

        Episodes must be scored and have such an answer: one whose judging failed has no outcome.
        """
        if not episodes:
            return np.empty(0)
        features_BF = self._read([episode.trained_turns[-1] for episode in episodes])
        logits = self._head(features_BF).double().numpy()
        passed = np.array([float(bool(episode.success)) for episode in episodes])
        self._fresh.append((features_BF, logits, passed))
        return _probabilities(self.calibration.correct(logits))

    def learn(self, step: int) -> dict[str, float]:
        """Train the head on the newest answers, those predicted since the last call among them.

        The metrics are about the predictions of this step; `reward_model/loss` is the mean
        cross-entropy over the batches that the head was trained on, in nats.
        """
        if not self._fresh:
            return {}
        features_BF = torch.cat([features for features, _, _ in self._fresh])
        logits = np.concatenate([logits for _, logits, _ in self._fresh])
        passed = np.concatenate([passed for _, _, passed in self._fresh])
        self._fresh.clear()
        predicted = _probabilities(self.calibration.correct(logits))
        self.calibration.learn(logits, passed)
        newest = slice(-self.config.buffer, None)
        self._features_BF = torch.cat((self._features_BF, features_BF))[newest]
        self._passed_B = torch.cat((self._passed_B, torch.from_numpy(passed).float()))[newest]
        return {
            "reward_model/loss": self._train(step),
            "reward_model/accuracy": float(((predicted > 0.5) == (passed > 0.5)).mean()),
            "reward_model/brier": float(((predicted - passed) ** 2).mean()),
        }

    def _read(self, turns: Sequence[Turn]) -> Tensor:
        """Features (B, F); neighbours with the same prompt share its forward pass."""
        features, size = [], self.micro_batch_sequences
        for start in range(0, len(turns), size):
            part = turns[start : start + size]
            sharers = [list(group) for _, group in groupby(part, key=lambda turn: turn.prompt_ids)]
            batch = GroupBatch.build(
                [group[0].prompt_ids for group in sharers],
                [[turn.completion_ids for turn in group] for group in sharers],
                device=self.trunk.device,
            )
            hidden_SE = self.trunk.completion_hidden(batch)
            features.append(answer_features(hidden_SE, batch.completion_mask_BT).cpu())
        return torch.cat(features)

    def _train(self, step: int) -> float:
        generator = torch.Generator().manual_seed(step_seed(self.seed, step, TERM))
        size = min(self.config.batch_size, len(self._passed_B))
        losses = []
        for _ in range(self.config.updates_per_step):
            chosen = torch.randint(len(self._passed_B), (size,), generator=generator)
            logits_B = self._head(self._features_BF[chosen])
            loss = F.binary_cross_entropy_with_logits(logits_B, self._passed_B[chosen])
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            losses.append(float(loss.detach()))
        return sum(losses) / len(losses)


@dataclass(eq=False)
class RewardModelCallback(Callback):
    """Has a reward model annotate episodes: the reward term `reward_model`, with `weight`.

    Every prediction goes to `record`, under the number of its step, and the model learns when the step ends.
    """

    name = TERM

    model: RewardModel
    record: PredictionsFile
    _: KW_ONLY
    weight: float

    def __post_init__(self) -> None:
        self._predicted: list[float] = []
        self._passed: list[bool] = []

    def on_episodes(self, episodes: Sequence[Episode]) -> list[Episode]:
        """The episodes with the term; those without a score or an answer of the policy stay as they are."""
        scored = [episode for episode in episodes if episode.scored and episode.trained_turns]
        predicted = self.model.predict(scored).tolist()
        self._predicted += predicted
        self._passed += [bool(episode.success) for episode in scored]
        chances = dict(zip(map(id, scored), predicted, strict=True))
        return [self._annotated(one, chances[id(one)]) if id(one) in chances else one for one in episodes]

    def on_step_end(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        self.record.append(step, self._predicted, self._passed)
        self._predicted, self._passed = [], []
        metrics |= self.model.learn(step - 1)

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state)

    def _annotated(self, episode: Episode, chance: float) -> Episode:
        bonus = {role: reward + self.weight * chance for role, reward in episode.trained_rewards.items()}
        rewards = {**episode.rewards, **bonus}
        return replace(episode, rewards=rewards, reward_terms={**episode.reward_terms, TERM: chance})


class OnlineRecalibration:
    """Corrects logits by what became of the `window` newest ones, so that predictions stay calibrated.

    A classifier that is fitted again and again to recent examples is overconfident about new ones. Its
    own predictions, made before their outcomes were known, say by how much: logistic regression of the
    outcomes on the newest of those logits (Platt 1999) gives the slope and intercept that the next ones are
    corrected by.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._logits: Floats = np.empty(0)
        self._outcomes: Floats = np.empty(0)
        self.slope, self.intercept = 1.0, 0.0

    def correct(self, logits: Floats) -> Floats:
        return self.slope * logits + self.intercept

    def learn(self, logits: Floats, outcomes: Floats) -> None:
        """Take in logits before correction, and their outcomes (0 or 1)."""
        self._logits = np.concatenate((self._logits, logits))[-self._window :]
        self._outcomes = np.concatenate((self._outcomes, outcomes))[-self._window :]
        self._fit()

    def state_dict(self) -> dict[str, Any]:
        return {"logits": torch.from_numpy(self._logits), "outcomes": torch.from_numpy(self._outcomes)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._logits, self._outcomes = state["logits"].numpy(), state["outcomes"].numpy()
        self._fit()

    def _fit(self) -> None:
        fit = fit_recalibration(self._logits, self._outcomes, prior_weight=_PRIOR)
        assert fit is not None  # the prior makes the maximum finite
        self.slope, self.intercept = fit.slope, fit.intercept


def _probabilities(logits: Floats) -> Floats:
    return 1 / (1 + np.exp(-np.clip(logits, -500, 500)))
