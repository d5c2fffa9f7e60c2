"""Provides AdamW steps, learning rates, gradient clipping, and KL and entropy coefficients that adapt."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from greenward.common.errors import ConfigError
from greenward.models.policy import Policy
from greenward.training import distributed
from greenward.training.losses import LossOutput
from greenward.training.protocols import Stateful

ENTROPY_RATE = 0.05
"""The largest change of the logarithm of the entropy coefficient after one batch."""

ENTROPY_RANGE = 100.0
"""The entropy coefficient stays within this factor of its first value, so that it can always return."""


class _Coefficient(Stateful):
    """A coefficient that is fixed, or steered to `target` by what is measured on each batch."""

    _saved: ClassVar = {"value": "value"}

    def __init__(self, first: float, *, target: float | None) -> None:
        self.value = self._first = first
        self._target = target


class KLCoefficient(_Coefficient):
    """The coefficient of the KL term or penalty: fixed, or steered to `target` nats per token.

    After a batch of n episodes with measured KL the coefficient is multiplied by
    1 + clip(KL / target - 1, ±0.2) * n / horizon (Ziegler et al. 2019, arXiv 1909.08593, section 2.2;
    there KL is per episode).
    """

    def __init__(self, first: float, *, target: float | None, horizon: int) -> None:
        super().__init__(first, target=target)
        self._horizon = horizon

    def update(self, kl: float, *, episodes: int) -> None:
        """Take in the KL of the batch that the present coefficient was used on; NaN is ignored."""
        if self._target is not None and not math.isnan(kl):
            error = min(max(kl / self._target - 1, -0.2), 0.2)
            self.value *= 1 + error * episodes / self._horizon


class EntropyCoefficient(_Coefficient):
    """The coefficient of the entropy bonus: fixed, or steered to `target` nats per token.

    After each batch with measured entropy H the coefficient is multiplied by
    exp(`ENTROPY_RATE` * clip(1 - H / target, ±1)): a step on its logarithm along the gradient with which Soft
    Actor-Critic tunes its temperature (Haarnoja et al. 2018, arXiv 1812.05905, eq. 18), here relative
    to the target and bounded.
    """

    def update(self, entropy: float) -> None:
        """Take in the entropy of the batch that the present coefficient was used on; NaN is ignored."""
        if self._target is not None and not math.isnan(entropy):
            error = min(max(1 - entropy / self._target, -1.0), 1.0)
            steered = self.value * math.exp(ENTROPY_RATE * error)
            self.value = min(max(steered, self._first / ENTROPY_RANGE), self._first * ENTROPY_RANGE)


def learning_rate_factor(
    schedule: str, step: int, total_steps: int, warmup_steps: int = 0, *, final: float = 0.0
) -> float:
    """The factor in [0, 1] on the peak learning rate at step 0, 1, …, `total_steps` - 1.

    It rises linearly from 1 / `warmup_steps` at step 0 to 1, so that no step is lost to a rate of 0,
    and then stays (`constant`) or falls to `final` just after the last step (`linear`, `cosine`).
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - warmup_steps, 1)
    return final + (1 - final) * _DECAYS[schedule](min(progress, 1.0))


_DECAYS: Mapping[str, Callable[[float], float]] = MappingProxyType(
    {
        "constant": lambda progress: 1.0,
        "linear": lambda progress: 1.0 - progress,
        "cosine": lambda progress: 0.5 * (1.0 + math.cos(math.pi * progress)),
    }
)


Attempted = TypeVar("Attempted")


def adamw(
    groups: Sequence[Sequence[Tensor]], *, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """AdamW with one group for each list of parameters; their learning rates are set before each step."""
    if hasattr(groups[0][0], "_z3_optimizer"):
        return distributed.optimizer_of(groups[0][0], betas=betas, weight_decay=weight_decay)
    parameter_groups = [{"params": list(parameters)} for parameters in groups]
    optimizer = torch.optim.AdamW(parameter_groups, betas=betas, weight_decay=weight_decay, fused=True)
    if any(map(distributed.is_part, chain(*groups))):
        distributed.whole_states(optimizer)
    return optimizer


def set_learning_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    """Set the learning rate of each group."""
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> float:
    """Add up the gradients of all processes and scale them down to `max_norm`.

    The result is their global norm before, which may not be finite.
    """
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    parts = [gradient.to_local() for gradient in gradients if distributed.is_part(gradient)]
    if parameters and hasattr(parameters[0], "_z3_optimizer"):
        parts = distributed.gradients_of(parameters[0])
        torch._foreach_mul_(parts, distributed.size())
    whole = [gradient for gradient in gradients if not distributed.is_part(gradient)]
    distributed.reduce_gradients(whole)
    norm = get_total_norm(whole)
    if parts:  # which are added up already
        norm = torch.hypot(norm, distributed.all_reduce(get_total_norm(parts).square()).sqrt())
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as in torch's clip_grad_norm_
    torch._foreach_mul_(parts + whole, scale)
    return float(norm)


def casting_once(policy: Policy) -> AbstractContextManager[None]:
    """`Policy.casting_once`, unless weights are sharded: a cast of gathered ones would keep them whole."""
    return nullcontext() if distributed.is_sharded() else policy.casting_once()


@dataclass(eq=False)
class MicroBatchLimit(Stateful):
    """The most answers that go through the model at once: halved each time the device runs out of memory."""

    size: int
    _saved: ClassVar = {"size": "size"}

    def run_within_memory(self, attempt: Callable[[], Attempted], rows: int) -> Attempted:
        """What `attempt` returns, repeated with half the size as long as memory runs out.

        An attempt reads `size`, and begins anew: it keeps nothing of the one before. `rows` is how many
        answers it has. Raises `ConfigError` when one answer alone does not fit.
        """
        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0]
            # Outside of the handler: the error's traceback keeps the tensors of the attempt.
            torch.cuda.empty_cache()
            at_once = min(self.size, rows)
            if at_once > 1 and distributed.is_sharded():
                raise ConfigError(
                    f"Out of memory with {at_once} answers at once. One process cannot repeat a step that "
                    f"others have passed, since their weights are sharded: {reason}",
                    remedy=f"Set training.micro_batch_sequences={at_once // 2} and go on with --resume.",
                )
            if at_once <= 1:
                raise ConfigError(
                    f"The device has too little memory for one answer at a time: {reason}",
                    remedy="Set model.gradient_checkpointing=true or a lower sampling.max_tokens, or train a "
                    "smaller model; `greenward train --dry-run` estimates the memory.",
                )
            self.size = at_once // 2
            warnings.warn(
                f"Out of memory with {at_once} answers at once; the step is repeated with {self.size} "
                f"(training.micro_batch_sequences={self.size} begins with that). {reason}",
                stacklevel=2,
            )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.size = min(self.size, state["size"])


class LossScale(Stateful):
    """Dynamic loss scaling for float16 (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2).

    Losses are multiplied by `value`, so that small gradients are not rounded to 0, and gradients are divided
    by it before they are clipped. It is halved when a gradient is not finite and doubled after 2,000 steps on
    which all were: the constants of `torch.amp.GradScaler`, which has no place for two gradients on the same
    parameters that are clipped apart. With another dtype it is 1 and stays.
    """

    _saved: ClassVar = {"value": "value", "finite_steps": "_finite_steps"}

    def __init__(self, dtype: torch.dtype) -> None:
        self.enabled = dtype == torch.float16
        self.value = 2.0**16 if self.enabled else 1.0
        self._finite_steps = 0

    def __call__(self, loss: Tensor) -> Tensor:
        return loss * self.value if self.enabled else loss

    def unscale(self, parameters: Iterable[Tensor]) -> None:
        if self.enabled:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.value)

    def update(self, *, finite: bool) -> None:
        if self.enabled:
            self._finite_steps = self._finite_steps + 1 if finite else 0
            if not finite:
                self.value /= 2
            elif self._finite_steps % 2000 == 0:
                self.value *= 2


class SeparateGradients:
    """The gradients of one loss on parameters that another loss has gradients on, too.

    Inside `with`, the `grad` of the parameters are those held here; outside, those of the other loss.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self._held: list[Tensor | None] = [None] * len(parameters)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: object) -> None:
        self._swap()

    def _swap(self) -> None:
        for index, parameter in enumerate(self.parameters):
            parameter.grad, self._held[index] = self._held[index], parameter.grad

    def merge(self) -> None:
        """Add the held gradients to those of the other loss."""
        for parameter, held in zip(self.parameters, self._held, strict=True):
            if held is not None:
                parameter.grad = held if parameter.grad is None else parameter.grad.add_(held)


class UpdateStatistics:
    """What the optimizer steps of one update did. Sums are divided by the tokens they were taken over."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []  # of each minibatch
        self._sums: defaultdict[str, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._maxima: defaultdict[str, list[Tensor]] = defaultdict(list)
        self._norms: list[dict[str, float]] = []
        self._non_finite = 0
        self.policy_steps = 0

    def add(self, output: LossOutput, mask_BT: Tensor) -> None:
        """Add the statistics of one micro-batch over its tokens that are True in `mask_BT`."""
        tokens = mask_BT.sum()
        for name, value in output.sums.items():
            self._sums[name].append((value, tokens))
        for name, value in output.maxima.items():
            self._maxima[name].append(value)

    def extend(self, other: UpdateStatistics) -> None:
        self.losses += other.losses
        for name, sums in other._sums.items():
            self._sums[name] += sums
        for name, maxima in other._maxima.items():
            self._maxima[name] += maxima

    def mean(self, name: str) -> Tensor:
        """The mean over tokens, those of all processes, of what was added by that name."""
        parts = zip(*self._sums[name], strict=True)
        sums, tokens = (distributed.all_reduce(torch.stack(part).sum()) for part in parts)
        return sums / tokens

    def add_entropy(self, entropy_BT: Tensor, mask_BT: Tensor) -> None:
        """Add the entropy of the tokens that are True in `mask_BT`."""
        self._sums["entropy"].append((entropy_BT.masked_fill(~mask_BT, 0.0).sum(), mask_BT.sum()))

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
        metrics = {"updates/applied": float(self.policy_steps), "updates/non_finite": float(self._non_finite)}
        for name in self._sums:
            metrics[name] = float(self.mean(name))
        for name, maxima in self._maxima.items():
            metrics[name] = float(distributed.all_reduce(torch.stack(maxima).max(), "MAX"))
        if self.losses:
            metrics["loss"] = float(distributed.all_reduce(torch.stack(self.losses)).mean())
        if self._norms:
            metrics["grad_norm"] = _mean([math.hypot(*norms.values()) for norms in self._norms])
            if any("critic" in norms for norms in self._norms):
                for part in ("policy", "critic"):
                    if found := [norms[part] for norms in self._norms if part in norms]:
                        metrics[f"grad_norm/{part}"] = _mean(found)
        return metrics


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
