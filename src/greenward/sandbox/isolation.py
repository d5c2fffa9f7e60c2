"""The layers of isolation, the levels that they add up to, and what a machine lacks of them."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from greenward.common.errors import SandboxError


class Layer(str, Enum):
    """One independent protection around an answer, in the order of application.

    - `namespaces` (user namespaces, or root): users, processes, mounts, IPC and network of its own for each
      worker.
    - `resources` (any Unix): limits of CPU, address space, file size, descriptors, core dumps.
    - `privileges` (Linux 3.5): drops all capabilities; none can be gained.
    - `landlock` (Linux 5.13): reading the standard library, shared libraries and allowed packages, and
      writing the own folder; no TCP, no signals and no abstract sockets to the outside.
    - `seccomp` (x86_64, aarch64): an allow-list of system calls with threads, but no processes, sockets,
      `exec`, mounts, keyrings, io_uring or new namespaces.

    `stops` says what a layer prevents, `remedy` how to get it on a machine that lacks it.
    """

    stops: str
    remedy: str

    def __new__(cls, name: str, stops: str = "", remedy: str = "") -> Layer:
        layer = str.__new__(cls, name)
        layer._value_, layer.stops, layer.remedy = name, stops, remedy
        return layer

    NAMESPACES = (
        "namespaces",
        "seeing the host: its processes, files, network and users; survivors",
        "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns=0; in a container, a seccomp profile that allows "
        "unshare)",
    )
    RESOURCES = "resources", "using CPU, memory, file size and descriptors without end", "allow setrlimit"
    PRIVILEGES = (
        "privileges", "root's rights, and gaining any by set-uid programs", "use Linux 3.5 or newer"
    )  # fmt: skip
    LANDLOCK = (
        "landlock",
        "reading or writing files outside its own folder, reading other processes' memory",
        "use Linux 5.13 or newer with Landlock among its security modules (boot option lsm=)",
    )
    SECCOMP = (
        "seccomp",
        "sockets, starting programs, signals to others, kernel interfaces beyond need",
        "use a kernel with seccomp filters on x86_64 or aarch64",
    )


ALL_LAYERS = frozenset(Layer)
CORE_LAYERS = ALL_LAYERS - {Layer.NAMESPACES}
PORTABLE_LAYERS = frozenset({Layer.RESOURCES})


class Level(str, Enum):
    """How well answers are contained, A best; `layers` are those that a level needs.

    - The verdict cannot be forged at any level; at C and D expected values can be read from the trainer's
      memory and files.
    - An answer cannot pass off its own failure as one of the infrastructure; at C and D it can if it attacks
      its worker's memory (as root) or kills the process that runs the control program.
    - At A and B there are no sockets, no processes and no signals to others, and files outside of its folder
      cannot be opened, listed, changed or run.
    - At A files outside of its folder cannot be looked up by name, but for those of the interpreter and the
      libraries. At B an answer can ask for the status of a file whose path it knows or guesses (existence,
      type, size, owner, rights, times, target of a link), and by `/proc/NUMBER` which processes exist and
      whose they are.
    - At A and B the packages are the allowed ones and those that they import; at C and D others are not on
      the path, but can be read and put there.
    - At A the disk is limited to 16 MiB and 4,096 files by the kernel. At B, C and D the kernel limits each
      file to `file_bytes`, and the folder is counted.
    """

    meaning: str
    layers: frozenset[Layer]

    def __new__(cls, name: str, meaning: str = "", layers: frozenset[Layer] = ALL_LAYERS) -> Level:
        level = str.__new__(cls, name)
        level._value_, level.meaning, level.layers = name, meaning, layers
        return level

    A = "A", "every layer", ALL_LAYERS
    B = "B", "every layer that needs no privilege", CORE_LAYERS
    C = "C", "a process of its own with resource limits", PORTABLE_LAYERS
    D = "D", "a process of its own", frozenset[Layer]()

    def suffices(self, required: Level) -> bool:
        """Whether this level is at least as good as `required`."""
        return self.value <= required.value


def level_of(layers: Collection[Layer]) -> Level:
    """The level that these layers add up to."""
    return next(level for level in Level if level.layers <= frozenset(layers))


@dataclass(frozen=True)
class Isolation:
    """The layers that a worker's self-test found to hold, and the reason for each that is missing."""

    layers: tuple[Layer, ...]
    missing: Mapping[str, str]

    @property
    def level(self) -> Level:
        return level_of(self.layers)

    @property
    def warning(self) -> str:
        """What a user must know who runs at a level below B."""
        return (
            f"Answers run at isolation level {self.level.value}: they can read and write your files and use "
            "your network. Run models that you do not trust in a container or virtual machine only."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data for the record of a run or a result."""
        return {"level": self.level.value, "layers": [layer.value for layer in self.layers]}

    def reason(self, layer: Layer) -> str:
        return self.missing.get(layer.value, "it was left out")

    def demand(self, required: Level) -> None:
        """Raises `SandboxError`, naming what is missing and how to allow it, below the required level."""
        if self.level.suffices(required):
            return
        lacking = [layer for layer in Layer if layer in required.layers and layer not in self.layers]
        reasons = "; ".join(f"{layer.value} ({self.reason(layer)})" for layer in lacking)
        remedies = "; ".join(f"{layer.value}: {layer.remedy}" for layer in lacking)
        allow = f"To allow it: {remedies}."
        if not sys.platform.startswith("linux"):  # where nothing that could be set would help
            allow = (
                "Only Linux has these layers: run answers in a virtual machine or container with Linux, by "
                "`greenward sandbox serve` there and sandbox.backend=http here (docs/machines.md)."
            )
        raise SandboxError(
            f"answers need isolation of level {required.value}, this machine offers {self.level.value}. "
            f"Missing: {reasons}.",
            remedy=f"{allow} To run with less protection, in a container or virtual machine "
            f"that you can lose: sandbox.require={self.level.value}",
        )
