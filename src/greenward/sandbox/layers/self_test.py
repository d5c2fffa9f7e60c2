"""Each layer tried out in a child before it is counted on.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable

from greenward.sandbox.layers.levels import Layer
from greenward.sandbox.layers.shield import Shield

_LIMITS = {"memory_bytes": 1 << 30, "cpu_seconds": 5, "file_bytes": 1 << 20}


def run(shield: Shield, in_namespaces: bool, report: int) -> None:
    """Puts the layers on, tries to break each one, and writes to `report` which hold.

    The text is JSON: `holds`, names of layers, and `fails`, the reason for each other one.
    """
    holds: list[str] = []
    fails: dict[str, str] = {}

    def test(layer: Layer) -> None:
        reason = _TESTS[layer]()
        if reason is None:
            holds.append(layer.value)
        else:
            fails[layer.value] = reason

    if in_namespaces:
        test(Layer.NAMESPACES)
    try:
        shield.put_on(_LIMITS, after=test)
    except OSError as error:
        untested = next(layer for layer in shield.layers if layer.value not in (*holds, *fails))
        fails[untested.value] = f"it cannot be put on: {error}"
    os.write(report, json.dumps({"holds": holds, "fails": fails}).encode("ascii"))
    os._exit(0)


def _namespaces() -> str | None:
    if os.getppid() != 1:
        return "processes of the host can be seen"
    if [name for _, name in socket.if_nameindex() if name != "lo"]:
        return "network devices of the host can be seen"
    if os.path.exists("/home") or os.path.exists("/etc/passwd"):
        return "files of the host can be seen"
    return None


def _resources() -> str | None:
    limited = resource.getrlimit(resource.RLIMIT_FSIZE) == (_LIMITS["file_bytes"],) * 2
    return None if limited else "the size of files is not limited"


def _privileges() -> str | None:
    return _refused("capabilities are left", lambda: os.chroot("/"))


def _landlock() -> str | None:
    return _refused("folders outside can be listed", lambda: os.listdir("/"))


def _seccomp() -> str | None:
    return (
        _refused("sockets can be had", socket.socket)
        or _refused("processes can be started", _fork)
        or _refused("signals reach other processes", lambda: os.kill(os.getppid(), 0))
    )


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _refused(failure: str, action: Callable[[], object]) -> str | None:
    try:
        action()
    except PermissionError:
        return None
    except OSError as error:
        return f"{failure}: {error}"
    return failure


_TESTS: dict[Layer, Callable[[], str | None]] = {
    Layer.NAMESPACES: _namespaces,
    Layer.RESOURCES: _resources,
    Layer.PRIVILEGES: _privileges,
    Layer.LANDLOCK: _landlock,
    Layer.SECCOMP: _seccomp,
}
