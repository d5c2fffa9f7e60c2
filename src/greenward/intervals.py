"""Rates with 95 % intervals, paired differences with theirs, and pass@k: the only place that computes them.

Several answers to one problem resemble each other, so that the problem is the unit. With P problems, the
variance over problems does not show what no problem has shown yet, which is why the percentile bootstrap
and Student's t fail for few problems and near 0 and 1. Pseudo-problems that take the extreme values are
therefore added before mean and variance are computed:

    m = (sum of values + c·(low + high)) / (P + 2c)
    v = (sum of (value - m)² + c·(low - m)² + c·(high - m)²) / (P + 2c)
    interval: m ± 1.96·sqrt(v / (P + 2c)), within [low, high]

For one answer to each problem this is a published interval: Agresti and Coull's for a rate (1998,
doi:10.2307/2685469; c = z²/2 at 0 and at 1), and Bonett and Price's for a paired difference (2012,
doi:10.3102/1076998611411915; c = 1 at -1 and at 1). `benchmarks/interval_coverage.py` measures coverage
and width, also for several answers and for pass@k.

Arrays have the suffix _P: one entry per problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Z_95 = 1.959963984540054  # the standard normal's 0.975 quantile
_RATE_PSEUDO_PROBLEMS = Z_95**2 / 2  # at each end
_DIFFERENCE_PSEUDO_PROBLEMS = 1.0
_ROUNDING = 1e-12  # sums of equal shares differ by less
_LOST = 2.0**-54  # 1 less a smaller number is 1


@dataclass(frozen=True)
class Estimate:
    """A rate, or a difference of rates, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """Of a difference: 1 or -1 when its interval is on one side of 0, 0 when it includes 0."""
        return (self.low > _ROUNDING) - (self.high < -_ROUNDING)

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Estimate:
        """The inverse of `to_json`; other keys of the record are ignored."""
        return cls(record["value"], record["low"], record["high"])


def pass_at_k(samples: int, passed: int, k: int) -> float | None:
    """Unbiased pass@k of one problem, of whose `samples` answers `passed` passed.

    1 - C(n - c, k) / C(n, k), as a product that does not overflow (Chen et al. 2021, arXiv:2107.03374,
    eq. 1). None when there are fewer than k answers: the quantity is undefined then, and
    1 - (1 - c/n)^k would be biased. Raises `ValueError` unless 0 <= passed <= samples and k >= 1.
    """
    if not 0 <= passed <= samples or k < 1:
        raise ValueError(f"pass@{k} of {passed} passed among {samples} answers means nothing")
    if samples < k:
        return None
    if samples - passed < k:
        return 1.0
    few, many = sorted((passed, k))  # in which the formula is symmetric
    none_passes = 1.0
    for i in range(samples - few + 1, samples + 1):
        none_passes *= 1.0 - many / i
        if none_passes < _LOST:
            break
    return 1.0 - none_passes


def rate(numerators_P: np.ndarray, denominators_P: np.ndarray | None = None) -> Estimate:
    """sum(numerators) / sum(denominators), in [0, 1], with its interval over problems.

    Without denominators this is a mean over problems of values in [0, 1]; with the numbers of answers, a
    rate over answers, in which a problem weighs as much as it has answers. Raises `ValueError` when there
    is no problem, a denominator is not positive, or a numerator is outside [0, denominator].
    """
    weights_P = np.ones(len(numerators_P)) if denominators_P is None else denominators_P
    if len(weights_P) == 0 or np.any(weights_P <= 0):
        raise ValueError("a rate needs at least one problem, each with a positive denominator")
    if np.any(numerators_P < 0) or np.any(numerators_P > weights_P * (1 + 1e-9)):
        raise ValueError("numerators must lie between 0 and their denominators")
    return _mean(numerators_P / weights_P, weights_P / weights_P.mean(), 0.0, 1.0, _RATE_PSEUDO_PROBLEMS)


def wilson(rates_P: np.ndarray, sizes_P: np.ndarray, z: float = Z_95) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of Wilson's interval (1927), of 95 %, of rates over `sizes_P` independent trials each."""
    z2 = z**2
    centre_P = (rates_P + z2 / (2 * sizes_P)) / (1 + z2 / sizes_P)
    half_P = np.sqrt(z2 * (rates_P * (1 - rates_P) / sizes_P + z2 / (4 * sizes_P**2))) / (1 + z2 / sizes_P)
    return np.clip(centre_P - half_P, 0, 1), np.clip(centre_P + half_P, 0, 1)


def proportion(successes: int, trials: int) -> Estimate:
    """The rate of successes in independent trials, at least one, with Wilson's interval."""
    share = np.array([successes / trials])
    low, high = wilson(share, np.array([float(trials)]))
    return Estimate(float(share[0]), float(low[0]), float(high[0]))


def paired_difference(differences_P: np.ndarray) -> Estimate:
    """The mean of differences in [-1, 1] between two sides that answered the same problems.

    Raises `ValueError` when there is no problem.
    """
    if len(differences_P) == 0:
        raise ValueError("a difference needs at least one problem")
    return _mean(differences_P, np.ones(len(differences_P)), -1.0, 1.0, _DIFFERENCE_PSEUDO_PROBLEMS)


def _mean(values_P: np.ndarray, weights_P: np.ndarray, least: float, most: float, pseudo: float) -> Estimate:
    """The interval of the module's docstring; `weights_P` average 1, which is a pseudo-problem's weight."""
    count = len(values_P) + 2 * pseudo
    value = float((weights_P * values_P).sum() / len(values_P))
    centre = float(((weights_P * values_P).sum() + pseudo * (least + most)) / count)
    squares = float(((weights_P * (values_P - centre)) ** 2).sum())
    squares += pseudo * ((least - centre) ** 2 + (most - centre) ** 2)
    half_width = Z_95 * math.sqrt(squares) / count
    value = min(most, max(least, value))  # a mean of equal values may differ from them by rounding
    low, high = max(least, centre - half_width), min(most, centre + half_width)
    return Estimate(value, min(value, low), max(value, high))
