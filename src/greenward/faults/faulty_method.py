"""A method with faults around its steps, which otherwise behaves as the method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from greenward.algorithms.on_policy import OnPolicy
from greenward.environments.episode import Episode
from greenward.faults.fault import Fault
from greenward.policies.policy import Policy


class FaultyMethod:
    """Runs each step of `method` between the faults; the state of both makes an exact resume."""

    def __init__(self, method: OnPolicy, faults: Sequence[Fault]) -> None:
        self.policy: Policy = method.policy
        self._method = method
        self._faults = faults

    @property
    def last_episodes(self) -> list[Episode]:
        return self._method.last_episodes

    def step(self, step: int) -> dict[str, float]:
        """Train one step, number `step` counted from 0; the metrics of the method."""
        number = step + 1  # as metrics.jsonl counts
        for fault in self._faults:
            fault.before_step(number)
        metrics = self._method.step(step)
        for fault in self._faults:
            fault.after_step(number)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {
            "method": self._method.state_dict(),
            "faults": {fault.name: fault.state_dict() for fault in self._faults},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._method.load_state_dict(state["method"])
        for fault in self._faults:
            fault.load_state_dict(state["faults"][fault.name])
