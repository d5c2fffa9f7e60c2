"""The state at the start of a step, from which a step that was stopped in its middle is repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from greenward.runs.machine import available_mb

_MOST_NUMBERS = 1 << 16
_MOST_BYTES = 4 << 30
_MOST_OF_AVAILABLE = 0.25


class StepStart:
    """Keeps what `read` gives, the state of a trainer, while a step goes on.

    Plain values and small tensors are copied. Large tensors (weights, moments) are kept as they are: they
    change when an optimizer steps, near the end of most steps, and `is_kept` is false from then on. Where the
    step before took several optimizer steps, they are copied ahead of the first one, if they have at most 4
    GiB and a quarter of the available memory. A context manager, inside which optimizers are watched; nothing
    is kept unless it is `enabled`.
    """

    def __init__(self, read: Callable[[], dict[str, Any]], *, enabled: bool) -> None:
        self._read = read
        self._enabled = enabled
        self._optimizer_steps = 0
        self.has_copies = False

    def __enter__(self) -> StepStart:
        self._hook = register_optimizer_step_pre_hook(self._before_optimizer_step)
        self.keep()
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def keep(self) -> None:
        """Keep the state as it is now."""
        if not self._enabled:
            return
        self._is_to_be_copied, self._optimizer_steps, self.has_copies = self._optimizer_steps > 1, 0, False
        self._large: list[Tensor] = []
        self.state = self._copied(self._read(), _MOST_NUMBERS)
        self._versions = [tensor._version for tensor in self._large]

    @property
    def is_kept(self) -> bool:
        """Whether `state` is still that of the start."""
        if not self._enabled or self.has_copies:
            return self.has_copies
        unchanged = (one._version == was for one, was in zip(self._large, self._versions, strict=True))
        return self._optimizer_steps == 0 and all(unchanged)

    def _before_optimizer_step(self, *_: Any) -> None:
        if self._enabled and self._is_to_be_copied and self.is_kept and not self.has_copies:
            size = sum(one.numel() * one.element_size() for one in self._large)
            if size <= min(_MOST_BYTES, _MOST_OF_AVAILABLE * available_mb() * 2**20):
                self.state, self.has_copies = self._copied(self.state, None), True
        self._optimizer_steps += 1

    def _copied(self, value: Any, most: int | None) -> Any:
        """A copy, but for tensors of more than `most` numbers."""
        if isinstance(value, Tensor):
            if most is None or value.numel() <= most:
                return value.detach().to("cpu", copy=True)
            self._large.append(value)
            return value
        if isinstance(value, Mapping):
            return {key: self._copied(item, most) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._copied(item, most) for item in value)
        return value
