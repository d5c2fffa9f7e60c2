"""Size and removal of folders that hostile code has filled.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import errno
import os
import stat
import time

_ATTEMPTS = 100
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def remove_folder(path: str) -> None:
    """Removes a folder and all in it, however deep, following no link. Raises `OSError`."""
    empty_folder(path)
    os.rmdir(path)


def empty_folder(path: str) -> None:
    """Removes all that is in a folder, however deep, following no link. Raises `OSError`.

    A process that is just dying may still write into it: a folder found filled again is emptied
    again, a bounded number of times.
    """
    for attempt in range(_ATTEMPTS):
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "something took the folder's place", path)
        os.chmod(path, 0o700)
        if not os.listdir(path):  # most answers write nothing
            return
        try:
            _empty(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
            time.sleep(0.001 * attempt)
    raise OSError(errno.ENOTEMPTY, "something keeps writing into the folder", path)


def folder_bytes(path: str, *, at_most_entries: int = 4096) -> int:
    """What the files of a folder take on disk; more entries than `at_most_entries` count as a gibibyte.

    What cannot be read counts nothing: the next look may see it.
    """
    total, entries, unvisited = 0, 0, [path]
    while unvisited:
        try:
            with os.scandir(unvisited.pop()) as found:
                for entry in found:
                    entries += 1
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        unvisited.append(entry.path)
                    if entries > at_most_entries:
                        return 1 << 30
        except OSError:
            continue
    return total


def _empty(path: str) -> None:
    """Empties a folder depth first with one descriptor at a time.

    Neither recursion nor path length nor descriptors grow with depth (`shutil.rmtree` fails on a
    tree a thousand levels deep).
    """
    here = os.open(path, _FOLDER)
    try:
        above: list[tuple[str, int]] = []  # the name of each folder entered, and its parent's inode
        unvisited = [_clear_files(here)]
        while True:
            if unvisited[-1]:
                name = unvisited[-1].pop()
                os.chmod(name, 0o700, dir_fd=here)
                above.append((name, os.fstat(here).st_ino))
                here = _move(here, name)
                unvisited.append(_clear_files(here))
            elif above:
                unvisited.pop()
                name, inode = above.pop()
                here = _move(here, "..")
                if os.fstat(here).st_ino != inode:
                    raise OSError(errno.EXDEV, "a folder was moved while it was removed", path)
                os.rmdir(name, dir_fd=here)
            else:
                return
    finally:
        os.close(here)


def _move(here: int, name: str) -> int:
    there = os.open(name, _FOLDER, dir_fd=here)
    os.close(here)
    return there


def _clear_files(folder: int) -> list[str]:
    """Unlinks all that is not a folder; the names of the folders."""
    with os.scandir(folder) as found:
        entries = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in found]
    for name, is_folder in entries:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in entries if is_folder]
