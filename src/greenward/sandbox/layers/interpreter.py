"""What an answer may read: the interpreter's own files, and the packages that a recipe allows.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable

_SYSTEM = (
    "/etc/ld.so.cache",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share/zoneinfo",
    "/dev/null",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
)


def readable_paths(packages: Iterable[str]) -> list[str]:
    """Files and folders of the standard library, of shared libraries and of loaded packages."""
    paths = [*sys.path, os.path.join(sys.base_prefix, "lib"), *_SYSTEM]
    for name in packages:
        package = sys.modules[name]
        for folder in getattr(package, "__path__", [package.__file__]):
            paths += [folder, f"{folder}.libs"]  # wheels keep their shared libraries beside the package
    return paths


def load_packages(packages: Iterable[str], search_path: Iterable[str]) -> None:
    """Imports what answers may import; nothing else of `search_path` can be found afterwards.

    Raises `ImportError` for a package that is not there.
    """
    before = list(sys.path)
    # Libraries that start threads of their own would be forked in the midst of their work.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(one_thread)
    sys.path += search_path
    try:
        for name in packages:
            importlib.import_module(name)
    finally:
        sys.path[:] = before
        for name in one_thread:
            del os.environ[name]
