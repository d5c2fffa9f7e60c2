"""What a sampler is given and gives back. Token ids in, token ids out: text is never re-encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np


class StopReason(str, Enum):
    """Why a completion ended."""

    END = "end"  # the end-of-sequence token (kept as the last completion token)
    STOP_STRING = "stop_string"  # a stop string was completed (its tokens are kept)
    LENGTH = "length"  # the token limit: the answer is truncated


@dataclass(frozen=True)
class SamplingParams:
    """How completions are drawn. `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 are off."""

    max_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    stop_strings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One sampled answer.

    `token_ids` and `logprobs` have shape (T,). The log-probabilities are those of the distribution
    that was actually sampled from (after temperature, top-k and top-p); for greedy decoding they
    are those of temperature 1.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    stop_reason: StopReason
    policy_version: int


# Called with the number of a prompt and its completions.
OnGroup = Callable[[int, list[Completion]], None]


class Sampler(Protocol):
    """Draws `group_size` completions for each prompt.

    The result has one list per prompt, in order. The same weights, prompts, parameters and seed
    give the same completions, whatever else is in the batch. `on_group` is called for each prompt
    as soon as its last completion has ended, while others are still being drawn.

    A prompt and `max_tokens` must fit into `max_positions` together.
    """

    @property
    def max_positions(self) -> int: ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]: ...
