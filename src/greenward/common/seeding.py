"""Derives seeds from (run seed, step, purpose) alone.

No random state is carried from step to step, so a resumed run draws what an uninterrupted one would.
"""

from __future__ import annotations

import random
import zlib
from functools import lru_cache

import numpy as np


def step_seed(run_seed: int, step: int, purpose: str) -> int:
    """A 63-bit seed for one purpose (sampling, order, …) at one step."""
    words = np.random.SeedSequence([run_seed, step, zlib.crc32(purpose.encode())]).generate_state(2)
    return (int(words[0]) << 32 | int(words[1])) >> 1


def seed_everything(run_seed: int, step: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch for one step."""
    import torch

    seed = step_seed(run_seed, step, "global")
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def shuffled_index(size: int, position: int, *, seed: int) -> int:
    """The element at `position` of an endless walk over `range(size)`, reshuffled every epoch.

    A pure function of its arguments: a data cursor is one integer.
    """
    epoch, offset = divmod(position, size)
    return int(_permutation(size, step_seed(seed, epoch, "order"))[offset])


@lru_cache(maxsize=8)
def _permutation(size: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(size)
