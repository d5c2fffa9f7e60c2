"""Measures whether predicted probabilities are the rates that come true, and how two reward models differ.

The calibration score is 1 − √(reliability / uncertainty): the root mean square distance between the
predicted and the observed rate, over bins of equal mass, in units of the standard deviation of the outcomes.
1 is calibrated; at 0 the forecast is no better than its opposite. The reliability is freed of the bias that
comes from few pairs in a bin (Ferro & Fricker 2012, Q. J. R. Meteorol. Soc. 138), so the score of a
calibrated forecast does not depend on how many pairs there are.

- ECE, the expected calibration error, stands beside that of 1,000 draws of outcomes from the predictions: a
  calibrated model has about 0.035 with 1,000 predictions and 0.11 with 100.
- The Brier score and its parts (Murphy 1973), and a reliability diagram with 95 % Wilson intervals.
- The slope of logistic recalibration (Cox 1958): below 1 is overconfidence. An interval that contains 0 says
  nothing.

At least 50 predictions with both outcomes are needed; they are put into 10 bins.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greenward.common.errors import DiagnosticsError
from greenward.common.statistics import Z_95, distinct, fit_recalibration, median, wilson
from greenward.diagnostics.change_points import Floats
from greenward.runs.files import JsonRows

WARNING_SCORE = 0.7
BINS = 10
MIN_PAIRS = 50
_NULL_SAMPLES = 1000
_CLIP = 1e-6  # probabilities are moved this far from 0 and 1 before their logit is taken


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


def measure_calibration(probabilities: npt.ArrayLike, outcomes: npt.ArrayLike) -> Calibration:
    """Measure the calibration of `probabilities` (0 to 1) of `outcomes` (0 or 1).

    Raises:
        DiagnosticsError: fewer than MIN_PAIRS pairs, one class only, or values out of range.
    """
    forecast = _binned(probabilities, outcomes)
    ece = float(forecast.calibration_error(forecast.rates))
    null = forecast.calibration_error(_simulated_rates(forecast, forecast.predicted))
    columns = (forecast.means, forecast.rates, *wilson(forecast.rates, forecast.sizes))
    return Calibration(
        len(forecast.predicted),
        float(forecast.score(forecast.rates)),
        ece,
        median(null),
        float(np.quantile(null, 0.95)),
        float((1 + (null >= ece - 1e-12).sum()) / (1 + len(null))),
        forecast.murphy,
        _overconfidence_slope(forecast.predicted, forecast.observed),
        tuple(Bin(int(n), *map(float, cells)) for n, *cells in zip(forecast.sizes, *columns, strict=True)),
    )


def calibration_score(probabilities: npt.ArrayLike, outcomes: npt.ArrayLike) -> float:
    """The score of `measure_calibration` alone, without the simulated null distribution.

    Raises:
        DiagnosticsError: as `measure_calibration`.
    """
    forecast = _binned(probabilities, outcomes)
    return float(forecast.score(forecast.rates))


def score_p_value(
    probabilities: npt.ArrayLike, outcomes: npt.ArrayLike, threshold: float, *, seed: int = 0
) -> float:
    """The p-value of the hypothesis that the score of the forecast is `threshold` or better.

    A parametric bootstrap: outcomes are drawn from rates between the predictions and the observed rates of
    their bins, as far from the predictions as the threshold allows. The p-value is the share of the scores
    of these outcomes that are as low as the measured score; it is 1 for a score above the threshold.

    Raises:
        DiagnosticsError: as `measure_calibration`.
    """
    forecast = _binned(probabilities, outcomes)
    score = float(forecast.score(forecast.rates))
    if score >= threshold:
        return 1.0
    moved = (1 - threshold) / (1 - score) * (forecast.rates - forecast.means)
    true_rates = np.clip(forecast.predicted + np.repeat(moved, forecast.sizes.astype(int)), 0, 1)
    scores = forecast.score(_simulated_rates(forecast, true_rates, seed))
    return float((1 + (scores <= score).sum()) / (1 + len(scores)))


@dataclass(frozen=True)
class _Forecast:
    """Sorted predictions with their outcomes, in bins that begin at `starts`."""

    predicted: Floats
    observed: Floats
    starts: npt.NDArray[np.intp]
    sizes: Floats
    means: Floats  # of the predictions of each bin
    rates: Floats  # of the outcomes of each bin

    def calibration_error(self, rates: Floats) -> Floats:
        """The expected calibration error (ECE) if the outcomes had these rates, of shape (…, bins)."""
        return np.asarray((self.sizes * np.abs(rates - self.means)).sum(axis=-1) / len(self.predicted), float)

    @property
    def murphy(self) -> Murphy:
        total, base = len(self.predicted), float(self.observed.mean())
        brier = float(((self.predicted - self.observed) ** 2).mean())
        reliability = float((self.sizes * (self.means - self.rates) ** 2).sum() / total)
        resolution = float((self.sizes * (self.rates - base) ** 2).sum() / total)
        uncertainty = base * (1 - base)
        rest = brier - (reliability - resolution + uncertainty)
        return Murphy(brier, reliability, resolution, uncertainty, rest)

    def score(self, rates: Floats) -> Floats:
        """The calibration score if the outcomes had these rates, (…, bins); NaN where all are alike."""
        spread = rates * (1 - rates) / np.maximum(self.sizes - 1, 1)
        reliability = (self.sizes * ((self.means - rates) ** 2 - spread)).sum(axis=-1)
        passed = (self.sizes * rates).sum(axis=-1)
        uncertainty = passed * (1 - passed / len(self.predicted))
        relative = np.full_like(passed, np.nan)
        np.divide(np.maximum(reliability, 0), uncertainty, out=relative, where=uncertainty > 0)
        return np.asarray(np.maximum(0, 1 - np.sqrt(relative)), float)


def _binned(probabilities: npt.ArrayLike, outcomes: npt.ArrayLike) -> _Forecast:
    """The checked forecast in bins of equal mass; equal predictions are in one bin."""
    predicted, observed = np.asarray(probabilities, float), np.asarray(outcomes, float)
    problem = None
    if predicted.ndim != 1 or predicted.shape != observed.shape:
        problem = f"expected one outcome a probability, found shapes {predicted.shape} and {observed.shape}"
    elif len(predicted) < MIN_PAIRS:
        problem = f"calibration needs at least {MIN_PAIRS} predictions, found {len(predicted)}"
    elif not np.all((predicted >= 0) & (predicted <= 1)):  # NaN fails it, too
        problem = "expected probabilities between 0 and 1"
    elif not np.all((observed == 0) | (observed == 1)):
        problem = "expected outcomes that are 0 or 1"
    elif observed.min() == observed.max():
        problem = f"all {len(observed)} outcomes are {observed[0]:.0f}, so calibration has no scale"
    if problem is not None:
        raise DiagnosticsError(problem)
    order = np.argsort(predicted, kind="stable")
    predicted, observed = predicted[order], observed[order]
    wanted = np.arange(BINS) * len(predicted) // BINS
    starts = distinct(np.searchsorted(predicted, predicted[wanted], side="left"))
    sizes = np.diff(np.append(starts, len(predicted))).astype(float)
    means, rates = (np.add.reduceat(values, starts) / sizes for values in (predicted, observed))
    return _Forecast(predicted, observed, starts, sizes, means, rates)


def _overconfidence_slope(predicted: Floats, observed: Floats) -> Slope | None:
    """The slope with its Wald interval; None if there is no finite maximum."""
    clipped = np.clip(predicted, _CLIP, 1 - _CLIP)
    logits = np.log(clipped / (1 - clipped))
    if not np.ptp(logits) or (fit := fit_recalibration(logits, observed)) is None:
        return None
    half = Z_95 * fit.slope_error
    return Slope(fit.slope, fit.slope - half, fit.slope + half, fit.intercept)


def _simulated_rates(forecast: _Forecast, chances: Floats, seed: int = 0) -> Floats:
    """Rates of each bin, (_NULL_SAMPLES, bins), if the outcomes are drawn with these chances."""
    uniforms = np.random.default_rng(seed).random((len(forecast.sizes), _NULL_SAMPLES))
    counts = [
        np.searchsorted(np.cumsum(_chances_of_counts(own))[: len(own)], drawn, side="right")
        for own, drawn in zip(np.split(chances, forecast.starts[1:]), uniforms, strict=True)
    ]
    return np.stack(counts, axis=1) / forecast.sizes


def _chances_of_counts(chances: Floats) -> Floats:
    """The chances of 0, 1, … successes, the Poisson binomial distribution, with zeros behind them.

    They are the coefficients of the product of 1 − p + p·x, which is taken pair by pair.
    """
    factors = np.stack((1 - chances, chances), axis=1)
    while len(factors) > 1:
        if len(factors) % 2:
            factors = np.concatenate((factors, np.eye(1, factors.shape[1])))
        size = 2 * factors.shape[1] - 1
        length = 1 << (size - 1).bit_length()
        spectra = np.fft.rfft(factors, length)
        factors = np.fft.irfft(spectra[::2] * spectra[1::2], length)[:, :size]
    return np.asarray(np.maximum(factors[0], 0), float)


_FEWEST = 10
_SAME_ORDER = 0.95


@dataclass(frozen=True)
class RewardDrift:
    """Scores of B against those of A on common prompts.

    `pearson` and `spearman` are correlations, `shift` is the mean of B − A and `scale` the ratio of their
    standard deviations. `order_changes` is the share of pairs of prompts that B ranks the other way round.
    """

    prompts: int
    pearson: float
    spearman: float
    shift: float
    scale: float
    order_changes: float

    @property
    def headline(self) -> str:
        """The kind of the drift in a sentence."""
        if self.spearman < _SAME_ORDER:
            share = f"{self.order_changes:.0%} of the pairs of prompts"
            return f"ORDER CHANGED: {share} are ranked the other way round."
        if abs(self.scale - 1) > 0.1 or abs(self.shift) > 1e-9:
            return f"SAME ORDER, other size: shift {self.shift:+.3g}, scale {self.scale:.3g}."
        return "NO DRIFT: the scores agree."


def compare_scores(a: Path, b: Path) -> RewardDrift:
    """Compare two files of JSON lines with `prompt` and `score`; of a repeated prompt the last row counts.

    Raises:
        DiagnosticsError: fewer than 10 common prompts, or scores that do not vary.
    """
    left, right = _scores(a), _scores(b)
    common = sorted(left.keys() & right.keys())
    if len(common) < _FEWEST:
        raise DiagnosticsError(
            f"{a} and {b} have {len(common)} prompts in common; a comparison needs {_FEWEST}"
        )
    x, y = (np.array([scores[prompt] for prompt in common]) for scores in (left, right))
    if not x.std() or not y.std():
        raise DiagnosticsError("the scores of one file do not vary, so there is nothing to compare")
    order = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    ranked = np.triu(order != 0, 1)
    return RewardDrift(
        len(common),
        float(np.corrcoef(x, y)[0, 1]),
        float(np.corrcoef(ranks(x), ranks(y))[0, 1]),
        float((y - x).mean()),
        float(y.std() / x.std()),
        float((order[ranked] < 0).mean()) if ranked.any() else 0.0,
    )


def _scores(path: Path) -> dict[str, float]:
    rows = JsonRows(path.resolve(), lenient=True)  # a link that the user named may lead anywhere
    return {
        str(row["prompt"]): float(row["score"])
        for row in rows
        if "prompt" in row and isinstance(row.get("score"), (int, float)) and np.isfinite(row["score"])
    }


def ranks(values: npt.ArrayLike) -> Floats:
    """The ranks from 1 on, with those of ties in their middle."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse], float)
