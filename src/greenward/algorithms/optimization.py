"""Optimizer steps: AdamW and its learning rates, gradient clipping, and statistics of an update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from greenward.policies.scoring import TokenScores


def adamw(
    groups: Sequence[Sequence[Tensor]], *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with one group for each list of parameters; their learning rates are set before each step."""
    parameter_groups = [{"params": list(parameters)} for parameters in groups]
    return torch.optim.AdamW(parameter_groups, betas=betas, weight_decay=weight_decay, fused=True)


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    """Set the learning rate of each group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Scale the gradients down to `max_norm`; their global norm before, which may not be finite."""
    return float(clip_grad_norm_(list(parameters), max_norm))


class SeparateGradients:
    """The gradients of one loss on parameters that another loss has gradients on, too.

    Inside `with`, the `grad` of the parameters are those held here; outside, those of the other loss.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._held: list[Tensor | None] = [None] * len(parameters)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        for index, parameter in enumerate(self._parameters):
            parameter.grad, self._held[index] = self._held[index], parameter.grad

    def merge(self) -> None:
        """Add the held gradients to those of the other loss."""
        for parameter, held in zip(self._parameters, self._held, strict=True):
            if held is not None:
                parameter.grad = held if parameter.grad is None else parameter.grad.add_(held)


class UpdateStatistics:
    """What the optimizer steps of one update did. Sums are divided by the tokens they were taken over."""

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

    def add_entropy(self, scores: TokenScores, mask_BT: Tensor) -> None:
        """Add the entropy of the tokens that are True in `mask_BT`."""
        assert scores.entropy_BT is not None
        self.add({"entropy": scores.entropy_BT.detach().masked_fill(~mask_BT, 0.0).sum()}, mask_BT)

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
