"""What checkpoints keep of an object, named once: its `state_dict` and the inverse follow from that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class Stateful:
    """Saves and restores the attributes that `_saved` names, each under its key there.

    Attributes with a state of their own are asked for that, and those that are None are left out. A state
    holds tensors and plain Python values, not NumPy's: checkpoints are read without unpickling code.
    """

    _saved: ClassVar[Mapping[str, str]] = {}

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs."""
        parts = {key: getattr(self, attribute) for key, attribute in self._saved.items()}
        return {
            key: part.state_dict() if hasattr(part, "state_dict") else part
            for key, part in parts.items()
            if part is not None
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        for key, attribute in self._saved.items():
            part = getattr(self, attribute)
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(state[key])
            elif part is not None:
                setattr(self, attribute, state[key])
