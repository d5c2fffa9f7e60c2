"""One writer per run directory.

A POSIX record lock, because the kernel frees it when its process dies, however it dies, and a
forked worker does not inherit it: a lock of a dead process is never in the way. The file's text
only serves the message.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import sys
import warnings
from pathlib import Path

from greenward.errors import RunError
from greenward.runs.files import writing

_UNSUPPORTED = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
LOCK = ".lock"
# struct flock, asking who has a write lock from the first byte to the end: macOS has the type last.
if sys.platform == "darwin":
    _FLOCK, _WHOLE_FILE, _TYPE = "qqihh", (0, 0, 0, fcntl.F_WRLCK, os.SEEK_SET), 3
else:
    _FLOCK, _WHOLE_FILE, _TYPE = "hhqqi4x", (fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0), 0
# Record locks do not exclude a second opener in the same process, so this does.
_held_here: set[Path] = set()


class RunLock:
    """Held from construction to `release`.

    Raises `RunError` when another process, or another object in this one, writes the same run.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder.resolve() / LOCK
        if self._path in _held_here:
            raise RunError(f"{folder} is already open for writing in this process")
        self._descriptor = _open_own_file(self._path)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(self._descriptor, 100).decode(errors="replace").strip()
            os.close(self._descriptor)
            if error.errno not in _UNSUPPORTED:
                raise RunError(
                    f"{folder} is being written by another process ({holder or 'unknown'})",
                    remedy="Wait for it, stop it, or choose another directory.",
                ) from error
            warnings.warn(f"{folder}: this file system has no locks; keep to one writer", stacklevel=3)
            self._descriptor = -1
            return
        _held_here.add(self._path)
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, f"pid {os.getpid()}\n".encode())

    def release(self) -> None:
        """Give the run free. Calling it twice is harmless."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            _held_here.discard(self._path)


def is_being_written(folder: Path) -> bool:
    """Whether a process holds the lock of the run at `folder`; asking does not take it."""
    file = folder.resolve() / LOCK
    if file in _held_here:
        return True
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_GETLK, struct.pack(_FLOCK, *_WHOLE_FILE))
        return bool(struct.unpack(_FLOCK, found)[_TYPE] != fcntl.F_UNLCK)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def _open_own_file(path: Path) -> int:
    """Opens the lock file, or makes it: a file of its own, since what it holds is overwritten.

    Raises `RunError` for a link, whose target may be anybody's file, and for what is no file at all.
    """
    with writing(str(path)):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
        else:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                return descriptor
            os.close(descriptor)
    raise RunError(
        f"{path}: expected a file of its own, found a link or no file at all",
        remedy="Remove it: the lock of a run is made anew when it is needed.",
    )
