"""Shipped rewards as plain functions, as one's own may be: examples, and what an audit can be shown."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from greenward.config.sections import RewardTermConfig
from greenward.grading.grader import Grader
from greenward.grading.reward_terms import make_reward
from greenward.grading.rewards import GradedAnswer, RewardTerm, combine


def tests(answers: list[GradedAnswer]) -> list[float]:
    """What the recipe's default `rewards` give: the fraction of tests passed, plus 1 when all pass."""
    return weighted(answers, rewards=[{"name": "tests"}])


def weighted(answers: list[GradedAnswer], *, rewards: Sequence[Mapping[str, Any]]) -> list[float]:
    """The reward of a recipe: the weighted sum of the terms in its section `rewards`."""
    return [reward.total for reward in combine(_terms(json.dumps(rewards)), answers, _grader())]


@cache
def _terms(rewards: str) -> tuple[RewardTerm, ...]:
    return tuple(make_reward(RewardTermConfig.model_validate(row)) for row in json.loads(rewards))


@cache
def _grader() -> Grader:
    return Grader(workers=1)
