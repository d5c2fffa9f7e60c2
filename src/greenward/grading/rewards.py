"""Rewards: terms by name and weight, and their sum for each answer."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from greenward.config.sections import RewardTermConfig
from greenward.errors import ConfigError, RewardError
from greenward.grading.code_quality import CodeQuality
from greenward.grading.custom_reward import CustomReward
from greenward.grading.graded_answer import ComposedTerm, GradedAnswer, LoggingTerm, Reward, RewardTerm
from greenward.grading.grader import Grader
from greenward.grading.readability import CodeScore, Readability
from greenward.grading.reward_terms import AllTests, ExecutionLadder, Format, Tests
from greenward.grading.verdict import Family

__all__ = ["SHIPPED_TERMS", "GradedAnswer", "Reward", "RewardTerm", "combine", "make_reward"]

SHIPPED_TERMS: dict[str, Any] = {
    term.name: term
    for term in (Tests, AllTests, ExecutionLadder, CodeQuality, Format, Readability, CodeScore)
}


def make_reward(config: RewardTermConfig, **training: Any) -> RewardTerm:
    """The term that a recipe names: a shipped one, or `module:function`.

    `training` is what `CustomReward` is told of the training.

    Raises `ConfigError` for an unknown name or option (naming the nearest), `RewardError` for a
    function that cannot be imported or called.
    """
    if ":" in config.name:
        return CustomReward(config, **training)
    shipped = SHIPPED_TERMS.get(config.name)
    if shipped is None:
        raise ConfigError(
            f"there is no reward term {config.name!r}.",
            remedy=_nearest(config.name, list(SHIPPED_TERMS)) + " Your own: 'module:function'.",
        )
    options = [
        one.name for one in dataclasses.fields(shipped) if one.init and one.name not in ("name", "weight")
    ]
    for option in config.options:
        if option not in options:
            raise ConfigError(
                f"the reward term {config.name!r} has no option {option!r}.", remedy=_nearest(option, options)
            )
    term: RewardTerm = shipped(weight=config.weight, **config.options)
    return term


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
    for term in terms if judged else ():
        reported = _score_by_name(term, [answers[index] for index in judged], grader)
        for name, scores in reported.items():
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
        for index, score in zip(judged, reported[term.name], strict=True):
            totals[index] += term.weight * (score or 0.0)
        for column, values in term.extra.items() if isinstance(term, LoggingTerm) else ():
            for index, value in zip(judged, values, strict=True):
                extra[index][column] = value
    return [Reward(*parts) for parts in zip(totals, by_name, extra, strict=True)]


def _score_by_name(
    term: RewardTerm, answers: Sequence[GradedAnswer], grader: Grader
) -> Mapping[str, list[float | None]]:
    if isinstance(term, ComposedTerm):
        return term.score_by_name(answers, grader)
    return {term.name: term.score(answers, grader)}


def _nearest(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known) or 'none'}."
