"""What a reward function reads and returns, and the weighted sum of rewards for each answer.

The shipped functions are in `reward_terms`, functions of the user in `user_rewards`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeAlias

from greenward.common.errors import RewardError
from greenward.grading.answers import plain_text
from greenward.grading.verdict import Family, Verdict
from greenward.problems.problem import Problem

if TYPE_CHECKING:
    from greenward.grading.judge import Grader


@dataclass(frozen=True)
class GradedAnswer:
    """One answer with its verdict. `code` is None when the completion holds no code.

    `messages` are those that a chat prompt was made of, empty for a plain one. The token ids are what the
    policy read and wrote, empty where no policy wrote the answer. `files` are further files that the answer
    changes (`extracted.Extracted`), and `begun` is what the prompt wrote of the answer.
    """

    problem: Problem
    prompt: str
    completion: str
    code: str | None
    verdict: Verdict
    messages: tuple[Mapping[str, str], ...] = ()
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    files: tuple[tuple[str, str | None], ...] = ()
    begun: str = ""

    @cached_property
    def text(self) -> str:
        """The whole answer with its thought, without end tokens and with plain line ends."""
        return plain_text(self.completion, self.begun)


@dataclass(frozen=True)
class Reward:
    """The weighted sum of the terms that apply, and the unweighted terms by name.

    `extra` is what terms logged about the answer beside their scores.
    """

    total: float
    terms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


Scores: TypeAlias = list[float | None]
"""A score for each answer, None where the reward does not apply."""
RewardFunction: TypeAlias = Callable[[Sequence[GradedAnswer], "Grader"], Scores | Mapping[str, Scores]]
"""Scores answers; the parts of a composed reward are given beside its own scores, by name."""


def per_answer(score: Callable[..., float | None]) -> Callable[..., RewardFunction]:
    """Decorates a score of one answer: called with options, it returns the `RewardFunction` of a batch."""

    @wraps(score)
    def with_options(**options: Any) -> RewardFunction:
        return lambda answers, grader: [score(answer, **options) for answer in answers]

    return with_options


@dataclass
class RewardTerm:
    """A reward function under its name and weight.

    `extra` holds columns that were logged beside the scores, with one value for each answer of the last
    batch, `tried` the scores of made-up answers, once it was called on such.
    """

    name: str
    weight: float
    function: RewardFunction
    extra: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tried: Scores = field(default_factory=list)

    def score_by_name(self, answers: Sequence[GradedAnswer], grader: Grader) -> Mapping[str, Scores]:
        """The term's own scores under its name, and those of its parts under theirs."""
        scores = self.function(answers, grader)
        return scores if isinstance(scores, Mapping) else {self.name: scores}

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> Scores:
        """A score for each answer, None where the term does not apply."""
        return self.score_by_name(answers, grader)[self.name]

    def begin(self, step: int) -> None:
        """Says which step the next batches belong to, counted from 0."""

    def take_metrics(self) -> Mapping[str, Sequence[float]]:
        """The metrics logged since the last call, by name."""
        return {}


def combine(terms: Sequence[RewardTerm], answers: Sequence[GradedAnswer], grader: Grader) -> list[Reward]:
    """The reward of each answer: the weighted sum of the terms that apply to it.

    The parts of a composed term are reported beside it and weigh nothing of their own. An answer that
    the infrastructure failed reaches no term and gets 0: its episode leaves the loss.

    Raises `RewardError` for a term that gives the wrong number of scores or a score that is not finite.
    """
    families = [answer.verdict.status.family for answer in answers]
    judged = [index for index, family in enumerate(families) if family is not Family.INFRASTRUCTURE]
    totals = [0.0] * len(answers)
    by_name: list[dict[str, float]] = [{} for _ in answers]
    extra: list[dict[str, Any]] = [{} for _ in answers]
    given = [answers[index] for index in judged]
    for term in terms if judged else ():
        for name, scores in term.score_by_name(given, grader).items():
            if len(scores) != len(judged):
                raise RewardError(
                    f"the reward term {name!r} gave {len(scores)} scores for {len(judged)} answers."
                )
            for index, score in zip(judged, scores, strict=True):
                if score is None:
                    continue
                if not math.isfinite(score):
                    raise RewardError(f"the reward term {name!r} gave {score} for answer {index}.")
                by_name[index][name] = score
                if name == term.name:
                    totals[index] += term.weight * score
        for column, values in term.extra.items():
            for index, value in zip(judged, values, strict=True):
                extra[index][column] = value
    return [Reward(*parts) for parts in zip(totals, by_name, extra, strict=True)]
