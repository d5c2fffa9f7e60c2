"""What reward terms read and what they give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from greenward.grading.verdict import Verdict
from greenward.problems.problem import Problem

if TYPE_CHECKING:
    from greenward.grading.grader import Grader


@dataclass(frozen=True)
class GradedAnswer:
    """One answer with its verdict. `code` is None when the completion holds no code."""

    problem: Problem
    prompt: str
    completion: str
    code: str | None
    verdict: Verdict


@dataclass(frozen=True)
class Reward:
    """The weighted sum of the terms that apply, and the unweighted terms by name."""

    total: float
    terms: Mapping[str, float] = field(default_factory=dict)


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
