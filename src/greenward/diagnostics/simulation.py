"""A simulated RL run: tasks of different difficulty, groups of answers, the noise of real logs, and faults.

Answers are drawn one by one (does this sample of this task pass, how long is it, is it cut off), and the
signals are their means, as in a trainer; gradients, KL and clocks follow laws of their own with noise that is
autocorrelated and has heavy tails. Nothing here uses what the diagnostics compute: a fault changes the cause
(a skill, a rate, a length, memory that is kept), and the signals follow.

A kind of fault says what it changes, from which step on, and its finding's name. It is a function of the
world before it is played; one that changes signals afterwards returns a function of them. `greenward
selftest` plays one for each finding (`example_of`), FaultBench those of `KINDS`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]


def noise(rng: np.random.Generator, steps: int, phi: float | None = None, tails: float = 5.0) -> Array:
    """Autocorrelated noise of about unit variance with Student's tails."""
    phi = float(rng.uniform(0, 0.85)) if phi is None else phi
    drawn = rng.standard_t(tails, steps) / np.sqrt(tails / (tails - 2))
    for t in range(1, steps):
        drawn[t] = phi * drawn[t - 1] + np.sqrt(1 - phi**2) * drawn[t]
    return drawn


def sigmoid(x: Array | float) -> Array:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-np.asarray(x, float))))


@dataclass
class World:
    """What causes the signals of a run, as functions of the step (arrays of one value a step).

    `scale` is a factor of the gradient norm and `learning` one of the progress. A fault changes these fields
    before the run is played, or the signals afterwards.
    """

    rng: np.random.Generator
    steps: int
    algorithm: str = "grpo"
    tasks: int = 12
    group: int = 8
    start: float = -0.6
    gain: float = 1.8
    skill: Array = field(init=False)  # while it was played
    learning: Array = field(init=False)
    scale: Array = field(init=False)
    proxy: Array = field(init=False)  # passes that are no skill: exploits of the tests
    length: Array = field(init=False)
    cut: Array = field(init=False)
    timeouts: Array = field(init=False)
    errors: Array = field(init=False)
    cheats: Array = field(init=False)
    exploration: Array = field(init=False)
    lag: Array = field(init=False)  # of the sampler's weights, in updates
    mismatch: Array = field(init=False)  # mean |Δ log p| between sampler and trainer
    push: Array = field(init=False)  # how far updates move the policy, 1 is usual
    reward_scale: Array = field(init=False)
    leak: Array = field(init=False)
    device_leak: Array = field(init=False)
    slow: Array = field(init=False)
    explained: Array = field(init=False)
    rate: Array = field(init=False)
    readable: Array = field(init=False)
    leaked_evaluation: float = 0.0
    length_bias: float = 0.0
    flaky: float = 0.0
    copies: Array = field(init=False)
    agreement: Array = field(init=False)  # share of the groups whose answers are all one
    style_weight: float = 0.2
    style_noise: float = 0.01
    calibration: Any = None
    config: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng, n = self.rng, self.steps
        t = np.linspace(0, 1, n)
        self.t = t
        one, zero = np.ones(n), np.zeros(n)
        self.algorithm = str(rng.choice(["grpo", "ppo"]))
        self.tasks, self.group = int(rng.choice([8, 16, 32])), int(rng.choice([4, 8]))
        self.start, self.gain = float(rng.uniform(-1.2, 0.2)), float(rng.uniform(1.2, 2.6))
        self.learning, self.scale, self.push, self.reward_scale = (
            one.copy(),
            one.copy(),
            one.copy(),
            one.copy(),
        )
        self.slow, self.exploration = one.copy(), one.copy()
        self.proxy, self.leak, self.device_leak, self.lag = zero.copy(), zero.copy(), zero.copy(), zero.copy()
        self.cheats, self.copies, self.agreement = zero.copy(), zero.copy(), zero.copy()
        base = float(rng.uniform(30, 400))
        self.length = base * (1 + float(rng.uniform(-0.1, 0.25)) * t)
        self.cut = np.full(n, float(rng.choice([0.0, 0.01, 0.05])))
        self.timeouts = np.full(n, float(rng.choice([0.0, 0.01, 0.03])))
        self.errors = float(rng.uniform(0.02, 0.12)) * np.exp(-2 * t)
        self.mismatch = np.full(n, float(rng.uniform(0.002, 0.01)))
        self.explained = float(rng.uniform(0.3, 0.8)) * (1 - np.exp(-5 * t))
        self.readable = np.full(n, float(rng.uniform(0.7, 0.9)))
        warm, top = int(rng.choice([0, 5, 20])), float(10 ** rng.uniform(-6, -3))
        rise = np.minimum((np.arange(n) + 1) / max(warm, 1), 1)
        self.rate = top * rise * {0: one, 1: 1 - t, 2: 0.5 * (1 + np.cos(np.pi * t))}[int(rng.integers(3))]
        self.config = {
            "task": "functions",
            "seed": int(rng.integers(1000)),
            "training": {
                "learning_rate": top,
                "max_grad_norm": 1.0,
                "warmup_steps": warm,
                "prompts_per_step": self.tasks,
                "num_generations": self.group,
                "max_steps": n,
            },
            "algorithm": {
                "name": self.algorithm,
                "clip_low": 0.2,
                "clip_high": 0.28,
                "kl": {"coefficient": 0.02},
            },
            "sampling": {"temperature": 1.0, "max_tokens": int(4 * base)},
            "rewards": [{"name": "tests", "weight": 1.0}, {"name": "readability", "weight": 0.2}],
        }


def play(world: World) -> dict[str, Array]:
    """The signals of a run of this world, by greenward's names."""
    w, rng, n = world, world.rng, world.steps
    progress = np.cumsum(w.learning) / n
    skill = w.start + w.gain * (1 - np.exp(-2.5 * progress)) / (1 - np.exp(-2.5)) + 0.1 * noise(rng, n, 0.9)
    world.skill = skill
    answers = w.tasks * w.group
    difficulty = rng.normal(0, 1.3, (n, w.tasks))
    able = sigmoid(skill[:, None] - difficulty)
    chance = able * (1 - w.errors - w.timeouts)[:, None] * (1 - w.cut)[:, None]
    chance = np.clip(chance + (1 - chance) * w.proxy[:, None], 0, 1)
    passed = rng.random((n, w.tasks, w.group)) < chance[..., None]
    if w.agreement.any():
        agree = rng.random((n, w.tasks)) < w.agreement[:, None]
        passed = np.where(agree[..., None], passed[..., :1], passed)
    count = passed.sum(2)
    share = lambda p: rng.binomial(answers, np.clip(p, 0, 1)) / answers  # noqa: E731
    style = np.clip(w.readable + w.style_noise * noise(rng, n), 0, 1)
    tests = passed.mean((1, 2))
    reward = w.reward_scale * (tests + w.style_weight * style)
    mixed = ((count > 0) & (count < w.group)).sum(1)
    signal = np.sqrt(np.maximum(mixed, 0.3) / w.tasks)
    heavy = np.exp(0.22 * noise(rng, n, tails=6))
    norm = w.scale * float(rng.uniform(0.2, 0.6)) * (0.5 + signal) * heavy
    entropy0 = float(rng.uniform(0.3, 1.2))
    entropy = (
        entropy0
        * w.exploration
        * (1 - 0.4 * (1 - np.exp(-2 * np.clip(progress, -0.05, None))))
        * np.exp(0.03 * noise(rng, n, 0.6))
    )
    moved = np.cumsum(w.push) / n
    kl = 0.06 * moved**1.1 * np.exp(0.06 * noise(rng, n, 0.7))
    approx = 0.003 * w.push**2 * np.exp(0.3 * noise(rng, n)) * (1 + 3 * w.lag)
    clipped = np.clip(0.02 * w.push * np.exp(0.3 * noise(rng, n)) + 0.01 * w.lag, 0, 1)
    lengths = w.length * np.exp(0.05 * noise(rng, n) + 0.3 * rng.standard_normal(n) / np.sqrt(answers / 4))
    difference = (w.mismatch + 0.004 * w.lag) * np.exp(0.15 * noise(rng, n))
    ratio = 1 + 0.002 * w.push * noise(rng, n) - 0.02 * w.lag * np.abs(noise(rng, n))
    memory = 900 + 60 * (1 - np.exp(-np.arange(n) / 12)) + 5 * np.abs(noise(rng, n)) + 0.05 * lengths
    kept = rng.random(n) < 0.004  # allocations that stay, as in any process
    memory = memory + np.cumsum(kept * rng.uniform(0, 15, n)) + w.leak
    speed = 20_000 / w.slow * np.exp(0.06 * noise(rng, n)) * np.where(rng.random(n) < 0.02, 0.6, 1)
    unique = np.clip((0.75 - 0.2 * tests) * (1 - w.copies) + 0.02 * noise(rng, n), 0.02, 1)
    spread = w.reward_scale * np.sqrt(np.maximum(tests * (1 - tests), 1e-4)) * np.exp(0.05 * noise(rng, n))
    signals = {
        "reward/mean": reward,
        "reward/std": spread,
        "reward/tests": tests,
        "reward/readability": style,
        "pass_rate": tests,
        "loss": 0.01 * noise(rng, n) * w.reward_scale,
        "grad_norm": norm,
        "entropy": entropy,
        "kl": kl,
        "approx_kl": approx,
        "clip/fraction": clipped,
        "clip/high": 0.6 * clipped,
        "clip/low": 0.4 * clipped,
        "ratio/mean": ratio,
        "ratio/max": 1 + np.abs(0.3 * w.push * (1 + w.lag) * np.exp(0.4 * noise(rng, n))),
        "importance/mean": ratio,
        "importance/difference": difference,
        "importance/kl": difference**2 * np.exp(0.3 * noise(rng, n)),
        "rollouts/staleness": w.lag,
        "learning_rate": w.rate,
        "completion/mean_length": lengths,
        "completion/truncated": share(w.cut),
        "completion/unique": unique,
        "groups/with_signal": mixed.astype(float),
        "groups/dead_all_pass": (count == w.group).sum(1).astype(float),
        "groups/dead_all_fail": (count == 0).sum(1).astype(float),
        "status/passed": tests,
        "status/timeout": share(w.timeouts),
        "status/syntax_error": share(w.errors),
        "status/cheating": share(w.cheats),
        "perf/rss_mb": memory,
        "perf/device_memory_mb": 8000 * (1 + 0.02 * np.abs(noise(rng, n))) + w.device_leak,
        "perf/tokens_per_second": speed,
        "time/step": answers * lengths / speed,
        "updates/non_finite": np.zeros(n),
    }
    if w.algorithm == "ppo":
        signals["explained_variance"] = np.clip(w.explained + 0.08 * noise(rng, n), -3, 1)
        signals["value/loss"] = 0.1 * np.exp(0.2 * noise(rng, n))
    return signals


def evaluations(world: World, problems: int = 100, samples: int = 2) -> list[dict[str, Any]]:
    """Held-out evaluations of the run's skill, at the start and four or more times later."""
    rng = world.rng
    difficulty = rng.normal(0.15, 1.3, problems)
    every = max(world.steps // int(rng.integers(4, 8)), 1)
    records = []
    for step in sorted({0, *range(every, world.steps + 1, every), world.steps}):
        skill = world.skill[min(step, world.steps - 1)] if step else world.start
        chance = sigmoid(skill - difficulty)
        chance = chance + (1 - chance) * world.leaked_evaluation
        passed = rng.binomial(samples, chance)
        rate = float(passed.mean() / samples)
        half = 1.96 * float((passed / samples).std()) / np.sqrt(problems)
        estimate = {"value": rate, "low": rate - half, "high": rate + half}
        rows = [{"task_id": f"t/{i}", "passed": int(p), "samples": samples} for i, p in enumerate(passed)]
        records.append(
            {
                "suite": "held_out",
                "step": step,
                "problems": problems,
                "metrics": {"pass@1": estimate},
                "rows": rows,
            }
        )
    return records


def predictions(world: World, each: int = 16) -> list[dict[str, Any]]:
    """What a reward model predicts: the outcomes come from hidden chances, which it sees with an error."""
    rng, rows = world.rng, []
    for step in range(1, world.steps + 1):
        chance = sigmoid(rng.normal(world.skill[step - 1], 1.5, each))
        passed = rng.random(each) < chance
        seen = chance if world.calibration is None else np.clip(world.calibration(chance, rng), 0, 1)
        rows.append(
            {"step": step, "predicted": seen.round(6).tolist(), "passed": passed.astype(int).tolist()}
        )
    return rows


def rollouts(world: World, step: int, kept: int = 32) -> list[dict[str, Any]]:
    """Answers of a step. With a length bias, the reward grows with the length of equal answers."""
    rng = world.rng
    rows: list[dict[str, Any]] = []
    skill = world.skill[step - 1]
    tasks = rng.normal(0, 1.3, kept // 4)
    for place in range(kept):
        task = int(rng.integers(1_000_000)) if place % 4 == 0 else rows[-1]["task"]
        copy = bool(rng.random() < world.copies[step - 1])
        passed = bool(rng.random() < sigmoid(skill - tasks[place // 4]))
        length = float(world.length[step - 1] * np.exp(0.5 * rng.standard_normal()))
        answer = "return 0" if copy else f"x = {int(rng.integers(1_000_000))}\nreturn x + {place}"
        if world.flaky and place % 4 == 1 and rng.random() < 0.8:
            answer = rows[-1]["answer"]
            passed = bool(rows[-1]["passed"]) != bool(rng.random() < world.flaky)
        elif place and answer == rows[-1]["answer"] and rows[-1]["task"] == task:
            passed = rows[-1]["passed"]
        z = np.log(length / world.length[step - 1]) / 0.5
        reward = float(passed) + world.length_bias * z
        rows.append(
            {
                "task": task,
                "problem": f"t/{task}",
                "answer": answer,
                "passed": passed,
                "tokens": int(length),
                "status": "passed" if passed else "failed",
                "rewards": {"policy": reward},
            }
        )
    return [{key: value for key, value in row.items() if key not in ("task", "passed")} for row in rows]


def write(world: World, signals: dict[str, Array], folder: Path) -> Path:
    """The run as a run directory."""
    for inner in ("evaluations", "rollouts"):
        (folder / inner).mkdir(parents=True, exist_ok=True)
    names = list(signals)
    with open(folder / "metrics.jsonl", "w", encoding="utf-8") as file:
        for i, row in enumerate(np.stack([signals[name] for name in names], 1).tolist()):
            found = {
                name: value if np.isfinite(value) else "NaN" for name, value in zip(names, row, strict=True)
            }
            file.write(json.dumps({"step": i + 1, **found}) + "\n")
    (folder / "config.yaml").write_text(json.dumps({"name": folder.name, **world.config}))
    for record in evaluations(world):
        (folder / "evaluations" / f"step_{record['step']:06d}.json").write_text(json.dumps(record))
    if world.calibration is not None or world.rng.random() < 0.5:
        rows = predictions(world)
        (folder / "predictions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step in range(1, world.steps + 1, max(world.steps // 24, 1)):
        rows = rollouts(world, step)
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "rollouts" / f"step_{step:06d}.jsonl").write_text(text)
    return folder


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
