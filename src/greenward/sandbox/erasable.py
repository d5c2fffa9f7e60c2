"""Memory of a worker that the next answer must not find.

Every answer begins as a copy of its worker's memory, freed blocks included. What an earlier answer
was and gave may be the very thing that this one is asked for, so it is held here and wiped.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import os

_FIRST_BYTES, _GROWTH = 4096, 4


class ErasableBuffer:
    """Bytes read from a descriptor; no other copy of them is made in this process."""

    def __init__(self) -> None:
        self._memory = memoryview(bytearray(_FIRST_BYTES))
        self._used = 0

    def read(self, descriptor: int, keep: int) -> int:
        """Reads what is there, of which up to `keep` bytes in all are kept; how many were read.

        Raises `BlockingIOError` if nothing is there.
        """
        if self._used == len(self._memory):
            self._grow()
        count = os.readv(descriptor, [self._memory[self._used :]])
        end = self._used + count
        self._used = min(end, keep)
        erase(self._memory[self._used : end])
        return count

    def view(self) -> memoryview:
        """What was kept."""
        return self._memory[: self._used]

    def erase(self) -> None:
        """Wipes what was kept."""
        erase(self.view())
        self._used = 0

    def _grow(self) -> None:
        larger = memoryview(bytearray(len(self._memory) * _GROWTH))
        larger[: self._used] = self._memory
        erase(self._memory)
        self._memory = larger


def erase(memory: memoryview) -> None:
    """Overwrites memory with zeros."""
    memory[:] = bytes(len(memory))
