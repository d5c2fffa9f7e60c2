"""Run directories whose faults are known: healthy ones are AR(1) around the curves of a usual run."""

from __future__ import annotations

import json

import numpy as np

from greenward.diagnostics.change_points import simulate_autoregression
from greenward.runs.files import dump_json

STEPS = 500


def healthy(seed, steps=STEPS, phi=0.7):
    """Signals of a healthy PPO run that learns."""
    rng = np.random.default_rng(seed)
    noise = iter(simulate_autoregression(rng, 20, steps, phi))
    t = np.linspace(0, 1, steps)
    learning = 0.35 + 0.4 * (1 - np.exp(-3 * t))
    readable = 0.8 + 0.01 * next(noise)
    correct = np.clip(learning + 0.04 * next(noise), 0, 1)
    return {
        "reward/mean": 0.8 * correct + 0.2 * readable,
        "reward/std": 0.4 + 0.02 * next(noise),
        "reward/code_score": 0.8 * correct + 0.2 * readable,
        "reward/correctness": correct,
        "reward/readability": readable,
        "pass_rate": np.clip(learning - 0.05 + 0.04 * next(noise), 0, 1),
        "grad_norm": np.exp(-0.7 + 0.25 * next(noise)),
        "entropy": np.maximum(0.4 - 0.15 * t + 0.02 * next(noise), 0.05),
        "kl": np.maximum(0.05 * t + 0.002 * next(noise), 0),
        "approx_kl": np.abs(0.004 + 0.001 * next(noise)),
        "explained_variance": 0.5 * (1 - np.exp(-5 * t)) + 0.05 * next(noise),
        "completion/mean_length": 30 + 2 * next(noise),
        "completion/truncated": np.clip(0.02 + 0.01 * next(noise), 0, 1),
        "completion/unique": 0.6 - 0.1 * t + 0.02 * next(noise),
        "groups/with_signal": np.round(12 + next(noise)),
        "groups/dead_all_pass": np.full(steps, 2.0),
        "groups/dead_all_fail": np.full(steps, 2.0),
        "status/passed": np.clip(learning - 0.05 + 0.04 * next(noise), 0, 1),
        "status/timeout": np.clip(0.02 + 0.005 * next(noise), 0, 1),
        "learning_rate": np.full(steps, 1e-4),
        "perf/tokens_per_second": 20_000 * np.exp(0.05 * next(noise)),
        "perf/rss_mb": 900 + 30 * (1 - np.exp(-20 * t)) + 8 * np.abs(next(noise)),
        "time/step": np.exp(0.1 * next(noise)),
        "updates/non_finite": np.zeros(steps),
    }


def with_leak(signals, factor=2.1):
    steps = len(signals["perf/rss_mb"])
    return {**signals, "perf/rss_mb": signals["perf/rss_mb"] + 920 * (factor - 1) * np.linspace(0, 1, steps)}


def with_explosion(signals, after=300, factor=40.0):
    """Norms `factor` times as large from step `after` on (first step: 1), rewards fall 10 steps later."""
    steps = np.arange(1, len(signals["grad_norm"]) + 1)
    fall = np.where(steps >= after + 10, 0.4, 0.0)
    return {
        **signals,
        "grad_norm": signals["grad_norm"] * np.where(steps >= after, factor, 1.0),
        "reward/code_score": signals["reward/code_score"] - fall,
        "reward/mean": signals["reward/mean"] - fall,
    }


def predictions(seed, *, scale=1.0, steps=STEPS, each=16):
    """(predicted, passed) of each step; calibrated for scale 1, overconfident above."""
    rng = np.random.default_rng((7, seed))
    logits = 1.2 * rng.standard_normal((steps, each))
    passed = rng.random((steps, each)) < 1 / (1 + np.exp(-logits))
    return 1 / (1 + np.exp(-scale * logits)), passed


def write_run(folder, signals, predicted=None, **config):
    folder.mkdir(parents=True, exist_ok=True)
    count = len(next(iter(signals.values())))
    rows = ({"step": i + 1, **{k: float(v[i]) for k, v in signals.items()}} for i in range(count))
    (folder / "metrics.jsonl").write_text("".join(dump_json(row) + "\n" for row in rows))
    rewards = [{"name": "correctness", "weight": 0.8}, {"name": "readability", "weight": 0.2}]
    (folder / "config.yaml").write_text(json.dumps({"name": folder.name, "rewards": rewards, **config}))
    if predicted is not None:
        rows = (
            {"step": i + 1, "predicted": p.tolist(), "passed": y.astype(int).tolist()}
            for i, (p, y) in enumerate(zip(*predicted, strict=True))
        )
        (folder / "predictions.jsonl").write_text("".join(dump_json(row) + "\n" for row in rows))
    return folder
