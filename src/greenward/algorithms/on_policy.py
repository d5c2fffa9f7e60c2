"""On-policy reinforcement learning: collect, estimate, update.

The method knows neither which advantage nor which loss is in use, nor how answers are graded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from greenward.algorithms.advantages import Advantages, Estimate, Estimator, group_signal
from greenward.algorithms.seeding import shuffled_index, step_seed
from greenward.environments.episode import Episode
from greenward.environments.single_turn import Collection, truncated
from greenward.policies.policy import Policy
from greenward.problems.problem import Problem, ProblemSet


class Environment(Protocol):
    """Where episodes come from."""

    def collect(
        self,
        policy: Policy,
        problems: Sequence[Problem],
        *,
        seed: int,
        first_group_id: int = 0,
        step: int = 0,
    ) -> Collection: ...


class EpisodeLearner(Protocol):
    """Updates the policy from episodes and what the estimator made of them; gives metrics."""

    def update(
        self, episodes: Sequence[Episode], advantages: Advantages | Estimate, *, step: int, temperature: float
    ) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Scorer(Protocol):
    """Judges answers beside grading, and learns from what grading found.

    `annotate` gives the episodes with its reward terms; `learn` ends step `step` and gives metrics.
    """

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]: ...

    def learn(self, step: int) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class OnPolicy:
    """One step: ask `prompts_per_step` problems, grade, estimate advantages, update the policy.

    A `scorer` sees each batch of episodes once they are graded, before anything is made of rewards.

    With `dynamic_rounds` above 1 further problems are asked until `prompts_per_step` groups carry
    signal or the rounds are used up (DAPO, arXiv 2503.14476, eq. 11).
    """

    def __init__(
        self,
        policy: Policy,
        environment: Environment,
        estimator: Estimator,
        learner: EpisodeLearner,
        problems: ProblemSet,
        *,
        prompts_per_step: int,
        temperature: float,
        seed: int,
        dynamic_rounds: int = 1,
        scorer: Scorer | None = None,
    ) -> None:
        self.policy = policy
        self._environment = environment
        self._estimator = estimator
        self._learner = learner
        self._problems = problems
        self._prompts_per_step = prompts_per_step
        self._temperature = temperature
        self._seed = seed
        self._dynamic_rounds = dynamic_rounds
        self._scorer = scorer
        self._asked = 0
        self.last_episodes: list[Episode] = []

    def step(self, step: int) -> dict[str, float]:
        """Train one step; the metrics of it."""
        episodes, metrics = self._collect(step)
        advantages = self._estimator(episodes)
        started = time.perf_counter()
        metrics.update(self._learner.update(episodes, advantages, step=step, temperature=self._temperature))
        metrics["time/update"] = time.perf_counter() - started
        self.last_episodes = episodes
        return metrics

    def _collect(self, step: int) -> tuple[list[Episode], dict[str, float]]:
        """The episodes to train on, and metrics over *all* that were collected."""
        collected: list[Episode] = []
        kept: list[Episode] = []
        logged: dict[str, list[float]] = {}
        sampling = grading = 0.0
        rounds = groups_asked = groups_kept = 0
        while rounds < self._dynamic_rounds and groups_kept < self._prompts_per_step:
            problems = [self._next_problem() for _ in range(self._prompts_per_step)]
            seed = step_seed(self._seed, step * self._dynamic_rounds + rounds, "sampling")
            batch = self._environment.collect(
                self.policy, problems, seed=seed, first_group_id=groups_asked, step=step
            )
            for name, values in batch.metrics.items():
                logged.setdefault(name, []).extend(values)
            sampling += batch.sampling_seconds
            grading += batch.grading_seconds
            episodes = batch.episodes if self._scorer is None else self._scorer.annotate(batch.episodes)
            collected += episodes
            rounds += 1
            groups_asked += len(problems)
            if self._dynamic_rounds == 1:
                kept, groups_kept = collected, groups_asked
            else:
                wanted = group_signal(episodes).with_signal[: self._prompts_per_step - groups_kept]
                kept += [episode for episode in episodes if episode.group_id in set(wanted)]
                groups_kept += len(wanted)
        metrics = collection_metrics(collected)
        metrics |= {name: float(np.mean(values)) for name, values in logged.items()}
        if self._scorer is not None:
            metrics |= self._scorer.learn(step)
        tokens = sum(len(turn.completion_ids) for episode in collected for turn in episode.turns)
        metrics |= {
            "groups/rounds": float(rounds),
            "time/sampling": sampling,
            "time/grading": grading,
            "perf/tokens_per_second": tokens / max(sampling, 1e-9),
        }
        return kept, metrics

    def _next_problem(self) -> Problem:
        index = shuffled_index(len(self._problems), self._asked, seed=self._seed)
        self._asked += 1
        return self._problems[index]

    def state_dict(self) -> dict[str, Any]:
        state = {"asked": self._asked, "learner": self._learner.state_dict()}
        return state if self._scorer is None else state | {"scorer": self._scorer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._asked = state["asked"]
        self._learner.load_state_dict(state["learner"])
        if self._scorer is not None:
            self._scorer.load_state_dict(state["scorer"])


def collection_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """What a batch of episodes says about the policy: rewards, pass rate, signal, lengths, statuses.

    Episodes that the infrastructure failed are counted and left out of everything else.
    """
    scored = [episode for episode in episodes if episode.scored]
    metrics: dict[str, float] = {"episodes/infrastructure": float(len(episodes) - len(scored))}
    signal = group_signal(episodes)
    metrics |= {
        "groups/with_signal": float(len(signal.with_signal)),
        "groups/dead_all_pass": float(len(signal.all_pass)),
        "groups/dead_all_fail": float(len(signal.all_fail)),
        "groups/constant": float(len(signal.constant)),
    }
    if not scored:
        return metrics
    rewards = np.array([sum(episode.rewards.values()) for episode in scored])
    lengths = np.array([sum(len(turn.completion_ids) for turn in episode.turns) for episode in scored])
    metrics |= {
        "reward/mean": float(rewards.mean()),
        "reward/std": float(rewards.std()),
        "pass_rate": float(np.mean([episode.verdict.passed for episode in scored])),
        "completion/mean_length": float(lengths.mean()),
        "completion/max_length": float(lengths.max()),
        "completion/truncated": float(np.mean([truncated(episode) for episode in scored])),
        "completion/unique": len({(e.group_id, e.answer) for e in scored}) / len(scored),
    }
    for name in sorted({name for episode in scored for name in episode.reward_terms}):
        values = [e.reward_terms[name] for e in scored if name in e.reward_terms]
        metrics[f"reward/{name}"] = float(np.mean(values))
    statuses = Counter(episode.verdict.status.value for episode in scored)
    metrics |= {f"status/{name}": count / len(scored) for name, count in sorted(statuses.items())}
    return metrics
