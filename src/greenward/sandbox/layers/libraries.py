"""What an answer may read: the standard library, shared libraries, and the packages that a recipe allows.

Packages that are installed beside them (`site-packages`, `dist-packages`, whatever the trainer's own
`sys.path` names) may hold the very answers: they are left out, wherever they lie.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
from collections.abc import Iterable, Sequence
from glob import escape, glob
from typing import Any

_LIBRARIES = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/alternatives",
    "/usr/share/zoneinfo",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PACKAGES = ("site-packages", "dist-packages")


def library_paths() -> list[str]:
    """Files and folders of the standard library, of shared libraries and of harmless devices."""
    return [*sys.path, os.path.join(sys.base_prefix, "lib"), *_LIBRARIES, *_DEVICES]


def program_paths() -> list[str]:
    """Folders of the programs that commands may run, and the loaders that these need."""
    loaders = [*glob("/lib*/ld-linux*"), *glob("/lib/ld-musl*")]
    return [os.path.join(sys.base_prefix, "bin"), "/usr/bin", "/bin", *loaders]


def without_packages(paths: Sequence[str], search_path: Iterable[str]) -> list[str]:
    """All that lies at or beneath `paths` but folders of installed packages, as few files and folders.

    Such folders are those of any interpreter beneath `paths` and those on `search_path`, the trainer's
    own. Symbolic links inside of a folder that is taken apart are left out.
    """
    needed, hidden = list(map(os.path.realpath, paths)), set(map(os.path.realpath, search_path))
    hidden = {one for one in hidden if not any(path == one or is_beneath(path, one) for path in needed)}
    for path in needed:
        for name in _PACKAGES:
            hidden.update((os.path.join(path, name), *glob(os.path.join(escape(path), "*", name))))
    found, waiting = set[str](), needed
    while waiting:
        path = waiting.pop()
        if path in hidden or path in found:
            continue
        if not any(is_beneath(one, path) for one in hidden) or not os.path.isdir(path):
            found.add(path)
            continue
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            waiting += [entry.path for entry in entries if not entry.is_symlink()]
    return sorted(found)


def load_packages(packages: Iterable[str], search_path: Iterable[str]) -> list[str]:
    """Imports what answers may import; nothing else of `search_path` can be found afterwards.

    Gives the files and folders of these packages and of those which they have imported. Raises
    `ImportError` for a package that is not there.
    """
    path_before, loaded_before = list(sys.path), set(sys.modules)
    # A fork while a library's own threads work would leave its locks held.
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    os.environ.update(one_thread)
    sys.path += search_path
    try:
        for name in packages:
            importlib.import_module(name)
    finally:
        sys.path[:] = path_before
        for name in one_thread:
            del os.environ[name]
    paths = []
    for name in {name.partition(".")[0] for name in sys.modules.keys() - loaded_before}:
        package = sys.modules[name]
        for path in getattr(package, "__path__", [getattr(package, "__file__", None)]):
            if path is not None:
                paths += [path, f"{path}.libs"]  # wheels keep their shared libraries beside the package
    return paths


def keep_lists_of_modules(search_path: Iterable[str]) -> None:
    """Has the import system keep its lists of the standard library's folders, which answers cannot list.

    A folder that holds `site-packages` cannot be listed without granting the same for those. The lists
    of the folders on `search_path`, the trainer's own, are forgotten.
    """
    for path in set(search_path).difference(sys.path):
        sys.path_importer_cache.pop(path, None)
    for path in sys.path:
        finder: Any = pkgutil.get_importer(path)
        if hasattr(finder, "_fill_cache"):
            finder.find_spec("a_name_that_makes_it_look")
            finder._fill_cache = lambda: None


def is_beneath(path: str, folder: str) -> bool:
    """Whether a path lies inside of a folder, by their names."""
    return path.startswith(folder.rstrip("/") + "/")
