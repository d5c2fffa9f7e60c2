"""The memory that every answer's process copies: what is loaded before the fork, and what makes that cheap.

A fork costs by the pages that are copied, by the mappings, and by the pages that parent and child touch
afterwards. `benchmarks/sandbox.py` measures it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import re

from greenward.sandbox.processes import LINUX, libc

# Loaded before the fork, so that answers find them at no cost. Left out is what brings libraries of its own
# (hashlib, tempfile, unicodedata): each answer would pay for them, and few use them.
PRELOADED = (
    "abc", "array", "base64", "bisect", "calendar", "cmath", "collections", "collections.abc", "contextlib",
    "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools", "heapq", "inspect", "io",
    "itertools", "json", "math", "numbers", "operator", "os", "pprint", "queue", "random", "re", "statistics",
    "string", "struct", "sys", "textwrap", "threading", "time", "traceback", "types", "typing",
)  # fmt: skip
_LEAST_CODE_BYTES = 256 << 10
# Of a private mapping of a file that cannot be written, in /proc/self/maps: its bounds.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r-.p [0-9a-f]+ \S+ [1-9]")


def preload() -> None:
    """Imports the modules that answers use most."""
    for name in PRELOADED:
        importlib.import_module(name)


def compact() -> None:
    """Gives back memory that is not in use; what is in use stays where it is, untouched by the collector."""
    gc.collect()
    gc.freeze()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


def inherit_mapped_code() -> None:
    """Has a fork copy the page tables of large libraries, else each child fills them by page faults.

    Linux copies them only for mappings of which a page was written: one byte of each is written as it is.
    Raises `OSError` where that is forbidden.
    """
    if not LINUX:
        return
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        found = [(int(one[1], 16), int(one[2], 16)) for one in map(_MAPPING.match, file) if one]
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for start, end in found:
            if end - start >= _LEAST_CODE_BYTES:
                memory.seek(start)
                byte = memory.read(1)
                memory.seek(start)
                memory.write(byte)
