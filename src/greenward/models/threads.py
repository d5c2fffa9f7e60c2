"""Chooses how many threads torch computes with, on cores that other programs may use."""

from __future__ import annotations

import os
import time
from statistics import median

import torch

from greenward.common.control_groups import usable_cores

_MATRIX_SIZE = 256  # of the square matrices: an operation as small as those of a small model
_MEASURED_SECONDS = 0.03  # with all threads and with one, in each round
_ROUNDS = 3
_FAST_ENOUGH = 0.8  # of the speed of one thread, below which all threads together are slowed down


def settle_threads(asked: int | None, before: object) -> str | None:
    """Set the number of torch's threads, and say what there is to say of it; None if nothing.

    Threads of torch wait for each other at the end of every operation. Where another program uses a core,
    each operation waits for the thread that was interrupted, so that one thread is faster than several.

    `asked` is a number that the user gave, `before` what the session recorded that is resumed: as many
    threads round sums in the same order. Either is kept, `before` if this machine has as many. Without them,
    one thread computes where all together are measured to be slower.
    """
    usual = _usual_threads()
    recorded = before if isinstance(before, int) and 0 < before <= usual else None
    threads = asked or recorded or usual
    torch.set_num_threads(threads)
    as_before = f"Using {threads} thread{'s' if threads > 1 else ''} as before"
    if (speed := _relative_speed(threads)) >= _FAST_ENOUGH:
        if asked is not None or threads == usual:
            return None
        return f"{as_before}; training.threads={usual} overrides, inexactly."
    busy = _busy(threads, speed)
    if asked is not None:
        return f"{busy} End the other programs, or set training.threads=1 (a run can be resumed with it)."
    if recorded is not None:
        return f"{busy} {as_before}; training.threads=1 overrides, inexactly."
    torch.set_num_threads(1)
    return f"{busy} Using 1 thread; training.threads={threads} overrides."


def use_free_cores(device: torch.device) -> str | None:
    """Set one thread where all together are slower, and say so; for commands without a key for it.

    A number in OMP_NUM_THREADS is the user's, and on an accelerator the threads compute little.
    """
    if "OMP_NUM_THREADS" in os.environ or device.type != "cpu":
        return None
    torch.set_num_threads(threads := _usual_threads())
    if (speed := _relative_speed(threads)) >= _FAST_ENOUGH:
        return None
    torch.set_num_threads(1)
    return f"{_busy(threads, speed)} Using 1 thread; the variable OMP_NUM_THREADS={threads} overrides."


def _usual_threads() -> int:
    """As many as torch takes by itself, without those for which the quota of a container leaves no time."""
    threads = torch.get_num_threads()
    return threads if "OMP_NUM_THREADS" in os.environ else min(threads, usable_cores())


def _busy(threads: int, speed: float) -> str:
    return f"The cores are busy: {threads} threads compute at {speed:.2f} times the speed of one."


def _relative_speed(threads: int) -> float:
    """Of matrix products with this many threads, that of one thread being 1."""
    if threads == 1:
        return 1.0
    speeds = []
    try:
        for _ in range(_ROUNDS):  # in turns, so that what uses the cores meets both
            torch.set_num_threads(threads)
            together = _products_per_second()
            torch.set_num_threads(1)
            speeds.append(together / _products_per_second())
    finally:
        torch.set_num_threads(threads)
    return median(speeds)


def _products_per_second() -> float:
    matrix = torch.ones(_MATRIX_SIZE, _MATRIX_SIZE)
    products, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < _MEASURED_SECONDS:
        matrix @ matrix
        products += 1
    return products / seconds
