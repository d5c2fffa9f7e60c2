"""How far an answer has come with its calls, and the limits of time for each of them.

The worker counts the frames on the result channel without reading what they say. An answer that
writes frames of its own there can mislead this count, and the trainer judges it as cheating.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from greenward.sandbox.harness import FRAME_LENGTH, NONCE_CHARS


class Progress:
    """The CPU time of each call of one answer; the time of loading the code belongs to the first.

    `limits` holds `call_seconds`, the CPU limit of each call (none if it is empty), and
    `call_wall_seconds`, the limit of a call on the wall clock.
    """

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.call_seconds: list[float] = []
        self._cpu_limits, self._wall_limit = limits["call_seconds"], limits["call_wall_seconds"]
        self._began_cpu = self._began_wall = 0.0
        self._frames = self._position = 0

    def advance(self, written: memoryview, cpu_seconds: float, wall_seconds: float) -> None:
        """Takes note of the calls that have ended; the seconds are those of the process until now."""
        while len(written) >= (body := self._position + NONCE_CHARS + FRAME_LENGTH.size):
            (length,) = FRAME_LENGTH.unpack_from(written, body - FRAME_LENGTH.size)
            if len(written) < body + length:
                break
            self._position = body + length
            self._frames += 1
        ended = self._frames - len(self.call_seconds)
        if ended > 0:
            self.call_seconds += [cpu_seconds - self._began_cpu, *[0.0] * (ended - 1)]
            self._began_cpu, self._began_wall = cpu_seconds, wall_seconds

    def exceeded(self, cpu_seconds: float, wall_seconds: float) -> str | None:
        """Which limit of the present call is exceeded, "cpu" or "wall"; None for neither."""
        call = len(self.call_seconds)
        if call >= len(self._cpu_limits):
            return None
        if cpu_seconds - self._began_cpu > self._cpu_limits[call]:
            return "cpu"
        return "wall" if wall_seconds - self._began_wall > self._wall_limit else None
