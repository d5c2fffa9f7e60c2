"""The record that travels from the environment to the algorithm: turns, rewards, verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from greenward.grading.verdict import Family, Verdict
from greenward.policies.engine import StopReason


@dataclass(frozen=True)
class Turn:
    """One answer of one role. All arrays have shape (T,), T the completion's length in tokens.

    `prompt_ids` is everything that the policy saw before it answered. `policy_wrote_T` is True for
    tokens that the policy chose; text that others put into the completion (tool output) is False
    and never trained on.
    """

    role: str
    prompt_ids: tuple[int, ...]
    completion_ids: np.ndarray
    logprobs_T: np.ndarray
    policy_wrote_T: np.ndarray
    stop_reason: StopReason
    policy_version: int


@dataclass(frozen=True)
class Episode:
    """One whole attempt: its turns, the reward of each role, and how it was judged.

    Episodes that share a `group_id` answer the same prompt and are each other's baseline.
    `answer` is the code that was graded. `reward_terms` are the unweighted terms by name,
    and `extra` is what they logged about the answer.
    """

    turns: tuple[Turn, ...]
    rewards: Mapping[str, float]
    group_id: int
    problem_id: str
    verdict: Verdict
    answer: str = ""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scored(self) -> bool:
        """False when the infrastructure failed: the episode leaves the loss and the baseline."""
        return self.verdict.status.family is not Family.INFRASTRUCTURE
