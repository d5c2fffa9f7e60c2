"""How well this machine contains answers: what was found, what is missing, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from greenward.errors import SandboxError
from greenward.sandbox.layers.levels import ALL_LAYERS, CORE_LAYERS, PORTABLE_LAYERS, Layer, Level, level_of

REMEDIES = {
    Layer.NAMESPACES: "allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container, a seccomp profile that allows unshare)",
    Layer.RESOURCES: "allow setrlimit",
    Layer.PRIVILEGES: "use Linux 3.5 or newer",
    Layer.LANDLOCK: "use Linux 5.13 or newer with Landlock among its security modules (boot option lsm=)",
    Layer.SECCOMP: "use a kernel with seccomp filters on x86_64 or aarch64",
}
_NEEDED = {Level.A: ALL_LAYERS, Level.B: CORE_LAYERS, Level.C: PORTABLE_LAYERS, Level.D: frozenset[Layer]()}


@dataclass(frozen=True)
class Isolation:
    """The layers that a worker's self-test found to hold, and the reason for each that is missing."""

    layers: tuple[Layer, ...]
    missing: Mapping[str, str]

    @property
    def level(self) -> Level:
        return level_of(self.layers)

    def to_json(self) -> dict[str, Any]:
        """Plain data for the record of a run or a result."""
        return {"level": self.level.value, "layers": [layer.value for layer in self.layers]}

    def reason(self, layer: Layer) -> str:
        """Why a layer is not in force."""
        return self.missing.get(layer.value, "it was left out")

    def demand(self, required: Level) -> None:
        """Raises `SandboxError`, naming what is missing and how to allow it, below the required level."""
        if self.level.suffices(required):
            return
        lacking = [layer for layer in Layer if layer in _NEEDED[required] and layer not in self.layers]
        reasons = "; ".join(f"{layer.value} ({self.reason(layer)})" for layer in lacking)
        remedies = "; ".join(f"{layer.value}: {REMEDIES[layer]}" for layer in lacking)
        raise SandboxError(
            f"answers need isolation of level {required.value}, this machine offers {self.level.value}. "
            f"Missing: {reasons}.",
            remedy=f"To allow it: {remedies}. To run with less protection, in a container or virtual machine "
            f"that you can lose: sandbox.require={self.level.value}",
        )

    @property
    def warning(self) -> str:
        """What a user must know who runs at a level below B."""
        return (
            f"Answers run at isolation level {self.level.value}: they can read and write your files and use "
            "your network. Run models that you do not trust in a container or virtual machine only."
        )
