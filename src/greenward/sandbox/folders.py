"""Removal of a folder that hostile code has filled.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import errno
import os

_MAX_ROUNDS = 100_000  # one round removes one level


def remove_folder(path: str) -> None:
    """Removes a folder and all in it, however deep, following no link.

    Nested folders are first moved up to the top: neither recursion nor path length grows with
    depth (`shutil.rmtree` recurses and fails on a tree a thousand levels deep).
    """
    for round_ in range(_MAX_ROUNDS):
        for number, entry in enumerate(list(os.scandir(path))):
            if entry.is_dir(follow_symlinks=False):
                _empty(entry.path, move_to=os.path.join(path, f".moved-{round_}-{number}"))
            else:
                os.unlink(entry.path)
        if _removed(path):
            return
    raise OSError(errno.ENOTEMPTY, "something keeps writing into the folder", path)


def _empty(path: str, *, move_to: str) -> None:
    os.chmod(path, 0o700)
    for number, inner in enumerate(list(os.scandir(path))):
        if inner.is_dir(follow_symlinks=False):
            os.chmod(inner.path, 0o700)  # a folder must be writable to be moved
            os.rename(inner.path, f"{move_to}-{number}")
        else:
            os.unlink(inner.path)
    _removed(path)


def _removed(path: str) -> bool:
    """Removes an empty folder; False if it is not empty (a dying process may still write into it)."""
    try:
        os.rmdir(path)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return False
    return True
