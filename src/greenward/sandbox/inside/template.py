"""Prepares the memory that every answer's process copies, so that a fork is cheap.

A fork costs by the pages that are copied, by the mappings, and by the pages that parent and child touch
afterwards. `benchmarks/sandbox.py` measures it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib

from greenward.sandbox.inside.linux import libc

# Loaded before the fork, so that answers find them at no cost. What brings libraries of its own (hashlib,
# tempfile, cmath) or is rarely used is left out: each answer would pay for it.
PRELOADED = (
    "abc", "array", "bisect", "collections", "collections.abc", "contextlib", "copy", "dataclasses",
    "datetime", "decimal", "enum", "fractions", "functools", "heapq", "inspect", "io", "itertools", "json",
    "math", "numbers", "operator", "os", "queue", "random", "re", "statistics", "string", "struct", "sys",
    "textwrap", "threading", "time", "traceback", "types", "typing",
)  # fmt: skip


def preload() -> None:
    """Imports the modules that answers use most; before our own, so that these lie together in memory."""
    for name in PRELOADED:
        importlib.import_module(name)


def compact() -> None:
    """Gives back memory that is not in use; what is in use stays where it is, untouched by the collector."""
    gc.collect()
    gc.freeze()
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))
