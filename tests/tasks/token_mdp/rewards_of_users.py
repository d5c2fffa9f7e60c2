"""Rewards as users write them. They are loaded in a process of their own, soon without the imports of the tests."""

from __future__ import annotations

import math


def not_finite(answers):
    return [math.nan for _ in answers]


def shortest(answers):
    return [-float(len(answer.code)) for answer in answers]


class OldReward:
    """As rewards were written for the environment of the first DQN."""

    def compute_reward(self, current_code, test_results, previous_code="", step_count=0):
        total = test_results["passed"] / test_results["total"] - 0.1 * len(test_results["errors"])
        return total, {"length": len(current_code), "steps": step_count}


class ByKeywords:
    def compute_reward(self, code, test_results, **kwargs):
        return float(kwargs["episode"]) + (code == "def absolute_value(n):\n    return abs(n)\n")


class OfResultsAlone:
    def compute_reward(self, test_results):
        return 1.0 if test_results["passed"] == test_results["total"] else 0.0


class NeedsMore:
    def compute_reward(self, code, test_results, teacher):
        return 0.0


class NeedsWeights:
    def __init__(self, weight):
        self.weight = weight

    def compute_reward(self, code, test_results):
        return self.weight * test_results["success_rate"]


made = NeedsWeights(4.0)
