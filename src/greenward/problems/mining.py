"""Makes problems of functions of a source tree and their tests.

The body of a function or method is masked; signature and docstring stay. Its context is cropped to a number
of characters: definitions are shown by their signature and the first line of their docstring, and those
nearest to the function as a whole where there is room. Imports come first; the class of a method comes last,
so that the function can follow.
A file has a *place*: its path beneath its import root, which is the first folder upwards that is no package.
Nothing is imported or run, and no link is followed. Files are copied to their places when their code runs.
"""

from __future__ import annotations

import ast
import errno
import hashlib
import importlib.util
import os
import re
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email import message_from_string
from email.message import Message
from functools import cached_property, lru_cache
from importlib import metadata
from importlib.machinery import FrozenImporter
from itertools import accumulate, islice
from pathlib import Path, PurePosixPath
from typing import Any

from greenward.common.errors import ProblemError
from greenward.common.files import read_untrusted
from greenward.common.text import visible
from greenward.problems.problem import Doctest, Problem
from greenward.problems.python_source import (
    UNREADABLE,
    FunctionNode,
    first_line,
    module_of,
    parse,
    qualified_functions,
    source_lines,
)
from greenward.problems.sandboxed_suites import RUNNER, run_by_runner, sandboxed

_ACTIONS = (ast.If, ast.For, ast.While, ast.With, ast.Expr)
_FEW_LINES = 2  # that are shown as a whole, unless they do something


@dataclass
class _Part:
    """A statement of the file: its text as a whole and in short, empty where it has no short form.

    `shown` is what the context has of it; `is_inside`, it belongs to the class that the function is in.
    """

    whole: str
    short: str
    distance: int
    is_import: bool
    is_inside: bool
    shown: str = ""


def context_of(function: MaskedFunction, most_chars: int) -> str:
    """The text before the starter code: at most `most_chars`, but for the lines that open the classes."""
    parts = list(_parts(syntax_tree(function.file), function, source_lines(function.file.text)))
    left = most_chars - sum(len(part.shown) for part in parts)
    nearest_first = sorted(parts, key=lambda part: (not part.is_import, part.distance))
    for text_of in (lambda part: part.short, lambda part: part.whole):
        for part in nearest_first:
            more = len(text_of(part)) - len(part.shown)
            if 0 < more <= left:
                left -= more
                part.shown = text_of(part)
    return "".join(part.shown for part in sorted(parts, key=lambda part: part.is_inside))


def _parts(parent: ast.Module | ast.ClassDef, function: MaskedFunction, lines: list[str]) -> Iterator[_Part]:
    """The statements of a module or class but the function itself; a class that holds it is opened."""
    is_class = isinstance(parent, ast.ClassDef)
    for node in parent.body[not is_class and ast.get_docstring(parent) is not None :]:
        start, end = first_line(node) - 1, node.end_lineno or 0
        if start <= function.start < end:
            if isinstance(node, ast.ClassDef):
                opening = "".join(lines[start : node.body[0].lineno - 1]).rstrip() + "\n"
                yield _Part("", "", 0, is_import=False, is_inside=True, shown=opening)
                yield from _parts(node, function, lines)
            continue
        is_import = isinstance(node, (ast.Import, ast.ImportFrom))
        is_short = end - start <= _FEW_LINES and not isinstance(node, _ACTIONS)
        whole = "".join(lines[start:end])
        short = whole if is_import or is_short else _summary(node, lines)
        distance = min(abs(start - function.start), abs(end - function.end))
        if not (is_import or is_short or is_class):
            whole, short = f"\n{whole}\n", f"\n{short}\n" if short else ""
        yield _Part(whole, short, distance, is_import, is_class)


def _summary(node: ast.stmt, lines: list[str]) -> str:
    """The signature of a function or class, and the first line of its docstring; empty for other code."""
    if not isinstance(node, (FunctionNode, ast.ClassDef)) or node.body[0].lineno == node.lineno:
        return ""
    end = node.body[0].lineno - 1 if isinstance(node, FunctionNode) else node.lineno
    indentation = " " * (node.col_offset + 4)
    said = (ast.get_docstring(node) or "").partition("\n")[0]
    docstring = f'{indentation}"""{said}"""\n' if said and not {'"', "\\"} & set(said) else ""
    return f"{''.join(lines[first_line(node) - 1 : end])}{docstring}{indentation}...\n"


MAX_BODY_LINES = 60
MAX_DOCSTRING_CHARS = 10_000
_LITERAL = re.compile(r"(\"\"\"|\'\'\'|\"|\')(.*)\1", re.DOTALL)
_ABSTRACT = {"abstractmethod", "overload", "abstractproperty", "no_type_check"}


@dataclass(frozen=True)
class MaskedFunction:
    """A documented function or method of a file. Lines are counted from 0; `end` is behind the last one.

    `start` is the line of the first decorator, `body` the first line behind the docstring. `qualified` is the
    name within the module (`TextWrapper.fill`), `said_from` the first line of the docstring, `fingerprint` a
    hash of the syntax tree without the function's name, annotations and docstring.
    """

    file: SourceFile
    qualified: str
    docstring: str
    first_parameter: str
    start: int
    said_from: int
    body: int
    end: int
    fingerprint: str

    @property
    def name(self) -> str:
        return self.qualified.rpartition(".")[2]

    @property
    def where(self) -> str:
        return f"{self.file.shown}:{self.start + 1} {self.qualified}"

    @property
    def starter(self) -> str:
        """Decorators, signature and docstring, indented as in the file."""
        return "".join(self._lines[self.start : self.body])

    @property
    def said(self) -> str:
        """The docstring as the file writes it, without its quotes."""
        literal = _LITERAL.search("".join(self._lines[self.said_from : self.body]))
        return literal[2].strip() if literal else self.docstring

    @property
    def reference(self) -> str:
        """The body, indented as in the file."""
        return "".join(self._lines[self.body : self.end])

    @cached_property
    def _lines(self) -> list[str]:
        return source_lines(self.file.text.rstrip("\n") + "\n")


def masked_functions(file: SourceFile) -> Iterator[MaskedFunction | LeftOut]:
    """The functions of a file, in order, each masked or with the reason why it is left out.

    Functions inside of functions are parts of these.
    """
    try:
        found = list(qualified_functions(syntax_tree(file)))
    except UNREADABLE as error:
        yield LeftOut(file.shown, "not Python", str(error)[:200])
        return
    count = Counter(qualified for qualified, _ in found)
    for qualified, node in found:
        start = first_line(node) - 1
        reason = "defined more than once" if count[qualified] > 1 else _unsuitable(node)
        fingerprint = "" if reason else _fingerprint(node)
        if not fingerprint:
            yield LeftOut(f"{file.shown}:{start + 1} {qualified}", reason or "nested too deeply")
            continue
        doc = node.body[0]
        parameters = [*node.args.posonlyargs, *node.args.args]
        is_method = "." in qualified and not any(_name(one) == "staticmethod" for one in node.decorator_list)
        yield MaskedFunction(
            file=file,
            qualified=qualified,
            docstring=ast.get_docstring(node) or "",
            first_parameter=next((one.arg for one in parameters[is_method:]), ""),
            start=start,
            said_from=doc.lineno - 1,
            body=doc.end_lineno or 0,
            end=node.end_lineno or 0,
            fingerprint=fingerprint,
        )


def _unsuitable(node: FunctionNode) -> str:
    """Why a function cannot be asked for; empty if it can."""
    if ast.get_docstring(node) is None:
        return "no docstring"
    statements = node.body[1:]
    if all(map(_is_trivial, statements)) or _ABSTRACT & set(map(_name, node.decorator_list)):
        return "nothing to implement"
    first, last = node.body[0], statements[0]
    signature = [node.returns, *(one for one in ast.walk(node.args) if hasattr(one, "end_lineno"))]
    signature_end = max([node.lineno, *(one.end_lineno for one in signature if one is not None)])
    if last.lineno <= (first.end_lineno or 0) or first.lineno <= signature_end:
        return "body on the line of its docstring"
    if (node.end_lineno or 0) - (first.end_lineno or 0) > MAX_BODY_LINES:
        return "body too long"
    return "docstring too long" if len(ast.get_docstring(node) or "") > MAX_DOCSTRING_CHARS else ""


def _is_trivial(statement: ast.stmt) -> bool:
    """Whether a statement is `pass`, `...`, `raise NotImplementedError` or the return of a constant."""
    match statement:
        case ast.Pass() | ast.Expr(ast.Constant()) | ast.Return(None | ast.Constant()):
            return True
        case ast.Raise(exc=ast.Name("NotImplementedError") | ast.Call(ast.Name("NotImplementedError"))):
            return True
    return False


def _name(decorator: ast.expr) -> str:
    """The last name of a decorator: `abstractmethod` of `@abc.abstractmethod`."""
    decorator = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(decorator, "attr", getattr(decorator, "id", ""))


def _fingerprint(node: FunctionNode) -> str:
    """A hash of parameters and body; empty for what is nested too deeply."""
    arguments = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
    try:
        body = "\n".join(map(ast.dump, node.body[1:]))
    except RecursionError:
        return ""
    return hashlib.sha256(f"{arguments}\n{body}".encode("utf-8", "surrogatepass")).hexdigest()


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

    def module(self, name: str) -> SourceFile | None:
        """The file of the module, or of the package, with this dotted name."""
        path = name.replace(".", "/")
        return self.by_place.get(f"{path}.py") or self.by_place.get(f"{path}/__init__.py")


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
    return visible(next(filter(None, map(str.strip, text.splitlines())), ""), MAX_FACT_CHARS)


def suites_of(file: SourceFile, tree: SourceTree) -> list[str]:
    """The tests that may call the functions of a file: places of files, or modules of the installed tests.

    Of a tree all of its tests; of the standard library those that CPython names after the module.
    """
    if tree.library is None:
        return tree.suites
    folder = tree.library / "test"
    names = dict.fromkeys((file.module.replace(".", "_"), file.module.rpartition(".")[2], file.top))
    found = [f"test.test_{name}" for name in names if (folder / f"test_{name}.py").is_file()]
    for name in names:
        within = sorted((folder / f"test_{name}").glob("test_*.py"))
        found += (f"test.test_{name}.{one.stem}" for one in within)
    return found


def needs_pytest(file: SourceFile) -> bool:
    """Whether the tests of a file are for pytest: it imports that, or has tests outside of classes."""
    functions = (one.name for one in _parsed(file).body if isinstance(one, ast.FunctionDef))
    return "pytest" in dependencies([file]) or any(name.startswith("test") for name in functions)


def files_for(file: SourceFile, tree: SourceTree) -> dict[str, str]:
    """The files of a tree that a file imports, directly and through others, by place; itself included.

    The sandbox has the standard library itself: there only a package's own file needs the others.
    """
    if tree.library and not file.place.endswith("__init__.py"):
        return {file.place: file.text}
    found: dict[str, str] = {}
    waiting = [file]
    while waiting:
        one = waiting.pop()
        if one.place not in found:
            found[one.place] = one.text
            names = (*_imported(one), one.module)  # of modules; the packages that hold them are needed, too
            paths = (path for name in names for path in accumulate(name.split("."), "{}/{}".format))
            places = (place for path in paths for place in (f"{path}.py", f"{path}/__init__.py"))
            needed = (tree.by_place[place] for place in places if place in tree.by_place)
            waiting += (other for other in needed if not tree.library or other.top == file.top)
    return dict(sorted(found.items()))


def helpers_for(suite: SourceFile, tree: SourceTree) -> dict[str, str]:
    """What the tests of a file may use: files of its folder and of those above it that are no suites."""
    folder = PurePosixPath(suite.shown).parent
    found = (one for one in tree.files if one.is_test and not one.is_suite)
    return {one.place: one.text for one in found if folder.is_relative_to(PurePosixPath(one.shown).parent)}


def dependencies(files: Iterable[SourceFile]) -> set[str]:
    """The packages and modules at top level that files import."""
    return {name.partition(".")[0] for file in files for name in _imported(file)}


@lru_cache(maxsize=4096)
def _imported(file: SourceFile) -> tuple[str, ...]:
    """The absolute names of all that a file may import; of `from a import b` both `a` and `a.b`."""
    names: dict[str, None] = {}
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Import):
            names.update((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(file, node)
            names[origin] = None
            names.update((f"{origin}.{alias.name}".lstrip("."), None) for alias in node.names)
    names.pop("", None)
    return tuple(names)


def _origin(file: SourceFile, node: ast.ImportFrom) -> str:
    """The absolute name of the module that names are imported from."""
    package = file.module.split(".")
    package = package if file.place.endswith("__init__.py") else package[:-1]
    base = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*base, *([node.module] if node.module else [])])


_MOST_IMPORTS = 8  # by which a class is found


def find_class(
    name: str, file: SourceFile, tree: SourceTree, imports: int = _MOST_IMPORTS
) -> tuple[SourceFile, ast.ClassDef] | None:
    """The class that a dotted name stands for in a file, with the file that defines it.

    It is defined there at top level or imported from another file of the tree, by name and not by `*`.
    """
    origin: SourceFile | None
    for node in reversed(_parsed(file).body):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return file, node
        for alias in node.names if isinstance(node, ast.Import | ast.ImportFrom) and imports else ():
            known_as = alias.asname or alias.name
            inner = name.removeprefix(f"{known_as}.")
            if isinstance(node, ast.ImportFrom) and name == known_as:
                origin, inner = tree.module(_origin(file, node)), alias.name
            elif inner == name:
                continue
            elif isinstance(node, ast.ImportFrom):
                origin = tree.module(f"{_origin(file, node)}.{alias.name}".lstrip("."))
            else:
                origin = tree.module(alias.name)
            return None if origin is None else find_class(inner, origin, tree, imports - 1)
    return None


def _parsed(file: SourceFile) -> ast.Module:
    try:
        return syntax_tree(file)
    except UNREADABLE:
        return ast.Module([], [])


STUB = "raise NotImplementedError"
EMPTY_BODIES = ("pass", STUB)
CONSTANTS = ("True", "False", "0", "1", "''", "[]", "{}", "()")


def doctest_problem(function: MaskedFunction, tree: SourceTree, context_chars: int) -> Problem:
    """The problem that is judged by the examples of the function's own docstring."""
    tests = (Doctest(function.docstring),)
    return masked_problem(function, tree, context_chars, tests=tests, tags=("doctest",))


def suite_problem(
    function: MaskedFunction, tree: SourceTree, suite: str, tests: Sequence[str], context_chars: int
) -> Problem:
    """The problem that is judged by single tests of a suite: the place of a file, or an installed module."""
    test_files = {RUNNER: sandboxed(RUNNER)}
    if suite in tree.by_place:
        file = tree.by_place[suite]
        test_files |= helpers_for(file, tree) | files_for(file, tree)
    return masked_problem(function, tree, context_chars, test_files, **run_by_runner(tests), tags=("suite",))


def masked_problem(
    function: MaskedFunction,
    tree: SourceTree,
    context_chars: int,
    test_files: dict[str, str] | None = None,
    *,
    tags: tuple[str, ...],
    **tests: Any,
) -> Problem:
    """The problem that asks for the body of a function, judged by `tests` (fields of `Problem`)."""
    place = function.file.place
    files = files_for(function.file, tree) | {place: in_file(function, STUB)}
    test_files = {path: text for path, text in (test_files or {}).items() if path not in files}
    known = {*(one.top for one in tree.files), *sys.stdlib_module_names, "greenward_tests"}
    used = [tree.by_place[path] for path in (*files, *test_files) if path in tree.by_place]
    needed = {*dependencies(used), *(["pytest"] if "::" in tests.get("setup_code", "") else [])}
    return Problem(
        task_id=f"{tree.name}/{function.file.module}.{function.qualified}",
        prompt=function.said,
        entry_point=function.qualified,
        path=place,
        files=files,
        test_files=test_files or None,
        context=context_of(function, context_chars),
        starter_code=function.starter,
        reference=function.file.text,
        tags=("method" if "." in function.qualified else "function", *tags),
        columns={
            "origin": f"{tree.name} {tree.version}".strip() + f", {function.where.partition(' ')[0]}",
            "licence": tree.licence,
            "dependencies": sorted(needed - known),
        },
        **tests,
    )


def in_file(function: MaskedFunction, statement: str) -> str:
    """The function's file with one statement (or several lines) as the function's body."""
    lines = source_lines(function.file.text)
    first = next(line for line in source_lines(function.reference) if line.strip())
    body = textwrap.indent(statement, first[: len(first) - len(first.lstrip())])
    return f"{''.join(lines[: function.body])}{body}\n{''.join(lines[function.end :])}"


def constant_bodies(function: MaskedFunction) -> list[str]:
    """Statements that return a constant or the first argument, as no implementation does."""
    values = (*CONSTANTS, *([function.first_parameter] if function.first_parameter else []))
    return [f"return {value}" for value in values]


def usual_packages() -> list[str]:
    """What tests may import besides the standard library unless it is said: pytest, where it is installed."""
    return [name for name in ("pytest",) if importlib.util.find_spec(name) is not None]
