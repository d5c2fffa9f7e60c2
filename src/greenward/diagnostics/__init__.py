"""Fault finding: readers of logs, checks, causes, differences of runs, and a monitor of any training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from greenward.diagnostics.monitor import Alarm, Monitor

__all__ = ["Alarm", "Monitor"]


def __getattr__(name: str) -> Any:
    """Import the monitor when it is asked for: it needs pydantic."""
    if name in __all__:
        from greenward.diagnostics import monitor

        return getattr(monitor, name)
    raise AttributeError(name)
