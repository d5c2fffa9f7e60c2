"""95 % intervals for rates: Wilson for one 0/1 outcome per problem, bootstrap over problems otherwise.

Several answers to one problem resemble each other, so problems and not answers are drawn again.
Arrays have the suffix _P: one entry per problem.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959963984540054  # the standard normal's 0.975 quantile
RESAMPLES = 4000


@dataclass(frozen=True)
class Estimate:
    """A rate in [0, 1] with its 95 % interval."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def wilson(successes: float, trials: int) -> Estimate:
    """The Wilson score interval of a binomial rate (Wilson 1927; Brown, Cai and DasGupta 2001).

    Unlike the normal interval it stays within [0, 1] and has a width at 0 and at `trials`. Raises
    `ValueError` unless 0 <= successes <= trials and trials >= 1.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes in {trials} trials make no rate")
    rate = successes / trials
    spread = Z_95**2 / trials
    centre = (rate + spread / 2) / (1 + spread)
    half_width = math.sqrt(spread * (rate * (1 - rate) + spread / 4)) / (1 + spread)
    return Estimate(rate, min(rate, max(0.0, centre - half_width)), max(rate, min(1.0, centre + half_width)))


def bootstrap_ratio(numerators_P: np.ndarray, denominators_P: np.ndarray, *, seed: int) -> Estimate:
    """sum(numerators) / sum(denominators), with a percentile bootstrap over problems (Efron 1979).

    With denominators of 1 this is a mean over problems, with numbers of answers a rate over answers.
    Entries lie within [0, denominator]; denominators are positive. Where all problems agree, drawing
    them again shows no spread though there is some: the interval is then Wilson's, with a problem as
    the unit. Raises `ValueError` when there is no problem.
    """
    problems = len(numerators_P)
    if problems == 0 or np.any(denominators_P <= 0):
        raise ValueError("a rate needs at least one problem, each with a positive denominator")
    value = float(numerators_P.sum() / denominators_P.sum())
    if np.ptp(numerators_P / denominators_P) == 0:
        agreed = wilson(value * problems, problems)
        return Estimate(value, min(value, agreed.low), max(value, agreed.high))
    draws = np.random.default_rng(seed).integers(problems, size=(RESAMPLES, problems))
    ratios = numerators_P[draws].sum(axis=1) / denominators_P[draws].sum(axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return Estimate(value, float(low), float(high))


def bootstrap_mean(values_P: np.ndarray, *, seed: int) -> Estimate:
    """The mean over problems of values in [0, 1]; see `bootstrap_ratio`."""
    return bootstrap_ratio(values_P, np.ones(len(values_P)), seed=seed)
