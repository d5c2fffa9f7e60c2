"""What the heap of glibc keeps of freed memory for the next pass through a model, and when it gives it back.

Does nothing with other C libraries.
"""

import ctypes
import functools
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

FREE_BYTES = 1 << 28  # more than these are given back
SMALL_PROCESS = 1 << 30  # bytes of its own memory
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_free_blocks() -> None:
    """Keep freed blocks of up to 256 MiB, or 32 where glibc takes no larger number, up to 1 GiB in all.

    By itself glibc gives large blocks back to the system as soon as they are freed, and each pass through a
    model then waits for its pages again, for about a tenth of its time. MALLOC_ variables stand.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    with suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in (
            (_TRIM_THRESHOLD, 1 << 30),
            (_MMAP_THRESHOLD, 1 << 25),
            (_MMAP_THRESHOLD, 1 << 28),
        ):
            mallopt(parameter, size)


def return_free_pages() -> None:
    """Give free pages back where many are resident: prompts and batches of ever other sizes leave holes that
    no later block fits into. A small process keeps them: to give them back and to fetch them again takes
    a tenth of a step of a small model. Does nothing before glibc 2.33, and without /proc.
    """
    if (libc := _glibc()) is None:
        return
    try:
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    except OSError:  # not every container has /proc
        return
    private, heap = (resident - shared) * resource.getpagesize(), libc.mallinfo2()
    # Free blocks whose pages were given back take no memory.
    free = min(heap.fordblks, private - heap.uordblks - heap.hblkhd)
    if free > FREE_BYTES and private > SMALL_PROCESS:
        libc.malloc_trim(0)


class _HeapUse(ctypes.Structure):
    """`struct mallinfo2` of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    )  # fmt: skip


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallinfo2.restype = _HeapUse
    except (OSError, AttributeError):
        return None
    return libc
