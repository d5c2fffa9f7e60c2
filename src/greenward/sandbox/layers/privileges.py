"""Privileges a process gives up for good, together with everything it starts.

All of it works as root, as root of a user namespace and as an ordinary user.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import ctypes
import errno
import struct

from greenward.sandbox.layers.kernel import raise_last_error
from greenward.sandbox.processes import prctl

PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
LINUX_CAPABILITY_VERSION_3 = 0x2008_0522

_HEADER = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)  # 0: this process
_NO_CAPABILITIES = bytes(24)  # effective, permitted and inheritable, 32 of each, then the other 32
_libc = ctypes.CDLL(None, use_errno=True)


def no_new_privileges() -> None:
    """From here on no program run by this process gains rights (set-uid, file capabilities)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets, and with them the ambient one."""
    if _libc.capset(_HEADER, _NO_CAPABILITIES) != 0:
        raise_last_error("capset")


def drop_bounding_set() -> None:
    """Empties the bounding set, so that no program run later gains a capability from its file.

    Children inherit it: once in a worker is enough. Without CAP_SETPCAP it is left as it is.
    """
    capability = 0
    while True:
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):  # beyond the kernel's last one; not ours to drop
                return
            raise
        capability += 1
