"""Writes the files of a job, loads their modules, and removes folders that hostile code has filled.

A problem may ask for one function of a module that every answer could import, of the standard library for
example. The installed original can then be neither read nor called: the problem's own file, without it,
takes its place.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from types import CodeType, FunctionType
from typing import Any

from greenward.common.errors import SandboxError

MAX_ENTRIES = 4096
UNCOUNTABLE = 1 << 60
MAX_READ_BYTES = 4 << 20  # of the files of a workspace that are read at once
RESULT_BYTES = 7 * MAX_READ_BYTES  # as JSON a byte takes up to six
_CHANGED = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_folder(path: str, seconds: float = math.inf) -> None:
    """Removes a folder and all in it as `empty_folder` does."""
    empty_folder(path, seconds)
    os.rmdir(path)


def empty_folder(path: str, seconds: float = math.inf) -> None:
    """Removes all that is in a folder, however deep, following no link.

    A process that is just dying may still write into it: a folder found filled again is emptied
    again, a bounded number of times. Raises `OSError`; `TimeoutError` if it takes longer than `seconds`.
    """
    deadline = time.monotonic() + seconds

    def leave(parent: int, name: str) -> None:
        _stop_after(deadline)
        os.rmdir(name, dir_fd=parent)

    for attempt in range(100):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "something took the folder's place", path)
        os.chmod(path, 0o700)
        if not os.listdir(path):  # most answers write nothing
            return
        try:
            _walk(path, partial(_clear_files, deadline=deadline), leave)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
            time.sleep(0.001 * attempt)
    raise OSError(errno.ENOTEMPTY, "something keeps writing into the folder", path)


def folder_bytes(path: str) -> int:
    """What all that is in a folder takes on disk, a file with several names once.

    What cannot be counted is `UNCOUNTABLE`: a folder that may not be read, or more than `MAX_ENTRIES`.
    Where something vanishes or moves during the count, the count ends there: the caller looks again.
    """
    total, entries, seen = 0, 0, set[int]()

    def count(folder: int) -> list[str]:
        nonlocal total, entries
        folders = []
        with os.scandir(folder) as found:
            for entry in found:
                entries += 1
                if entries > MAX_ENTRIES:
                    raise OSError(errno.EOVERFLOW, "too many files", path)
                status = entry.stat(follow_symlinks=False)
                if status.st_ino not in seen:
                    total += status.st_blocks * 512
                if stat.S_ISDIR(status.st_mode):
                    folders.append(entry.name)
                elif status.st_nlink > 1:
                    seen.add(status.st_ino)
        return folders

    try:
        _walk(path, count)
    except OSError as error:
        if error.errno not in _CHANGED:
            return UNCOUNTABLE
    return total


def unnamed_bytes(pids: Iterable[int], ignored_device: int) -> int:
    """What files without a name take that processes hold open, but for those of `ignored_device`.

    What cannot be seen, such as those of a process that is just ending, is not counted, and neither is what
    is mapped and no longer open: to read the mappings of a process is to wait for it, and one that forks
    without end would make its worker wait while it multiplies.
    """
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(FileNotFoundError):
                    status = descriptor.stat()
                    if status.st_nlink == 0 and status.st_dev != ignored_device:
                        found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _walk(
    path: str, enter: Callable[[int], list[str]], leave: Callable[[int, str], None] | None = None
) -> None:
    """Walks through a folder depth first with one descriptor at a time.

    Neither recursion nor path length nor descriptors grow with depth (`shutil.rmtree` fails on a
    tree a thousand levels deep). `enter` gets each folder and gives the names of the folders in it
    to visit; `leave` gets the parent and the name of each folder that was visited.

    Raises `OSError`; EXDEV if a folder was moved meanwhile.
    """
    here = os.open(path, _FOLDER)
    try:
        above: list[tuple[str, int]] = []  # the name of each folder entered, and its parent's inode
        unvisited = [enter(here)]
        while True:
            if unvisited[-1]:
                name = unvisited[-1].pop()
                above.append((name, os.fstat(here).st_ino))
                here = _move(here, name)
                unvisited.append(enter(here))
            elif above:
                unvisited.pop()
                name, inode = above.pop()
                here = _move(here, "..")
                if os.fstat(here).st_ino != inode:
                    raise OSError(errno.EXDEV, "a folder was moved meanwhile", path)
                if leave is not None:
                    leave(here, name)
            else:
                return
    finally:
        os.close(here)


def _move(here: int, name: str) -> int:
    there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _clear_files(folder: int, deadline: float) -> list[str]:
    """Unlinks all that is not a folder; the names of the folders, which can be entered now."""
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    _stop_after(deadline)
    for name, is_folder in entries:
        if is_folder:
            os.chmod(name, 0o700, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
        _stop_after(deadline)
    return [name for name, is_folder in entries if is_folder]


def _stop_after(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError


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


def replace_originals(path: str, originals: Collection[str]) -> None:
    """Has the file at `path`, in the working folder, take the place of the originals in this process.

    Functions of the originals that are loaded, which other modules may use, call those of this file from here
    on.
    """
    name, is_package = module_name(path)
    names = set(map(os.path.basename, originals))
    loaded = {getattr(module, "__file__", None) or "" for module in sys.modules.values()}
    named = {file for file in loaded if os.path.basename(file) in names}
    if files := {file for file in named if os.path.realpath(file) in originals}:
        gc.unfreeze()  # the collector does not know of what is frozen
        for one in gc.get_objects():
            if type(one) is FunctionType and one.__code__.co_filename in files:
                one.__code__ = _call(name, one.__qualname__).replace(co_freevars=one.__code__.co_freevars)
        gc.freeze()
    sys.meta_path.insert(0, _Replacement(name, os.path.abspath(path), is_package))


def _call(module: str, name: str) -> CodeType:
    """The code of a function that calls the one of this name in a module; of a local one it does nothing."""
    if not all(map(str.isidentifier, name.split("."))):
        return (lambda *_, **__: None).__code__
    found = f"__import__('importlib').import_module({module!r}).{name}"
    code = compile(f"lambda *args, **kwargs: {found}(*args, **kwargs)", module, "eval", dont_inherit=True)
    return next(one for one in code.co_consts if type(one) is CodeType)


class _Replacement:
    """Finds a module in one file, also if it belongs to an installed package."""

    def __init__(self, name: str, file: str, is_package: bool) -> None:
        self._name, self._file = name, file
        self._folders = [os.path.dirname(file)] if is_package else None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        return spec_from_file_location(name, self._file, submodule_search_locations=self._folders)
