"""The files of a job: which are allowed, how they reach an answer's folder, how a module is loaded there."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from greenward.errors import SandboxError

MAX_FILES = MAX_FOLDERS = 1000  # the folder of an answer takes 4096 of both, and 16 MiB
MAX_FILES_BYTES = 4 << 20
MAX_PATH_CHARS, MAX_NAME_BYTES = 200, 255
_KEPT = {"__main__", *sys.builtin_module_names}


def path_error(path: Any) -> str | None:
    """What is wrong with the path of a file; None if it is a relative path with plain names."""
    if not isinstance(path, str) or not path or len(path) > MAX_PATH_CHARS:
        return f"expected a path of 1 to {MAX_PATH_CHARS} characters"
    if not path.isprintable() or any(mark in path for mark in '\\"`'):
        return "it holds a quotation mark, a backslash or a control character"
    names = path.split("/")
    if any(name in ("", ".", "..") or name != name.strip() for name in names):
        return "it must be relative, without '.', '..' and names that are empty or have spaces around them"
    if any(len(name.encode()) > MAX_NAME_BYTES for name in names):
        return f"a name in it has more than {MAX_NAME_BYTES} bytes"
    return None


def text_bytes(text: str) -> int:
    """The size of a file with this text."""
    return len(text.encode("utf-8", "surrogatepass"))


def check_files(files: Mapping[str, str], most_bytes: float) -> None:
    """Raises `SandboxError` for a path that is not allowed, a file that is another one's folder, too many
    files, folders or bytes, and a file of more than `most_bytes` bytes.
    """
    folders, total = set[str](), 0
    for path, text in files.items():
        problem = path_error(path) or (None if isinstance(text, str) else "its content is not text")
        if problem is None:
            above, size = folders_above(path), text_bytes(text)
            folders.update(above)
            total += size
            if any(folder in files for folder in above):
                problem = "it lies in a folder that is a file"
            elif size > most_bytes:
                problem = f"it has more than {most_bytes} bytes (Limits.file_bytes)"
        if problem is not None:
            raise SandboxError(f"the file {str(path)[:MAX_PATH_CHARS]!r} is not allowed: {problem}.")
    if len(files) > MAX_FILES or len(folders) > MAX_FOLDERS or total > MAX_FILES_BYTES:
        raise SandboxError(
            f"a job has {len(files)} files in {len(folders)} folders with {total} bytes; at most {MAX_FILES} "
            f"files in {MAX_FOLDERS} folders with {MAX_FILES_BYTES} bytes are allowed."
        )


def write_files(files: Mapping[str, str]) -> None:
    """Writes checked files into the working folder. Raises `OSError`."""
    for folder in dict.fromkeys(os.path.dirname(path) for path in files):
        os.makedirs(folder or ".", exist_ok=True)
    for path, text in files.items():
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(text)


def write_changes(files: Mapping[str, str], changes: Mapping[str, str | None], path: str) -> dict[str, str]:
    """Writes what an answer changes over the files of its problem, and gives all; None deletes a file.

    Modules in these files, and the answer's own at `path`, are forgotten: they are loaded anew. Those in
    files that the answer adds are found where no other module has their name. Raises `OSError`.
    """
    for gone in (one for one, text in changes.items() if text is None and one in files):
        os.unlink(gone)
        with contextlib.suppress(OSError):  # folders that are not empty stay
            os.removedirs(os.path.dirname(gone))
    kept = {one: text for one, text in changes.items() if text is not None}
    write_files(kept)
    forget_modules([*files, path], os.getcwd())
    for folder in [one for one in sys.path_importer_cache if one.startswith(os.getcwd())]:
        del sys.path_importer_cache[folder]
    if added := kept.keys() - files.keys() - {path}:
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _AddedLast(added))
    return {one: text for one, text in files.items() if changes.get(one, text) is not None} | kept


class _AddedLast:
    """Finds a module in one of the `added` files only where no other file is a module of its name.

    What an answer adds thus takes the place of no module of the standard library, of packages or of its
    problem. The files stay where they are, so that they find what lies beside them.
    """

    def __init__(self, added: Iterable[str]) -> None:
        self._added = set(map(os.path.realpath, added))

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        folders = sys.path if path is None else path
        found = PathFinder.find_spec(name, folders, target)
        if found is None or found.origin is None or self._is_of_others(found.origin):
            return found
        for folder in folders:
            other = PathFinder.find_spec(name, [folder], target)
            if other is not None and other.origin is not None and self._is_of_others(other.origin):
                return other
        return found

    def _is_of_others(self, file: str) -> bool:
        return os.path.realpath(file) not in self._added


def find_modules_here(files: Iterable[str]) -> None:
    """Has the import system look into the working folder first, and forget what it has loaded of that name.

    Like a program's own folder, it comes before the standard library, whatever is loaded already.
    """
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    forget_modules(files)


def forget_modules(files: Iterable[str], folder: str | None = None) -> None:
    """Has the import system forget modules of the files' names, and those that lie in the `folder`."""
    own = {path.split("/")[0].removesuffix(".py") for path in files} - _KEPT
    for name, module in list(sys.modules.items()):
        is_inside = folder and str(getattr(module, "__file__", "")).startswith(os.path.join(folder, ""))
        if name.split(".")[0] in own or is_inside:
            del sys.modules[name]


def load_module(path: str) -> dict[str, Any]:
    """The namespace of the module at `path`, loaded once, under the name by which others import it."""
    name, is_package = module_name(path)
    parent, _, child = name.rpartition(".")
    if parent:
        importlib.import_module(parent)  # it may import the module, which is loaded then
    file = os.path.abspath(path)
    module = sys.modules.get(name)
    if module is None or getattr(module, "__file__", None) != file:
        folders = [os.path.dirname(file)] if is_package else None
        spec = spec_from_file_location(name, file, submodule_search_locations=folders)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(module)
        if parent:
            setattr(sys.modules[parent], child, module)
    return vars(module)


def module_name(path: str) -> tuple[str, bool]:
    """The dotted name of the module at a path, and whether it is a package's. Raises `SandboxError`."""
    parts = path.removesuffix(".py").split("/")
    is_package = len(parts) > 1 and parts[-1] == "__init__"
    if not path.endswith(".py") or any("." in part for part in parts):
        raise SandboxError(f"{path[:MAX_PATH_CHARS]!r} is not the path of a Python module.")
    return ".".join(parts[:-1] if is_package else parts), is_package


def folders_above(path: str) -> list[str]:
    """The folders that hold a file, the outermost first."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
