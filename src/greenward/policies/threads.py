"""Whether torch's threads get the cores that they were given.

Threads of torch wait for each other at the end of every operation. Where another program uses a core,
each operation waits for the thread that was interrupted, so a small model can run at a tenth of its speed;
fewer threads are then faster.
"""

from __future__ import annotations

import time

import torch

_SIZE = 256  # of the square matrices: an operation as small as those of a small model
_SECONDS = 0.05  # of measurement, with all threads and with one
_WORTHWHILE = 0.8  # of the speed of one thread, below which all threads together are slowed down


def contended_threads() -> str | None:
    """Measure matrix products with all threads and with one; advice where all are slower, else None."""
    threads = torch.get_num_threads()
    if threads == 1:
        return None
    together = _products_per_second()
    try:
        torch.set_num_threads(1)
        alone = _products_per_second()
    finally:
        torch.set_num_threads(threads)
    return contention_advice(threads, together / alone)


def contention_advice(threads: int, speed: float) -> str | None:
    """What to say where `threads` threads reach `speed` times the speed of one; None for enough speed."""
    if speed >= _WORTHWHILE:
        return None
    return (
        f"The cores are busy: {threads} threads compute at {speed:.2f} times the speed of one. End the other "
        "programs, or set training.threads=1 (a run can be resumed with it)."
    )


def _products_per_second() -> float:
    matrix = torch.ones(_SIZE, _SIZE)
    products, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < _SECONDS:
        matrix @ matrix
        products += 1
    return products / seconds
