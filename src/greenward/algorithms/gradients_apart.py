"""The gradients of two losses on the same parameters, kept apart so that each is clipped by itself."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


class GradientsApart:
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
        """Add what is held to the gradients of the other loss."""
        for parameter, held in zip(self._parameters, self._held, strict=True):
            if held is not None:
                parameter.grad = held if parameter.grad is None else parameter.grad.add_(held)
