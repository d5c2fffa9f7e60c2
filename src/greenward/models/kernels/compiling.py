"""How the kernels are compiled. It imports nothing of the package: the build of the wheel reads it, too."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

# Contraction to fused multiply-adds changes roundings, and nothing else: no other fast mathematics.
FLAGS = ("-std=gnu11", "-O2", "-ffp-contract=fast", "-fPIC", "-Wno-psabi")
LEVELS = {"x86_64": ("x86-64-v3", "x86-64-v4"), "aarch64": ("armv8-a",)}
"""What the libraries of a wheel are compiled for, as -march= takes it: with AVX2, with AVX-512; with NEON.

Newer levels sort after older ones."""


def compiler() -> str | None:
    """The C compiler: $CC, cc, gcc or clang."""
    names = (os.environ.get("CC"), "cc", "gcc", "clang")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def commands(found: str, march: str, library: Path) -> tuple[tuple[str, ...], ...]:
    """The commands that compile the kernels for processors of `march` and link them to `library`."""
    source, part = Path(__file__).parent / "kernels.c", library.with_suffix(".o")
    # Linked without an OpenMP runtime of its own: the symbols are those of the one that torch loads.
    openmp = ("-fopenmp",) if platform.system() == "Linux" else ()
    return (
        (found, *FLAGS, f"-march={march}", *openmp, "-c", str(source), "-o", str(part)),
        (found, "-shared", str(part), "-o", str(library), "-lm"),
    )
