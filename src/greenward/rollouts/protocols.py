"""Defines engines and environments, and the records that travel from them to the algorithm.

Token ids in, token ids out: text is never re-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from greenward.common.errors import GreenwardError
from greenward.grading.verdict import Verdict

if TYPE_CHECKING:
    from greenward.config.recipe import ModelRecipe
    from greenward.models.policy import Policy


class StopReason(str, Enum):
    """Why a completion ended: what its engine says (`models.sampler`, `models.vllm`, `rollouts.endpoint`)."""

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

    @property
    def filters(self) -> bool:
        """Whether some tokens are left out of the distribution."""
        return self.temperature > 0 and (bool(self.top_k) or self.top_p < 1)

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
# Called with a number of tokens.
OnTokens = Callable[[int], None]
SECONDS_BETWEEN_COUNTS = 0.2
"""How often an engine that draws token by token calls `on_tokens`."""


class RolloutEngine(Protocol):
    """Draws completions: a policy's own weights, an inference server, or a scripted player.

    `deterministic` says whether the same weights, prompts, parameters and seeds give the same completions,
    whatever else is in the batch. Exact resume depends on it.

    `on_tokens` is called with the number of tokens drawn since the last call, a few times a second, while
    answers are being drawn; engines that get whole answers call it as these come. Whoever shows progress sets
    it.
    """

    on_tokens: OnTokens | None = None

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


POLICY = "policy"
"""The name of the player that is trained."""


@dataclass(frozen=True)
class Turn:
    """The transcript of one role: what it saw at first, and everything after. Arrays have shape (T,).

    `player` names the policy that played the role; only the turns of `POLICY` are trained on. `prompt_ids`
    is all that the player saw before its first token. `policy_wrote_T` is True for tokens that the player
    chose; text that others put into the transcript (feedback, tool output) is False and never trained on,
    its `logprobs_T` are 0. `temperature` is the one that the tokens were sampled at, `stop_reason` that of
    the last completion. `reward` is the part of the role's reward in the episode that the environment gave
    at the end of this turn, if it did; `Episode.rewards` contains it. `completion_rewards` are those of the
    completions in it, one after the other, () if there are none; `Episode.rewards` does not contain them.
    """

    role: str
    prompt_ids: tuple[int, ...]
    completion_ids: np.ndarray
    logprobs_T: np.ndarray
    policy_wrote_T: np.ndarray
    stop_reason: StopReason
    policy_version: int
    player: str = POLICY
    temperature: float = 1.0
    reward: float | None = None
    completion_rewards: tuple[float, ...] = ()

    @cached_property
    def trained(self) -> bool:
        """Whether the trained policy wrote any token of it."""
        return self.player == POLICY and self.policy_tokens > 0

    @cached_property
    def policy_tokens(self) -> int:
        return int(np.count_nonzero(self.policy_wrote_T))


@dataclass(frozen=True)
class Episode:
    """One whole attempt: its turns, the reward of each role, and how it ended.

    Episodes that share a `group_id` began alike and are each other's baseline. `scored` is False when the
    infrastructure failed: the episode leaves the loss and the baseline. `outcome` is a word from the
    environment's closed list (passed, syntax_error, won …); `success` is None where there is no such thing.
    `answer` is the code that was judged, `reward_terms` are the unweighted terms by name, `extra` is what
    they logged, and `transcript` holds (role, text) for people where there was more than one answer. A
    trainer adds `advantage`, the mean over the tokens that the policy wrote, and in `masked` why the answer
    left the loss, "" if it did not.
    """

    turns: tuple[Turn, ...]
    rewards: Mapping[str, float]
    group_id: int
    task_id: str
    outcome: str
    success: bool | None = None
    scored: bool = True
    verdict: Verdict | None = None
    answer: str = ""
    reward_terms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    transcript: tuple[tuple[str, str], ...] = ()
    advantage: float | None = None
    masked: str = ""

    @cached_property
    def trained_turns(self) -> tuple[Turn, ...]:
        """The turns in which the trained policy wrote something."""
        return tuple(turn for turn in self.turns if turn.trained)

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """What the trained policy saw before its first token; () where it wrote nothing."""
        return self.trained_turns[0].prompt_ids if self.trained_turns else ()

    @cached_property
    def trained_rewards(self) -> dict[str, float]:
        """The rewards of the roles in which the trained policy wrote something.

        Raises `GreenwardError` if the environment gave such a role none.
        """
        roles = {turn.role for turn in self.trained_turns}
        if missing := sorted(roles - self.rewards.keys()):
            raise GreenwardError(
                f"{self.task_id}: the environment gave the role {missing[0]!r}, which the policy played, no "
                f"reward; there are rewards for {sorted(self.rewards)}"
            )
        return {role: reward for role, reward in self.rewards.items() if role in roles}

    @property
    def reward(self) -> float:
        """The sum of the rewards of the trained roles."""
        return sum(self.trained_rewards.values())

    @property
    def truncated(self) -> bool:
        """Whether a completion of the trained policy hit the token limit."""
        return any(turn.stop_reason is StopReason.LENGTH for turn in self.trained_turns)

    @property
    def policy_tokens(self) -> int:
        """The number of tokens that the trained policy wrote."""
        return sum(turn.policy_tokens for turn in self.trained_turns)


@dataclass(frozen=True)
class Collection:
    """Episodes, group-major, and where the time went (seconds).

    Judging runs during sampling; `grading_seconds` is the additional time. `metrics` are those that
    reward terms logged, each value by name.
    """

    episodes: list[Episode]
    sampling_seconds: float
    grading_seconds: float
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)


class Environment(Protocol):
    """Where episodes come from. It owns its tasks: that of group i follows from i and its seed."""

    def collect(
        self, players: Mapping[str, RolloutEngine], groups: Sequence[int], *, seed: int, step: int = 0
    ) -> Collection:
        """The episodes of these groups; the same seed gives the same ones.

        `step` is what reward terms are told of the progress.
        """

    def task(self, group: int) -> Hashable:
        """What tells the task of a group from others; several processes ask for it."""
