"""Q-learning of the token MDP: rounds of episodes, exploration by counts, curriculum, and the updates."""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from greenward.common.seeding import step_seed
from greenward.tasks.token_mdp.dqn import DQNAgent, NStepWindow, Transition
from greenward.tasks.token_mdp.mdp import (
    SUCCESS_MEMORY,
    Attempt,
    Choose,
    CodeGrading,
    ProgramReward,
    TokenMDP,
    Writing,
    grade,
    prior_of,
    write,
    written_out,
)
from greenward.tasks.token_mdp.problems import TokenProblem
from greenward.training.loop import StepRecord

if TYPE_CHECKING:
    from greenward.tasks.token_mdp.task import ExplorationConfig

LEAST_SHARE = 0.1
"""The weight of a problem that is solved, beside 1 of one that never is."""
HARDNESS = 4
"""Exponent of the failure rate in the weight of a problem."""
_PRIME, _KEYS = 1_000_003, (1 << 62) - 1


class SearchTree:
    """What was written so far: how often each action followed a prefix, and which programs are known.

    Counted are the prefixes that were seen before: a tree that grows by one prefix per episode, as in Monte
    Carlo tree search. `closed` holds the programs that were graded, and the prefixes all of whose
    continuations are closed.
    """

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.closed: set[int] = set()

    def of_actions(self, key: int, legal_V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The count of each action after the prefix, and whether something new can follow it."""
        counts, open_V = np.zeros(len(legal_V), np.float32), legal_V.copy()
        for action in np.flatnonzero(legal_V):
            child = extended(key, int(action))
            counts[action] = self.counts.get(child, 0)
            open_V[action] = child not in self.closed
        return counts, open_V if open_V.any() else legal_V

    def add(
        self, key: int, tokens: Sequence[int], decisions: Mapping[int, np.ndarray], *, all_room: bool
    ) -> None:
        """Count a graded program of the problem `key`.

        `decisions` are the legal tokens at each position where there was a choice. With `all_room`, no others
        are legal in any episode, so that prefixes can be closed.
        """
        keys = [key]
        for token in tokens:
            keys.append(extended(keys[-1], token))
        for child in (keys[position + 1] for position in decisions):
            self.counts[child] = self.counts.get(child, 0) + 1
            if self.counts[child] == 1:
                break
        self.closed.add(keys[-1])
        for position in reversed(range(len(tokens) if all_room else 0)):
            legal = np.flatnonzero(decisions.get(position, ()))
            if any(extended(keys[position], int(token)) not in self.closed for token in legal):
                break
            self.closed.add(keys[position])


def extended(key: int, token: int) -> int:
    """The key of a prefix with one more token."""
    return (key * _PRIME + token + 1) & _KEYS


def practised(known: int, step: int, number: int, rounds: int, rng: np.random.Generator) -> list[int]:
    """Places of the problems that round `step` practises, of `known` ones in the order of their lengths.

    They are drawn from the shortest at first, and from all of them after so many `rounds`.
    """
    most = min(known, max(number, known * (step + 1) // rounds))
    return rng.integers(most, size=number).tolist() if number else []


@dataclass(eq=False)
class DQNTrainer:
    """One step is a round: `episodes_per_step` programs are written and graded, then come the updates.

    Of these `greedy_share` are greedy and the others explore. `practice_per_step` more are written with
    `practice_epsilon` for problems of the corpus, whose transitions are remembered like all others.

    The random numbers of a round follow from the seed and its number. A round whose episodes ran on the
    infrastructure's failures leaves these out of the memory.
    """

    policy: DQNAgent
    mdp: TokenMDP
    grading: CodeGrading
    reward: ProgramReward
    _: KW_ONLY
    exploration: ExplorationConfig
    episodes_per_step: int = 48
    updates_per_step: int = 4
    practice_per_step: int = 0
    practice_rounds: int = 1
    progress_weight: float = 0.5
    reward_scale: float = 0.1
    curriculum: bool = True
    verbose: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        self.success = np.zeros(len(self.mdp.problems))
        self.tree = SearchTree()
        self.episodes_done = 0
        self._index = {id(one): index for index, one in enumerate(self.mdp.problems)}
        programs = sorted(self.mdp.corpus, key=lambda one: len(one[1]))
        most = self.mdp.settings.max_steps
        self._practice = [one for one, tokens in programs if len(tokens) <= most]

    def train_step(self, step: int) -> StepRecord:
        started = time.perf_counter()
        rng = np.random.default_rng(step_seed(self.seed, step, "round"))
        config = self.policy.config
        if step == 0 and self.policy.demonstrations is not None:
            for _ in range(config.pretraining_updates):
                self.policy.learn(rng, self.policy.demonstrated(rng))
        weights = np.ones(len(self.success))
        if self.curriculum:
            weights = np.maximum(LEAST_SHARE, (1.0 - self.success) ** HARDNESS)
        greedy = round(self.episodes_per_step * self.exploration.greedy_share)
        chosen = np.concatenate(
            [
                rng.integers(len(weights), size=greedy),
                rng.choice(len(weights), self.episodes_per_step - greedy, p=weights / weights.sum()),
            ]
        )
        epsilon = config.epsilon(self.episodes_done)
        problems = [self.mdp.problems[index] for index in chosen]
        attempts = self._write(problems[:greedy], lambda _, *seen: self.policy.act(*seen))
        head_starts = self.mdp.head_starts(self.episodes_per_step - greedy, rng)
        attempts += self._write(problems[greedy:], self._exploring(epsilon, rng), head_starts)
        places = practised(len(self._practice), step, self.practice_per_step, self.practice_rounds, rng)
        practice = self._write(
            [self._practice[index] for index in places],
            lambda _, seen_BD, legal_BA: self.policy.act(
                seen_BD, legal_BA, self.exploration.practice_epsilon, rng
            ),
        )
        written = time.perf_counter()
        grade(practice, self.grading, self.reward, [0.0] * len(practice))
        grade(attempts, self.grading, self.reward, [float(self.success[index]) for index in chosen])
        graded = time.perf_counter()
        self.episodes_done += len(attempts)
        remembered: dict[bool, list[Transition]] = {True: [], False: []}  # by success
        for place, (index, attempt) in enumerate(zip(chosen, attempts, strict=True)):
            assert attempt.episode is not None
            if attempt.episode.scored:
                self._count(attempt)
                remembered[attempt.passed] += self._transitions(attempt)
                if place < greedy:
                    self.success[index] += (1 - SUCCESS_MEMORY) * (attempt.passed - self.success[index])
        for attempt in practice:
            if attempt.episode is not None and attempt.episode.scored:
                remembered[attempt.passed] += self._transitions(attempt)
        for success, transitions in remembered.items():
            self.policy.remember(transitions, success=success)
        learned: Counter[str] = Counter()
        enough = len(self.policy.memory) >= max(config.learning_starts, config.batch_size)
        for _ in range(self.updates_per_step if enough else 0):
            learned.update(self.policy.learn(rng))
        metrics = self._measured(attempts, greedy) | {"epsilon": epsilon}
        if practice:
            metrics["pass_rate/practice"] = float(np.mean([one.passed for one in practice]))
        metrics |= {name: total / self.updates_per_step for name, total in learned.items()}
        if "replay/age" in metrics:  # in updates rather than transitions
            new = sum(len(one.actions) for one in (*attempts, *practice))
            rounds = metrics["replay/age"] / max(1, new)
            metrics["replay/staleness"] = rounds * self.updates_per_step
        if self.verbose and enough:
            metrics |= self.policy.layer_gradients()
        metrics |= {
            "time/sampling": written - started,
            "time/grading": graded - written,
            "time/update": time.perf_counter() - graded,
        }
        return StepRecord(metrics, [one.episode for one in attempts if one.episode is not None])

    def demonstrate(self, number: int) -> None:
        """Grade the first so many programs of the corpus, and keep their transitions as demonstrations."""
        most = self.mdp.settings.max_steps
        programs = {one: tokens for one, tokens in self.mdp.corpus if len(tokens) <= most}
        attempts = self._write(list(programs)[:number], written_out(programs))
        grade(attempts, self.grading, self.reward, [0.0] * len(attempts))
        if transitions := [step for one in attempts for step in self._transitions(one)]:
            self.policy.demonstrate(transitions)

    def _write(
        self, problems: Sequence[TokenProblem], choose: Choose, head_starts: Sequence[int] | None = None
    ) -> list[Attempt]:
        progress = (self.progress_weight, self.policy.config.gamma)
        return write(self.mdp, problems, choose, self.grading, progress=progress, head_starts=head_starts)

    def _exploring(self, epsilon: float, rng: np.random.Generator) -> Choose:
        """ε-greedy over actions that can lead to a new program, directed by the token prior and by counts.

        A random action is drawn in proportion to prior / (1 + count). A greedy one maximises
        Q + bonus · prior · sqrt(1 + visits) / (1 + count), as in PUCT (Silver et al., Nature 550, 2017). What
        is chosen in this round counts at once, so that episodes side by side differ.
        """
        bonus, by_prior = self.exploration.bonus, self.exploration.prior
        pending: dict[int, np.ndarray] = {}

        def choose(
            writings: Sequence[Writing], observations_BD: np.ndarray, legal_BA: np.ndarray
        ) -> np.ndarray:
            values_BA = self.policy.q_values(observations_BD)
            uniform_BA = legal_BA / legal_BA.sum(axis=1, keepdims=True)
            prior_BA = prior_of(self.mdp, writings, legal_BA) if by_prior else uniform_BA
            explores_B, points_B = rng.random(len(writings)) < epsilon, rng.random(len(writings))
            actions = []
            for row, one in enumerate(writings):
                key = functools.reduce(extended, one.tokens, self._start_key(one))
                counts_A, open_A = self.tree.of_actions(key, legal_BA[row])
                here_A = pending.setdefault(key, np.zeros_like(counts_A))
                counts_A += here_A
                if explores_B[row]:
                    sums_A = np.cumsum(prior_BA[row] * open_A / (1 + counts_A))
                    action = int(np.searchsorted(sums_A, points_B[row] * sums_A[-1], side="right"))
                else:
                    extra_A = bonus * prior_BA[row] * np.sqrt(1 + counts_A.sum()) / (1 + counts_A)
                    action = int(np.where(open_A, values_BA[row] + extra_A, -np.inf).argmax())
                here_A[action] += 1
                actions.append(action)
            return np.array(actions)

        return choose

    def _count(self, attempt: Attempt) -> None:
        """Enter a graded program in the search tree; deletions leave no path through it."""
        one = attempt.writing
        deletes = self.mdp.settings.delete
        decisions = {} if deletes else dict(zip(attempt.positions, attempt.legal, strict=True))
        all_room = not (deletes or one.head_start)
        self.tree.add(self._start_key(one), one.tokens, decisions, all_room=all_room)

    def _start_key(self, writing: Writing) -> int:
        return self._index[id(writing.one)] + 1

    def _transitions(self, attempt: Attempt) -> list[Transition]:
        """The steps of an episode; one that the step limit cut short ended all the same: time is observed."""
        window = NStepWindow(self.policy.config.n_step, self.policy.config.gamma)
        found = []
        for step, action in enumerate(attempt.actions):
            last = step + 1 == len(attempt.actions)
            following = step if last else step + 1
            found += window.push(
                attempt.observations[step],
                action,
                attempt.rewards[step] * self.reward_scale,
                attempt.observations[following],
                attempt.legal[following],
                terminated=last,
            )
        return found

    def _measured(self, attempts: Sequence[Attempt], greedy: int) -> dict[str, float]:
        """What a round says of itself, by name."""
        episodes = [one.episode for one in attempts if one.episode is not None and one.episode.scored]
        codes = Counter(one.code for one in attempts)
        metrics: dict[str, float] = {
            "episodes": float(self.episodes_done),
            "episodes/infrastructure": float(len(attempts) - len(episodes)),
            "programs/unique": len(codes) / len(attempts),
            "programs/most_common": max(codes.values()) / len(attempts),
            "completion/mean_length": float(np.mean([len(one.writing.tokens) for one in attempts])),
            "problems/solved": float((self.success > 0.5).sum()),
            "replay/size": float(len(self.policy.memory)),
        }
        if episodes:
            rewards = np.array([one.rewards["policy"] for one in episodes])
            metrics |= {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
            metrics["pass_rate"] = float(np.mean([bool(one.success) for one in episodes]))
            metrics["pass_rate/greedy"] = float(np.mean([one.passed for one in attempts[:greedy]] or [False]))
            for name in episodes[0].reward_terms:
                metrics[f"reward/{name}"] = float(
                    np.mean([one.reward_terms.get(name, 0.0) for one in episodes])
                )
            for status, number in Counter(one.outcome for one in episodes).items():
                metrics[f"status/{status}"] = number / len(episodes)
        begun = [one for one in attempts[:greedy] if one.actions]  # Q is the value of acting greedily
        if begun:
            gamma, scale = self.policy.config.gamma, self.reward_scale
            returns = [sum(gamma**t * scale * r for t, r in enumerate(one.rewards)) for one in begun]
            first = self.policy.q_values(np.stack([one.observations[0] for one in begun]))
            taken = first[np.arange(len(begun)), [one.actions[0] for one in begun]]
            metrics["q/start"] = float(taken.mean())
            metrics["q/overestimation"] = float((taken - returns).mean())
        return metrics

    def state_dict(self) -> dict[str, Any]:
        counts = self.tree.counts
        return {
            "agent": self.policy.training_state(),
            "success": torch.from_numpy(self.success.copy()),
            "count_keys": torch.tensor(list(counts), dtype=torch.int64),
            "counts": torch.tensor(list(counts.values()), dtype=torch.int64),
            "closed": torch.tensor(sorted(self.tree.closed), dtype=torch.int64),
            "episodes_done": self.episodes_done,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.policy.load_training_state(state["agent"])
        self.success = state["success"].numpy().copy()
        self.tree.counts = dict(zip(state["count_keys"].tolist(), state["counts"].tolist(), strict=True))
        self.tree.closed = set(state["closed"].tolist())
        self.episodes_done = state["episodes_done"]
