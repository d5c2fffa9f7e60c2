"""Collecting the episodes of a training step, and what they say about the policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

import numpy as np

from greenward.common.seeding import step_seed
from greenward.models.policy import Policy
from greenward.rollouts.protocols import POLICY, Collection, Environment, Episode, RolloutEngine
from greenward.training import distributed
from greenward.training.advantages import group_signal
from greenward.training.protocols import Callback, Stateful


@dataclass(eq=False)
class Collector(Stateful):
    """Has an environment collect `groups_per_step` groups of episodes for each step.

    With `max_rounds` above 1, further groups are collected until `groups_per_step` carry signal or the
    rounds are used up, and only those are kept (dynamic sampling: DAPO, arXiv 2503.14476, eq. 11).
    Callbacks see the episodes of each round before anything is made of their rewards.
    """

    environment: Environment
    players: Mapping[str, RolloutEngine]
    _: KW_ONLY
    groups_per_step: int
    seed: int
    max_rounds: int = 1
    callbacks: Sequence[Callback] = ()
    _groups_done: int = field(default=0, init=False)
    _saved: ClassVar = {"groups_done": "_groups_done"}

    def close(self) -> None:
        """End what runs in the background, of which there is nothing here."""

    def sync(self, policy: Policy) -> None:
        """Give the engine that plays the policy its present weights, before a step is collected."""
        self.players[POLICY].sync(policy)

    def collect(self, step: int) -> tuple[list[Episode], dict[str, float]]:
        """The episodes that step `step`, counted from 0, trains on; metrics over all that were collected."""
        collected: list[Episode] = []
        kept: list[Episode] = []
        rounds: list[Collection] = []
        groups_kept = 0
        groups_done = self._groups_done  # kept where sampling fails, so that the step can be repeated
        while len(rounds) < self.max_rounds and groups_kept < self.groups_per_step:
            groups = range(groups_done, groups_done + self.groups_per_step)
            rounds.append(self._round(step, len(rounds), groups))
            episodes: Sequence[Episode] = rounds[-1].episodes
            for callback in self.callbacks:
                episodes = callback.on_episodes(episodes)
            collected += episodes
            groups_done = groups.stop
            if self.max_rounds == 1:
                kept, groups_kept = collected, len(groups)
            else:
                found = group_signal(episodes)
                wanted = [group for group in found if found[group] == "with_signal"]
                wanted = wanted[: self.groups_per_step - groups_kept]
                kept += [episode for episode in episodes if episode.group_id in wanted]
                groups_kept += len(wanted)
        self._groups_done = groups_done
        tokens = sum(episode.policy_tokens for episode in collected)
        sampling = sum(part.sampling_seconds for part in rounds)
        return kept, {
            **collection_metrics(collected),
            **{name: float(np.mean(values)) for name, values in _logged(rounds).items() if values},
            "groups/rounds": float(len(rounds)),
            "time/sampling": sampling,
            "time/grading": sum(part.grading_seconds for part in rounds),
            "perf/tokens_per_second": tokens / max(sampling, 1e-9),
        }

    def _round(self, step: int, number: int, groups: range) -> Collection:
        """Collect these groups, which are round `number` of the step: of several processes each its share.

        Groups of one task stay together: engines tell equal prompts of a batch apart by their order.
        """
        seed = step_seed(self.seed, step * self.max_rounds + number, "sampling")
        environment, players = self.environment, self.players
        if distributed.size() == 1:
            return environment.collect(players, groups, seed=seed, step=step)
        by_task: dict[Hashable, list[int]] = {}
        for group in groups:
            by_task.setdefault(environment.task(group), []).append(group)
        shares = distributed.divide(list(by_task.values()), len)
        own = sorted(group for same in shares[distributed.rank()] for group in same)
        parts = [environment.collect(players, own, seed=seed, step=step)] if own else []
        parts = distributed.all_gather_object(parts)
        return Collection(
            sorted((episode for part in parts for episode in part.episodes), key=lambda one: one.group_id),
            max(part.sampling_seconds for part in parts),
            max(part.grading_seconds for part in parts),
            _logged(parts),
        )


@dataclass(eq=False, kw_only=True)
class OverlappedCollector(Collector):
    """Has the episodes of the next step collected while the trainer updates on those of this one.

    The engine takes over new weights between two steps only: all episodes of a step come from one version,
    the one before the latest update (one-step off-policy, arXiv 2410.18252). `steps` is the number of
    steps of the training, after which nothing is collected ahead. What is under way is no part of the
    state: a resumed run collects it anew, with newer weights.
    """

    steps: int

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "collector")
        self._ahead: Future[Collection] | None = None

    def sync(self, policy: Policy) -> None:
        """Remember the policy; its weights are taken over once the engine rests."""
        self._policy = policy

    def collect(self, step: int) -> tuple[list[Episode], dict[str, float]]:
        if self._ahead is None:
            super().sync(self._policy)
        try:
            episodes, metrics = super().collect(step)
        finally:
            self._ahead = None
        versions = [turn.policy_version for episode in episodes for turn in episode.trained_turns]
        metrics["rollouts/staleness"] = float(
            self._policy.version - min(versions, default=self._policy.version)
        )
        if step + 1 < self.steps:
            super().sync(self._policy)
            groups = range(self._groups_done, self._groups_done + self.groups_per_step)
            self._ahead = self._thread.submit(super()._round, step + 1, 0, groups)
        return episodes, metrics

    def _round(self, step: int, number: int, groups: range) -> Collection:
        if number == 0 and self._ahead is not None:
            return self._ahead.result()
        return super()._round(step, number, groups)

    def close(self) -> None:
        """Wait for what is under way, and forget it."""
        self._thread.shutdown()


def _logged(parts: Sequence[Collection]) -> dict[str, list[float]]:
    """What reward terms logged in all parts, each value by name."""
    names = dict.fromkeys(name for part in parts for name in part.metrics)
    return {name: [value for part in parts for value in part.metrics.get(name, ())] for name in names}


def collection_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What a batch of episodes says about the policy: rewards, pass rate, signal, lengths, outcomes.

    Episodes that are not scored, since the infrastructure failed, are counted and left out of everything
    else; so are episodes in which the policy played no role. Rewards are means over the roles that it
    played; where there are several, each also has metrics of its own.

    - `reward/mean`, `reward/std`, `reward/TERM`: rewards of all scored episodes; terms before weighting
    - `pass_rate`: share of scored episodes that pass all tests
    - `groups/with_signal`, `groups/dead_all_pass`, `groups/dead_all_fail`: groups that can teach, and those
      in which every answer passed or failed
    - `episodes/infrastructure`: episodes lost to the infrastructure: no reward, no gradient
    - `completion/mean_length`, `completion/truncated`: tokens of answers, and the share cut off at the limit
    """
    scored = [episode for episode in episodes if episode.scored and episode.trained_rewards]
    signals = Counter(group_signal(episodes).values())
    metrics: dict[str, float] = {
        "episodes/infrastructure": float(sum(not episode.scored for episode in episodes)),
        "groups/with_signal": float(signals["with_signal"]),
        "groups/dead_all_pass": float(signals["all_pass"]),
        "groups/dead_all_fail": float(signals["all_fail"]),
        "groups/constant": float(signals["constant"]),
    }
    by_role: dict[str, list[float]] = {}
    for episode in scored:
        for role, reward in episode.trained_rewards.items():
            by_role.setdefault(role, []).append(reward)
    if not by_role:
        return metrics
    rewards = np.array([reward for rewards in by_role.values() for reward in rewards])
    lengths = np.array([episode.policy_tokens for episode in scored])
    metrics |= {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "completion/mean_length": float(lengths.mean()),
        "completion/max_length": float(lengths.max()),
        "completion/truncated": float(np.mean([episode.truncated for episode in scored])),
        "completion/unique": len({(e.group_id, e.answer) for e in scored}) / len(scored),
    }
    if decided := [episode.success for episode in scored if episode.success is not None]:
        metrics["pass_rate"] = float(np.mean(decided))
    for role, values in sorted(by_role.items()) if len(by_role) > 1 else ():
        turns = [turn for e in scored for turn in e.trained_turns if turn.role == role]
        metrics[f"role/{role}/reward"] = float(np.mean(values))
        metrics[f"role/{role}/length"] = sum(turn.policy_tokens for turn in turns) / len(values)
    for name in sorted({name for episode in scored for name in episode.reward_terms}):
        values = [e.reward_terms[name] for e in scored if name in e.reward_terms]
        metrics[f"reward/{name}"] = float(np.mean(values))
    outcomes = Counter(episode.outcome for episode in scored)
    return metrics | {f"status/{name}": count / len(scored) for name, count in sorted(outcomes.items())}
