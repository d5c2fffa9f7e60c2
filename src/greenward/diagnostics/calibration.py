"""Are predicted probabilities as often right as they say? Measures on (probability, outcome) pairs.

The calibration score is 1 − √(reliability / uncertainty): the root mean square distance between the
predicted and the observed rate, over bins of equal mass, in units of the standard deviation of the
outcomes. 1 is calibrated; 0 is as far off as a forecast can be that is no better than its opposite.
The reliability is freed of the bias that comes from few pairs in a bin (Ferro & Fricker 2012, Q. J. R.
Meteorol. Soc. 138), so the score of a calibrated forecast does not depend on how many pairs there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from greenward.errors import DiagnosticsError
from greenward.intervals import Z_95
from greenward.logistic import fit_recalibration

Floats = npt.NDArray[np.float64]

WARNING_SCORE = 0.7
BINS = 10
MIN_PAIRS = 50
_NULL_SAMPLES = 1000
_CLIP = 1e-6  # probabilities are moved this far from 0 and 1 before their logit is taken
_CHUNK = 2_000_000  # random numbers drawn at once


@dataclass(frozen=True)
class Bin:
    """One point of the reliability diagram, with the 95 % Wilson interval of the observed rate."""

    count: int
    predicted: float
    observed: float
    low: float
    high: float


@dataclass(frozen=True)
class Murphy:
    """Brier score = reliability − resolution + uncertainty + within_bin (Murphy 1973, Stephenson 2008).

    `within_bin` is what the spread of the predictions inside the bins adds; it is 0 when the
    predictions of a bin are all equal.
    """

    brier: float
    reliability: float
    resolution: float
    uncertainty: float
    within_bin: float


@dataclass(frozen=True)
class Slope:
    """Logistic recalibration: logit P(outcome) = intercept + slope · logit(predicted) (Cox 1958).

    A slope below 1 is overconfidence, above 1 underconfidence; `low` and `high` are its 95 % Wald interval.
    """

    slope: float
    low: float
    high: float
    intercept: float


@dataclass(frozen=True)
class Calibration:
    """All measures of one set of pairs. `slope` is None where the outcomes are perfectly separated.

    `ece_null_median` and `ece_null_95` are what the ECE of the same predictions would be if they were
    calibrated; `ece_p_value` is the chance of an ECE as large as this one then.
    """

    pairs: int
    score: float
    ece: float
    ece_null_median: float
    ece_null_95: float
    ece_p_value: float
    murphy: Murphy
    slope: Slope | None
    bins: tuple[Bin, ...]


def measure_calibration(
    probabilities: npt.ArrayLike, outcomes: npt.ArrayLike, *, bins: int = BINS, seed: int = 0
) -> Calibration:
    """Measure the calibration of `probabilities` (0 to 1) of `outcomes` (0 or 1).

    Raises:
        DiagnosticsError: fewer than MIN_PAIRS pairs, one class only, or values out of range.
    """
    predicted, observed = _sorted(*_checked(probabilities, outcomes))
    starts, sizes, mean_predicted, rates = _binned(predicted, observed, bins)
    murphy = _murphy(predicted, observed, sizes, mean_predicted, rates)
    ece = float((sizes * np.abs(rates - mean_predicted)).sum() / len(predicted))
    null = _ece_null(predicted, starts, sizes, mean_predicted, seed)
    low, high = _wilson(rates, sizes)
    return Calibration(
        pairs=len(predicted),
        score=_score(murphy, sizes, rates),
        ece=ece,
        ece_null_median=float(np.median(null)),
        ece_null_95=float(np.quantile(null, 0.95)),
        ece_p_value=float((1 + (null >= ece - 1e-12).sum()) / (1 + len(null))),
        murphy=murphy,
        slope=recalibration_slope(predicted, observed),
        bins=tuple(
            Bin(int(n), float(p), float(o), float(lo), float(hi))
            for n, p, o, lo, hi in zip(sizes, mean_predicted, rates, low, high, strict=True)
        ),
    )


def calibration_score(probabilities: npt.ArrayLike, outcomes: npt.ArrayLike, *, bins: int = BINS) -> float:
    """The score of `measure_calibration` alone, without the simulated null distribution.

    Raises:
        DiagnosticsError: as `measure_calibration`.
    """
    predicted, observed = _sorted(*_checked(probabilities, outcomes))
    _, sizes, mean_predicted, rates = _binned(predicted, observed, bins)
    return _score(_murphy(predicted, observed, sizes, mean_predicted, rates), sizes, rates)


def score_p_value(
    probabilities: npt.ArrayLike,
    outcomes: npt.ArrayLike,
    threshold: float,
    *,
    bins: int = BINS,
    seed: int = 0,
) -> float:
    """The p-value of the hypothesis that the score of the forecast is `threshold` or better.

    A parametric bootstrap: outcomes are drawn from rates between the predictions and the observed rates of
    their bins, as far from the predictions as the threshold allows. The p-value is the share of the scores
    of these outcomes that are as low as the measured score; it is 1 for a score above the threshold.

    Raises:
        DiagnosticsError: as `measure_calibration`.
    """
    predicted, observed = _sorted(*_checked(probabilities, outcomes))
    starts, sizes, means, rates = _binned(predicted, observed, bins)
    score = _score(_murphy(predicted, observed, sizes, means, rates), sizes, rates)
    if score >= threshold:
        return 1.0
    moved = (1 - threshold) / (1 - score) * (rates - means)
    true_rates = np.clip(predicted + np.repeat(moved, sizes.astype(int)), 0, 1)
    rng = np.random.default_rng(seed)
    as_low = 0
    for _ in range(_NULL_SAMPLES):
        drawn = (rng.random(len(predicted)) < true_rates).astype(float)
        if drawn.min() == drawn.max():
            continue
        drawn_rates = np.add.reduceat(drawn, starts) / sizes
        as_low += _score(_murphy(predicted, drawn, sizes, means, drawn_rates), sizes, drawn_rates) <= score
    return (1 + as_low) / (1 + _NULL_SAMPLES)


def equal_mass_starts(ordered: Floats, bins: int) -> npt.NDArray[np.intp]:
    """Where each bin begins in sorted predictions; equal predictions are never parted."""
    wanted = np.arange(bins) * len(ordered) // bins
    return np.unique(np.searchsorted(ordered, ordered[wanted], side="left"))


def recalibration_slope(predicted: Floats, observed: Floats) -> Slope | None:
    """The slope with its Wald interval; None if there is no finite maximum."""
    clipped = np.clip(predicted, _CLIP, 1 - _CLIP)
    logits = np.log(clipped / (1 - clipped))
    fit = fit_recalibration(logits, observed) if np.ptp(logits) else None
    if fit is None:
        return None
    half = Z_95 * fit.slope_error
    return Slope(fit.slope, fit.slope - half, fit.slope + half, fit.intercept)


def _checked(probabilities: npt.ArrayLike, outcomes: npt.ArrayLike) -> tuple[Floats, Floats]:
    predicted, observed = np.asarray(probabilities, float), np.asarray(outcomes, float)
    if predicted.ndim != 1 or predicted.shape != observed.shape:
        raise DiagnosticsError(
            f"expected one outcome a probability, found shapes {predicted.shape} and {observed.shape}"
        )
    if len(predicted) < MIN_PAIRS:
        raise DiagnosticsError(f"calibration needs at least {MIN_PAIRS} predictions, found {len(predicted)}")
    if not np.all((predicted >= 0) & (predicted <= 1)):  # NaN fails it, too
        raise DiagnosticsError("expected probabilities between 0 and 1")
    if not np.all((observed == 0) | (observed == 1)):
        raise DiagnosticsError("expected outcomes that are 0 or 1")
    if observed.min() == observed.max():
        raise DiagnosticsError(
            f"all {len(observed)} outcomes are {observed[0]:.0f}, so calibration has no scale"
        )
    return predicted, observed


def _sorted(predicted: Floats, observed: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(predicted, kind="stable")
    return predicted[order], observed[order]


def _binned(
    predicted: Floats, observed: Floats, bins: int
) -> tuple[npt.NDArray[np.intp], Floats, Floats, Floats]:
    """(starts, sizes, mean predictions, observed rates) of the bins of sorted predictions."""
    starts = equal_mass_starts(predicted, bins)
    sizes = np.diff(np.append(starts, len(predicted))).astype(float)
    return (
        starts,
        sizes,
        np.add.reduceat(predicted, starts) / sizes,
        np.add.reduceat(observed, starts) / sizes,
    )


def _murphy(predicted: Floats, observed: Floats, sizes: Floats, means: Floats, rates: Floats) -> Murphy:
    total, base = len(predicted), float(observed.mean())
    brier = float(((predicted - observed) ** 2).mean())
    reliability = float((sizes * (means - rates) ** 2).sum() / total)
    resolution = float((sizes * (rates - base) ** 2).sum() / total)
    uncertainty = base * (1 - base)
    rest = brier - (reliability - resolution + uncertainty)
    return Murphy(brier, reliability, resolution, uncertainty, rest)


def _score(murphy: Murphy, sizes: Floats, rates: Floats) -> float:
    bias = float((sizes * rates * (1 - rates) / np.maximum(sizes - 1, 1)).sum() / sizes.sum())
    reliability = max(0.0, murphy.reliability - bias)
    return max(0.0, 1 - float(np.sqrt(reliability / murphy.uncertainty)))


def _ece_null(
    predicted: Floats, starts: npt.NDArray[np.intp], sizes: Floats, means: Floats, seed: int
) -> Floats:
    rng = np.random.default_rng(seed)
    at_once = max(1, _CHUNK // len(predicted))
    errors = []
    for first in range(0, _NULL_SAMPLES, at_once):
        count = min(at_once, _NULL_SAMPLES - first)
        drawn = (rng.random((count, len(predicted))) < predicted).astype(np.float32)
        rates = np.add.reduceat(drawn, starts, axis=1) / sizes
        errors.append((sizes * np.abs(rates - means)).sum(axis=1) / len(predicted))
    return np.concatenate(errors)


def _wilson(rates: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    z2 = Z_95**2
    centre = (rates + z2 / (2 * sizes)) / (1 + z2 / sizes)
    half = np.sqrt(z2 * (rates * (1 - rates) / sizes + z2 / (4 * sizes**2))) / (1 + z2 / sizes)
    return centre - half, centre + half
