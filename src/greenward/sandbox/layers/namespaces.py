"""User, process, mount, IPC and network namespaces, entered once by a worker.

Inside, the worker is process 1: its root folder holds the interpreter (read-only) and one small folder
in memory, and every process that starts there ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Sequence

from greenward.sandbox.layers.libraries import is_beneath
from greenward.sandbox.processes import checked, libc, system_call

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x1000_0000, 0x2000_0000, 0x4000_0000
_ALL_BUT_FILES = CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_NOATIME, MS_NODIRATIME = 1, 2, 4, 8, 0x400, 0x800
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE, MS_RELATIME = 0x20, 0x1000, 0x4000, 0x4_0000, 0x20_0000
MNT_DETACH = 2
NOBODY = 65534

libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]
libc.unshare.argtypes = [ctypes.c_int]


def leave_the_host() -> None:
    """Enters new namespaces for all but files; the next fork is process 1 there. Raises `OSError`.

    The caller must have one thread only. Inside, it and its children are the user nobody.
    """
    user, group = os.getuid(), os.getgid()
    checked(libc.unshare(_ALL_BUT_FILES), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{NOBODY} {user} 1"),
        ("gid_map", f"{NOBODY} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def enter_private_root(root: str, readable: Sequence[str], workspace: str, workspace_bytes: int) -> None:
    """Makes `root` (an empty folder) the root of this process's own file system. Raises `OSError`.

    It holds the `readable` files and folders of the host, read-only, names of the standard streams, a `/proc`
    where the kernel allows one, and at `workspace` an empty folder in memory of at most `workspace_bytes`.
    """
    checked(libc.unshare(CLONE_NEWNS), "unshare")
    _mount(None, "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=755")
    for path in _outermost(readable):
        _bind_read_only(path, root + path)
    for path in ("/lib", "/lib64", "/lib32", "/bin"):  # on most hosts links, which the loader follows
        if os.path.islink(path) and not os.path.lexists(root + path):
            os.symlink(os.readlink(path), root + path)
    os.makedirs(root + "/dev", exist_ok=True)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{root}/dev/{name}")
    os.makedirs(root + "/proc")
    # The kernel refuses this where the host's own is masked (containers); the worker does not need it.
    with contextlib.suppress(OSError):
        _mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    os.makedirs(root + workspace)
    bounds = f"size={workspace_bytes},nr_inodes={max(64, workspace_bytes // 4096)},mode=700"
    _mount("tmpfs", root + workspace, "tmpfs", MS_NOSUID | MS_NODEV, bounds)
    os.chdir(root)
    system_call("pivot_root", b".", b".")
    checked(libc.umount2(b".", MNT_DETACH), "umount2")
    _mount(None, "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
    os.chdir("/")


def _outermost(paths: Sequence[str]) -> list[str]:
    """The existing paths, resolved, without those that lie inside others."""
    found: list[str] = []
    for path in sorted({os.path.realpath(path) for path in paths if os.path.exists(path)}):
        if not any(is_beneath(path, outer) for outer in found):
            found.append(path)
    return found


def _bind_read_only(source: str, target: str) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "xb").close()
    _mount(source, target, None, MS_BIND | MS_REC)
    # A remount in a user namespace must repeat the flags that the mount had outside.
    found = os.statvfs(target).f_flag
    kept = found & (MS_NODEV | MS_NOEXEC | MS_NOATIME | MS_NODIRATIME)  # `statvfs` has the same numbers …
    kept |= MS_RELATIME if found & os.ST_RELATIME else 0  # … but for this one
    _mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | kept)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    checked(libc.mount(arguments[0], arguments[1], arguments[2], flags, arguments[3]), f"mount {target}")
