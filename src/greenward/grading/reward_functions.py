"""The default reward as a plain function, as one's own may be: an example, and what an audit can be shown."""

from __future__ import annotations

from functools import cache

from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.reward_terms import Tests
from greenward.grading.rewards import combine


def tests(answers: list[GradedAnswer]) -> list[float]:
    """What the recipe's default `rewards` give: the fraction of tests passed, plus 1 when all pass."""
    return [reward.total for reward in combine([Tests()], answers, _grader())]


@cache
def _grader() -> Grader:
    return Grader(workers=1)
