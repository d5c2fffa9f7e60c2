"""Finds the Python files of a source tree: a folder, a file, an installed package, the standard library.

Nothing is imported or run, and no link is followed. A file has a *place*: its path beneath its import root,
which is the first folder upwards that is no package. Files are copied to their places when their code runs.
"""

from __future__ import annotations

import ast
import errno
import importlib.util
import os
import re
import sys
import sysconfig
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from email import message_from_string
from email.message import Message
from functools import cached_property, lru_cache
from importlib import metadata
from importlib.machinery import FrozenImporter
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from greenward.errors import ProblemError
from greenward.problems.python_source import parse
from greenward.text import visible
from greenward.user_files import read_untrusted

STANDARD_LIBRARY = "stdlib"
MAX_FILE_BYTES = 1 << 20
MAX_TOKENS = 100_000  # of a file; the syntax tree of a dense one takes up to 1.7 KB for each
MAX_FOLDERS_DEEP = 50
MAX_TREE_FILES, MAX_TREE_CHARS = 20_000, 256 << 20
MAX_FACT_CHARS = 80
_TEST_FOLDERS = {"test", "tests", "testing"}
# Of the standard library: tests of its own, data, and what needs a terminal, a window or a network.
_NOT_MINED = {
    "__phello__", "ensurepip", "encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages",
    "dist-packages", "test", "tkinter", "turtledemo", "venv",
}  # fmt: skip
_BUILD_FOLDERS = {"__pycache__", "build", "dist", "node_modules", "venv"}
_LICENCE_FILES = ("LICENSE", "LICENCE", "COPYING")
_TOKEN = re.compile(r"\w+|[^\w\s]|\n")
_UNUSABLE = {
    errno.ELOOP: "symbolic link", errno.EFBIG: "file too large", errno.EINVAL: "not a file",
}  # fmt: skip


@dataclass(frozen=True)
class LeftOut:
    """A file or function that gives no problem: where it is, the reason, and what was found."""

    where: str
    reason: str
    detail: str = ""


@dataclass(frozen=True)
class SourceFile:
    """A Python file as text. `place` is its path beneath its import root, `shown` the path for the reader."""

    place: str
    shown: str
    text: str
    is_test: bool

    @property
    def module(self) -> str:
        """The dotted name by which it is imported."""
        return module_of(self.place)

    @property
    def is_suite(self) -> bool:
        """Whether it holds tests itself, by its name, and not only what tests use."""
        stem = PurePosixPath(self.place).stem
        return self.is_test and (stem.startswith("test_") or stem.endswith("_test") or stem == "tests")

    @property
    def top(self) -> str:
        """The name of the package or module at the import root that it belongs to."""
        return self.module.partition(".")[0]


@dataclass(frozen=True)
class SourceTree:
    """The files of one tree in the order of their paths, and the facts that problems record of their origin.

    `library` is the folder of the standard library if the tree belongs to it: the sandbox has all of it, and
    its tests (CPython's package `test`, where it is installed) are not among the files.
    """

    name: str
    version: str
    licence: str
    files: tuple[SourceFile, ...]
    left_out: tuple[LeftOut, ...]
    library: Path | None = None

    @cached_property
    def suites(self) -> list[str]:
        """The places of the files that hold tests."""
        return [file.place for file in self.files if file.is_suite]

    @cached_property
    def by_place(self) -> dict[str, SourceFile]:
        """The first file of each place."""
        return {file.place: file for file in reversed(self.files)}


def module_of(place: str) -> str:
    """The dotted name of the module at a place."""
    return place.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@lru_cache(maxsize=8)
def syntax_tree(file: SourceFile) -> ast.Module:
    """The syntax tree of a file; raises as `python_source.parse` does. A few are kept: they are large."""
    return parse(file.text)


def find_tree(source: str) -> SourceTree:
    """The tree that `source` names: a folder, a file, `stdlib`, or a package that is installed.

    Raises `ProblemError` for what is none of these.
    """
    path = Path(source).expanduser()
    library = Path(sysconfig.get_path("stdlib"))
    if source == STANDARD_LIBRARY:
        return _library_tree(library, None)
    if path.is_file() and path.suffix != ".py":
        raise ProblemError(
            f"{source}: expected a Python file (.py).", remedy="Give a folder or a Python file."
        )
    if path.exists():
        folder = path if path.is_dir() else path.parent
        text = _fact_text(folder, "PKG-INFO")  # of a source distribution
        name = path.resolve().name.removesuffix(".py")
        return _tree(name, *_facts(message_from_string(text), folder), path, folder)
    found = _installed(source)
    if found is None:
        raise ProblemError(
            f"{source}: there is no such path, and no installed package of this name.",
            remedy="Give a folder, a Python file, the name of an installed package, or stdlib.",
        )
    if library in found.parents and not {"site-packages", "dist-packages"} & set(found.parts):
        return _library_tree(library, found)
    distributions = metadata.packages_distributions().get(source)
    facts = metadata.metadata(distributions[0]) if distributions else Message()
    return _tree(source, *_facts(facts, found), found, found.parent)


def _installed(name: str) -> Path | None:
    """The folder or file of a package or module at top level, which is looked up and not imported."""
    if not name.isidentifier():
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin) if spec.has_location and spec.origin else None


def _library_tree(library: Path, part: Path | None) -> SourceTree:
    version = ".".join(map(str, sys.version_info[:3]))
    tree = _tree(STANDARD_LIBRARY, version, "PSF-2.0", part or library, library, _NOT_MINED)
    # What is built into the interpreter can be read wherever it runs.
    built_in = [
        one
        for one in tree.files
        if FrozenImporter.find_spec(one.module) or one.module.startswith("importlib._bootstrap")
    ]
    left_out = (LeftOut(one.shown, "built into the interpreter") for one in built_in)
    files = tuple(one for one in tree.files if one not in built_in)
    return replace(tree, library=library, files=files, left_out=(*tree.left_out, *left_out))


def _tree(
    name: str, version: str, licence: str, path: Path, root: Path, without: Collection[str] = ()
) -> SourceTree:
    files, left_out = list[SourceFile](), list[LeftOut]()
    folder = path if path.is_dir() else path.parent
    for name_within, text in read_python_files(path, without):
        file = folder / name_within
        shown = _relative(file, root).encode(errors="surrogateescape").decode(errors="replace")
        if isinstance(text, LeftOut):
            left_out.append(replace(text, where=shown))
            continue
        folders = file.parents
        import_root = next((one for one in folders if not (one / "__init__.py").is_file()), folders[-1])
        place = _relative(file, import_root)
        if not all(map(str.isidentifier, module_of(place).split("."))):
            left_out.append(LeftOut(shown, "cannot be imported by its name"))
            continue
        files.append(SourceFile(place, shown, text, not without and _is_test(PurePosixPath(shown))))
    return SourceTree(name, version, licence, tuple(files), tuple(left_out))


def read_python_files(path: Path, without: Collection[str] = ()) -> Iterator[tuple[str, str | LeftOut]]:
    """(path within the folder, text) of the Python files beneath a folder, sorted, or of one file.

    For a file or folder that is left out, the reason is in place of the text. `without` are folders at the
    top.
    """
    if path.is_file():
        named = path.resolve()  # what the user names may be a link
        yield path.name, _text(named.parent, named.name)
        return
    files = chars = 0
    for name in _python_files(path, without):
        text = name if isinstance(name, LeftOut) else _text(path, name)
        if isinstance(text, str):
            files, chars = files + 1, chars + len(text)
            if files > MAX_TREE_FILES or chars > MAX_TREE_CHARS:
                limits = f"of at most {MAX_TREE_FILES} files with {MAX_TREE_CHARS} characters"
                yield str(name), LeftOut(str(name), "it and those behind it are too many", limits)
                return
        yield name.where if isinstance(name, LeftOut) else name, text


def _python_files(folder: Path, without: Collection[str]) -> Iterator[str | LeftOut]:
    """The paths of Python files beneath a folder, sorted, and of folders that cannot be looked into."""
    unreadable: list[OSError] = []
    for parent, folders, names in os.walk(folder, onerror=unreadable.append):
        beneath = PurePosixPath(_relative(Path(parent), folder))
        folders[:] = sorted(
            one
            for one in folders
            if not (one.startswith(".") or one in _BUILD_FOLDERS or (not beneath.parts and one in without))
            and not os.path.lexists(os.path.join(parent, one, "pyvenv.cfg"))
        )
        if len(beneath.parts) == MAX_FOLDERS_DEEP and folders:
            yield LeftOut(str(beneath), "folders nested too deeply", f"more than {MAX_FOLDERS_DEEP}")
            folders.clear()
        yield from (str(beneath / name) for name in sorted(names) if name.endswith(".py"))
    for error in unreadable:
        yield LeftOut(_relative(Path(error.filename), folder), "cannot be read", error.strerror or "")


def _text(folder: Path, name: str) -> str | LeftOut:
    """The text of a file in a folder, or why it is left out."""
    try:
        text = read_untrusted(folder, name, MAX_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return LeftOut(name, "not UTF-8", f"{error.reason} at byte {error.start}")
    except OSError as error:
        return LeftOut(name, _UNUSABLE.get(error.errno or 0, "cannot be read"), error.strerror or "")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if next(islice(_TOKEN.finditer(text), MAX_TOKENS, None), None):
        return LeftOut(name, "file too large", f"more than {MAX_TOKENS} names, numbers and signs")
    return text


def _is_test(path: PurePosixPath) -> bool:
    """Whether a file is part of a test suite, by its name or that of its folders."""
    is_named_so = path.stem.startswith("test_") or path.stem.endswith("_test")
    return is_named_so or path.stem in ("conftest", "tests") or bool(_TEST_FOLDERS & set(path.parts[:-1]))


def _relative(file: Path, folder: Path) -> str:
    return PurePosixPath(os.path.relpath(file, folder)).as_posix()


def _facts(stated: Any, folder: Path) -> tuple[str, str]:
    """(version, licence) by metadata; else the licence is the first line of the licence file in `folder`."""
    licence = _first_line(stated["License-Expression"] or (stated["License"] or "").partition("\n")[0])
    names = list[str]()
    if not licence:
        with suppress(OSError):  # it is a file, or cannot be looked into
            names = sorted(os.listdir(folder))
    for name in names:
        if PurePosixPath(name).stem.upper().startswith(_LICENCE_FILES):
            licence = _first_line(_fact_text(folder, name))
            break
    return _first_line(stated["Version"] or ""), licence


def _fact_text(folder: Path, name: str) -> str:
    """The text of a file that states facts; empty for none, a link, what is no file, and a large one."""
    try:
        return read_untrusted(folder, name, MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "")
    return visible(line.strip(), MAX_FACT_CHARS)
