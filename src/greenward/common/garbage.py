"""Puts the search for garbage off while packages are imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Search for no garbage inside the block: an import makes many objects that last, and looking at them
    again and again takes an eighth of the time in which torch is loaded.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
