"""Writes whole lines, whole files, or nothing, also when the process is killed or the disk is full.

No writer follows a symbolic link at the name that it writes, or changes what is no regular file. Temporary
names are unpredictable, and such a file is made anew or not at all. Every failure of the file system becomes
a `RunError` that says what was being written. Reading tolerates exactly one defect, a torn last line, which
is what a killed writer leaves behind.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from greenward.common import interruption
from greenward.common.errors import RunError
from greenward.common.files import MAX_LOG_BYTES, lines, open_file, read_file
from greenward.common.parsing import parse_json_text

_LARGE_BYTES = 8 << 20
_FORCE = """
import os, sys
for path in sys.argv[1:]:
    try:
        os.fsync(os.open(path, os.O_RDONLY))
    except OSError as error:
        sys.exit(error.errno)
"""
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `RunError` that names `what` was being written."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        remedy = "Check the permissions of the folder, or choose another one."
        if error.errno in _DISK_FULL:
            reason = "the disk is full"
            remedy = "Free some space and go on with --resume; what was written before is intact."
        raise RunError(f"cannot write {what}: {reason}", remedy=remedy) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `RunError` that names the file."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error


def write_atomically(path: Path, content: bytes, *, mode: int | None = None, forced: bool = True) -> None:
    """Write a whole file by way of a temporary one, forced to disk and renamed.

    `mode` are its permissions, from before it has content; by default those of any new file. What can be made
    again need not be forced to disk: each time takes milliseconds.

    Raises `RunError` for a link or what is no regular file at `path`, and when the file system refuses; a
    file that stood there before is untouched.
    """
    with writing(str(path)):
        with suppress(FileNotFoundError):
            _demand_regular(path, os.lstat(path))
        temporary = path.with_name(temporary_name(path))
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            with open(descriptor, "wb") as file:
                if mode is not None:
                    os.fchmod(descriptor, stat.S_IMODE(mode))
                file.write(content)
            if forced:
                force([temporary])
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if forced:
            force([path.parent])


TEMPORARY = ".*.tmp"
"""What `temporary_name` gives, as a pattern."""


def temporary_name(path: Path) -> str:
    """A name beside `path` that nobody can know in advance."""
    return f".{path.name[:40]}.{os.urandom(8).hex()}.tmp"


def _demand_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        found = "a link, which is not followed" if stat.S_ISLNK(status.st_mode) else "something else"
        raise RunError(
            f"{path}: expected a regular file, found {found}.", remedy="Remove it, or write elsewhere."
        )


def write_json(path: Path, value: Any, indent: int | None = 2) -> None:
    """Write one JSON document, whole or not at all. Raises `RunError`."""
    write_atomically(path, dump_json(value, indent=indent).encode())


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a JSONL file, whole or not at all. Raises `RunError`."""
    write_atomically(path, "".join(f"{dump_json(row)}\n" for row in rows).encode())


def force(paths: Sequence[Path]) -> None:
    """Force files, or the names inside folders, to disk; once a stop was asked for, nobody waits for it.

    Large files are forced by another process, because no signal ends a process inside of `fsync`; it goes on
    when this one stops. Raises `OSError`.
    """
    if interruption.requested():
        return
    if sum(os.stat(path).st_size for path in paths) < _LARGE_BYTES:
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return
    import subprocess  # which few commands need: files are seldom large

    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FORCE, *map(os.path.abspath, paths)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is not for it
    )
    while not interruption.requested():
        with suppress(subprocess.TimeoutExpired):
            if number := process.wait(interruption.POLL_SECONDS):
                raise OSError(number, os.strerror(number))
            return


def append_line(path: Path, line: str) -> None:
    """Append one line, whole or not at all, and hand it to the operating system at once.

    Raises `RunError` for a link, what is no regular file and a file that has a second name, and when the file
    system refuses; the lines written before are untouched.
    """
    content = line.encode() + b"\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    with (
        writing(str(path)),
        open(path, "ab", buffering=0, opener=lambda name, _: os.open(name, flags, 0o666)) as file,
    ):
        status = os.fstat(file.fileno())
        _demand_regular(path, status)
        if status.st_nlink > 1:
            raise RunError(
                f"{path}: this file has another name as well, whose content would change.",
                remedy="Put a copy in its place, or write elsewhere.",
            )
        try:
            written = 0
            while written < len(content):
                written += os.write(file.fileno(), content[written:])
        except OSError:
            file.truncate(status.st_size)
            raise


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row to a JSONL file, as `append_line` does."""
    append_line(path, dump_json(row))


def remove_tree(path: Path) -> None:
    """Delete a folder so that a kill halfway never leaves half a folder under its own name."""
    import shutil

    with writing(str(path.parent)):
        doomed = path.with_name(temporary_name(path))
        os.replace(path, doomed)
        shutil.rmtree(doomed)


def to_json(value: Any) -> Any:
    """Plain JSON data for `value`. NaN and infinities become the strings NaN, Infinity, -Infinity.

    JSON has no such numbers, and a diverged gradient must not look like a missing one (`null`). Scalars of
    numpy and torch are taken by their `item()`. Raises `TypeError` for what is no plain data.
    """
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if callable(getattr(value, "item", None)):
        return to_json(value.item())
    raise TypeError(f"{type(value).__name__} is not plain data")


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """`value` as valid JSON that UTF-8 can hold, one line unless `indent` is given."""
    text = json.dumps(to_json(value), ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode()  # JSON's own escape of half a character


_MOST_HASHED = 1 << 50  # bytes


def sha256_of(files: Iterable[Path], *, named: bool = False) -> str:
    """SHA-256, in hex, of the contents of `files` in their order; of their names, too, if `named`.

    Raises `OSError` for what is no regular file, which might never end.
    """
    import hashlib

    digest = hashlib.sha256()
    for file in files:
        if named:
            digest.update(file.name.encode() + b"\0")
        with open_file(file, _MOST_HASHED) as opened:
            while block := opened.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()


OVERFLOWED = 1e100
"""Measured numbers beyond it count as infinite: their squares would be."""


def from_json_number(value: Any) -> Any:
    """The number that `to_json` wrote as a string, or the value as it is."""
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


class Lines(NamedTuple):
    """The rows of a JSONL file. `torn` is the unfinished last line, None when there is none."""

    rows: tuple[dict[str, Any], ...]
    torn: str | None = None


class JsonRows:
    """The rows of a JSONL file, one at a time: for files that need not fit into memory.

    `torn` is the unfinished last line once all rows were taken, None when there is none. A missing file has
    no rows. Raises `RunError` for a broken line that is not the last one; a `lenient` reader leaves out what
    is no JSON object and counts it in `broken`. Both raise it for what is no file, is too long, or is a link
    that leads out of `within`, which is the folder of the file unless it is given.
    """

    def __init__(self, path: Path, *, lenient: bool = False, within: Path | None = None) -> None:
        self.path = path
        self._within = within or path.parent
        self.torn: str | None = None
        self.broken = 0
        self._lenient = lenient

    def __iter__(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        last: tuple[int, bytes] | None = None
        with reading(self.path), open_file(self.path, MAX_LOG_BYTES, within=self._within) as file:
            for number, line in enumerate(lines(file), start=1):
                if last is not None and not self._lenient:
                    raise RunError(
                        f"{self.path}, line {last[0]}: expected a JSON object, found {last[1][:80]!r}"
                    )
                if not line.strip():
                    continue
                # Our own logs are appended to; elsewhere a whole object needs no end of line.
                row = json_object(line) if line.endswith(b"\n") or self._lenient else None
                if row is None:
                    last = number, line.rstrip(b"\n")
                    self.broken += 1
                else:
                    last = None
                    yield row
        self.torn = None if last is None else last[1].decode(errors="replace")


def read_jsonl(path: Path) -> Lines:
    """Read all rows as `JsonRows` does, with the torn last line."""
    rows = JsonRows(path)
    return Lines(tuple(rows), rows.torn)


def read_json(path: Path, *, within: Path | None = None) -> dict[str, Any] | None:
    """Read one JSON object; None when there is no such file.

    Raises `RunError` for anything else in it, and as `JsonRows` does.
    """
    if not path.exists():
        return None
    with reading(path):
        record = json_object(read_file(path, within=within or path.parent))
    if record is None:
        raise RunError(f"{path}: expected a JSON object", remedy="Delete the file, or restore it.")
    return record


def json_object(content: bytes) -> dict[str, Any] | None:
    """The JSON object that a text is; None for any other text."""
    try:
        value = parse_json_text(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
