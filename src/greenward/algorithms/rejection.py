"""Rejection sampling fine-tuning: keep the answers that pass, train on them by supervision, repeat.

One step is one round of expert iteration: RFT (arXiv 2308.01825), STaR (2203.14465), ReST (2308.08998).
"""

from __future__ import annotations

import time
import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np

from greenward.algorithms.coefficients import learning_rate_factor
from greenward.algorithms.collection import Collector
from greenward.algorithms.loop import StepRecord
from greenward.algorithms.supervised import Example, SupervisedOptimizer
from greenward.config.algorithm import RejectionConfig
from greenward.config.sections import TrainingConfig
from greenward.environments.episode import Episode
from greenward.policies.policy import Policy
from greenward.seeding import step_seed

EMPTY_ROUND = (
    "A round of rejection sampling kept no answer, so it taught nothing; rejection/empty_rounds counts such "
    "rounds. If most are empty: more training.num_generations or training.prompts_per_step, easier problems, "
    "a warm start, or a lower rejection.min_reward."
)


@dataclass(frozen=True)
class KeptAnswer:
    """An accepted answer, one example for each turn. Equal `prompt_ids` and `key` mean the same answer."""

    prompt_ids: tuple[int, ...]
    key: str
    reward: float
    examples: tuple[Example, ...]


@dataclass(eq=False)
class RejectionTrainer:
    """Trains a policy by supervision on the accepted answers of the newest rounds; a step is one round.

    An answer is accepted when it passed all its tests or, with `config.min_reward`, when its reward (summed
    over roles) is at least that. An answer that could not be judged is never accepted; nor, with
    `mask_truncated`, is an answer that hit the token limit.

    Each step first adds the accepted answers of the round to a pool that holds the newest
    `replay_rounds` + 1 rounds. Of the answers to one prompt in the pool, those with equal code count once
    and at most `max_per_prompt` are trained on: newer rounds first, then higher rewards, then the
    order of sampling. `epochs` passes over what remains follow, each in an order of its own, in batches of
    at most `batch_size` turns. Token ids are trained on as they were sampled.
    """

    policy: Policy
    collector: Collector
    config: RejectionConfig
    training: TrainingConfig
    _: KW_ONLY
    seed: int
    mask_truncated: bool = False

    def __post_init__(self) -> None:
        self._rounds: deque[list[KeptAnswer]] = deque(maxlen=self.config.replay_rounds + 1)
        self._empty_rounds = 0
        self._optimizer = SupervisedOptimizer(
            self.policy,
            betas=self.training.adam_betas,
            weight_decay=self.training.weight_decay,
            max_grad_norm=self.training.max_grad_norm,
            examples_at_once=self.training.micro_batch_sequences,
        )

    def train_step(self, step: int) -> StepRecord:
        self.collector.sync(self.policy)
        episodes, metrics = self.collector.collect(step)
        started = time.perf_counter()
        metrics |= self.update(episodes, step)
        return StepRecord(metrics | {"time/update": time.perf_counter() - started}, episodes)

    def update(self, episodes: Sequence[Episode], step: int) -> dict[str, float]:
        """Train on one round; the metrics of it.

        A round that gave scored answers but kept none is counted in `rejection/empty_rounds`, and warned
        about. While the pool is empty nothing is updated: there are neither `loss` nor `grad_norm` then.
        """
        kept = [_kept_answer(episode) for episode in episodes if self._accepts(episode)]
        self._rounds.append(kept)
        if not kept and any(episode.scored for episode in episodes):
            self._empty_rounds += 1
            warnings.warn(EMPTY_ROUND, stacklevel=2)
        pool = self._pool()
        training = self.training
        rate = training.learning_rate * learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps, final=training.final_rate
        )
        metrics = {
            "learning_rate": rate,
            "rejection/kept": float(len(kept)),
            "rejection/prompts": float(len({answer.prompt_ids for answer in kept})),
            "rejection/pool": float(len(pool)),
            "rejection/empty_rounds": float(self._empty_rounds),
        }
        return metrics | self._train([example for answer in pool for example in answer.examples], step, rate)

    def _accepts(self, episode: Episode) -> bool:
        if not episode.scored or not episode.written_tokens or (self.mask_truncated and episode.truncated):
            return False
        if self.config.min_reward is None:
            return bool(episode.success)
        return episode.reward >= self.config.min_reward

    def state_dict(self) -> dict[str, Any]:
        return {
            "collector": self.collector.state_dict(),
            **self._optimizer.state_dict(),
            "rounds": [[_to_plain(answer) for answer in kept] for kept in self._rounds],
            "empty_rounds": self._empty_rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state["collector"])
        self._optimizer.load_state_dict(state)
        self._rounds.clear()
        self._rounds.extend([_from_plain(answer) for answer in kept] for kept in state["rounds"])
        self._empty_rounds = state["empty_rounds"]

    def _pool(self) -> list[KeptAnswer]:
        """The answers to train on, without duplicates and at most `max_per_prompt` for each prompt."""
        pool: list[KeptAnswer] = []
        seen: set[tuple[tuple[int, ...], str]] = set()
        count: Counter[tuple[int, ...]] = Counter()
        for kept in reversed(self._rounds):
            for answer in sorted(kept, key=lambda answer: -answer.reward):
                identity = answer.prompt_ids, answer.key
                if identity not in seen and count[answer.prompt_ids] < self.config.max_per_prompt:
                    seen.add(identity)
                    count[answer.prompt_ids] += 1
                    pool.append(answer)
        return pool

    def _train(self, examples: Sequence[Example], step: int, rate: float) -> dict[str, float]:
        """All passes over `examples`; loss and norm are means over the optimizer steps."""
        rng = np.random.default_rng(step_seed(self.seed, step, "rejection"))
        size = self.config.batch_size
        updates = [
            self._optimizer.update([examples[index] for index in order[start : start + size]], rate)
            for order in (rng.permutation(len(examples)) for _ in range(self.config.epochs))
            for start in range(0, len(examples), size)
        ]
        metrics = {
            "updates/applied": float(sum(update.applied for update in updates)),
            "updates/non_finite": float(sum(not update.applied for update in updates)),
            "tokens/trained": float(sum(update.tokens for update in updates)),
        }
        if updates:
            metrics["loss"] = float(np.mean([update.loss for update in updates]))
            metrics["grad_norm"] = float(np.mean([update.grad_norm for update in updates]))
        return metrics


def _kept_answer(episode: Episode) -> KeptAnswer:
    examples = tuple(
        Example(
            turn.prompt_ids,
            tuple(map(int, turn.completion_ids)),
            None if turn.policy_wrote_T.all() else tuple(map(bool, turn.policy_wrote_T)),
        )
        for turn in episode.trained_turns
    )
    # An answer without code is known by its tokens: a reward of the user's own may accept such answers.
    key = episode.answer or repr([example.completion_ids for example in examples])
    return KeptAnswer(episode.turns[0].prompt_ids, key, episode.reward, examples)


def _to_plain(answer: KeptAnswer) -> dict[str, Any]:
    examples = [(e.prompt_ids, e.completion_ids, e.trained) for e in answer.examples]
    return {**vars(answer), "examples": examples}


def _from_plain(state: Mapping[str, Any]) -> KeptAnswer:
    return KeptAnswer(**{**state, "examples": tuple(Example(*example) for example in state["examples"])})
