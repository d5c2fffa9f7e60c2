"""Curves as they are drawn: so many points as there are pixels, from all points of the run.

A bucket has the least, the largest and the mean value in it, so that no extreme is lost. N is the number of
rows, B that of buckets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MAX_POINTS = 4000
MAX_WINDOW = 100_000


@dataclass(frozen=True)
class Curve:
    """x, and the mean, least and largest value of each bucket, all [B]. `raw` says that each is one point."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    raw: bool


def curve(x_N: np.ndarray, y_N: np.ndarray, points: int) -> Curve:
    """The curve in at most `points` buckets of equal numbers of rows; values that are NaN are left out."""
    known = ~np.isnan(y_N)
    x, y = x_N[known].astype(np.float64), y_N[known].astype(np.float64)
    if len(x) <= points:
        return Curve(x, y, y, y, True)
    starts = np.unique((np.arange(points) * (len(x) / points)).astype(np.int64))
    sizes = np.diff(np.append(starts, len(x)))
    finite = np.isfinite(y)
    sums = np.add.reduceat(np.where(finite, y, 0.0), starts)
    counts = np.add.reduceat(finite.astype(np.int64), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(counts > 0, sums / counts, np.nan)
    low, high = np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)
    return Curve(x[starts + sizes // 2], mean, low, high, False)


def smoothed(y_N: np.ndarray, window: int) -> np.ndarray:
    """The mean over `window` values around each, of those that are finite; shape [N]."""
    window = min(max(1, window), MAX_WINDOW)
    finite = np.isfinite(y_N)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, y_N, 0.0), dtype=np.float64)])
    counts = np.concatenate([[0], np.cumsum(finite)])
    places = np.arange(len(y_N))
    low = np.maximum(places - window // 2, 0)
    high = np.minimum(places + (window + 1) // 2, len(y_N))
    number = counts[high] - counts[low]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(number > 0, (sums[high] - sums[low]) / number, np.nan)
