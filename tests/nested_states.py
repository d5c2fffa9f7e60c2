"""Whether two nested states, such as those of trainers, are equal bit for bit."""

from __future__ import annotations

import math
from typing import Any

import torch


def equal(one: Any, other: Any) -> bool:
    """Whether two values of dicts, sequences, tensors and numbers are equal; NaN equals NaN."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other)))
