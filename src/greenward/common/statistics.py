"""Computes rates with 95 % intervals, paired differences and their tests, pass@k, and logistic recalibration.

Several answers to one problem resemble each other, so the problem is the unit. With P problems, the variance
over problems does not show what no problem has shown yet, which is why the percentile bootstrap and
Student's t fail for few problems and near 0 and 1. Pseudo-problems that take the extreme values are
therefore added before mean and variance are computed:
    m = (sum of values + c·(low + high)) / (P + 2c)
    v = (sum of (value - m)² + c·(low - m)² + c·(high - m)²) / (P + 2c)
    interval: m ± 1.96·sqrt(v / (P + 2c)), within [low, high]

For one answer to each problem this is a published interval: Agresti and Coull's for a rate (1998,
doi:10.2307/2685469; c = z²/2 at 0 and at 1), and Bonett and Price's for a paired difference (2012,
doi:10.3102/1076998611411915; c = 1 at -1 and at 1). `benchmarks/interval_coverage.py` measures coverage and
width, also for several answers and for pass@k. Arrays have the suffix _P: one entry per problem.
Logistic recalibration fits P(outcome) = sigmoid(slope · logit + intercept) (Cox 1958, Platt 1999). A slope
below 1 says that the logits are too large.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

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
    """sum(numerators) / sum(denominators), in [0, 1], with its interval over problems, as of pass@k.

    Of independent trials, `proportion` is the rate.
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


Floats = npt.NDArray[np.float64]

_NEWTON_STEPS = 50
_CONVERGED = 1e-10
_SINGULAR = 1e12  # condition number of the information matrix


@dataclass(frozen=True)
class Recalibration:
    """A fit; `slope_error` is the standard error of the slope."""

    slope: float
    intercept: float
    slope_error: float


def fit_recalibration(logits: Floats, outcomes: Floats, *, prior_weight: float = 0.0) -> Recalibration | None:
    """The most probable slope and intercept for outcomes (0 or 1), by Newton's method.

    With a `prior_weight`, both have normal priors of this precision around "no correction" (1 and 0), so
    that few or separable outcomes give finite answers. Without one, None where there is no finite maximum.
    """
    design = np.column_stack((logits, np.ones_like(logits)))
    prior = np.array([1.0, 0.0])
    weights = prior if prior_weight else np.zeros(2)
    for _ in range(_NEWTON_STEPS):
        rates = 1 / (1 + np.exp(-np.clip(design @ weights, -500, 500)))
        gradient = design.T @ (rates - outcomes) + prior_weight * (weights - prior)
        curvature = (design.T * (rates * (1 - rates))) @ design + prior_weight * np.eye(2)
        if not prior_weight and np.linalg.cond(curvature) > _SINGULAR:
            return None
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < _CONVERGED:
            break
    else:
        if not prior_weight:
            return None
    return Recalibration(float(weights[0]), float(weights[1]), float(np.sqrt(np.linalg.inv(curvature)[0, 0])))


ALPHA = 0.05  # two-sided
POWER = 0.8
_ENUMERATED = 14  # up to so many non-zero differences, all 2^n signs are tried
_SIGN_DRAWS = 20_000
_SIGNS_AT_ONCE = 1 << 23  # as floats they take eight bytes each
_NEGLIGIBLE = 1e-10


def median(values: npt.ArrayLike) -> float:
    """The median of some numbers; NaN where one of them is NaN, or there is none."""
    return float(medians(values))


def medians(values_P: npt.ArrayLike) -> Floats:
    """The medians along the last axis. `np.median` would import numpy.ma, which takes 10 ms."""
    values = np.asarray(values_P, float)
    if not (count := values.shape[-1]):
        return np.full(values.shape[:-1], np.nan)
    low, high = (count - 1) // 2, count // 2
    parted = np.partition(values, (low, high, count - 1))
    middle = parted[..., low] if low == high else (parted[..., low] + parted[..., high]) / 2
    return np.where(np.isnan(parted[..., -1]), np.nan, middle)  # NaN come last


def distinct(values: npt.ArrayLike) -> np.ndarray:
    """The different values, rising. `np.unique` without the counts would import numpy.ma as well."""
    return np.unique(values, return_counts=True)[0]


def mcnemar_exact(won: int, lost: int) -> float:
    """The two-sided p-value of the exact (conditional) McNemar test.

    `won` and `lost` count the problems that only one side solved; the others tell nothing. Under the
    null hypothesis each goes either way with probability 1/2 (McNemar 1947).
    """
    return min(1.0, 2.0 * float(_binomial(won + lost, 0.5, 0, min(won, lost)).sum()))


def mcnemar_mid_p(won: int, lost: int) -> float:
    """The mid-p McNemar test: less conservative, its error rate rarely above the nominal one.

    The exact p-value less the probability of what was observed, or less half of that when won equals
    lost (Fagerland, Lydersen and Laake 2013, doi:10.1186/1471-2288-13-91).
    """
    observed = float(_binomial(won + lost, 0.5, won, won)[0])
    return mcnemar_exact(won, lost) - (observed / 2 if won == lost else observed)


def sign_flip_p_value(differences_P: np.ndarray, *, seed: int) -> float:
    """The two-sided p-value of Fisher's paired randomisation test on the mean difference.

    If both sides are alike, each problem's difference is as likely as its opposite. All signs are
    tried for few non-zero differences, else 20,000 random ones, with the observed one among them. With
    one answer per problem this is the exact McNemar test.
    """
    nonzero = differences_P[differences_P != 0]
    count = len(nonzero)
    observed = abs(nonzero.sum()) - 1e-9  # equal sums differ by rounding
    if count <= _ENUMERATED:
        signs = 1 - 2 * ((np.arange(2**count)[:, None] >> np.arange(count)) & 1)
        return float(np.mean(np.abs(signs @ nonzero) >= observed))
    rng = np.random.default_rng(seed)
    as_extreme = 0
    most = min(_SIGN_DRAWS // 10, _SIGNS_AT_ONCE // count)
    step = max(4, most - most % 4)  # by fours: then the signs are the same, however many are drawn at once
    for first in range(0, _SIGN_DRAWS, step):
        draws = min(step, _SIGN_DRAWS - first)
        signs = 1 - 2 * rng.integers(2, size=(draws, count), dtype=np.int8)
        as_extreme += int(np.sum(np.abs(signs @ nonzero) >= observed))
    return (as_extreme + 1) / (_SIGN_DRAWS + 1)


def detectable_rate_difference(problems: int, discordant_rate: float) -> float | None:
    """The least true difference that the exact McNemar test finds with power 80 % at alpha 5 %.

    `discordant_rate` is the share of problems solved by one side only; a difference larger than it
    implies a larger share. The power is exact: the discordant problems are binomial with that rate, and
    the wins among them binomial with (1 + difference / rate) / 2 (Connor 1987, doi:10.2307/2531961, gives
    the large-sample form). None when `problems` are too few for any difference, which holds below 6.
    """
    low, high = 0.0, 1.0
    if mcnemar_power(problems, discordant_rate, high) < POWER:
        return None
    while high - low > 1e-4:
        middle = (low + high) / 2
        found = mcnemar_power(problems, discordant_rate, middle) >= POWER
        low, high = (low, middle) if found else (middle, high)
    return high


def mcnemar_power(problems: int, discordant_rate: float, difference: float) -> float:
    """The chance that the exact McNemar test gives p <= 5 % when `difference` is the true one."""
    rate = max(discordant_rate, difference)
    if rate == 0:
        return 0.0
    chance_of_win = (1 + difference / rate) / 2
    power = 0.0
    low, high = _usual_range(problems, rate)
    for discordant, chance in enumerate(_binomial(problems, rate, low, high), low):
        if chance > _NEGLIGIBLE and (limit := _rejection_limit(discordant)) >= 0:
            first, last = _usual_range(discordant, chance_of_win)
            wins = _binomial(discordant, chance_of_win, first, last)
            few, many = max(0, limit + 1 - first), max(0, discordant - limit - first)
            power += chance * float(wins[:few].sum() + wins[many:].sum())
    return power


def detectable_mean_difference(differences_P: np.ndarray) -> float | None:
    """The least true mean difference that the sign-flip test finds with power 80 % at alpha 5 %.

    That test is the exact McNemar test where all differences but zeros have one size: here the root mean
    square of those observed, or 1 if there are none. For many differences, the result nears that of the
    normal test, (z_0.975 + z_0.80) · s / sqrt(P) (Miller 2024, arXiv:2411.00640, section 5), which would
    promise for few of them what no test can find. None when the problems are too few for any difference.
    """
    nonzero = differences_P[differences_P != 0]
    size = math.sqrt(np.mean(nonzero**2)) if len(nonzero) else 1.0
    found = detectable_rate_difference(len(differences_P), len(nonzero) / len(differences_P))
    return None if found is None else size * found


@cache
def _rejection_limit(discordant: int) -> int:
    """The most wins (or losses) among so many discordant problems that still mean p <= 5 %; -1: none."""
    low, high = _usual_range(discordant, 0.5)
    lower_tail = np.cumsum(_binomial(discordant, 0.5, low, high))
    return low + int(np.searchsorted(lower_tail, ALPHA / 2, side="right")) - 1


def _usual_range(trials: int, chance: float) -> tuple[int, int]:
    """The least and the most successes, beyond which the chance is below 1e-20 (Bernstein's inequality)."""
    mean = trials * chance
    reach = 12 * math.sqrt(mean * (1 - chance)) + 60
    return max(0, math.floor(mean - reach)), min(trials, math.ceil(mean + reach))


def _binomial(trials: int, chance: float, low: int, high: int) -> np.ndarray:
    """P(X = x) for x from `low` to `high`."""
    x = np.arange(low, high + 1)
    if chance in (0.0, 1.0):
        return (x == trials * chance).astype(float)
    log_factorial = _log_factorials(1 << max(10, trials.bit_length()))
    log_choose = log_factorial[trials] - log_factorial[x] - log_factorial[trials - x]
    probabilities: np.ndarray = np.exp(log_choose + x * math.log(chance) + (trials - x) * math.log1p(-chance))
    return probabilities


@cache
def _log_factorials(count: int) -> np.ndarray:
    """log n! for n from 0 to `count`."""
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
