"""Supervised training on (prompt, completion) pairs: warm start, control arm, users' own data.

The loss is the mean negative log-likelihood of the completions' tokens; prompts are only read.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from greenward.algorithms.schedules import learning_rate_factor
from greenward.algorithms.seeding import shuffled_index
from greenward.config.schema import SupervisedConfig
from greenward.policies.group_batch import GroupBatch
from greenward.policies.policy import Policy


@dataclass(frozen=True)
class Example:
    """One pair, as token ids. The completion ends with the end-of-sequence token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]


class Supervised:
    """One step: one batch of examples, one AdamW update."""

    def __init__(
        self, policy: Policy, examples: Sequence[Example], config: SupervisedConfig, *, seed: int
    ) -> None:
        self.policy = policy
        self._examples = examples
        self._config = config
        self._seed = seed
        self._seen = 0
        self._optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=config.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=config.weight_decay,
            fused=True,
        )

    def step(self, step: int) -> dict[str, float]:
        """Train one step; the metrics of it."""
        started = time.perf_counter()
        batch = [self._next_example() for _ in range(self._config.batch_size)]
        rate = self._config.learning_rate * learning_rate_factor(
            self._config.schedule, step, self._config.max_steps, self._config.warmup_steps
        )
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        rows = GroupBatch.build(
            [example.prompt_ids for example in batch],
            [[example.completion_ids] for example in batch],
            pad_id=self.policy.tokenizer.pad_id,
            device=self.policy.device,
        )
        tokens = sum(len(example.completion_ids) for example in batch)
        scores = self.policy.completion_logprobs(rows)
        loss = -(scores.logprobs_BT * rows.completion_mask_BT).sum() / tokens
        self._optimizer.zero_grad(set_to_none=False)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(
            list(self.policy.parameters()), self._config.max_grad_norm, error_if_nonfinite=True
        )
        self._optimizer.step()
        self.policy.version += 1
        seconds = time.perf_counter() - started
        return {
            "loss": float(loss.detach()),
            "grad_norm": float(norm),
            "learning_rate": rate,
            "tokens": float(tokens),
            "time/update": seconds,
            "perf/tokens_per_second": tokens / max(seconds, 1e-9),
        }

    def _next_example(self) -> Example:
        index = shuffled_index(len(self._examples), self._seen, seed=self._seed)
        self._seen += 1
        return self._examples[index]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen, "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seen = state["seen"]
        self._optimizer.load_state_dict(state["optimizer"])
