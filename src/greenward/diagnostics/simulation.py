"""A simulated RL run: tasks of different difficulty, groups of answers, and the noise of real logs.

Answers are drawn one by one (does this sample of this task pass, how long is it, is it cut off), and the
signals are their means, as in a trainer; gradients, KL and clocks follow laws of their own with noise that is
autocorrelated and has heavy tails. Nothing here uses what the diagnostics compute: a fault changes the cause
(a skill, a rate, a length, memory that is kept), and the signals follow.
"""

from __future__ import annotations

import json
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
