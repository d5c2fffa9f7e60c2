"""Supervised training on (prompt, completion) pairs: warm start, control arm, users' own data.

The loss is the mean negative log-likelihood of the completions' tokens; prompts are only read. Rejection
sampling (`rejection.py`) takes the same optimizer step on answers that the policy sampled itself.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from greenward.algorithms import distributed, optimization
from greenward.algorithms.coefficients import learning_rate_factor
from greenward.algorithms.loop import StepRecord
from greenward.algorithms.stateful import Stateful
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
        self.adamw = optimization.adamw([trained], betas=self.betas, weight_decay=self.weight_decay)
        self._limit = optimization.MicroBatchLimit(self.examples_at_once)
        self._loss_scale = optimization.LossScale(self.policy.dtype)

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
        shares = distributed.dealt(
            batch, lambda example: len(example.prompt_ids) + len(example.completion_ids)
        )
        own = shares[distributed.rank()]
        optimization.set_learning_rates(self.adamw, [rate])

        def accumulate() -> Tensor:
            self.adamw.zero_grad(set_to_none=False)
            total = torch.zeros((), dtype=torch.float64, device=policy.device)
            size = self._limit.size
            for start in range(0, max(map(len, shares)), size):  # as often in all: weights may be sharded
                examples = own[start : start + size]
                loss = _negative_log_likelihood(policy, examples or batch[:1]) * bool(examples) / tokens
                self._loss_scale(loss).backward()
                total += loss.detach()
            return distributed.total(total)

        with optimization.casting_once(policy):
            total = float(self._limit.fit(accumulate, len(batch)))
        self._loss_scale.unscale(policy.parameters())
        norm = optimization.clip_gradients(policy.parameters(), self.max_grad_norm)
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
