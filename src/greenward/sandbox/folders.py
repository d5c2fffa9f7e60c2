"""Size and removal of folders that hostile code has filled."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import stat
import time
from collections.abc import Callable, Iterable
from functools import partial

MAX_ENTRIES = 4096
UNCOUNTABLE = 1 << 60
_ATTEMPTS = 100
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

    for attempt in range(_ATTEMPTS):
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
