"""Whether a paired difference can be told from chance, and how small a one could be at all.

Arrays have the suffix _P: one entry per problem that both sides answered. Rates and differences are
fractions, not percentages.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from greenward.intervals import Z_95

ALPHA = 0.05  # two-sided
POWER = 0.8
Z_POWER = 0.8416212335729143  # the standard normal's 0.80 quantile
_ENUMERATED = 14  # up to so many non-zero differences, all 2^n signs are tried
_SIGN_DRAWS = 20_000
_NEGLIGIBLE = 1e-10


def mcnemar_exact(won: int, lost: int) -> float:
    """The two-sided p-value of the exact (conditional) McNemar test.

    `won` and `lost` count the problems that only one side solved; the others tell nothing. Under the
    null hypothesis each goes either way with probability 1/2 (McNemar 1947).
    """
    return min(1.0, 2.0 * float(_lower_tail(won + lost)[min(won, lost)]))


def mcnemar_mid_p(won: int, lost: int) -> float:
    """The mid-p McNemar test: less conservative, its error rate rarely above the nominal one.

    The exact p-value less the probability of what was observed, or less half of that when won equals
    lost (Fagerland, Lydersen and Laake 2013, doi:10.1186/1471-2288-13-91).
    """
    observed = math.comb(won + lost, won) / 2 ** (won + lost)
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
    for _ in range(10):
        signs = 1 - 2 * rng.integers(2, size=(_SIGN_DRAWS // 10, count), dtype=np.int8)
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
    for discordant, chance in enumerate(_binomial(problems, rate)):
        if chance > _NEGLIGIBLE and (limit := _rejection_limit(discordant)) >= 0:
            wins = _binomial(discordant, chance_of_win)
            power += chance * float(wins[: limit + 1].sum() + wins[discordant - limit :].sum())
    return power


def detectable_mean_difference(differences_P: np.ndarray) -> float | None:
    """The least true mean difference found with power 80 % at alpha 5 %, from the observed spread.

    (z_0.975 + z_0.80) · s / sqrt(P) (Miller 2024, arXiv:2411.00640, section 5). None when the differences
    show no spread.
    """
    if len(differences_P) < 2 or np.ptp(differences_P) == 0:
        return None
    return float((Z_95 + Z_POWER) * differences_P.std(ddof=1) / math.sqrt(len(differences_P)))


@cache
def _rejection_limit(discordant: int) -> int:
    """The most wins (or losses) among so many discordant problems that still mean p <= 5 %; -1: none."""
    return int(np.searchsorted(_lower_tail(discordant), ALPHA / 2, side="right")) - 1


def _lower_tail(trials: int) -> np.ndarray:
    """P(X <= x) of a fair coin, for x from 0 to `trials`."""
    return np.cumsum(_binomial(trials, 0.5))


def _binomial(trials: int, chance: float) -> np.ndarray:
    """P(X = x) for x from 0 to `trials`."""
    x = np.arange(trials + 1)
    if chance in (0.0, 1.0):
        return (x == trials * chance).astype(float)
    log_factorial = _log_factorials(1 << max(10, trials.bit_length()))[: trials + 1]
    log_choose = log_factorial[trials] - log_factorial - log_factorial[::-1]
    probabilities: np.ndarray = np.exp(log_choose + x * math.log(chance) + (trials - x) * math.log1p(-chance))
    return probabilities


@cache
def _log_factorials(count: int) -> np.ndarray:
    """log n! for n from 0 to `count`."""
    return np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
