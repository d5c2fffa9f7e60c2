"""Objects that hold processes, files or locks until they are closed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TypeVar

Opened = TypeVar("Opened")


class Closing(AbstractContextManager[Opened]):
    """A context manager that closes itself at the end."""

    def close(self) -> None:
        """Release what is held. Safe to call twice."""
        raise NotImplementedError

    def __exit__(self, *_: object) -> None:
        self.close()
