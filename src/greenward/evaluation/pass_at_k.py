"""pass@k: the chance that at least one of k answers passes, estimated without bias from n answers."""

from __future__ import annotations

import math


def pass_at_k(samples: int, passed: int, k: int) -> float | None:
    """Unbiased pass@k of one problem, of whose `samples` answers `passed` passed.

    1 - C(n - c, k) / C(n, k), as a product that does not overflow (Chen et al. 2021,
    arXiv:2107.03374, eq. 1). None when there are fewer than k answers: the quantity is undefined
    then, and 1 - (1 - c/n)^k would be biased. Raises `ValueError` unless 0 <= passed <= samples
    and k >= 1.
    """
    if not 0 <= passed <= samples or k < 1:
        raise ValueError(f"pass@{k} of {passed} passed among {samples} answers means nothing")
    if samples < k:
        return None
    return 1.0 - math.prod(1.0 - k / i for i in range(samples - passed + 1, samples + 1))
