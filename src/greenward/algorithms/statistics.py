"""What an update did: sums and maxima over its micro-batches, means in the end."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class UpdateStatistics:
    """Sums over the micro-batches of one update; means over its trained tokens in the end."""

    def __init__(self) -> None:
        self._loss: list[Tensor] = []
        self._sums: dict[str, list[Tensor]] = {}
        self._maxima: dict[str, list[Tensor]] = {}
        self._tokens: list[Tensor] = []
        self._minibatch_starts = [0]  # into the micro-batches; the last one is open
        self._norms: list[float] = []
        self.applied = 0

    def add(
        self, loss: Tensor, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor], mask_BT: Tensor
    ) -> None:
        self._loss.append(loss.detach())
        self._tokens.append(mask_BT.sum())
        for name, value in sums.items():
            self._sums.setdefault(name, []).append(value)
        for name, value in maxima.items():
            self._maxima.setdefault(name, []).append(value)

    def close_minibatch(self) -> None:
        """The micro-batches added from now on belong to the next minibatch."""
        self._minibatch_starts.append(len(self._tokens))

    def last_minibatch_mean(self, name: str) -> float:
        """The mean of a sum over the trained tokens of the minibatch closed last."""
        start = self._minibatch_starts[-2]
        tokens = torch.stack(self._tokens[start:]).sum()
        return float(torch.stack(self._sums[name][start:]).sum() / tokens)

    def add_step(self, norm: float, *, applied: bool) -> None:
        """An optimizer step with the norm of its gradient before clipping; not `applied` if skipped."""
        self._norms.append(norm)
        self.applied += applied

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens; `loss` over minibatches; `grad_norm` over steps, finite or not."""
        steps, minibatches = len(self._norms), len(self._minibatch_starts) - 1
        metrics = {"updates/applied": float(self.applied), "updates/non_finite": float(steps - self.applied)}
        if not steps:
            return metrics
        tokens = float(torch.stack(self._tokens).sum())
        metrics["loss"] = float(torch.stack(self._loss).sum()) / minibatches
        metrics["grad_norm"] = sum(self._norms) / steps
        for name, values in self._sums.items():
            metrics[name] = float(torch.stack(values).sum()) / tokens
        for name, values in self._maxima.items():
            metrics[name] = float(torch.stack(values).max())
        return metrics
