"""Opens files of others: regular ones only, of bounded size, by no link that leads out of their folder.

A link that the user names is followed; a link inside a folder only within the folder that the user named
(and in the Hub's cache). Sizes are bounded before anything is unpacked or parsed, and an error names the
limit:

- of a document (JSON, tokenizer) 256 MiB, 100 levels and 4,194,304 values;
- of a log 4 GiB, 16 MiB a line and 4,000 names;
- of YAML 262,144 characters;
- of a gzip file 64 MiB or 100 times its size;
- of a database (Trackio) 1 GiB;
- of a decimal integer 50,000 digits (`sys.set_int_max_str_digits` allows more; `import greenward.grading`
  raises Python's limit of 4,300 to that);
- of `grade` 200,000 answers, and of `ui` a million beside another trainer's log, of 10,000 steps and 1 GiB.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path, PurePath
from typing import Any, BinaryIO, ParamSpec, TypeVar

from greenward.common.errors import GreenwardError

P = ParamSpec("P")
T = TypeVar("T")

MAX_DOCUMENT_BYTES = 256 << 20  # of a file that is parsed as a whole
MAX_LOG_BYTES = 4 << 30  # of a file that is read row by row
MAX_LINE_BYTES = 16 << 20

UNEXPECTED = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # fmt: skip
"""What code raises for plain data of another structure than it expects."""


def open_file(path: Path, most_bytes: int, *, within: Path | None = None) -> BinaryIO:
    """The regular file at `path`, open for reading from its first byte.

    With `within`, a folder above the file, no link may lead out of that folder. Opening never waits, as it
    would for a FIFO.

    Raises `OSError` whose `strerror` says what is wrong: what `open` refuses, something else than a
    regular file, more than `most_bytes`, or a link that leads out of `within`.
    """
    real = os.path.realpath(path)
    root = None if within is None else os.path.realpath(within)
    if root is not None and not Path(real).is_relative_to(root):
        said = f"it is a link that leads out of {within}; copy the file, or name the folder that it leads to"
        raise OSError(errno.ELOOP, said, str(path))
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(real, flags) if root is None else _open_beneath(root, real, flags)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        if status.st_size > most_bytes:
            said = f"it has {status.st_size} bytes; at most {most_bytes} are read"
            raise OSError(errno.EFBIG, said, str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _open_beneath(root: str, real: str, flags: int) -> int:
    """A descriptor of the file at `real` in the folder `root`, paths without links.

    Each folder on the way is opened by itself, since one may become a link after the path was looked at.
    """
    *folders, name = os.path.relpath(real, root).split(os.sep)
    if os.pardir in (*folders, name):
        raise OSError(errno.ELOOP, "it changes while it is read", real)
    inside = _open_folder(root, folders, flags)
    try:
        return os.open(name, flags, dir_fd=inside)
    finally:
        os.close(inside)


def _open_folder(root: str | Path, folders: Sequence[str], flags: int) -> int:
    """A descriptor of the folder that is reached from `root` by way of `folders`, each opened by itself."""
    inside = os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for one in folders:
            outer, inside = inside, os.open(one, flags | os.O_DIRECTORY, dir_fd=inside)
            os.close(outer)
    except OSError:
        os.close(inside)
        raise
    return inside


def read_file(path: Path, most_bytes: int = MAX_DOCUMENT_BYTES, *, within: Path | None = None) -> bytes:
    """The content of a file that `open_file` opens. Raises `OSError` as that does."""
    with open_file(path, most_bytes, within=within) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_untrusted(folder: str | Path, path: str | PurePath, most_bytes: int) -> bytes:
    """The content of the regular file at `path` beneath `folder`, which somebody else has filled.

    No link is followed beneath `folder`, no pipe or device is opened, and no more than `most_bytes` are read.
    Raises `OSError` for anything else that lies there, and for a larger file.
    """
    *folders, name = PurePath(path).parts or ("",)
    if os.path.isabs(path) or ".." in (*folders, name):
        raise OSError(errno.EINVAL, "it lies outside of its folder", str(path))
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    inside = _open_folder(folder, folders, flags)
    try:
        found = os.stat(name, dir_fd=inside, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            if stat.S_ISLNK(found.st_mode):
                raise OSError(errno.ELOOP, "it is a symbolic link", str(path))
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        # Not blocking: a pipe may have taken its place by now.
        with open(os.open(name, flags | os.O_NONBLOCK, dir_fd=inside), "rb") as file:
            if not os.path.samestat(found, os.fstat(file.fileno())):
                raise OSError(errno.EINVAL, "it changes while it is read", str(path))
            content = file.read(most_bytes + 1)
    finally:
        os.close(inside)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return content


def leads_out(path: Path, folder: Path) -> bool:
    """Whether `path`, which names something in `folder`, is a link to a place outside of it."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def lines(file: BinaryIO, most_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """The lines of a file with their ends; of a longer line the first `most_bytes`, without its end.

    A last line without an end ends the file, even if another process appends the rest of it meanwhile. The
    file stands behind the whole line when it is given.
    """
    while line := file.readline(most_bytes):
        end = line
        while len(end) == most_bytes and not end.endswith(b"\n"):
            end = file.readline(most_bytes)
        yield line
        if not end.endswith(b"\n"):
            return


def expects(
    form: str, error: type[GreenwardError], *others: type[Exception]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`expecting` as a decorator, of a function whose first argument is the path, or several paths."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def decorated(*args: P.args, **kwargs: P.kwargs) -> T:
            first: Any = next(iter((*args, *kwargs.values())))
            paths = (first,) if isinstance(first, (str, Path)) else first
            with expecting(form, ", ".join(map(str, paths)), error, *others):
                return function(*args, **kwargs)

        return decorated

    return decorate


@contextmanager
def expecting(
    form: str, path: Path | str, error: type[GreenwardError], *others: type[Exception]
) -> Iterator[None]:
    """Turns what code raises for data of another structure (`UNEXPECTED`) into an `error` that names `path`.

    `form` says what was expected there. An `OSError` becomes an `error`, too, and so do `others`.
    """
    try:
        yield
    except OSError as fault:
        raise error(f"{fault.filename or path} cannot be read: {fault.strerror or fault}.") from fault
    except UNEXPECTED + others as fault:
        raise error(
            f"{path}: not {form} ({type(fault).__name__}: {' '.join(str(fault).split())[:200]}).",
            remedy="A file is damaged, or something else than greenward wrote it.",
        ) from fault
