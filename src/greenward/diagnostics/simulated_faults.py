"""The kinds of faults of simulated runs: what each changes, from which step on, and its finding's name.

A kind is a function of the world before it is played; one that changes signals afterwards returns a function
of them. `greenward selftest` plays one for each finding (`example_of`), FaultBench those of `KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from greenward.diagnostics.simulation import Array, World, noise, play

Change = Callable[[World, Array], Callable[[dict[str, Array]], None] | None]
"""(world, 0 before the onset and 1 from it on) -> what to do with the signals, if anything."""


@dataclass(frozen=True)
class Kind:
    """`names` are the findings that name the fault rightly, the best first; a healthy run has none.

    `from_start` faults have no onset.
    """

    names: tuple[str, ...]
    change: Change
    from_start: bool = False
    peer: bool = False  # a fault in the scope of rl-doctor 0.2
    algorithm: str = ""  # of the recipe, where only one has the signal


def simulate(kind: Kind, world: World, place: int) -> dict[str, Array]:
    """Play a world with the fault from the step at `place` on, and return its signals."""
    if kind.algorithm:
        world.algorithm = world.config["algorithm"]["name"] = kind.algorithm
    later = kind.change(world, (np.arange(world.steps) >= (0 if kind.from_start else place)).astype(float))
    signals = play(world)
    if later is not None:
        later(signals)
    return signals


def _since(after: Array) -> Array:
    """Steps since the onset, from 1."""
    return np.cumsum(after)


def _field(name: str, value: Callable[[World, Array], Any]) -> Change:
    def change(world: World, after: Array) -> None:
        setattr(world, name, value(world, after))

    return change


def with_signals(edit: Callable[[dict[str, Array], World, Array], None]) -> Change:
    """A change of the signals after the world was played."""
    return lambda world, after: lambda signals: edit(signals, world, after)


def _both(*changes: Change) -> Change:
    def change(world: World, after: Array) -> Callable[[dict[str, Array]], None]:
        later = [then for one in changes if (then := one(world, after))]

        def edit(signals: dict[str, Array]) -> None:
            for then in later:
                then(signals)

        return edit

    return change


def _leak(w: World, after: Array, grown: Array) -> Array:
    factor = float(w.rng.uniform(1.4, 2.5))
    return 900 * (factor - 1) * grown / max(grown.max(), 1)


def _learning_falls(w: World, after: Array) -> None:
    """Skill that is lost from some steps after the onset."""
    later = np.roll(after, 8) * after
    w.learning = w.learning * (1 - after) - later * float(w.rng.uniform(2.5, 5)) * (_since(later) < 60)


def _explode(w: World, after: Array) -> None:
    w.scale = np.where(after > 0, w.rng.uniform(8, 60), 1.0)
    _learning_falls(w, after)


def _grow(w: World, after: Array) -> None:
    w.scale = np.exp(np.minimum(_since(after) * float(w.rng.uniform(0.03, 0.15)), 5))
    _learning_falls(w, after)


def _burst(w: World, after: Array) -> None:
    lasts = int(w.rng.integers(12, 30))
    w.scale = np.where((after > 0) & (_since(after) <= lasts), w.rng.uniform(10, 40), 1.0)


def _spike(s: dict[str, Array], w: World, after: Array) -> None:
    places = np.flatnonzero((after > 0) & (w.rng.random(w.steps) < 0.05))
    s["grad_norm"][places] *= w.rng.uniform(10, 60, len(places))


def _no_gradient(s: dict[str, Array], w: World, after: Array) -> None:
    s["grad_norm"][(after > 0) & (w.rng.random(w.steps) < 0.9)] = 0.0


def _not_a_number(s: dict[str, Array], w: World, after: Array) -> None:
    s["grad_norm"][after > 0] = np.nan
    s["loss"][after > 0] = np.nan


def _constant(s: dict[str, Array], w: World, after: Array) -> None:
    for name in ("reward/mean", "reward/tests", "pass_rate", "reward/std"):
        s[name][after > 0] = 0.0
    s["reward/mean"][after > 0] = s["reward/readability"][after > 0] = 0.0


def _dead_term(s: dict[str, Array], w: World, after: Array) -> None:
    s["reward/mean"] = s["reward/mean"] - w.style_weight * s["reward/readability"]
    s["reward/readability"] = np.zeros(w.steps)


def _dominant(w: World, after: Array) -> None:
    w.style_noise = float(w.rng.uniform(0.12, 0.2))
    w.style_weight = float(w.rng.uniform(1.5, 3.0))
    w.config["rewards"][1]["weight"] = w.style_weight


def _loss_of_all_groups(sign: int) -> Change:
    def change(w: World, after: Array) -> None:
        w.start, w.gain = (-6.0, 0.3) if sign < 0 else (6.0, 2.0)
        w.cut, w.timeouts, w.errors = w.cut * 0, w.timeouts * 0, w.errors * 0.02

    return change


def _restart(s: dict[str, Array], w: World, after: Array) -> None:
    ramp = np.minimum(_since(after) / 20, 1)
    top = w.config["training"]["learning_rate"]
    s["learning_rate"] = np.where(after > 0, top * ramp, np.maximum(s["learning_rate"], 0.2 * top))


def _value(s: dict[str, Array], w: World, after: Array) -> None:
    """Values that differ by chance alone and by little: `spread` is their variance over that of returns."""
    spread = 10 ** w.rng.uniform(-6, -1)
    s["explained_variance"] = -spread + 2 * np.sqrt(spread / 64) * w.rng.standard_normal(w.steps)


def _overconfident(slope: float) -> Callable[[Array, np.random.Generator], Array]:
    return lambda chance, rng: 1 / (1 + (1 / np.clip(chance, 1e-6, 1 - 1e-6) - 1) ** slope)


def _in_region(chance: Array, rng: np.random.Generator) -> Array:
    return np.where((chance > 0.55) & (chance < 0.9), 0.97, chance)


def _base_rate(chance: Array, rng: np.random.Generator) -> Array:
    return (
        np.clip(0.5 + 0.01 * rng.standard_normal(chance.shape), 0, 1) * 0
        + _RATE[0]
        + 0.01 * rng.standard_normal(chance.shape)
    )


_RATE = [0.6]


def _useless(w: World, after: Array) -> None:
    w.learning, w.start = np.zeros(w.steps), 0.4
    w.learning[:] = 0.3
    w.calibration = _base_rate


def _hack(w: World, after: Array) -> None:
    w.learning = w.learning * (1 - after) - 1.2 * after
    w.proxy = 0.9 * (1 - np.exp(-_since(after) / 25)) * after


def _by_heart(w: World, after: Array) -> None:
    w.learning, w.start = np.zeros(w.steps), -1.0
    w.proxy = 0.8 * (1 - np.exp(-_since(after) / 25)) * after


def _decline(w: World, after: Array) -> None:
    w.learning = w.learning * (1 - after) - float(w.rng.uniform(2, 4)) * after
    w.proxy = 0.35 * (1 - np.exp(-_since(after) / 40)) * after  # training problems are known by heart


def _noisy_leak(w: World, after: Array) -> Array:
    return _leak(w, after, _since(after)) * 1.0 + 60 * np.abs(noise(w.rng, w.steps, 0.6, 4))


def _steps_leak(w: World, after: Array) -> Array:
    every = max(w.steps // int(w.rng.integers(6, 12)), 5)
    return _leak(w, after, (np.arange(w.steps) // every).astype(float))


def _kl(s: dict[str, Array], w: World, after: Array) -> None:
    s["kl"] = s["kl"] + 0.02 * (np.exp(np.minimum(_since(after) / 25, 6)) - 1) * after


def _flat(w: World, after: Array) -> None:
    w.learning = np.zeros(w.steps)


def _one_answer(w: World, after: Array) -> None:
    w.config["training"]["num_generations"] = 1


def _diverge(s: dict[str, Array], w: World, after: Array) -> None:
    grown = 14 * _since(after) / w.steps
    s["value/loss"] = 0.05 * np.exp(grown + 0.1 * noise(w.rng, w.steps))


def _agree(w: World, after: Array) -> None:
    """All answers of a group become one, right or wrong, and nothing more is learned."""
    w.agreement = float(w.rng.uniform(0.85, 1)) * (1 - np.exp(-_since(after) / 15)) * after
    w.learning = 1 - after


def _collapse(w: World, after: Array) -> None:
    """Groups agree, and with them entropy and distinct answers go; what was learned stays or is lost."""
    _agree(w, after)
    w.exploration = np.exp(-np.minimum(_since(after) / 15, 5))
    w.copies = 0.9 * w.agreement
    if w.rng.random() < 0.5:
        _learning_falls(w, after)


def _solve(w: World, after: Array) -> Callable[[dict[str, Array]], None]:
    """A healthy run that learns until nearly all answers are right, and is sure of one to each problem."""
    w.gain, w.learning = 9.0, w.learning * after * 2
    w.cut, w.timeouts, w.errors = w.cut * 0, w.timeouts * 0, w.errors * 0.02
    w.exploration = np.exp(-np.minimum(_since(after) / 15, 5))

    def edit(signals: dict[str, Array]) -> None:
        signals["completion/unique"] *= 1 - 0.8 * (1 - np.exp(-_since(after) / 40))

    return edit


KINDS: Mapping[str, Kind] = {
    "memory leak, linear": Kind(
        ("memory-leak",), _field("leak", lambda w, a: _leak(w, a, np.arange(w.steps, dtype=float))), True
    ),
    "memory leak, noisy": Kind(
        ("memory-leak",), lambda w, a: setattr(w, "leak", _noisy_leak(w, np.ones(w.steps))), True
    ),
    "memory leak, midway": Kind(("memory-leak",), _field("leak", lambda w, a: _leak(w, a, _since(a)))),
    "memory leak, stepwise": Kind(("memory-leak",), _field("leak", _steps_leak), True),
    "device memory leak": Kind(
        ("memory-leak",), _field("device_leak", lambda w, a: 8 * _leak(w, a, _since(a)))
    ),
    "throughput drop": Kind(("throughput-drop",), _field("slow", lambda w, a: 1 + 0.8 * a)),
    "gradient explosion": Kind(("gradient-explosion",), _explode, peer=True),
    "gradient growth": Kind(("gradient-explosion",), _grow, peer=True),
    "gradient explosion, then recovery": Kind(("gradient-explosion", "gradient-burst"), _burst, peer=True),
    "gradient spikes": Kind(("gradient-spikes",), with_signals(_spike), peer=True),
    "gradient vanishing": Kind(
        ("gradient-vanished",),
        _field("scale", lambda w, a: np.exp(-np.minimum(_since(a) / 12, 5))),
        peer=True,
    ),
    "no gradient at most steps": Kind(("gradient-vanished",), with_signals(_no_gradient), peer=True),
    "gradient clipped at every step": Kind(
        ("gradient-always-clipped",), _field("scale", lambda w, a: np.full(w.steps, 25.0)), True, True
    ),
    "not a number": Kind(("non-finite",), with_signals(_not_a_number), peer=True),
    "reward collapse": Kind(
        ("reward-drop",),
        _field("learning", lambda w, a: np.where(a > 0, -12.0 * (_since(a) < 25), 1.0)),
        peer=True,
    ),
    "constant reward": Kind(("constant-reward",), with_signals(_constant), peer=True),
    "reward term dead from the start": Kind(("reward-term-dead",), with_signals(_dead_term), True, True),
    "reward scale jump": Kind(
        ("reward-scale-jump",),
        _field("reward_scale", lambda w, a: 1 + a * float(w.rng.choice([2.0, 4.0, 9.0]))),
    ),
    "auxiliary reward dominates": Kind(("auxiliary-reward-dominates",), _dominant, True, True),
    "no learning": Kind(("no-learning",), _flat, True, True),
    "all groups fail": Kind(("dead-groups",), _loss_of_all_groups(-1), True, True),
    "all groups pass": Kind(("dead-groups", "group-signal-fades"), _loss_of_all_groups(1), True, True),
    "group signal fades": Kind(("group-signal-fades", "dead-groups"), _agree),
    "entropy collapse": Kind(
        ("entropy-collapse",),
        _field("exploration", lambda w, a: np.exp(-np.minimum(_since(a) / 15, 5))),
        peer=True,
    ),
    "entropy rises": Kind(
        ("entropy-rise",),
        _both(
            _field("exploration", lambda w, a: 1 + 2.5 * (1 - np.exp(-_since(a) / 20))),
            lambda w, a: _learning_falls(w, a),
        ),
    ),
    "KL runs away": Kind(
        ("kl-runaway",), _both(with_signals(_kl), _field("learning", lambda w, a: 1 - a)), peer=True
    ),
    "large policy steps": Kind(("large-policy-steps",), _field("push", lambda w, a: 1 + a * 4.5), peer=True),
    "clip fraction 0.45": Kind(
        ("clip-fraction-high",),
        with_signals(
            lambda s, w, a: s.update(
                {
                    k: np.where(a > 0, f * np.exp(0.08 * noise(w.rng, w.steps)), s[k])
                    for k, f in (("clip/fraction", 0.45), ("clip/high", 0.3), ("clip/low", 0.15))
                }
            )
        ),
        peer=True,
    ),
    "stale policy": Kind(("stale-policy",), _field("lag", lambda w, a: 8.0 * a)),
    "sampler and learner differ": Kind(
        ("sampler-mismatch",), _field("mismatch", lambda w, a: np.where(a > 0, 0.12, w.mismatch))
    ),
    "warm-up restarted": Kind(("learning-rate-jump",), with_signals(_restart)),
    "learning rate jumps": Kind(
        ("learning-rate-jump",),
        with_signals(lambda s, w, a: s.update(learning_rate=s["learning_rate"] * (1 + 29 * a))),
    ),
    "answers cut off": Kind(
        ("truncated-answers",), _field("cut", lambda w, a: np.where(a > 0, 0.5, w.cut)), peer=True
    ),
    "length growth": Kind(
        ("length-growth",),
        _both(
            _field("length", lambda w, a: w.length * (1 + np.minimum(_since(a) / 60, 2.5))),
            _field("learning", lambda w, a: 1 - a),
        ),
        peer=True,
    ),
    "length collapse": Kind(
        ("length-collapse",),
        _both(
            _field("length", lambda w, a: w.length * np.where(a > 0, 0.12, 1)),
            lambda w, a: _learning_falls(w, a),
        ),
    ),
    "value function unlearned": Kind(
        ("value-function-useless",), with_signals(_value), True, algorithm="ppo"
    ),
    "timeouts": Kind(
        ("sandbox-timeouts", "failing-answers-rise"),
        _field("timeouts", lambda w, a: np.where(a > 0, 0.3, w.timeouts)),
    ),
    "syntax errors": Kind(
        ("failing-answers-rise",), _field("errors", lambda w, a: np.where(a > 0, 0.4, w.errors))
    ),
    "cheating": Kind(("cheating",), _field("cheats", lambda w, a: 0.2 * a)),
    "diversity lost": Kind(
        ("diversity-loss", "dominant-answer"),
        _field("copies", lambda w, a: 0.85 * (1 - np.exp(-_since(a) / 15))),
    ),
    "one answer dominates": Kind(
        ("dominant-answer", "diversity-loss"), _field("copies", lambda w, a: 0.95 * a)
    ),
    "held-out regression": Kind(("held-out-regression", "reward-hacking"), _decline, peer=True),
    "reward hacking": Kind(("reward-hacking",), _hack, peer=True),
    "evaluation contaminated": Kind(
        ("evaluation-contaminated",), lambda w, a: setattr(w, "leaked_evaluation", 0.75), True
    ),
    "length bias of the reward": Kind(
        ("length-bias",), lambda w, a: setattr(w, "length_bias", 0.5), True, True
    ),
    "flaky grades": Kind(("flaky-grades",), lambda w, a: setattr(w, "flaky", 0.35), True),
    "overconfident": Kind(
        ("poor-calibration",), lambda w, a: setattr(w, "calibration", _overconfident(2.2)), True
    ),
    "strongly overconfident": Kind(
        ("poor-calibration",), lambda w, a: setattr(w, "calibration", _overconfident(4.0)), True
    ),
    "calibration wrong in one region": Kind(
        ("poor-calibration",), lambda w, a: setattr(w, "calibration", _in_region), True
    ),
    "useless base rate": Kind(("poor-calibration", "calibration-no-discrimination"), _useless, True),
}

HEALTHY = Kind((), lambda world, after: None)
# Kinds that FaultBench does not measure.
_MORE: Mapping[str, Kind] = {
    "training problems are solved": Kind(("problems-solved",), _solve),
    "groups agree and entropy collapses": Kind(("entropy-collapse",), _collapse),
    "quality falls": Kind(("quality-drop",), _field("readable", lambda w, a: w.readable * (1 - 0.5 * a))),
    "training problems are known by heart": Kind(("train-held-out-gap",), _by_heart),
    "groups of one answer": Kind(("group-of-one",), _one_answer, True),
    "values diverge": Kind(
        ("value-loss-diverges",),
        _both(with_signals(_diverge), _field("learning", lambda w, a: -0.6 * a)),
        from_start=True,
        algorithm="ppo",
    ),
    "KL below 0": Kind(("impossible-value",), with_signals(lambda s, w, a: s.update(kl=s["kl"] - 0.5 * a))),
}


def example_of(finding: str, more: Mapping[str, Kind] = {}) -> str | None:
    """The name of the kind that shows a finding best; None: there is none. `more` are kinds of a task."""
    found = [(name, kind) for name, kind in every_kind(more).items() if finding in kind.names]
    return min(found, key=lambda one: one[1].names.index(finding))[0] if found else None


def every_kind(more: Mapping[str, Kind] = {}) -> Mapping[str, Kind]:
    """The kinds by name, with those of a task."""
    return {**KINDS, **_MORE, **more}
