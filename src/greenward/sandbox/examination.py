"""A look at this machine's isolation for people: every layer tried out, with its purpose and its cure."""

from __future__ import annotations

import statistics
import time
import warnings
from dataclasses import dataclass

from greenward.sandbox.isolation import REMEDIES
from greenward.sandbox.layers.levels import Layer, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Call, Job

STOPS = {
    Layer.NAMESPACES: "seeing the host: its processes, files, network and users; survivors",
    Layer.RESOURCES: "using CPU, memory, file size and descriptors without end",
    Layer.PRIVILEGES: "root's rights, and gaining any by set-uid programs",
    Layer.LANDLOCK: "reading or writing files outside its own folder, reading other processes' memory",
    Layer.SECCOMP: "sockets, starting programs, signals to others, kernel interfaces beyond need",
}
_ANSWERS = 21


@dataclass(frozen=True)
class LayerFinding:
    """One layer: whether it is in force here, what it stops, and why it is not in force."""

    value: str
    in_force: bool
    stops: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Examination:
    """What was found. `answer_ms` is the median time of a trivial answer, in milliseconds."""

    level: Level
    layers: tuple[LayerFinding, ...]
    answer_ms: float
    warning: str

    @property
    def contains_answers(self) -> bool:
        """Whether answers can be isolated at the default level."""
        return self.level.suffices(Level.B)


def examine() -> Examination:
    """Starts a worker with all layers that it can have. Raises `SandboxError` if none starts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        executor = LocalExecutor(1, require=Level.D)
    with executor:
        isolation = executor.isolation
        layers = tuple(
            LayerFinding(
                layer.value,
                layer in isolation.layers,
                STOPS[layer],
                "" if layer in isolation.layers else isolation.reason(layer),
                REMEDIES[layer],
            )
            for layer in Layer
        )
        return Examination(isolation.level, layers, _median_ms(executor), isolation.warning)


def _median_ms(executor: LocalExecutor) -> float:
    times = []
    for number in range(_ANSWERS):
        job = Job(f"def add(a, b):\n    return a + b  # {number}", "add", (Call((1, 2)),))
        started = time.perf_counter()
        list(executor.run([job]))
        times.append(time.perf_counter() - started)
    return statistics.median(times) * 1000
