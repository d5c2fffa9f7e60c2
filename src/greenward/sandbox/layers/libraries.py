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
from collections.abc import Collection, Iterable, Mapping, Sequence
from glob import escape, glob
from typing import Any

_LIBRARIES = (
    "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/etc/alternatives",
    "/usr/share/zoneinfo",
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_PACKAGES = ("site-packages", "dist-packages")
_BUNDLES = ("ensurepip",)  # packages in archives, with copies of modules


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
    return without(needed, hidden)


def without(paths: Iterable[str], hidden: Collection[str]) -> list[str]:
    """All that lies at or beneath `paths` but what is `hidden`, as few files and folders; links are left out.

    Both are real paths.
    """
    found, waiting = set[str](), list(paths)
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


def import_roots(readable: Iterable[str]) -> dict[str, bool]:
    """Folders among `readable` that hold modules, each with whether answers may import these.

    Some hold the standard library of another interpreter.
    """
    own = set(map(os.path.realpath, sys.path))
    roots = dict.fromkeys(own, True)
    for path in readable:
        if not any(path == one or is_beneath(path, one) for one in own):
            roots.setdefault(os.path.dirname(path), True)  # of a package
            for depth in ("", "*"):
                libraries = map(os.path.dirname, glob(os.path.join(escape(path), depth, "os.py")))
                roots.update(dict.fromkeys(libraries, False))
    return roots


def find_originals(path: str, roots: Mapping[str, bool]) -> list[str]:
    """Where the module can be read whose place beneath an import root is `path`; empty if it is nowhere.

    These are its files, compiled ones included, archives beside it that hold copies of modules, and the
    standard libraries of other interpreters.
    """
    folder, name = os.path.split(path.removesuffix(".py"))
    found: list[str] = []
    for root in (one for one, is_own in roots.items() if is_own):
        for compiled in ("", "__pycache__"):
            found += glob(os.path.join(escape(os.path.join(root, folder, compiled)), f"{escape(name)}.*"))
    if not found:
        return []
    bundles = (os.path.join(root, name) for root, is_own in roots.items() for name in _BUNDLES if is_own)
    others = (root for root, is_own in roots.items() if not is_own)
    return [*found, *filter(os.path.exists, bundles), *others]


def is_beneath(path: str, folder: str) -> bool:
    """Whether a path lies inside of a folder, by their names."""
    return path.startswith(folder.rstrip("/") + "/")
