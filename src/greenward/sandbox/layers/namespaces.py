"""User, process, mount, IPC and network namespaces, entered once by a worker.

Inside, the worker is process 1 of its own little system: its root holds the interpreter (read-only)
and one small folder in memory. All that starts in it ends with it.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from greenward.sandbox.layers.kernel import raise_last_error, system_call

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
_ALL_BUT_FILES = CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x4_0000
MNT_DETACH = 2
NOBODY = 65534

# Flags that a mount had outside and that a remount in a user namespace must repeat.
_KEPT_FLAGS = {
    os.ST_NOSUID: MS_NOSUID,
    os.ST_NODEV: MS_NODEV,
    os.ST_NOEXEC: MS_NOEXEC,
    os.ST_NOATIME: 0x400,
    os.ST_NODIRATIME: 0x800,
    os.ST_RELATIME: 0x20_0000,
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
_libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
_libc.unshare.argtypes = [ctypes.c_int]


def leave_the_host() -> None:
    """Enters new namespaces for all but files; the next fork is process 1 there. Raises `OSError`.

    The caller must have one thread only. Inside, it and its children are the user nobody.
    """
    user, group = os.getuid(), os.getgid()
    _unshare(_ALL_BUT_FILES)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def enter_private_root(root: str, readable: Sequence[str], workspace: str, workspace_bytes: int) -> None:
    """Makes `root` (an empty folder) the root of this process's own file system. Raises `OSError`.

    It holds the `readable` files and folders of the host, read-only, a `/proc` where the kernel
    allows one, and at `workspace` an empty folder in memory of at most `workspace_bytes`.
    """
    _unshare(CLONE_NEWNS)
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in _outermost(readable):
        _bind_read_only(path, root + path)
    _link_system_folders(root)
    os.makedirs(root + "/proc")
    _try_proc(root + "/proc")
    os.makedirs(root + workspace)
    _mount("tmpfs", root + workspace, "tmpfs", MS_NOSUID | MS_NODEV, _bounded(workspace_bytes))
    os.chdir(root)
    system_call("pivot_root", b".", b".")
    if _libc.umount2(b".", MNT_DETACH) != 0:
        raise_last_error("umount2")
    _mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")


def _unshare(flags: int) -> None:
    if _libc.unshare(flags) != 0:
        raise_last_error("unshare")


def _bounded(size: int) -> str:
    return f"size={size},nr_inodes={max(64, size // 4096)},mode=700"


def _outermost(paths: Sequence[str]) -> list[str]:
    """The existing paths, resolved, without those that lie inside others."""
    found: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths if os.path.exists(path)}):
        if not any(path.startswith(outer.rstrip("/") + "/") for outer in found):
            found.append(path)
    return found


def _link_system_folders(root: str) -> None:
    """`/lib` → `/usr/lib` and the like, where the host has them so: the loader looks there."""
    for path in ("/lib", "/lib64", "/lib32", "/bin"):
        if os.path.islink(path) and not os.path.lexists(root + path):
            os.symlink(os.readlink(path), root + path)


def _bind_read_only(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "xb").close()
    _mount(source, target, None, MS_BIND | MS_REC)
    found = os.statvfs(target).f_flag
    kept = sum(flag for shown, flag in _KEPT_FLAGS.items() if found & shown)
    _mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def _try_proc(target: str) -> None:
    try:
        _mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    except OSError:  # refused where the host's own is masked (containers); the worker does without
        return


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    if _libc.mount(arguments[0], arguments[1], arguments[2], flags, arguments[3]) != 0:
        raise_last_error(f"mount {target}")
