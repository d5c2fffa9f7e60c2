"""Has a signal changed just now? Tests of the newest steps that may be repeated at every look.

Looking again and again finds something by chance at last. The level of a run is therefore spent over its
looks: look k tests at alpha / (k (k + 1)), divided by the number of signals, and these levels add up to
alpha. A test is made only where the newest values differ from those before by enough to matter, and is that
of `change_points` on the last steps, so that neighbouring values count for what they are worth.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from greenward.diagnostics.change_points import MIN_POINTS, find_change_point
from greenward.diagnostics.growth import measure_memory_growth
from greenward.diagnostics.signals import (
    DEVICE_MEMORY,
    GRADIENT,
    LENGTH,
    OWN_SPEED,
    PASS_RATE,
    REWARD,
    RSS,
    THROUGHPUT,
    TRUNCATED,
    meaningless_findings,
    own_speed,
)
from greenward.reports.document import Severity

WINDOW = 128  # steps that are looked at
EVERY = 3  # logged steps between looks
NEWEST = 8  # values that must differ from those before
_MEMORY_LOOKS = 50  # logged steps between looks at memory, which is tested over the whole run
_MEMORY_POINTS = 400
_EDGE = 1e-12
# In place of throughput: other work on the machine is no fault.
_OWN_SPEED = "tokens in the CPU time of a fixed computation"


@dataclass(frozen=True)
class Watched:
    """A change to look for: by `size` times (ratio), by `size` (difference), or beyond `size` (level).

    The newest values must be `least` or more.
    """

    name: str
    signal: str
    kind: Literal["ratio", "difference", "level"]
    size: float
    severity: Severity = "warning"
    least: float = 0.0

    def differs(self, before: float, newest: float) -> bool:
        """Whether the newest median differs from that before by enough to matter."""
        if self.kind == "level":
            return newest > self.size >= before
        if self.kind == "difference":
            return newest - before >= self.size if self.size > 0 else newest - before <= self.size
        if before <= 0 or newest <= 0 or newest < self.least:
            return False
        return newest / before >= self.size if self.size > 1 else newest / before <= self.size


WATCHED = (
    Watched("gradient-explosion", GRADIENT, "ratio", 3.0, "critical"),
    Watched("gradient-vanished", GRADIENT, "ratio", 0.05),
    Watched("reward-drop", PASS_RATE, "difference", -0.1, "critical"),
    Watched("reward-drop", REWARD, "ratio", 0.7, "critical"),
    Watched("entropy-collapse", "entropy", "ratio", 0.25, "critical"),
    Watched("entropy-rise", "entropy", "ratio", 1.8),
    Watched("kl-runaway", "kl", "ratio", 5.0, least=0.1),  # it begins at 0 and grows in any run
    Watched("large-policy-steps", "approx_kl", "level", 0.03),
    Watched("clip-fraction-high", "clip/fraction", "level", 0.3),
    Watched("stale-policy", "rollouts/staleness", "level", 2.0),
    Watched("sampler-mismatch", "importance/difference", "level", 0.05),
    Watched("reward-scale-jump", "reward/std", "ratio", 1.8),
    Watched("group-signal-fades", "groups/with_signal", "ratio", 0.4),
    Watched("truncated-answers", TRUNCATED, "difference", 0.2),
    Watched("length-growth", LENGTH, "ratio", 2.0),
    Watched("length-collapse", LENGTH, "ratio", 0.4),
    Watched("diversity-loss", "completion/unique", "ratio", 0.4),
    Watched("sandbox-timeouts", "status/timeout", "difference", 0.1),
    Watched("failing-answers-rise", "status/syntax_error", "difference", 0.15),
    Watched("cheating", "status/cheating", "difference", 0.05, "critical"),
    Watched("throughput-drop", THROUGHPUT, "ratio", 0.65),
    Watched("throughput-drop", _OWN_SPEED, "ratio", 0.65),
    Watched("learning-rate-jump", "learning_rate", "ratio", 5.0, "critical"),
)
_SIGNALS = frozenset(one.signal for one in WATCHED)
_STATUSES = tuple(name for name in _SIGNALS if name.startswith("status/"))


@dataclass(frozen=True)
class Alarm:
    """Something that was seen at `step`, and began at about `onset`. `source` is `test` or `rule`."""

    step: int
    name: str
    severity: Severity
    text: str
    onset: int
    source: str
    value: float


class LiveTests:
    """The newest values of the watched signals, and the level that is left for looks at them.

    `kind` is that of the recipe, where it is known: some changes mean nothing then.
    """

    def __init__(self, alpha: float = 0.05, kind: str | None = None) -> None:
        self.alpha, self.kind = alpha, kind
        self.looks = 0
        self._step, self._logged = -1, 0  # the newest step, and how many there were
        self._values: dict[str, deque[tuple[int, float]]] = {}
        self._memory: dict[str, list[tuple[int, float]]] = {}
        self._told: set[str] = set()

    def add(self, step: int, metrics: Mapping[str, float]) -> list[Alarm]:
        """The values of a step; returns new alarms. Each name is told once."""
        found = []
        if metrics.keys() >= set(OWN_SPEED):
            metrics = {**metrics, _OWN_SPEED: float(own_speed(metrics))}
            del metrics[THROUGHPUT]
        if any(name.startswith("status/") for name in metrics):  # those that no answer has are not logged
            metrics = dict.fromkeys(_STATUSES, 0.0) | dict(metrics)
        for name, value in metrics.items():
            if not math.isfinite(value):
                text = f"non-finite: {name} is {value} at step {step}"
                found.append(Alarm(step, "non-finite", "critical", text, step, "test", value))
            elif name in _SIGNALS:
                self._values.setdefault(name, deque(maxlen=WINDOW)).append((step, value))
            elif name in (RSS, DEVICE_MEMORY):
                self._memory.setdefault(name, []).append((step, value))
        if step == self._step:
            return self._untold(found)
        self._step, self._logged = step, self._logged + 1
        if self._logged % EVERY == 0:
            self.looks += 1
            level = self.alpha / (self.looks * (self.looks + 1)) / len(WATCHED)
            meaningless = meaningless_findings(self.kind)
            watched = [one for one in WATCHED if one.name not in meaningless]
            found += [seen for one in watched if (seen := self._look(one, level))]
        if self._logged % _MEMORY_LOOKS == 0:
            found += self._memory_leaks()
        return self._untold(found)

    def _untold(self, found: list[Alarm]) -> list[Alarm]:
        new = [one for one in found if one.name not in self._told]
        self._told |= {one.name for one in new}
        return list({one.name: one for one in reversed(new)}.values())

    def _alarm(
        self, name: str, severity: Severity, signal: str, onset: int, before: float, after: float
    ) -> Alarm:
        text = f"{name}: {signal} went from {before:.4g} to {after:.4g} at about step {onset}"
        return Alarm(self._step, name, severity, text, onset, "test", after)

    def _look(self, watched: Watched, level: float) -> Alarm | None:
        held = self._values.get(watched.signal)
        if watched.name in self._told or held is None or len(held) < MIN_POINTS + NEWEST:
            return None
        steps, values = (np.array(column) for column in zip(*held, strict=True))
        newest, before = float(np.median(values[-NEWEST:])), float(np.median(values[:-NEWEST]))
        if not watched.differs(before, newest):
            return None
        tested = np.log(np.maximum(values, _EDGE)) if watched.kind == "ratio" else values.astype(float)
        change = find_change_point(tested)
        if change is None or change.p_value > level or not change.is_large:
            return None
        onset = int(steps[change.onset.step])
        return self._alarm(watched.name, watched.severity, watched.signal, onset, before, newest)

    def _memory_leaks(self) -> list[Alarm]:
        found = []
        for name, held in self._memory.items():
            thinned = held[:: -(-len(held) // _MEMORY_POINTS)]
            steps, values = (np.array(column) for column in zip(*thinned, strict=True))
            looks = self._logged // _MEMORY_LOOKS
            level = self.alpha / (looks * (looks + 1))
            growth = measure_memory_growth(steps, values.astype(float), alpha=level)
            if growth is not None and growth.is_leak and len(values) >= 2 * MIN_POINTS:
                start, last = growth.at_start, growth.at_start * growth.factor
                found.append(self._alarm("memory-leak", "warning", name, growth.onset.step, start, last))
        return found

    def state_dict(self) -> dict[str, Any]:
        """The state as plain data, for an exact resume."""
        return {
            "looks": self.looks,
            "step": self._step,
            "logged": self._logged,
            "values": {name: list(held) for name, held in self._values.items()},
            "memory": {name: list(held) for name, held in self._memory.items()},
            "told": sorted(self._told),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, which is empty for a run of a version that did not save it."""
        self.looks = state.get("looks", 0)
        self._step, self._logged = state.get("step", -1), state.get("logged", EVERY * self.looks)
        values, self._memory = (
            {name: [(int(step), float(value)) for step, value in one] for name, one in held.items()}
            for held in (state.get("values", {}), state.get("memory", {}))
        )
        self._values = {name: deque(one, maxlen=WINDOW) for name, one in values.items()}
        self._told = set(state.get("told", ()))
