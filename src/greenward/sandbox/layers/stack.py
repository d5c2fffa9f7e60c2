"""The layers that an answer's process applies to itself, prepared once in its worker and tested there."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import socket
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from greenward.sandbox.isolation import Layer
from greenward.sandbox.layers import landlock, seccomp
from greenward.sandbox.layers.libraries import find_originals, import_roots, is_beneath, without
from greenward.sandbox.processes import LINUX, checked, libc, prctl
from greenward.sandbox.programs import MOST_RUNS

STACK_BYTES = 64 << 20
OPEN_FILES = 256 + MOST_RUNS
KEPT_ORIGINALS = 16
SIGNALS_SCOPED = 6  # from this ABI on Landlock keeps signals inside
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
LINUX_CAPABILITY_VERSION_3 = 0x2008_0522
_LIMITED = (
    resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_NPROC, resource.RLIMIT_STACK,
    resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_AS,
)  # fmt: skip

Step = Callable[[Mapping[str, Any]], None]


class LayerStack:
    """The layers `wanted`, as far as this kernel has them; `missing` says why it lacks the others.

    Making one changes this process, a worker: what every answer inherits from it is done once, here
    (privileges, the limits that are the same for all). `readable` and `writable` are the files and
    folders that an answer may use, `user_tasks` how many threads the user may have in all.
    Namespaces are not applied by answers: their worker lives in them.

    With `runnable` folders, a process may start processes and the programs there, and its own folder is the
    `folder` among its limits; then the names of all files in the folders `listable` can be seen.
    """

    def __init__(
        self,
        wanted: Collection[Layer],
        readable: Sequence[str],
        writable: Sequence[str],
        user_tasks: int,
        *,
        runnable: Sequence[str] = (),
        listable: Sequence[str] = (),
    ) -> None:
        self.missing: dict[Layer, str] = {}
        self.allows_processes = bool(runnable)
        self._readable, self._writable = [*readable, *runnable], writable
        self._import_roots: dict[str, bool] = {}
        self._originals: dict[str, tuple[list[str], int]] = {}  # with their rules, -1 for none
        self._steps: dict[Layer, Step] = {}
        prepare: dict[Layer, Callable[[], Step]] = {
            Layer.RESOURCES: lambda: limit_worker(user_tasks),
            Layer.PRIVILEGES: _drop_privileges,
            Layer.LANDLOCK: lambda: _make_landlock(readable, writable, runnable, listable),
            Layer.SECCOMP: lambda: _make_seccomp(self.allows_processes, Layer.LANDLOCK in self),
        }
        for layer in (one for one in prepare if one in wanted):
            try:
                self._steps[layer] = prepare[layer]()
            except OSError as error:
                self.missing[layer] = str(error)
        if self._steps.keys() & {Layer.LANDLOCK, Layer.SECCOMP}:
            no_new_privileges()  # the kernel demands it

    def __contains__(self, layer: Layer) -> bool:
        return layer in self._steps

    @property
    def lets_processes_start(self) -> bool:
        """Whether no layer forbids an answer to start processes."""
        return self.allows_processes or Layer.SECCOMP not in self

    def prepare(self, completes: str) -> None:
        """Looks up, in the worker, what is installed of a module that an answer completes. Raises `OSError`.

        The answer's process cannot read it then. Hundreds of rules take milliseconds, so some are kept.
        """
        if not completes or completes in self._originals:
            return
        while len(self._originals) >= KEPT_ORIGINALS:
            _, rules = self._originals.pop(next(iter(self._originals)))
            if rules != -1:
                os.close(rules)
        readable, rules = list(map(os.path.realpath, self._readable)), -1
        self._import_roots = self._import_roots or import_roots(readable)
        found = find_originals(completes, self._import_roots)
        if found and Layer.LANDLOCK in self:
            kept = without(readable, set(map(os.path.realpath, found)))
            rules = landlock.make_reading_ruleset([*kept, *self._writable])
        self._originals[completes] = found, rules

    def originals(self, completes: str) -> list[str]:
        """What `prepare` has found."""
        return self._originals[completes][0] if completes else []

    def apply(self, limits: Mapping[str, Any]) -> None:
        """Applies every layer to this process, for good. Raises `OSError`."""
        _, rules = self._originals.get(limits.get("completes", ""), ([], -1))
        for layer, step in self._steps.items():
            step(limits)
            if layer is Layer.LANDLOCK and rules != -1:
                landlock.restrict_self(rules)

    def test(self, limits: Mapping[str, Any], in_namespaces: bool, report: int) -> NoReturn:
        """Applies the layers to this process, tries to break each one, and writes to `report` which hold.

        A layer may be accepted by the kernel and not hold. The text is JSON: `holds`, names of
        layers, and `fails`, the reason for each other one. Then the process ends.
        """
        holds: list[str] = []
        fails: dict[str, str] = {}
        steps = {Layer.NAMESPACES: lambda _: None, **self._steps} if in_namespaces else self._steps
        for layer, step in steps.items():
            try:
                step(limits)
            except OSError as error:
                fails[layer.value] = f"it cannot be applied: {error}"
                break
            if (breach := _breach(layer, limits, self.allows_processes)) is None:
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
    hard = {what: resource.getrlimit(what)[1] for what in _LIMITED}
    _limit(hard, resource.RLIMIT_NOFILE, OPEN_FILES)
    _limit(hard, resource.RLIMIT_CORE, 0)
    _limit(hard, resource.RLIMIT_NPROC, user_tasks)
    _limit(hard, resource.RLIMIT_STACK, STACK_BYTES)

    def limit_answer(limits: Mapping[str, Any]) -> None:
        # A process at its hard limit of CPU time is killed; one second earlier it is told so by SIGXCPU.
        _limit(hard, resource.RLIMIT_CPU, math.ceil(limits["cpu_seconds"]) + 2, earlier=1)
        _limit(hard, resource.RLIMIT_FSIZE, limits["file_bytes"])
        if LINUX:  # elsewhere it is refused or ignored
            _limit(hard, resource.RLIMIT_AS, limits["memory_bytes"])

    return limit_answer


def _limit(hard: Mapping[int, int], what: int, value: int, *, earlier: int = 0) -> None:
    value = value if hard[what] == resource.RLIM_INFINITY else min(value, hard[what])
    resource.setrlimit(what, (value - earlier, value))


def no_new_privileges() -> None:
    """From here on no program run by this process gains rights (set-uid, file capabilities)."""
    prctl(PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Empties the effective, permitted and inheritable sets, and with them the ambient one."""
    this_process = struct.pack("=Ii", LINUX_CAPABILITY_VERSION_3, 0)
    checked(libc.capset(this_process, bytes(24)), "capset")  # three sets of 64 bits


def drop_bounding_set() -> None:
    """Empties the bounding set, so that no program run later gains a capability from its file.

    Children inherit it: once in a worker is enough. Without CAP_SETPCAP it is left as it is.
    """
    with contextlib.suppress(OSError):  # beyond the kernel's last one, or not permitted
        for capability in range(64):
            prctl(PR_CAPBSET_DROP, capability)


def _drop_privileges() -> Step:
    drop_bounding_set()
    drop_capabilities()
    no_new_privileges()
    return lambda _: None


def _make_landlock(
    readable: Sequence[str], writable: Sequence[str], runnable: Sequence[str], listable: Sequence[str]
) -> Step:
    ruleset = landlock.make_ruleset(readable, writable, runnable=runnable, listable=listable)
    if not runnable:
        return lambda _: landlock.restrict_self(ruleset)
    # Hundreds of rules would take milliseconds for each command: the second set, which keeps the folders of
    # others away, has a few only, since both must allow what is done.
    others = os.path.realpath(writable[0])
    outer = list(
        dict.fromkeys(_apart_from(os.path.realpath(path), others) for path in (*readable, *runnable))
    )

    def restrict(limits: Mapping[str, Any]) -> None:
        landlock.restrict_self(ruleset)
        own = landlock.make_ruleset((), [limits.get("folder", os.devnull), os.devnull], runnable=outer)
        landlock.restrict_self(own)
        os.close(own)

    return restrict


def _apart_from(path: str, folder: str) -> str:
    """The outermost folder above a path, or the path, that does not hold `folder`."""
    ends = (at for at, char in enumerate(f"{path}/") if char == "/" and at)
    return next((path[:end] for end in ends if not is_beneath(f"{folder}/", path[:end])), path)


def _make_seccomp(processes: bool, behind_landlock: bool) -> Step:
    if not seccomp.supported():
        raise OSError("this kernel has no seccomp filters")
    signals = processes and behind_landlock and landlock.abi() >= SIGNALS_SCOPED
    program = seccomp.build_program(os.uname().machine, processes=processes, signals=signals)
    install = seccomp.installer(program)
    return lambda _: install(os.getpid())


_STARTED = "processes can be started"
# What each layer must refuse with EPERM or EACCES, and what it means if it does not.
_REFUSED: dict[Layer, tuple[tuple[str, Callable[[], object]], ...]] = {
    Layer.PRIVILEGES: (("capabilities are left", lambda: os.chroot("/")),),
    Layer.LANDLOCK: (("folders outside can be listed", lambda: os.listdir("/")),),
    Layer.SECCOMP: (
        ("sockets can be had", socket.socket),
        (_STARTED, lambda: os.fork() or os._exit(0)),
        ("signals reach other processes", lambda: os.kill(os.getppid(), 0)),
    ),
}


def _breach(layer: Layer, limits: Mapping[str, Any], allows_processes: bool) -> str | None:
    """What is still possible behind a layer that should prevent it; None if the layer holds."""
    if layer is Layer.NAMESPACES:
        if os.getppid() != 1:
            return "processes of the host can be seen"
        if [name for _, name in socket.if_nameindex() if name != "lo"]:
            return "network devices of the host can be seen"
        if os.path.exists("/home") or os.path.exists("/etc/passwd"):
            return "files of the host can be seen"
    if layer is Layer.RESOURCES:
        is_limited = resource.getrlimit(resource.RLIMIT_FSIZE) == (limits["file_bytes"],) * 2
        return None if is_limited else "the size of files is not limited"
    for failure, action in _REFUSED.get(layer, ()):
        if failure == _STARTED and allows_processes:
            continue
        try:
            action()
        except PermissionError:
            continue
        except OSError as error:
            return f"{failure}: {error}"
        return failure
    return None
