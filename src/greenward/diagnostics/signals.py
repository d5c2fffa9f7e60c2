"""Holds the signals of a run under greenward's names. All readers give it, so checks know no file format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from greenward.common.errors import DiagnosticsError
from greenward.diagnostics.change_points import MIN_POINTS, Floats, Steps
from greenward.diagnostics.families import RATING, Family, family_of
from greenward.runs.reading import algorithm_of, flattened
from greenward.tasks import shipped_task

Bools = npt.NDArray[np.bool_]

GRADIENT, REWARD, PASS_RATE, GREEDY_PASS_RATE = "grad_norm", "reward/mean", "pass_rate", "pass_rate/greedy"
RSS, DEVICE_MEMORY, THROUGHPUT = "perf/rss_mb", "perf/device_memory_mb", "perf/tokens_per_second"
DURATION, CPU_SECONDS, PROBE_SECONDS = "time/step", "perf/cpu_seconds", "perf/probe_seconds"
LENGTH, UNIQUE, TRUNCATED = "completion/mean_length", "completion/unique", "completion/truncated"
# Counts of the groups of a step; the first teach, the others do not.
GROUPS = ("groups/with_signal", "groups/dead_all_pass", "groups/dead_all_fail", "groups/constant")
WITHOUT_SIGNAL = "groups/without_signal"  # as a share
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
    "kl": "Log kl; greenward does with algorithm.kl.measure=true.",
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


@dataclass(frozen=True)
class Range:
    """The values that a signal can have, from `low` to `high`, why, and what may cause others.

    `above` excludes `low` itself, `whole` all but whole numbers. `slack` is what rounding may add. A share
    may be logged in per cent or as a count. Where `visible` is given, the signal is an estimate whose noise
    crosses a bound: only a mean that is beyond it by that much, and by more than its error, is impossible.
    """

    reason: str
    causes: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    whole: bool = False
    is_share: bool = False
    slack: float = 1e-6
    visible: float | None = None

    def __str__(self) -> str:
        """The range in words."""
        kind = "a whole number, " if self.whole else ""
        if self.low == self.high:
            return f"{kind}{self.low:g} on average"
        if math.isinf(self.high):
            return f"{kind}{f'above {self.low:g}' if self.above else f'{self.low:g} or more'}"
        return (
            f"{kind}{f'{self.high:g} or less' if math.isinf(self.low) else f'{self.low:g} to {self.high:g}'}"
        )

    def beyond(self, values: Floats) -> Bools:
        """Where values are outside the range by more than rounding explains."""
        low, high = (bound + side * self.slack * max(1.0, abs(bound)) if math.isfinite(bound) else bound
                     for bound, side in ((self.low, -1), (self.high, 1)))  # fmt: skip
        found = (values < low) | (values > high)
        if self.above:
            found |= values <= self.low
        return found | (np.abs(values - np.round(values)) > self.slack) if self.whole else found

    def in_another_unit(self, values: Floats) -> bool:
        """Whether a share was logged in per cent, or as a count, throughout."""
        if not self.is_share or not len(values) or values.min() < 0 or values.max() <= 1:
            return False
        if np.array_equal(values, np.round(values)):
            return True
        top, above_1 = values.max(), (values > 1).mean()
        return bool(2 < top <= 100 + self.slack and (above_1 > 0.5 or (top > 10 and above_1 > 0.2)))


_SCALE = "a factor or a unit that is wrong, or a name under which something else is logged"
_NO_SIGN = f"a difference or a loss in its place, a sign, {_SCALE}"
_AVERAGED = f"sums over processes or micro-batches in place of means, {_SCALE}"
_PROBABILITIES = (
    "other sampling parameters (temperature, top-p, a least length) than those by which the probabilities "
    "are computed, probabilities that are computed otherwise on one side, padding that is counted"
)
_SHARE = Range("it is a share", _AVERAGED, 0, 1, is_share=True)
_SIZE = Range("a size has no sign", _NO_SIGN, 0)
_COUNT = Range("it counts", _AVERAGED, 0)
_WHOLE = replace(_COUNT, whole=True)
_DIVERGENCE = Range(
    "a KL divergence is 0 or more, and so is each value of its estimators k2 and k3",
    f"a wrong reference (another model or adapter), {_PROBABILITIES}, a sign, or policies that are swapped",
    0,
    slack=1e-4,
)
_RATIO = Range("probabilities are above 0, and so are their ratios", f"a logarithm in its place, {_SCALE}", 0)
_GROUPED = Range(
    "advantages less the mean of their group have the mean 0",
    "groups that are mixed up or cut after they were normalised, or advantages of another kind",
    0, 0, visible=0.05,
)  # fmt: skip
# One row for a signal, or for all whose names begin alike (a name that ends in "/").
RANGES: Mapping[str, Range] = {
    "kl": replace(_DIVERGENCE, slack=1e-3),  # k3 of half-precision numbers is off by that
    "approx_kl": _DIVERGENCE,
    "importance/kl": _DIVERGENCE,
    "importance/difference": _SIZE,
    "importance/mean": _RATIO,
    "ratio/mean": replace(_RATIO, above=True),
    "entropy": Range("an entropy of tokens is 0 or more", f"a sign (a loss is its negative), {_SCALE}", 0),
    "explained_variance": Range(
        "it is 1 less a ratio of variances", f"a variance that is below 0, or {_SCALE}", high=1
    ),
    "advantage/mean": _GROUPED,
    "advantage/std": _SIZE,
    REWARD: Range("the config declares this range", "a term, a weight or a penalty that leaves it"),
    "reward/std": _SIZE,
    PASS_RATE: _SHARE,
    GREEDY_PASS_RATE: _SHARE,
    "clip/fraction": _SHARE,
    "clip/low": _SHARE,
    "clip/high": _SHARE,
    TRUNCATED: _SHARE,
    UNIQUE: _SHARE,
    LENGTH: _COUNT,
    "completion/max_length": _WHOLE,
    "groups/without_signal": _SHARE,
    "groups/all_fail": _SHARE,
    "groups/all_pass": _SHARE,
    "groups/": _WHOLE,
    "episodes/": _WHOLE,
    "updates/": _WHOLE,
    "tokens/": _WHOLE,
    "status/": _SHARE,
    "rollouts/staleness": _SIZE,
    "learning_rate": Range(
        "a rate below 0 would climb the loss", f"a schedule past its end, {_SCALE}", 0, slack=1e-12
    ),
    "kl/coefficient": _SIZE,
    "value/loss": Range("an error that is squared has no sign", _NO_SIGN, 0),
    GRADIENT: Range(
        "a norm has no sign", f"a mark for a norm that is not finite (DeepSpeed writes -1), {_NO_SIGN}", 0
    ),
    "grad_norm/": Range("a norm has no sign", _NO_SIGN, 0),
    "perf/": _SIZE,
    "time/": Range("time does not run backwards", f"a clock that was set, {_SCALE}", 0),
}
# Names under which a KL is never below 0, by the estimator that their trainer uses unless told otherwise. By
# any other name it may be k1, the mean of log ratios, whose noise crosses 0.
_NEVER_BELOW_0 = frozenset({
    "actor/kl_loss", "policy/approxkl_avg", "train/approx_kl", "losses/approx_kl", "rollout_corr/k3_kl",
    "mismatch_kl/all/mean", "mismatch_kl/mean", "kl_sample_train_v2", "optim/kl_sample_train_v2",
})  # fmt: skip
_SUMMED = frozenset({"objective/kl", "objective/entropy"})  # over the tokens of an answer
_K1_VISIBLE = {
    "kl": 0.01,
    "approx_kl": 0.02,
    "importance/kl": 0.02,
}  # the last two are also noise of rounding
_SUM_VISIBLE = 0.05
_ESTIMATORS = (
    "algorithm.kl.estimator",
    "actor_rollout_ref.actor.kl_loss_type",
    "kl_loss_type",
    "kl_estimator",
)
_REWARD_RANGES = ("reward_range", "reward_clip_range")


def possible_range(
    signal: str, logged_as: str, family: Family, settings: Mapping[str, Any], *, is_own: bool
) -> Range | None:
    """The row of a signal as a family logs it in a run with these settings; None: anything is possible.

    `is_own` says that our trainer wrote the run: its counts are of one step, where others log means over
    several.
    """
    is_trl = family.name.startswith("TRL, GRPO")
    row = RANGES.get(signal) or RANGES.get(signal[: signal.find("/") + 1])
    if row is None:
        return None
    plain = {logged_as, logged_as.removeprefix("train/")}
    if signal in _K1_VISIBLE:
        told = str(next((settings[key] for key in _ESTIMATORS if key in settings), ""))
        is_k1 = not is_own and plain.isdisjoint(_NEVER_BELOW_0)
        if signal == "kl" and not plain.isdisjoint({"kl", "actor/kl_loss"}):
            is_k1 = told in ("k1", "kl") if told else is_k1 and not ("kl" in plain and is_trl)
        visible = _K1_VISIBLE[signal] if plain.isdisjoint(_SUMMED) else _SUM_VISIBLE
        reason = "a KL divergence is 0 or more, and its estimate k1 is below by noise alone"
        return replace(row, visible=visible, reason=reason) if is_k1 else row
    if signal == "entropy":
        if family.kind == "agent":  # the density of continuous actions may be above 1
            return None
        size = next((value for key, value in settings.items() if key.endswith("vocab_size")), None)
        if isinstance(size, (int, float)) and size > 1 and plain.isdisjoint(_SUMMED):
            return replace(row, high=math.log(size), slack=1e-3)
        return row
    if signal == "advantage/mean":  # verl's is a mean over tokens, by which long answers count for more
        told = str(settings.get("algorithm.advantage") or settings.get("algorithm.name", ""))
        is_grpo = told in ("grpo", "dr_grpo") if told else is_trl
        return row if is_grpo and "critic/advantages/mean" not in plain else None
    if signal == REWARD:
        declared = next((settings[key] for key in _REWARD_RANGES if key in settings), None)
        match declared:
            case [int() | float() as low, int() | float() as high]:
                return replace(row, low=low, high=high)
        return None
    return row if is_own or not row.whole else replace(row, whole=False)


def possible_ranges(
    names: Mapping[str, str], settings: Mapping[str, Any], *, is_own: bool, counted_by: str = ""
) -> dict[str, Range]:
    """The ranges of those signals that have bounds; `names` says as what each of a run is logged, and
    `counted_by` as what its steps are.
    """
    family = family_of([*names.values()], is_own=is_own, counted_by=counted_by)
    found = {
        ours: possible_range(ours, theirs, family, settings, is_own=is_own) for ours, theirs in names.items()
    }
    return {ours: one for ours, one in found.items() if one is not None}


def own_speed(values: Mapping[str, Any]) -> Any:
    """Tokens in the CPU time that the fixed computation takes at the same step, from numbers or arrays.

    Other work on the machine changes the time by the clock, the CPU time and that of the fixed
    computation, but hardly this.
    """
    tokens, seconds, cpu, probe = (values[name] for name in OWN_SPEED)
    return tokens * seconds / np.maximum(cpu, 1e-12) * probe


@dataclass(frozen=True)
class Reading:
    """How many rows of a log were read for a run, and what became of those that are no step of their own.

    Of `rows`, `replaced` were logged again at their step by a later row, `averaged` share their step with
    others and count by their mean, `set_aside` count for nothing (the notes of the run say why). The log
    holds so many `runs`.
    """

    rows: int
    replaced: int = 0
    averaged: int = 0
    set_aside: int = 0
    runs: int = 1

    def __str__(self) -> str:
        """One line."""
        parts = {"written again": self.replaced, "averaged": self.averaged, "set aside": self.set_aside}
        what = ", ".join(f"{count:,} {part}" for part, count in parts.items() if count)
        runs = f", 1 of {self.runs} runs" if self.runs > 1 else ""
        return f"{self.rows:,} row(s) read{f' ({what})' if what else ''}{runs}"


@dataclass(frozen=True)
class RunSignals:
    """The aligned series of a run. A value that a step lacks is NaN, and its `recorded` is false.

    `notes` say what was mended in reading. `config` is None where the run has none; `session` is the newest
    entry of provenance.json, empty where there is none. `log` is the name of the file that was read, `theirs`
    has the names of the log where it calls a signal otherwise. `checkpoints` and `rollouts` (files with
    answers) are (step, path) pairs, oldest first. `reading` says what was read, where a log was, and
    `counted_by` what it calls its steps.
    """

    path: Path
    steps: Steps
    values: Mapping[str, Floats]
    recorded: Mapping[str, Bools]
    notes: tuple[str, ...] = ()
    config: Mapping[str, Any] | None = None
    session: Mapping[str, Any] = field(default_factory=dict)
    format: str = "greenward"
    log: str = "metrics.jsonl"
    theirs: Mapping[str, str] = field(default_factory=dict)
    checkpoints: tuple[tuple[int, Path], ...] = ()
    rollouts: tuple[tuple[int, Path], ...] = ()
    reading: Reading | None = None
    counted_by: str = ""

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
    def is_own(self) -> bool:
        """Whether our trainer wrote the run, so that all that it keeps lies in its folder."""
        return self.format == "greenward" and self.config is not None

    def logged_as(self, name: str) -> str:
        """What the log calls a signal."""
        return self.theirs.get(name, name)

    @property
    def is_rated(self) -> bool:
        """Whether the reward is the rating of a player."""
        return RATING.fullmatch(self.logged_as(REWARD).strip().lower()) is not None

    @cached_property
    def possible_ranges(self) -> dict[str, Range]:
        """The ranges of those signals whose values have bounds."""
        names = {name: self.logged_as(name) for name in self.values}
        return possible_ranges(names, self.settings, is_own=self.is_own, counted_by=self.counted_by)

    @cached_property
    def family(self) -> Family:
        """The trainer that wrote the run."""
        names = [self.logged_as(name) for name in self.values]
        return family_of(names, is_own=self.is_own, counted_by=self.counted_by)

    @property
    def algorithm(self) -> str | None:
        """The name of the algorithm of the recipe, where the config is known."""
        return algorithm_of(self.config or {})

    @property
    def silent(self) -> frozenset[str]:
        """Names of findings that mean nothing for the task of the recipe, or in logs of its trainer."""
        task = shipped_task((self.config or {}).get("task"))
        return self.family.silent | (task.silent if task else frozenset())

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
