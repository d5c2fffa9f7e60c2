"""Reward terms, the records that they read and return, and their weighted sum for each answer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from greenward.common.errors import RewardError
from greenward.grading.verdict import Family, Verdict
from greenward.problems.problem import Problem

if TYPE_CHECKING:
    from greenward.grading.judge import Grader


@dataclass(frozen=True)
class GradedAnswer:
    """One answer with its verdict. `code` is None when the completion holds no code.

    `messages` are those that a chat prompt was made of, empty for a plain one. The token ids are what the
    policy read and wrote, empty where no policy wrote the answer. `files` are further files that the answer
    changes (`extraction.Extracted`).
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


@dataclass(frozen=True)
class Reward:
    """The weighted sum of the terms that apply, and the unweighted terms by name.

    `extra` is what terms logged about the answer beside their scores.
    """

    total: float
    terms: Mapping[str, float] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class RewardTerm(ABC):
    """One component of the reward. It has a `name` and a `weight`.

    `extra` holds columns that were logged beside the scores, with one value for each answer of the last
    batch.
    """

    name: str
    weight: float
    extra: Mapping[str, Sequence[Any]] = MappingProxyType({})

    @abstractmethod
    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        """A score for each answer, None where the term does not apply."""

    def score_by_name(
        self, answers: Sequence[GradedAnswer], grader: Grader
    ) -> Mapping[str, list[float | None]]:
        """The term's own scores under its name, and those of the parts of a composed term under theirs."""
        return {self.name: self.score(answers, grader)}

    def begin(self, step: int) -> None:  # noqa: B027 (most terms do not depend on the step)
        """Says which step the next batches belong to, counted from 0."""

    def take_metrics(self) -> Mapping[str, Sequence[float]]:
        """The metrics logged since the last call, by name."""
        return {}


@dataclass(frozen=True)
class ShippedTerm(RewardTerm):
    """A term that recipes name: `class Mine(ShippedTerm, name="mine")`; further fields are its options."""

    weight: float = 1.0

    def __init_subclass__(cls, *, name: str = "") -> None:
        if name:
            cls.name = name


class AnswerTerm(ShippedTerm):
    """A term whose score of an answer depends on that answer alone."""

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        return [self.of_answer(answer) for answer in answers]

    @abstractmethod
    def of_answer(self, answer: GradedAnswer) -> float | None:
        """The score of one answer, None where the term does not apply."""


def combine(terms: Sequence[RewardTerm], answers: Sequence[GradedAnswer], grader: Grader) -> list[Reward]:
    """The reward of each answer: the weighted sum of the terms that apply to it.

    The parts of a composed term are reported beside it and weigh nothing of their own. An answer that
    the infrastructure failed reaches no term and gets 0: its episode leaves the loss.

    Raises `RewardError` for a term that gives the wrong number of scores or a score that is not finite.
    """
    judged = [
        index
        for index, answer in enumerate(answers)
        if answer.verdict.status.family is not Family.INFRASTRUCTURE
    ]
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
