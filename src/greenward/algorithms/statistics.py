"""What an update did: sums and maxima over its micro-batches, means in the end."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class UpdateStatistics:
    """Statistics of one update. Each sum is divided by the number of tokens that it was taken over."""

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._sums: dict[str, list[tuple[Tensor, Tensor]]] = {}
        self._maxima: dict[str, list[Tensor]] = {}
        self._norms: list[dict[str, float]] = []
        self._non_finite = 0
        self.policy_steps = 0

    def add(self, sums: Mapping[str, Tensor], mask_BT: Tensor) -> None:
        """Add sums over the tokens of one micro-batch that are True in `mask_BT`."""
        tokens = mask_BT.sum()
        for name, value in sums.items():
            self._sums.setdefault(name, []).append((value, tokens))

    def add_maxima(self, maxima: Mapping[str, Tensor]) -> None:
        for name, value in maxima.items():
            self._maxima.setdefault(name, []).append(value)

    def add_loss(self, loss: Tensor) -> None:
        """Add the loss of one minibatch on which the policy was evaluated."""
        self._losses.append(loss)

    def add_step(self, norms: Mapping[str, float], *, applied: bool) -> None:
        """Add an optimizer step: gradient norms before clipping, by the part (policy, critic) that stepped.

        `applied` is False if the step was skipped because a norm is not finite.
        """
        self._norms.append(dict(norms))
        self.policy_steps += applied and "policy" in norms
        self._non_finite += not applied

    def metrics(self) -> dict[str, float]:
        """Means over tokens; `loss` over minibatches; gradient norms over the steps, finite or not.

        `grad_norm` is of the whole gradient: the root of the sum of the squares of its parts, which
        are given by name if there are several.
        """
        metrics = {
            "updates/applied": float(self.policy_steps),
            "updates/non_finite": float(self._non_finite),
        }
        for name, values in self._sums.items():
            sums, tokens = (torch.stack(part).sum() for part in zip(*values, strict=True))
            metrics[name] = float(sums / tokens)
        for name, maxima in self._maxima.items():
            metrics[name] = float(torch.stack(maxima).max())
        if self._losses:
            metrics["loss"] = float(torch.stack(self._losses).mean())
        if self._norms:
            metrics["grad_norm"] = _mean([math.hypot(*norms.values()) for norms in self._norms])
            if any("critic" in norms for norms in self._norms):
                for part in ("policy", "critic"):
                    found = [norms[part] for norms in self._norms if part in norms]
                    if found:
                        metrics[f"grad_norm/{part}"] = _mean(found)
        return metrics


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
