"""Rejection sampling fine-tuning: keep the answers that pass, train on them by supervision, repeat.

One step is one round of expert iteration: RFT (arXiv 2308.01825), STaR (2203.14465), ReST (2308.08998).
`accepted` marks the answers to keep as an estimator, `RejectionLearner` trains on them, and `OnPolicy`
drives both as it drives any other estimator and learner.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from greenward.algorithms.advantages import Advantages, Estimate
from greenward.algorithms.schedules import learning_rate_factor
from greenward.algorithms.seeding import step_seed
from greenward.algorithms.supervised import Example, supervised_update
from greenward.config.algorithm import RejectionConfig
from greenward.config.sections import TrainingConfig
from greenward.environments.episode import Episode
from greenward.environments.single_turn import truncated
from greenward.policies.policy import Policy

EMPTY_ROUND = (
    "A round of rejection sampling kept no answer, so it taught nothing; rejection/empty_rounds counts such "
    "rounds. If most are empty: more training.num_generations or training.prompts_per_step, easier problems, "
    "a warm start, or a lower rejection.min_reward."
)


def accepted(
    episodes: Sequence[Episode], *, min_reward: float | None = None, mask_truncated: bool = False
) -> Advantages:
    """1 for every token of an answer that is kept, 0 for all others: the weights of the likelihood.

    An answer is kept when it passed all its tests or, with `min_reward`, when its reward (summed over
    roles) is at least that. What the infrastructure failed is never kept; nor, with `mask_truncated`,
    is an answer that hit the token limit.
    """

    def keeps(episode: Episode) -> bool:
        if not episode.scored or (mask_truncated and truncated(episode)):
            return False
        if min_reward is None:
            return episode.verdict.passed
        return sum(episode.rewards.values()) >= min_reward

    return [
        tuple(
            np.full(len(turn.completion_ids), float(keeps(episode)), dtype=np.float32)
            for turn in episode.turns
        )
        for episode in episodes
    ]


@dataclass(frozen=True)
class KeptAnswer:
    """An accepted answer, one example for each turn. Equal `prompt_ids` and `key` mean the same answer."""

    prompt_ids: tuple[int, ...]
    key: str
    reward: float
    examples: tuple[Example, ...]


class RejectionLearner:
    """Trains a policy by supervision on the accepted answers of the newest rounds.

    Each update first adds the accepted answers of the round to a pool that holds the newest
    `replay_rounds` + 1 rounds. Of the answers to one prompt in the pool, those with equal code count once
    and at most `max_per_prompt` are trained on: newer rounds first, then higher rewards, then the
    order of sampling. `epochs` passes over what remains follow, each in an order of its own, in batches of
    at most `batch_size` turns. Token ids are trained on as they were sampled.
    """

    def __init__(
        self, policy: Policy, config: RejectionConfig, training: TrainingConfig, *, seed: int
    ) -> None:
        self._policy = policy
        self._config = config
        self._training = training
        self._seed = seed
        self._rounds: deque[list[KeptAnswer]] = deque(maxlen=config.replay_rounds + 1)
        self._empty_rounds = 0
        self._optimizer = torch.optim.AdamW(
            [parameter for parameter in policy.parameters() if parameter.requires_grad],
            lr=training.learning_rate,
            betas=training.adam_betas,
            weight_decay=training.weight_decay,
            fused=True,
        )

    def update(
        self, episodes: Sequence[Episode], advantages: Advantages | Estimate, *, step: int, temperature: float
    ) -> dict[str, float]:
        """Train on one round; the metrics of it. `temperature` is not used: supervision is at 1.

        A round that gave scored answers but kept none is counted in `rejection/empty_rounds`, and warned
        about. While the pool is empty nothing is updated: there are neither `loss` nor `grad_norm` then.
        """
        weights = advantages.advantages if isinstance(advantages, Estimate) else advantages
        kept = [
            _kept_answer(episode)
            for episode, of_turns in zip(episodes, weights, strict=True)
            if any(weight_T.any() for weight_T in of_turns)
        ]
        self._rounds.append(kept)
        if not kept and any(episode.scored for episode in episodes):
            self._empty_rounds += 1
            warnings.warn(EMPTY_ROUND, stacklevel=2)
        pool = self._pool()
        rate = self._set_learning_rate(step)
        metrics = {
            "learning_rate": rate,
            "rejection/kept": float(len(kept)),
            "rejection/prompts": float(len({answer.prompt_ids for answer in kept})),
            "rejection/pool": float(len(pool)),
            "rejection/empty_rounds": float(self._empty_rounds),
        }
        return metrics | self._train([example for answer in pool for example in answer.examples], step)

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs beside the policy's weights: optimizer, pool and count."""
        return {
            "optimizer": self._optimizer.state_dict(),
            "rounds": [[_to_plain(answer) for answer in kept] for kept in self._rounds],
            "empty_rounds": self._empty_rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["optimizer"])
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
                if identity not in seen and count[answer.prompt_ids] < self._config.max_per_prompt:
                    seen.add(identity)
                    count[answer.prompt_ids] += 1
                    pool.append(answer)
        return pool

    def _train(self, examples: Sequence[Example], step: int) -> dict[str, float]:
        """All passes over `examples`; loss and norm are means over the optimizer steps."""
        rng = np.random.default_rng(step_seed(self._seed, step, "rejection"))
        size = self._config.batch_size
        updates = [
            supervised_update(
                self._policy,
                self._optimizer,
                [examples[index] for index in order[start : start + size]],
                max_grad_norm=self._training.max_grad_norm,
                micro_batch_sequences=self._training.micro_batch_sequences,
            )
            for order in (rng.permutation(len(examples)) for _ in range(self._config.epochs))
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

    def _set_learning_rate(self, step: int) -> float:
        training = self._training
        rate = training.learning_rate * learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate


def _kept_answer(episode: Episode) -> KeptAnswer:
    examples = tuple(
        Example(
            turn.prompt_ids,
            tuple(map(int, turn.completion_ids)),
            None if turn.policy_wrote_T.all() else tuple(map(bool, turn.policy_wrote_T)),
        )
        for turn in episode.turns
        if turn.policy_wrote_T.any()
    )
    # An answer without code is known by its tokens: a reward of the user's own may accept such answers.
    key = episode.answer or repr([example.completion_ids for example in examples])
    return KeptAnswer(episode.turns[0].prompt_ids, key, sum(episode.rewards.values()), examples)


def _to_plain(answer: KeptAnswer) -> dict[str, Any]:
    examples = [(e.prompt_ids, e.completion_ids, e.trained) for e in answer.examples]
    return {**vars(answer), "examples": examples}


def _from_plain(state: Mapping[str, Any]) -> KeptAnswer:
    return KeptAnswer(**{**state, "examples": tuple(Example(*example) for example in state["examples"])})
