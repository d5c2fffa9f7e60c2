"""The protocol of rollout engines. Token ids in, token ids out: text is never re-encoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from greenward.config.recipe import ModelRecipe
    from greenward.models.policy import Policy


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

    @classmethod
    def of(cls, recipe: ModelRecipe) -> SamplingParams:
        """How a recipe draws completions."""
        return cls(**recipe.sampling.model_dump())


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


class RolloutEngine(Protocol):
    """Draws completions: a policy's own weights, an inference server, or a scripted player.

    `deterministic` says whether the same weights, prompts, parameters and seeds give the same completions,
    whatever else is in the batch. Exact resume depends on it.
    """

    @property
    def deterministic(self) -> bool: ...

    @property
    def max_positions(self) -> int:
        """The longest prompt and completion together, in tokens."""

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        """One list of completions for each prompt, in order; a prompt and `max_tokens` must fit together.

        A single number in `group_sizes` or `seed` holds for every prompt. `on_group` is called for each
        prompt as soon as its last completion has ended, while others are still being drawn.
        """

    def sync(self, policy: Policy) -> None:
        """Use the weights of `policy`, whose version is stamped on every completion from now on."""


def per_prompt(value: int | Sequence[int], prompts: int) -> Sequence[int]:
    """One number for each prompt, from one for all or from as many as there are prompts."""
    return [value] * prompts if isinstance(value, int) else value
