"""Faults that are planted in simulated runs of each family, and the names of findings that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from benchmarks.faultbench.families import Family
from benchmarks.faultbench.runs import Course, Floats

Change = Callable[[Course], None]
Mark = Callable[[dict[str, Floats], Course], None]


@dataclass(frozen=True)
class Fault:
    """`course` changes what happens, `mark` what is logged. One of `shown` must be logged by the family.

    `begins`: where in the run, as shares of it. `shape`: how the run learns before. `short`: no statistics
    are needed, so that runs of 20 to 60 rows have it, too. `unless`: the family logs one of these, and the
    fault cannot be. `change`: of skill, which a run must be long enough to show: four standard errors.
    """

    names: tuple[str, ...]
    shown: tuple[str, ...]
    course: Change | None = None
    mark: Mark | None = None
    begins: tuple[float, float] = (0.4, 0.6)
    shape: str = "fast"
    short: bool = False
    unless: tuple[str, ...] = ()
    change: float = 0.0

    def fits(self, family: Family) -> bool:
        return any(one in family.names for one in self.shown) and not any(
            one in family.names for one in self.unless
        )

    def shows(self, run: Course) -> bool:
        return 4 * run.noise <= self.change or self.change == 0


def _lose(run: Course, keeps: float, share: float = 0.15) -> None:
    """From the onset on, skill falls back to this part of what was gained."""
    peak, first = run.skill[run.onset], run.skill[0]
    aim = first + keeps * (peak - first)
    run.skill = np.where(run.ramp(share) > 0, peak + (aim - peak) * run.ramp(share), run.skill)


def _flat(run: Course) -> None:
    run.skill = np.where(np.arange(run.rows) > run.onset, run.skill[run.onset], run.skill)


def _entropy_collapse(run: Course) -> None:
    falls = 0.01 ** run.ramp(0.08)
    run.entropy = run.entropy * falls
    run.factor("gradient")[:] *= 0.05 ** run.ramp(0.08)
    run.agreement = np.maximum(run.agreement, 0.9 * run.ramp(0.08))
    _lose(run, 0.5)


def _kl_runaway(run: Course) -> None:
    run.factor("kl")[:] *= (run.rng.uniform(30, 90)) ** run.ramp(0.1)
    run.factor("gradient")[:] *= 3 ** run.ramp(0.1)
    _lose(run, -0.3)


def _dead(run: Course) -> None:
    run.skill[:] = 0.08
    # The deviation of rewards is 0 at five of six steps at least, however many groups a step has.
    run.agreement[:] = 1 - run.rng.uniform(0, 0.16) / run.batch[0]


def _constant(run: Course) -> None:
    run.skill[:] = 0.0
    run.agreement[:] = 1.0
    run.factor("varies")[:] = 0.0


def _truncated(run: Course, share: float, level: float) -> None:
    run.truncated = np.maximum(run.truncated, level * run.ramp(share))


def _no_gradient(signals: dict[str, Floats], run: Course) -> None:
    signals["gradient"][run.onset :] = 0.0


def _spike(run: Course) -> None:
    run.factor("gradient")[run.onset] = run.rng.uniform(800, 1500)
    run.factor("kl")[run.onset] = 150.0
    _lose(run, 0.2)


def _not_finite(signals: dict[str, Floats], run: Course) -> None:
    for name in ("gradient", "loss", "value_loss", "policy_loss"):
        if name in signals:
            signals[name] = np.where(np.arange(run.rows) >= run.onset, np.nan, signals[name])


def _group_of_one(run: Course) -> None:
    run.batch = (max(run.batch[0], 2), 1)


def _value_diverges(run: Course) -> None:
    name = "value_loss" if "value_loss" in run.family.names else "loss"
    run.factor(name)[:] *= (10 ** run.rng.uniform(3, 6)) ** run.ramp(0.25)
    run.factor("explains")[:] -= run.rng.uniform(2, 50) * run.ramp(0.25)
    _lose(run, 0.1)


def _value_useless(run: Course) -> None:
    run.factor("explains")[:] = 0.0


def _short_answers(run: Course) -> None:
    run.factor("lengths")[:] *= 0.12 ** run.ramp(0.1)
    run.truncated = run.truncated * (1 - run.ramp(0.1))
    _lose(run, 0.3)


def _leak(run: Course) -> None:
    run.factor("memory")[:] += run.rng.uniform(0.8, 2) * np.linspace(0, 1, run.rows)


def _slower(run: Course) -> None:
    run.factor("slower")[run.onset :] *= 3


def _rate_jump(run: Course) -> None:
    run.factor("rate")[run.onset :] *= 20
    run.factor("gradient")[run.onset :] *= 2
    run.factor("kl")[:] *= 3 ** run.ramp(0.1)
    _lose(run, 0.2)


_EARLY, _START = (0.02, 0.06), (0.0, 0.0)
_REWARD = ("reward", "return")
_VALUES = ("value_loss", "exploration")
FAULTS: dict[str, Fault] = {
    "entropy collapse, early": Fault(
        ("entropy-collapse",), ("entropy", "entropy_loss"), _entropy_collapse, begins=_EARLY),
    "entropy collapse, late": Fault(
        ("entropy-collapse",), ("entropy", "entropy_loss"), _entropy_collapse),
    "KL runs away, early": Fault(("kl-runaway",), ("kl",), _kl_runaway, begins=_EARLY),
    "reward lost after a peak": Fault(
        ("reward-drop", "quality-drop"), _REWARD, lambda run: _lose(run, 0.1, 0.2), change=0.27),
    "no learning": Fault(("no-learning",), _REWARD, _flat, begins=_START, change=0.2),
    "dead groups": Fault(
        ("dead-groups", "group-signal-fades", "constant-reward"), ("reward_std", "dead"), _dead,
        begins=_START, short=True),
    "constant reward": Fault(
        ("constant-reward", "dead-groups"), _REWARD, _constant, begins=_START, short=True),
    "truncation at once": Fault(
        ("truncated-answers",), ("truncated",), lambda run: _truncated(run, 0.02, 0.98), begins=_START,
        short=True),
    "truncation late": Fault(
        ("truncated-answers", "length-growth"), ("truncated",), lambda run: _truncated(run, 0.05, 0.75)),
    "gradient 0 from the start": Fault(
        ("gradient-vanished",), ("gradient",), _flat, _no_gradient, _START, short=True),
    "gradient 0 midway": Fault(("gradient-vanished",), ("gradient",), _flat, _no_gradient),
    "gradient spike of 1000 times": Fault(
        ("gradient-spikes", "gradient-explosion", "reward-drop"), ("gradient",), _spike),
    "not a number": Fault(
        ("non-finite",), ("gradient", "loss", "value_loss", "policy_loss"), None, _not_finite, short=True),
    "group of one": Fault(
        ("group-of-one", "dead-groups"), ("reward_std", "advantage"), _group_of_one, begins=_START,
        short=True, unless=("value_loss", "reward_term")),  # a critic needs no group; TRL refuses it
    "value loss diverges": Fault(("value-loss-diverges",), _VALUES, _value_diverges, begins=(0.3, 0.5)),
    "value function useless": Fault(
        ("value-function-useless",), ("explained",), _value_useless, begins=_START, shape="slow"),
    "length collapse": Fault(("length-collapse",), ("length",), _short_answers),
    "memory leak": Fault(("memory-leak",), ("memory",), _leak, begins=_START),
    "throughput drop": Fault(("throughput-drop",), ("seconds", "fps"), _slower),
    "learning rate jumps": Fault(("learning-rate-jump",), ("rate",), _rate_jump),
}  # fmt: skip


def kinds_of(family: Family) -> dict[str, Fault]:
    """The faults that a log of the family can show, those of short runs by a name of their own."""
    fitting = {name: fault for name, fault in FAULTS.items() if fault.fits(family)}
    return fitting | {f"{name}, short run": fault for name, fault in fitting.items() if fault.short}
