"""The files of a job: which are allowed, how they reach an answer's folder, how a module is loaded there."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from greenward.errors import SandboxError

MAX_FILES = 1000
MAX_FILES_CHARS = 4 << 20  # at most 4 bytes each: the folder of an answer takes 16 MiB
MAX_PATH_CHARS = 200
_KEPT = {"__main__", *sys.builtin_module_names}


def path_error(path: Any) -> str | None:
    """What is wrong with the path of a file; None if it is a relative path with plain names."""
    if not isinstance(path, str) or not path or len(path) > MAX_PATH_CHARS:
        return f"expected a path of 1 to {MAX_PATH_CHARS} characters"
    if not path.isprintable() or any(mark in path for mark in '\\"`'):
        return "it holds a quotation mark, a backslash or a control character"
    if any(name in ("", ".", "..") or name != name.strip() for name in path.split("/")):
        return "it must be relative, without '.', '..' and names that are empty or have spaces around them"
    return None


def check_files(files: Mapping[str, str], most_bytes: float) -> None:
    """Raises `SandboxError` for a path that is not allowed, a file that is another one's folder, too many
    files, and a file of more than `most_bytes` bytes.
    """
    for path, text in files.items():
        problem = path_error(path) or (None if isinstance(text, str) else "its content is not text")
        if problem is None and any(folder in files for folder in _folders(path)):
            problem = "it lies in a folder that is a file"
        if problem is None and len(text.encode("utf-8", "surrogatepass")) > most_bytes:
            problem = f"it has more than {most_bytes} bytes (Limits.file_bytes)"
        if problem is not None:
            raise SandboxError(f"the file {str(path)[:MAX_PATH_CHARS]!r} is not allowed: {problem}.")
    chars = sum(map(len, files.values()))
    if len(files) > MAX_FILES or chars > MAX_FILES_CHARS:
        raise SandboxError(
            f"a job has {len(files)} files with {chars} characters; "
            f"at most {MAX_FILES} files with {MAX_FILES_CHARS} characters are allowed."
        )


def write_files(files: Mapping[str, str]) -> None:
    """Writes checked files into the working folder. Raises `OSError`."""
    for folder in dict.fromkeys(os.path.dirname(path) for path in files):
        os.makedirs(folder or ".", exist_ok=True)
    for path, text in files.items():
        with open(path, "w", encoding="utf-8", errors="surrogatepass", newline="") as file:
            file.write(text)


def find_modules_here(files: Iterable[str]) -> None:
    """Has the import system look into the working folder first, and forget what it has loaded of that name.

    Like a program's own folder, it comes before the standard library, whatever is loaded already.
    """
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.getcwd())
    forget_modules(files)


def forget_modules(files: Iterable[str]) -> None:
    """Has the import system forget modules of the files' names."""
    own = {path.split("/")[0].removesuffix(".py") for path in files} - _KEPT
    for name in [name for name in sys.modules if name.split(".")[0] in own]:
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


def _folders(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]
