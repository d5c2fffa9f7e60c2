"""Landlock: which files a process may reach, for the rest of its life and its children's.

Needs no privilege, only `no_new_privileges` before it. Everything that the kernel's Landlock can
restrict is refused unless a rule grants it: files, TCP, abstract Unix sockets and signals to
processes outside. What it never restricts is left to seccomp: chmod, chown, utime, other sockets;
before ABI 3 truncate, before ABI 6 signals.

Source: https://docs.kernel.org/userspace-api/landlock.html; linux/landlock.h.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import struct
from collections.abc import Sequence

from greenward.sandbox.processes import system_call

CREATE_RULESET_VERSION = 1 << 0
RULE_PATH_BENEATH = 1
RESTRICT_SELF_LOG_SAME_EXEC_OFF = 1 << 0  # ABI 7

# Rights on files. ABI 1 knows those up to MAKE_SYM; the others came with ABI 2, 3 and 5.
(
    EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, REMOVE_DIR, REMOVE_FILE, MAKE_CHAR, MAKE_DIR, MAKE_REG,
    MAKE_SOCK, MAKE_FIFO, MAKE_BLOCK, MAKE_SYM, REFER, TRUNCATE, IOCTL_DEV,
) = (1 << bit for bit in range(16))  # fmt: skip
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1  # ABI 4
SCOPE_ABSTRACT_UNIX_SOCKET, SCOPE_SIGNAL = 1 << 0, 1 << 1  # ABI 6

READ = READ_FILE | READ_DIR
MAKE_AND_REMOVE = MAKE_REG | MAKE_DIR | MAKE_SYM | REMOVE_FILE | REMOVE_DIR | REFER
WRITE = READ | WRITE_FILE | TRUNCATE | MAKE_AND_REMOVE
ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV  # others are for folders only


@functools.cache
def abi() -> int:
    """The version of the kernel's Landlock; 0 where there is none to be had."""
    try:
        return system_call("landlock_create_ruleset", 0, 0, CREATE_RULESET_VERSION)
    except OSError:  # not built in, switched off at boot, refused by a container's seccomp filter
        return 0


def make_ruleset(
    readable: Sequence[str],
    writable: Sequence[str],
    *,
    runnable: Sequence[str] = (),
    listable: Sequence[str] = (),
) -> int:
    """A descriptor of the rules, for any number of `restrict_self`.

    Beneath `readable`, files and folders can be read, not run; what is missing there or out of this
    user's reach is skipped. Beneath `runnable`, also run; beneath `listable`, only names of files be
    seen. Beneath `writable`, also written, made and removed (files, folders and symbolic links; no
    devices, sockets, pipes). A rule holds for the file or folder that is at its
    path now: it does not carry over to one made later at the same path.

    Raises `OSError`: no Landlock here, or a writable path that is missing.
    """
    if abi() == 0:
        raise OSError("this kernel has no Landlock")
    files, network, scopes = _handled(abi())
    attributes = struct.pack("=QQQ", files, network, scopes)
    ruleset = system_call("landlock_create_ruleset", attributes, len(attributes), 0)
    try:
        granted = ((READ, readable), (READ | EXECUTE, runnable), (READ_DIR, listable))
        for rights, paths in granted:
            _allow(ruleset, rights & files, paths)
        for path in writable:
            _allow_beneath(ruleset, path, WRITE & files)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def make_reading_ruleset(readable: Sequence[str]) -> int:
    """A descriptor of rules that forbid nothing but to read files other than those beneath `readable`.

    Raises `OSError`.
    """
    ruleset = system_call("landlock_create_ruleset", struct.pack("=Q", READ_FILE), 8, 0)
    try:
        _allow(ruleset, READ_FILE, readable)
    except BaseException:
        os.close(ruleset)
        raise
    return ruleset


def restrict_self(ruleset: int) -> None:
    """Puts this process under the rules for good. Raises `OSError`; EPERM without no-new-privileges."""
    # Thousands of refusals must not fill the host's audit log.
    system_call("landlock_restrict_self", ruleset, RESTRICT_SELF_LOG_SAME_EXEC_OFF if abi() >= 7 else 0)


def _handled(version: int) -> tuple[int, int, int]:
    """What this ABI can restrict: rights on files, rights on the network, scopes."""
    files = REFER - 1  # every right of ABI 1
    files |= (version >= 2) * REFER | (version >= 3) * TRUNCATE | (version >= 5) * IOCTL_DEV
    network = (version >= 4) * (BIND_TCP | CONNECT_TCP)
    scopes = (version >= 6) * (SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL)
    return files, network, scopes


def _allow(ruleset: int, rights: int, paths: Sequence[str]) -> None:
    """Adds a rule for each path but those that are missing or out of this user's reach."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            _allow_beneath(ruleset, path, rights)


def _allow_beneath(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ON_FILES
        rule = struct.pack("=Qi", rights, descriptor)
        system_call("landlock_add_rule", ruleset, RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)
