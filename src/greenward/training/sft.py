"""Trains by supervision on (prompt, completion) pairs, given ones or the policy's own accepted answers.

The loss is the mean negative log-likelihood of the completions' tokens; prompts are only read. Rejection
sampling keeps the answers that pass, takes the same optimizer step on them, and repeats. One step is one
round of expert iteration: RFT (arXiv 2308.01825), STaR (2203.14465), ReST (2308.08998). Beside a policy
gradient the same steps are self-imitation learning (1806.05635).
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from greenward.common.seeding import shuffled_index, step_seed
from greenward.config.sections import AcceptedAnswersConfig, SupervisedConfig, TrainingConfig
from greenward.models.policy import Policy, release_sampling
from greenward.models.scoring import GroupBatch
from greenward.rollouts.protocols import Episode
from greenward.training import distributed, optim
from greenward.training.collector import Collector
from greenward.training.loop import StepRecord
from greenward.training.optim import learning_rate_factor
from greenward.training.protocols import Example, Stateful


@dataclass(eq=False)
class SFTTrainer:
    """Trains a policy on examples: each step is one batch and one AdamW update."""

    policy: Policy
    examples: Sequence[Example]
    config: SupervisedConfig
    _: KW_ONLY
    seed: int

    def __post_init__(self) -> None:
        self.policy.check_ids((*one.prompt_ids, *one.completion_ids) for one in self.examples)
        self._seen = 0
        self._optimizer = SupervisedOptimizer(
            self.policy,
            betas=(0.9, 0.98),
            weight_decay=self.config.weight_decay,
            max_grad_norm=self.config.max_grad_norm,
            examples_at_once=self.config.batch_size,
        )

    def train_step(self, step: int) -> StepRecord:
        started = time.perf_counter()
        batch = [self._next_example() for _ in range(self.config.batch_size)]
        rate = self.config.learning_rate * learning_rate_factor(
            self.config.schedule, step, self.config.max_steps, self.config.warmup_steps
        )
        update = self._optimizer.update(batch, rate)
        seconds = time.perf_counter() - started
        metrics = {
            "loss": update.loss,
            "grad_norm": update.grad_norm,
            "learning_rate": rate,
            "tokens": float(update.tokens),
            "updates/non_finite": float(not update.applied),
            "time/update": seconds,
            "perf/tokens_per_second": update.tokens / max(seconds, 1e-9),
        }
        return StepRecord(metrics)

    def _next_example(self) -> Example:
        together = min(self.config.keep_together, len(self.examples))
        unit, place = divmod(self._seen, together)
        index = shuffled_index(len(self.examples) // together, unit, seed=self.seed)
        self._seen += 1
        return self.examples[index * together + place]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, **self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = state["seen"]
        self._optimizer.load_state_dict(state)


@dataclass(frozen=True)
class SupervisedUpdate:
    """One optimizer step: mean loss in nats per token, norm of the gradient before clipping, tokens.

    `applied` is False when the step was skipped because its gradient was not finite.
    """

    loss: float
    grad_norm: float
    tokens: int
    applied: bool


@dataclass(eq=False, kw_only=True)
class SupervisedOptimizer(Stateful):
    """AdamW on the mean negative log-likelihood of the trained tokens of examples.

    Gradients accumulate over micro-batches of at most `examples_at_once`, or fewer where memory runs out.
    """

    policy: Policy = field(kw_only=False)
    betas: tuple[float, float]
    weight_decay: float
    max_grad_norm: float
    examples_at_once: int
    _saved: ClassVar = {"optimizer": "adamw", "limit": "_limit", "loss_scale": "_loss_scale"}

    def __post_init__(self) -> None:
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self.adamw = optim.adamw([trained], betas=self.betas, weight_decay=self.weight_decay)
        self._limit = optim.MicroBatchLimit(self.examples_at_once)
        self._loss_scale = optim.LossScale(self.policy.dtype)

    def update(self, batch: Sequence[Example], rate: float) -> SupervisedUpdate:
        """One optimizer step on `batch` at the learning rate `rate`.

        Examples with the same prompt share its forward pass within a micro-batch. Of several processes each
        has a share of the examples. A step whose gradient is not finite is skipped: the weights stay as they
        are. Raises `ValueError` for a batch without a token to train on.
        """
        policy = self.policy
        tokens = sum(example.tokens for example in batch)
        if not tokens:
            raise ValueError(f"none of the {len(batch)} examples of a batch has a token to train on")
        shares = distributed.divide(
            batch, lambda example: len(example.prompt_ids) + len(example.completion_ids)
        )
        own = shares[distributed.rank()]
        optim.set_learning_rates(self.adamw, [rate])

        def accumulate() -> Tensor:
            self.adamw.zero_grad(set_to_none=False)
            exact = torch.float32 if policy.device.type == "mps" else torch.float64  # which MPS has not
            total = torch.zeros((), dtype=exact, device=policy.device)
            size = self._limit.size
            for start in range(0, max(map(len, shares)), size):  # as often in all: weights may be sharded
                examples = own[start : start + size]
                loss = _negative_log_likelihood(policy, examples or batch[:1]) * bool(examples) / tokens
                self._loss_scale(loss).backward()
                total += loss.detach()
            return distributed.all_reduce(total)

        with optim.casting_once(policy):
            total = float(self._limit.run_within_memory(accumulate, len(batch)))
        self._loss_scale.unscale(policy.parameters())
        norm = optim.clip_gradients(policy.parameters(), self.max_grad_norm)
        applied = math.isfinite(norm)
        self._loss_scale.update(finite=applied)
        if applied:
            self.adamw.step()
            policy.version += 1
        return SupervisedUpdate(total, norm, tokens, applied)


def _negative_log_likelihood(policy: Policy, examples: Sequence[Example]) -> Tensor:
    """The sum over the trained tokens of `examples`, in nats; differentiable."""
    sharers: defaultdict[tuple[int, ...], list[Example]] = defaultdict(list)
    for example in examples:
        sharers[example.prompt_ids].append(example)
    rows = GroupBatch.build(
        list(sharers),
        [[example.completion_ids for example in group] for group in sharers.values()],
        device=policy.device,
    )
    mask_BT = rows.completion_mask_BT
    in_order = [example for group in sharers.values() for example in group]
    if any(example.trained is not None for example in in_order):
        trained_S = [t for e in in_order for t in (e.trained or (True,) * len(e.completion_ids))]
        mask_BT = rows.spread(torch.tensor(trained_S, device=policy.device))
    return -(policy.completion_logprobs(rows).logprobs_BT * mask_BT).sum()


EMPTY_ROUND = (
    "A round of rejection sampling kept no answer, so it taught nothing; rejection/empty_rounds counts such "
    "rounds. If most are empty: more training.num_generations or training.prompts_per_step, easier problems, "
    "a warm start, or a lower algorithm.min_reward."
)


@dataclass(frozen=True)
class KeptAnswer:
    """An accepted answer, one example for each turn. Equal `prompt_ids` and `key` mean the same answer."""

    prompt_ids: tuple[int, ...]
    key: str
    reward: float
    examples: tuple[Example, ...]


@dataclass(eq=False)
class AcceptedAnswers:
    """Trains a policy by supervision on the accepted answers of the newest rounds.

    An answer is accepted when it passed all its tests or, with `config.min_reward`, when its reward (summed
    over roles) is at least that. An answer that could not be judged is never accepted; nor, with
    `mask_truncated`, is an answer that hit the token limit.

    Each update first adds the accepted answers of the round to a pool that holds the newest
    `replay_rounds` + 1 rounds. Of the answers to one prompt in the pool, those with equal code count once
    and at most `max_per_prompt` are trained on: newer rounds first, then higher rewards, then the
    order of sampling. `epochs` passes over what remains follow, each in an order of its own, in batches of
    at most `batch_size` turns. Token ids are trained on as they were sampled.
    """

    policy: Policy
    config: AcceptedAnswersConfig
    training: TrainingConfig
    _: KW_ONLY
    seed: int
    mask_truncated: bool = False

    def __post_init__(self) -> None:
        self._rounds: deque[list[KeptAnswer]] = deque(maxlen=self.config.replay_rounds + 1)
        self._optimizer = SupervisedOptimizer(
            self.policy,
            betas=self.training.adam_betas,
            weight_decay=self.training.weight_decay,
            max_grad_norm=self.training.max_grad_norm,
            examples_at_once=self.training.micro_batch_sequences,
        )

    def update(self, episodes: Sequence[Episode], step: int, rate: float) -> dict[str, float]:
        """Train on one round at the learning rate `rate`; the metrics of it.

        While the pool is empty nothing is updated: there are neither `loss` nor `grad_norm` then.
        """
        kept = [_kept_answer(episode) for episode in episodes if self.accepts(episode)]
        self._rounds.append(kept)
        pool = self._pool()
        return {
            "kept": float(len(kept)),
            "prompts": float(len({answer.prompt_ids for answer in kept})),
            "pool": float(len(pool)),
            **self._train([example for answer in pool for example in answer.examples], step, rate),
        }

    def accepts(self, episode: Episode) -> bool:
        """Whether an answer is trained on, if it is not the same as others or one too many."""
        if not episode.scored or not episode.policy_tokens or (self.mask_truncated and episode.truncated):
            return False
        if self.config.min_reward is None:
            return bool(episode.success)
        return episode.reward >= self.config.min_reward

    def state_dict(self) -> dict[str, Any]:
        rounds = [[_to_plain(answer) for answer in kept] for kept in self._rounds]
        return {**self._optimizer.state_dict(), "rounds": rounds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state)
        self._rounds.clear()
        self._rounds.extend([_from_plain(answer) for answer in kept] for kept in state["rounds"])

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


@dataclass(eq=False)
class RejectionTrainer:
    """Collects a round of answers and trains on those that are accepted; a step is one round."""

    policy: Policy
    collector: Collector
    training: TrainingConfig
    answers: AcceptedAnswers

    def __post_init__(self) -> None:
        self._empty_rounds = 0

    def train_step(self, step: int) -> StepRecord:
        self.collector.sync(self.policy)
        episodes, metrics = self.collector.collect(step)
        release_sampling(self.policy)
        started = time.perf_counter()
        metrics |= self.update(episodes, step)
        metrics["time/update"] = time.perf_counter() - started
        judged = (
            replace(one, masked="" if self.answers.accepts(one) else "not_accepted") for one in episodes
        )
        return StepRecord(metrics, list(judged))

    def update(self, episodes: Sequence[Episode], step: int) -> dict[str, float]:
        """Train on one round; the metrics of it.

        A round that gave scored answers but kept none is counted in `rejection/empty_rounds`, and warned
        about.
        """
        training = self.training
        rate = training.learning_rate * learning_rate_factor(
            training.schedule, step, training.max_steps, training.warmup_steps, final=training.final_rate
        )
        found = self.answers.update(episodes, step, rate)
        if not found["kept"] and any(episode.scored for episode in episodes):
            self._empty_rounds += 1
            warnings.warn(EMPTY_ROUND, stacklevel=2)
        of_round = {f"rejection/{name}": found.pop(name) for name in ("kept", "prompts", "pool")}
        return {
            "learning_rate": rate,
            **of_round,
            "rejection/empty_rounds": float(self._empty_rounds),
            **found,
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "collector": self.collector.state_dict(),
            **self.answers.state_dict(),
            "empty_rounds": self._empty_rounds,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.collector.load_state_dict(state["collector"])
        self.answers.load_state_dict(state)
        self._empty_rounds = state["empty_rounds"]


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
