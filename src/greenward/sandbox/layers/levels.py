"""The layers of isolation by name, and the level of protection that they add up to.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum


class Layer(str, Enum):
    """One independent protection around an answer, in the order in which they are put on."""

    NAMESPACES = "namespaces"  # own processes, files, network, IPC and user ids
    RESOURCES = "resources"  # CPU, memory, file size, open files
    PRIVILEGES = "privileges"  # no capabilities, none to be gained
    LANDLOCK = "landlock"  # no file but the interpreter's (to read) and its own folder
    SECCOMP = "seccomp"  # no sockets, processes, signals to others, kernel interfaces beyond need


ALL_LAYERS = frozenset(Layer)
CORE_LAYERS = ALL_LAYERS - {Layer.NAMESPACES}
PORTABLE_LAYERS = frozenset({Layer.RESOURCES})


class Level(str, Enum):
    """How well answers are contained; A is the best."""

    A = "A"
    B = "B"
    C = "C"
    D = "D"

    @property
    def meaning(self) -> str:
        """What an answer meets at this level, in a few words."""
        return _MEANINGS[self.value]

    def suffices(self, required: Level) -> bool:
        """Whether this level is at least as good as `required`."""
        return self.value <= required.value


_MEANINGS = {
    "A": "every layer",
    "B": "every layer that needs no privilege",
    "C": "a process of its own with resource limits",
    "D": "a process of its own",
}


def level_of(layers: Collection[Layer]) -> Level:
    """The level that these layers add up to."""
    for level, needed in ((Level.A, ALL_LAYERS), (Level.B, CORE_LAYERS), (Level.C, PORTABLE_LAYERS)):
        if needed <= frozenset(layers):
            return level
    return Level.D
