"""Files about runs in the user's cache folder: bounded, private to the user, and never needed.

Indexes, and answers beside other trainers' logs, are kept in `~/.cache/greenward/ui` (`$XDG_CACHE_HOME`), at
most 2 GiB, the oldest dropped. `--no-cache` keeps none; it is for a folder that contains the cache. A cache
folder that others can write to is not used. A file that was cut or replaced, as a resumed run does, is read
anew, and the page says how many rows are gone.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import BinaryIO

MAX_CACHE_BYTES = 2 << 30
Stamp = tuple[int, int, int]
"""Inode, size and time of change of a file, in nanoseconds; zeros where there is none."""
_KEPT = re.compile(r"[0-9a-f]{32}\.")
"""Names of files that are made here; others in the folder are somebody else's."""


def cache_folder() -> Path:
    """Where indexes lie: `$XDG_CACHE_HOME/greenward/ui`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "greenward" / "ui"


class Cache:
    """Files in the user's cache folder, by run; None as the folder keeps nothing. Use `close` at the end.

    Neither does a folder that belongs to another user, or that others can write to.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._temporary: TemporaryDirectory[str] | None = None
        self._lock = threading.Lock()
        if folder is not None:
            with suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                if not _is_private(folder):
                    self.folder = None
                    return
                self._drop_oldest(folder)

    def _drop_oldest(self, folder: Path) -> None:
        found = [
            (_age_and_size(one), one)
            for one in os.scandir(folder)
            if _KEPT.match(one.name) and not one.is_symlink()
        ]
        total = 0
        for (_, size), one in sorted(found, key=lambda one: one[0]):
            total += size
            if total > MAX_CACHE_BYTES:
                rmtree(one.path) if one.is_dir() else os.unlink(one.path)

    def file(self, run: Path, what: str) -> Path | None:
        """The file for what is kept of a run."""
        if self.folder is None:
            return None
        return self.folder / f"{digest_of(run, 16)}.{what}"

    def folder_of(self, run: Path, what: str) -> Path | None:
        """The folder for what is kept of a run in several files."""
        found = self.file(run, what)
        if found is not None:
            try:
                found.mkdir(mode=0o700, exist_ok=True)
            except OSError:
                return None
        return found

    def temporary(self, name: str) -> Path:
        """A path of that name in a folder that lasts until `close`, for what is needed and cannot be kept."""
        with self._lock:
            self._temporary = self._temporary or TemporaryDirectory(
                prefix="greenward-", ignore_cleanup_errors=True
            )
            return Path(self._temporary.name) / name

    def close(self) -> None:
        """Delete what is kept until now only."""
        with self._lock:
            if self._temporary is not None:
                self._temporary.cleanup()

    def write(self, file: Path | None, content: bytes | Callable[[BinaryIO], object]) -> None:
        """Write a file whole or not at all; a full disk or missing rights cost only time."""
        if file is None:
            return
        temporary = file.with_name(f"{file.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with open(descriptor, "wb") as opened:
                if isinstance(content, bytes):
                    opened.write(content)
                else:
                    content(opened)
            os.replace(temporary, file)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)


def digest_of(name: Path | str, size: int) -> str:
    """A hash of `size` bytes, in hex, of any text: names in a log may hold what no file's name can."""
    return blake2b(str(name).encode("utf-8", "surrogatepass"), digest_size=size).hexdigest()


def _is_private(folder: Path) -> bool:
    """Whether nobody else can write there: what is kept is shown as what the files of a run say."""
    status = os.stat(folder)
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _age_and_size(entry: os.DirEntry[str]) -> tuple[float, int]:
    """Minus the time of change of a file, or of the newest one in a folder; and their size in bytes."""
    if entry.is_dir(follow_symlinks=False):
        every = [
            os.stat(os.path.join(inside, name), follow_symlinks=False)
            for inside, _, names in os.walk(entry.path)
            for name in names
        ]
    else:
        every = [entry.stat(follow_symlinks=False)]
    return -max((one.st_mtime for one in every), default=0.0), sum(one.st_size for one in every)
