"""The layers that an answer's process applies to itself, prepared once in its worker and tested there."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import socket
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from greenward.sandbox.isolation import Layer
from greenward.sandbox.layers import landlock, seccomp
from greenward.sandbox.processes import LINUX, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, checked, libc, prctl

STACK_BYTES = 64 << 20
OPEN_FILES = 256
LINUX_CAPABILITY_VERSION_3 = 0x2008_0522
_TESTED_LIMITS = {"memory_bytes": 1 << 30, "cpu_seconds": 5, "file_bytes": 1 << 20}

Step = Callable[[Mapping[str, Any]], None]


class LayerStack:
    """The layers `wanted`, as far as this kernel has them; `missing` says why it lacks the others.

    Making one changes this process, a worker: what every answer inherits from it is done once, here
    (privileges, the limits that are the same for all). `readable` and `writable` are the files and
    folders that an answer may use, `user_tasks` how many threads the user may have in all.
    Namespaces are not applied by answers: their worker lives in them.
    """

    def __init__(
        self, wanted: Collection[Layer], readable: Sequence[str], writable: Sequence[str], user_tasks: int
    ) -> None:
        self.missing: dict[Layer, str] = {}
        self._steps: dict[Layer, Step] = {}
        prepare: dict[Layer, Callable[[], Step]] = {
            Layer.RESOURCES: lambda: limit_worker(user_tasks),
            Layer.PRIVILEGES: _prepare_privileges,
            Layer.LANDLOCK: lambda: _prepare_landlock(readable, writable),
            Layer.SECCOMP: _prepare_seccomp,
        }
        for layer, make in prepare.items():
            if layer in wanted:
                try:
                    self._steps[layer] = make()
                except OSError as error:
                    self.missing[layer] = str(error)
        if self._steps.keys() & {Layer.LANDLOCK, Layer.SECCOMP}:
            no_new_privileges()  # the kernel demands it

    def __contains__(self, layer: Layer) -> bool:
        return layer in self._steps

    def apply(self, limits: Mapping[str, Any]) -> None:
        """Applies every layer to this process, for good. Raises `OSError`."""
        for step in self._steps.values():
            step(limits)

    def test(self, in_namespaces: bool, report: int) -> None:
        """Applies the layers in a child, tries to break each one, and writes to `report` which hold.

        A layer may be accepted by the kernel and not hold. The text is JSON: `holds`, names of
        layers, and `fails`, the reason for each other one.
        """
        holds: list[str] = []
        fails: dict[str, str] = {}
        steps = {Layer.NAMESPACES: lambda _: None, **self._steps} if in_namespaces else self._steps
        for layer, step in steps.items():
            try:
                step(_TESTED_LIMITS)
            except OSError as error:
                fails[layer.value] = f"it cannot be applied: {error}"
                break
            if (breach := _breach(layer)) is None:
                holds.append(layer.value)
            else:
                fails[layer.value] = breach
        os.write(report, json.dumps({"holds": holds, "fails": fails}).encode("ascii"))
        os._exit(0)


def limit_worker(user_tasks: int) -> Step:
    """Limits this process, and its children with it, in what is the same for every answer, for good.

    Gives the function that limits an answer's process in the rest (`memory_bytes`, `cpu_seconds`,
    `file_bytes`), the backstop of what its worker watches from outside.
    """
    for what, value in (
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, user_tasks),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        value = _at_most(value, _hard_limit(what))
        resource.setrlimit(what, (value, value))
    most_cpu, most_file, most_memory = map(
        _hard_limit, (resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS)
    )

    def limit_answer(limits: Mapping[str, Any]) -> None:
        # A process at its hard limit of CPU time is killed; one second earlier it is told so by SIGXCPU.
        cpu = _at_most(math.ceil(limits["cpu_seconds"]) + 2, most_cpu)
        resource.setrlimit(resource.RLIMIT_CPU, (cpu - 1, cpu))
        size = _at_most(limits["file_bytes"], most_file)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        if LINUX:  # elsewhere it is refused or ignored
            memory = _at_most(limits["memory_bytes"], most_memory)
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    return limit_answer


def _hard_limit(what: int) -> int:
    return resource.getrlimit(what)[1]


def _at_most(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)


def no_new_privileges() -> None:
    """From here on no program run by this process gains rights (set-uid, file capabilities)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets, and with them the ambient one."""
    this_process = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    checked(libc.capset(this_process, bytes(24)), "capset")  # three sets, 32 of each, then the other 32


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


def _prepare_privileges() -> Step:
    drop_bounding_set()
    drop_capabilities()
    no_new_privileges()
    return lambda _: None


def _prepare_landlock(readable: Sequence[str], writable: Sequence[str]) -> Step:
    if landlock.abi() == 0:
        raise OSError("this kernel has no Landlock")
    ruleset = landlock.make_ruleset(readable, writable)
    return lambda _: landlock.restrict_self(ruleset)


def _prepare_seccomp() -> Step:
    if not seccomp.supported():
        raise OSError("this kernel has no seccomp filters")
    program = seccomp.build_program(os.uname().machine)
    return lambda _: seccomp.install(program, os.getpid())


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


# What each layer must refuse with EPERM or EACCES, and what it means if it does not.
_REFUSED: dict[Layer, tuple[tuple[str, Callable[[], object]], ...]] = {
    Layer.PRIVILEGES: (("capabilities are left", lambda: os.chroot("/")),),
    Layer.LANDLOCK: (("folders outside can be listed", lambda: os.listdir("/")),),
    Layer.SECCOMP: (
        ("sockets can be had", socket.socket),
        ("processes can be started", _fork),
        ("signals reach other processes", lambda: os.kill(os.getppid(), 0)),
    ),
}


def _breach(layer: Layer) -> str | None:
    """What is still possible behind a layer that should prevent it; None if the layer holds."""
    if layer is Layer.NAMESPACES:
        if os.getppid() != 1:
            return "processes of the host can be seen"
        if [name for _, name in socket.if_nameindex() if name != "lo"]:
            return "network devices of the host can be seen"
        if os.path.exists("/home") or os.path.exists("/etc/passwd"):
            return "files of the host can be seen"
    if layer is Layer.RESOURCES:
        is_limited = resource.getrlimit(resource.RLIMIT_FSIZE) == (_TESTED_LIMITS["file_bytes"],) * 2
        return None if is_limited else "the size of files is not limited"
    for failure, action in _REFUSED.get(layer, ()):
        try:
            action()
        except PermissionError:
            continue
        except OSError as error:
            return f"{failure}: {error}"
        return failure
    return None
