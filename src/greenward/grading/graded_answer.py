"""What reward terms read and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from greenward.grading.verdict import Verdict
from greenward.problems.problem import Problem

if TYPE_CHECKING:
    from greenward.grading.grader import Grader


@dataclass(frozen=True)
class GradedAnswer:
    """One answer with its verdict. `code` is None when the completion holds no code.

    `messages` are those that a chat prompt was made of, empty for a plain one. The token ids are what the
    policy read and wrote, empty where no policy wrote the answer.
    """

    problem: Problem
    prompt: str
    completion: str
    code: str | None
    verdict: Verdict
    messages: tuple[Mapping[str, str], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Reward:
    """The weighted sum of the terms that apply, and the unweighted terms by name.

    `extra` is what terms logged about the answer beside their scores.
    """

    total: float
    terms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class RewardTerm(Protocol):
    """One component of the reward: a score for each answer, None where it does not apply."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]: ...


@runtime_checkable
class ComposedTerm(RewardTerm, Protocol):
    """A term that is made of others and reports them."""

    def score_by_name(
        self, answers: Sequence[GradedAnswer], grader: Grader
    ) -> Mapping[str, list[float | None]]:
        """The term's own scores under its name, and those of its parts under theirs."""
        ...


@runtime_checkable
class LoggingTerm(RewardTerm, Protocol):
    """A term that knows the step and logs beside its scores."""

    def begin(self, step: int) -> None:
        """Says which step the next batches belong to, counted from 0."""
        ...

    @property
    def extra(self) -> Mapping[str, Sequence[Any]]:
        """Columns with one value for each answer of the last batch."""
        ...

    def take_metrics(self) -> Mapping[str, Sequence[float]]:
        """The metrics logged since the last call, by name."""
        ...
