"""Faults of what the trainer learns from: episodes, their advantages, and the weights that sample them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from greenward.algorithms.advantages import Estimator
from greenward.algorithms.collection import Collector
from greenward.config.algorithm import BatchFaultConfig, StaleSamplerConfig
from greenward.environments.episode import POLICY, Episode, Turn
from greenward.faults.fault import Around, FaultTargets, LaterFault
from greenward.policies.policy import Policy


class EditedCollector(Around):
    """A collector whose episodes are edited before anything is learned from them."""

    def __init__(self, collector: Any, edit: Callable[[list[Episode]], list[Episode]]) -> None:
        super().__init__(collector)
        self._edit = edit

    def collect(self, step: int) -> tuple[list[Episode], dict[str, float]]:
        episodes, metrics = self._inner.collect(step)
        return self._edit(episodes), metrics


class _BatchFault(LaterFault):
    """A fault that begins after `after_step`; a subclass edits the turns that the policy is trained on."""

    def __init__(self, config: BatchFaultConfig, targets: FaultTargets) -> None:
        super().__init__(config, targets)
        self._step = 0
        edited = EditedCollector(targets.trainer.collector, self._edited)
        targets.trainer.collector = cast(Collector, edited)

    def on_step_begin(self, step: int) -> None:
        self._step = step

    def _edited(self, episodes: list[Episode]) -> list[Episode]:
        return self._wrong(episodes) if self._step > self._config.after_step else episodes

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


class FlippedEstimator(Around):
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
            self._trainer.collector = cast(Collector, Around(collector, sync=lambda policy: None))
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
