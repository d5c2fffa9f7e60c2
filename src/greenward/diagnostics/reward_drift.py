"""Two reward models on the same prompts: is it a shift, another scale, or another order?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from greenward.diagnostics.change_points import Floats
from greenward.errors import DiagnosticsError
from greenward.runs.files import JsonRows

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
