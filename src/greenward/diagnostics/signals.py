"""Holds the signals of a run under greenward's names. All readers give it, so checks know no file format."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.change_points import MIN_POINTS, Floats, Steps
from greenward.runs.reading import algorithm_of, flattened
from greenward.tasks import shipped_task

Bools = npt.NDArray[np.bool_]

GRADIENT, REWARD, PASS_RATE, GREEDY_PASS_RATE = "grad_norm", "reward/mean", "pass_rate", "pass_rate/greedy"
RSS, DEVICE_MEMORY, THROUGHPUT = "perf/rss_mb", "perf/device_memory_mb", "perf/tokens_per_second"
DURATION, CPU_SECONDS, PROBE_SECONDS = "time/step", "perf/cpu_seconds", "perf/probe_seconds"
LENGTH, UNIQUE, TRUNCATED = "completion/mean_length", "completion/unique", "completion/truncated"
HELD_OUT = "evaluation/score"  # of logs that hold evaluations as a series

# In place of throughput: other work on the machine is no fault.
CPU_SPEED = "tokens in the CPU time of a fixed computation"
OWN_SPEED = (THROUGHPUT, DURATION, CPU_SECONDS, PROBE_SECONDS)  # what `own_speed` needs

# Names that other tools and earlier reports use -> ours, in the order of preference.
ALIASES = {
    "gradient_norm": (GRADIENT,),
    "code_score": ("reward/code_score", "reward/tests", REWARD),
    "reward": (REWARD,),
    "reward_mean": (REWARD,),
    "reward_std": ("reward/std",),
    "lr": ("learning_rate",),
    "kl_mean": ("kl",),
    "entropy_mean": ("entropy",),
    "clip_frac": ("clip/fraction", "clip/high"),
    "memory": (DEVICE_MEMORY, RSS),
    "rss": (RSS,),
    "throughput": (THROUGHPUT,),
    "length": (LENGTH,),
    "truncation": (TRUNCATED,),
}
# What a signal is called in a sentence, and how to log it where this differs from all others.
TITLES = {
    GRADIENT: "gradient",
    REWARD: "reward",
    "kl": "KL to the reference",
    "approx_kl": "size of policy steps",
    TRUNCATED: "truncated answers",
    "explained_variance": "value function",
    RSS: "memory",
    DEVICE_MEMORY: "memory",
    THROUGHPUT: "throughput",
    "groups/with_signal": "groups without signal",
    "status": "how answers fail",
}
HOW_TO_LOG = {
    REWARD: "Log reward/mean, and reward/NAME for each term; greenward train does.",
    "kl": "Log kl; greenward does with algorithm.kl.coefficient above 0.",
    "explained_variance": "Only PPO with a critic has one.",
    RSS: "Log perf/rss_mb (resident memory, MiB); greenward train does.",
    "groups/with_signal": "Log groups/with_signal, groups/dead_all_pass and groups/dead_all_fail.",
    "status": "Log the share of each status as status/NAME.",
}

NORM = re.compile(r"(.*[_/])?(grad_norm|norm)")
MEMORY = re.compile(r"perf/.*(rss|memory).*")
# Signals on a ratio scale: twice as much means the same everywhere.
RATIO_SCALE = re.compile(rf"{NORM.pattern}|perf/.*|time/.*|completion/(mean|max)_length")
# Follow from the recipe or the clock, so a change in them is no finding.
SCHEDULED = frozenset({"step", "learning_rate", "time/training"})


def own_speed(values: Mapping[str, Any]) -> Any:
    """Tokens in the CPU time that the fixed computation takes at the same step, from numbers or arrays.

    Other work on the machine changes the time by the clock, the CPU time and that of the fixed
    computation, but hardly this.
    """
    tokens, seconds, cpu, probe = (values[name] for name in OWN_SPEED)
    return tokens * seconds / np.maximum(cpu, 1e-12) * probe


@dataclass(frozen=True)
class RunSignals:
    """The aligned series of a run. A value that a step lacks is NaN, and its `recorded` is false.

    `notes` say what was mended in reading. `config` is None where the run has none; `session` is the newest
    entry of provenance.json, empty where there is none. `theirs` has the names of the log where it calls a
    signal otherwise. `checkpoints` and `rollouts` (files with answers) are (step, path) pairs, oldest first.
    """

    path: Path
    steps: Steps
    values: Mapping[str, Floats]
    recorded: Mapping[str, Bools]
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    session: Mapping[str, Any] = field(default_factory=dict)
    format: str = "greenward"
    theirs: Mapping[str, str] = field(default_factory=dict)
    checkpoints: tuple[tuple[int, Path], ...] = ()
    rollouts: tuple[tuple[int, Path], ...] = ()

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The config by dotted keys."""
        return dict(flattened(self.config or {}))

    @property
    def machine_memory_mb(self) -> float | None:
        """The memory of the machine of the newest session, None where it is not known."""
        memory = self.session.get("memory_mb")
        return float(memory) if isinstance(memory, (int, float)) and memory > 0 else None

    def row(self, place: int) -> dict[str, float]:
        """The values that were logged at a place of the steps."""
        return {
            name: float(values[place]) for name, values in self.values.items() if self.recorded[name][place]
        }

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm of the recipe, where the config is known."""
        return algorithm_of(self.config or {})

    @property
    def silent(self) -> frozenset[str]:
        """Names of findings that mean nothing for the task of the recipe."""
        task = shipped_task((self.config or {}).get("task"))
        return task.silent if task else frozenset()

    def series(self, name: str) -> tuple[Steps, Floats]:
        """(steps, values) where the signal is finite; empty for a signal that is not there."""
        if name not in self.values:
            return np.array([], np.int64), np.array([])
        finite = np.isfinite(self.values[name])
        return self.steps[finite], self.values[name][finite]

    def testable(self, name: str) -> tuple[Steps, Floats]:
        """(steps, values) as tests of change take them: positive ratios, by their logarithm."""
        steps, values = self.series(name)
        if not RATIO_SCALE.fullmatch(name):
            return steps, values
        return steps[values > 0], np.log(values[values > 0])

    def not_finite(self, name: str) -> Bools:
        """Where the signal was logged as NaN or infinite; a value that is missing is not."""
        return self.recorded[name] & ~np.isfinite(self.values[name])

    def too_short(self, name: str) -> bool:
        """Whether the signal has too few values to be tested."""
        return len(self.series(name)[1]) < MIN_POINTS

    def resolve(self, wanted: str) -> str:
        """The logged name that `wanted` means: itself, an alias, or the one name `group/wanted`.

        Raises:
            DiagnosticsError: none or several; the nearest names are listed.
        """
        for name in (wanted, *ALIASES.get(wanted, ())):
            if name in self.values:
                return name
        inside = [name for name in self.values if name.rpartition("/")[2] == wanted]
        if len(inside) == 1:
            return inside[0]
        near = inside or get_close_matches(wanted, [*self.values, *ALIASES], n=5, cutoff=0.5)
        found = f"did you mean {', '.join(near)}?" if near else f"there are {', '.join(self.values)}"
        raise DiagnosticsError(f"{self.path} has no signal {wanted!r}", remedy=found)


def depends_on_recipe(name: str) -> bool:
    """Whether only some recipes log the signal (a reward term, a status), so that it may be missing."""
    return name.startswith(("reward/", "status/")) and name != REWARD


def short_name(name: str) -> str:
    """The last part of a name as words: `status/runtime_error` is "runtime error"."""
    return name.rpartition("/")[2].replace("_", " ")
