"""Supervised training on (prompt, completion) pairs: warm start, control arm, users' own data.

The loss is the mean negative log-likelihood of the completions' tokens; prompts are only read. Rejection
sampling (`rejection.py`) takes the same optimizer step on answers that the policy sampled itself.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from greenward.algorithms import distributed
from greenward.algorithms.coefficients import learning_rate_factor
from greenward.algorithms.loop import StepRecord
from greenward.algorithms.optimization import (
    LossScale,
    MicroBatchLimit,
    adamw,
    clip_gradients,
    set_learning_rates,
)
from greenward.config.sections import SupervisedConfig
from greenward.policies.group_batch import GroupBatch
from greenward.policies.policy import Policy
from greenward.seeding import shuffled_index


@dataclass(frozen=True)
class Example:
    """One pair, as token ids. The completion ends with the end-of-sequence token.

    `trained` says of each token of the completion whether it is trained on; None means all of them.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    trained: tuple[bool, ...] | None = None

    @property
    def tokens(self) -> int:
        """Number of tokens trained on."""
        return len(self.completion_ids) if self.trained is None else sum(self.trained)


@dataclass(eq=False)
class SFTTrainer:
    """Trains a policy on examples: each step is one batch and one AdamW update."""

    policy: Policy
    examples: Sequence[Example]
    config: SupervisedConfig
    _: KW_ONLY
    seed: int

    def __post_init__(self) -> None:
        self._seen = 0
        trained = [parameter for parameter in self.policy.parameters() if parameter.requires_grad]
        self._optimizer = adamw([trained], betas=(0.9, 0.98), weight_decay=self.config.weight_decay)
        self._limit = MicroBatchLimit(self.config.batch_size)
        self._loss_scale = LossScale(self.policy.dtype)

    def train_step(self, step: int) -> StepRecord:
        started = time.perf_counter()
        batch = [self._next_example() for _ in range(self.config.batch_size)]
        rate = self.config.learning_rate * learning_rate_factor(
            self.config.schedule, step, self.config.max_steps, self.config.warmup_steps
        )
        set_learning_rates(self._optimizer, [rate])
        update = supervised_update(
            self.policy,
            self._optimizer,
            batch,
            max_grad_norm=self.config.max_grad_norm,
            limit=self._limit,
            loss_scale=self._loss_scale,
        )
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
        return {
            "seen": self._seen,
            "optimizer": self._optimizer.state_dict(),
            "limit": self._limit.state_dict(),
            "loss_scale": self._loss_scale.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = state["seen"]
        self._optimizer.load_state_dict(state["optimizer"])
        self._limit.load_state_dict(state["limit"])
        self._loss_scale.load_state_dict(state["loss_scale"])


@dataclass(frozen=True)
class SupervisedUpdate:
    """One optimizer step: mean loss in nats per token, norm of the gradient before clipping, tokens.

    `applied` is False when the step was skipped because its gradient was not finite.
    """

    loss: float
    grad_norm: float
    tokens: int
    applied: bool


def supervised_update(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Example],
    *,
    max_grad_norm: float,
    limit: MicroBatchLimit,
    loss_scale: LossScale,
) -> SupervisedUpdate:
    """One optimizer step on the mean negative log-likelihood of the trained tokens of `batch`.

    Gradients accumulate over micro-batches of at most `limit.size` examples. Examples with the same prompt
    share its forward pass within a micro-batch. Of several processes each has a share of the examples. A step
    whose gradient is not finite is skipped: the weights stay as they are. Raises `ValueError` for a batch
    without a token to train on.
    """
    tokens = sum(example.tokens for example in batch)
    if not tokens:
        raise ValueError(f"none of the {len(batch)} examples of a batch has a token to train on")
    shares = distributed.dealt(batch, lambda example: len(example.prompt_ids) + len(example.completion_ids))
    own = shares[distributed.rank()]

    def accumulate() -> Tensor:
        optimizer.zero_grad(set_to_none=False)
        total = torch.zeros((), dtype=torch.float64, device=policy.device)
        for start in range(0, max(map(len, shares)), limit.size):  # as often in all: weights may be sharded
            examples = own[start : start + limit.size]
            loss = _negative_log_likelihood(policy, examples or batch[:1]) * bool(examples) / tokens
            loss_scale(loss).backward()
            total += loss.detach()
        return distributed.total(total)

    total = float(limit.fit(accumulate, len(batch)))
    loss_scale.unscale(policy.parameters())
    norm = clip_gradients(policy.parameters(), max_grad_norm)
    applied = math.isfinite(norm)
    loss_scale.update(finite=applied)
    if applied:
        optimizer.step()
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
