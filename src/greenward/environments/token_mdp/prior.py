"""The token prior: how likely each token is after the two before it, counted in small programs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from greenward.environments.token_mdp.vocabulary import Vocabulary

SMOOTHING = 3.0
"""How many observations the shorter context counts for."""
UNSEEN = 0.3
"""The share of the fixed weights, so that what no program did is tried, too."""


class TokenPrior:
    """A trigram model, smoothed by the bigram and that by fixed weights, and mixed with these.

    Random search and the exploration of Q-learning draw from it. Without programs, only the fixed weights
    remain.
    """

    def __init__(self, vocabulary: Vocabulary, programs: Iterable[Sequence[int]] = ()) -> None:
        weights = np.array(vocabulary.weights, np.float32)
        self._base = weights / weights.sum()
        self._counts: dict[tuple[int, ...], np.ndarray] = defaultdict(lambda: np.zeros_like(self._base))
        for program in programs:
            padded = (-1, -1, *program)
            for first, second, token in zip(padded, padded[1:], padded[2:], strict=False):
                self._counts[(second,)][token] += 1
                self._counts[(first, second)][token] += 1
        self._rows: dict[tuple[int, ...], np.ndarray] = {}

    def after(self, tokens: Sequence[int], legal_V: np.ndarray) -> np.ndarray:
        """The probability of each token after `tokens`, above 0 for all that are legal."""
        likely, base = self._row(tokens) * legal_V, self._base * legal_V
        mixed: np.ndarray = (1 - UNSEEN) / likely.sum() * likely + UNSEEN / base.sum() * base
        return mixed

    def _row(self, tokens: Sequence[int]) -> np.ndarray:
        context = tuple((-1, -1, *tokens[-2:])[-2:])
        found = self._rows.get(context)
        if found is None:
            found = self._base
            for part in (context[1:], context):
                if part in self._counts:
                    counts = self._counts[part]
                    found = (counts + SMOOTHING * found) / (counts.sum() + SMOOTHING)
            self._rows[context] = found
        return found
