"""A made-up study of the shape that `greenward demo` writes, for tests and for looking at reports.

python tests/reports/synthetic_study.py FOLDER [SEEDS] [STEPS]
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import yaml

CONFIG: dict[str, Any] = {
    "task": "functions",
    "name": "quickstart",
    "seed": 0,
    "model": {"id": None, "shape": {"layers": 4, "hidden_size": 128, "heads": 4}, "dtype": "float32"},
    "problems": {"train": "families", "held_out": "families"},
    "warm_start": {"max_steps": 500, "learning_rate": 0.003, "error_rate": 0.7},
    "sampling": {"max_tokens": 64, "temperature": 1.0},
    "rewards": [{"name": "tests", "weight": 1.0}],
    "algorithm": {"name": "grpo", "advantage": "grpo", "loss": "dapo", "clip_low": 0.2, "clip_high": 0.28},
    "training": {"max_steps": 80, "prompts_per_step": 16, "num_generations": 16, "learning_rate": 0.00025},
    "evaluation": {"num_questions": 300, "samples": 8, "k": [1, 8]},
}
RIGHT = """\
def solve(xs):
    ys = [x for x in xs if x % 2 == 0]
    return sorted(ys, reverse=True)
"""
WRONG = """\
def solve(xs):
    ys = [x for x in xs if x % 2 == 1]
    return sorted(ys, reverse=True)
"""
FAILURES = {
    "failed": "solve([1, 2, 3, 4]) gave [3, 1], expected [4, 2]",
    "error": "solve([]) raised IndexError: list index out of range",
    "timeout": "solve([9, 8, 7]) did not end within 1.0 s",
    "syntax_error": "line 2: invalid syntax",
}


def write_study(folder: Path, *, seeds: int = 2, steps: int = 80, problems: int = 300) -> Path:
    """Write seed_0, seed_1 … each with a warm start, rejection sampling and a control, and return the folder."""
    for seed in range(seeds):
        write_seed(folder / f"seed_{seed}", seed=seed, steps=steps, problems=problems)
    return folder


def write_seed(folder: Path, *, seed: int = 0, steps: int = 80, problems: int = 300) -> Path:
    """Write one run with its arms: pass@1 climbs from about 0.31 to 0.8; the control stays."""
    rng = random.Random(seed)
    config = {**CONFIG, "seed": seed, "training": {**CONFIG["training"], "max_steps": steps}}
    end = 0.78 + 0.05 * rng.random()
    _write_arm(folder, config)
    elapsed, rows = 0.0, []
    for step in range(1, steps + 1):
        row = _grpo_row(rng, step, _climb(step, steps, end))
        elapsed += row["time/step"]
        rows.append(row)
        if step % max(steps // 4, 1) == 0:
            _write_evaluation(folder, rng, step, elapsed, _climb(step, steps, end), problems)
    _write_evaluation(folder, rng, 0, 0.0, _climb(0, steps, end), problems)
    _write_rows(folder, rows)
    _write_summary(folder, steps, elapsed * 1.35, 1180 + 40 * rng.random())

    warm = folder / "warm_start"
    _write_arm(warm, {**config, "algorithm": {"name": "sft"}, "name": "warm_start"})
    _write_rows(warm, [_supervised_row(rng, step) for step in range(1, 501)])
    for step, level in ((0, 0.0), (250, 0.19), (500, 0.31)):
        _write_evaluation(warm, rng, step, 0.14 * step, level, problems)
    _write_summary(warm, 500, 78.0, 940)

    control = folder / "control"
    _write_arm(control, {**config, "algorithm": {"name": "sft"}, "name": "control"})
    count = int(elapsed / 0.14)
    _write_rows(control, [_supervised_row(rng, 500 + step) | {"step": step} for step in range(1, count + 1)])
    for step in (0, count):
        _write_evaluation(control, rng, step, 0.14 * step, 0.31 + 0.008 * bool(step), problems)
    _write_summary(control, count, elapsed + 22, 960)
    _write_rejection(folder / "rejection", config, rows, elapsed, problems)
    return folder


def _write_rejection(
    folder: Path, config: dict[str, Any], rows: list[dict[str, Any]], elapsed: float, problems: int
) -> None:
    """Rejection sampling for the time that GRPO took, to 0.6; two of its rounds kept nothing."""
    _write_arm(folder, {**config, "algorithm": {"name": "rejection"}, "name": "rejection_sampling"})
    kept = {"rejection/kept": 90, "rejection/pool": 30, "rejection/empty_rounds": 2}
    _write_rows(folder, [row | kept for row in rows])
    _write_evaluation(folder, random.Random(7), len(rows), elapsed, 0.6, problems)
    _write_summary(folder, len(rows), elapsed + 20, 950)


def _climb(step: int, steps: int, end: float) -> float:
    return 0.31 + (end - 0.31) * (1 - math.exp(-3.2 * step / steps)) / (1 - math.exp(-3.2))


def _grpo_row(rng: random.Random, step: int, level: float) -> dict[str, Any]:
    def noise(scale: float) -> float:
        return rng.gauss(0, scale)

    sampling, grading, update = (abs(base + noise(0.06)) for base in (0.9, 0.32, 0.85))
    all_pass, all_fail = (
        max(0, round(16 * level**4 + noise(1))),
        max(0, round(3 * (1 - level) + noise(0.7))),
    )
    return {
        "step": step,
        "reward/mean": 1.3 * level + noise(0.05),
        "reward/std": 0.5 + noise(0.02),
        "reward/tests": 1.3 * level + noise(0.05),
        "pass_rate": min(1.0, max(0.0, level + noise(0.05))),
        "groups/dead_all_pass": all_pass,
        "groups/dead_all_fail": all_fail,
        "groups/with_signal": max(0, 16 - all_pass - all_fail),
        "episodes/infrastructure": 0,
        "loss": noise(0.004),
        "entropy": 0.05 + 0.5 * math.exp(-step / 30) + noise(0.01),
        "grad_norm": 0.4 + abs(noise(0.08)),
        "clip/low": abs(noise(0.002)),
        "clip/high": abs(noise(0.003)),
        "learning_rate": 2.5e-4,
        "completion/mean_length": 31 + noise(0.8),
        "completion/truncated": abs(noise(0.004)),
        "time/sampling": sampling,
        "time/grading": grading,
        "time/update": update,
        "time/step": sampling + grading + update + 0.03,
        "perf/tokens_per_second": 8600 + noise(300),
        "perf/rss_mb": 1100 + step / 10,
    }


def _supervised_row(rng: random.Random, step: int) -> dict[str, Any]:
    return {
        "step": step,
        "loss": 0.42 + 3.6 * math.exp(-step / 60) + rng.gauss(0, 0.02),
        "learning_rate": 0.003 * min(1, step / 30) * 0.5 * (1 + math.cos(math.pi * min(step, 500) / 500)),
        "grad_norm": 0.5 + 2 * math.exp(-step / 50) + abs(rng.gauss(0, 0.05)),
        "tokens": 2300,
        "time/step": 0.14,
    }


def _write_evaluation(
    folder: Path, rng: random.Random, step: int, elapsed: float, level: float, problems: int
) -> None:
    samples = 8
    tasks = random.Random(99)  # problems are equally hard for every evaluation
    rows, statuses = [], dict.fromkeys(("passed", *FAILURES), 0)
    for index in range(problems):
        ease = tasks.gauss(0, 1.6)
        chance = 1 / (1 + math.exp(-(ease + _logit(level)))) if level else 0.0
        answers = []
        for _ in range(samples):
            status = (
                "passed" if rng.random() < chance else rng.choices(list(FAILURES), weights=(80, 12, 2, 6))[0]
            )
            statuses[status] += 1
            code = RIGHT if status == "passed" else WRONG
            answers.append({"code": code, "status": status, "first_failure": FAILURES.get(status, "")})
        rows.append(
            {
                "task_id": f"families/keep_even.sort_down.{index:03d}",
                "prompt": "# Keep the even numbers, then sort from largest to smallest.\ndef solve(xs):\n",
                "passed": sum(answer["status"] == "passed" for answer in answers),
                "samples": samples,
                "greedy_passed": chance > 0.5,
                "answers": answers[:3],
            }
        )
    shares = [row["passed"] / samples for row in rows]
    record = {
        "suite": "families",
        "step": step,
        "elapsed_seconds": elapsed,
        "problems": problems,
        "samples": samples,
        "temperature": 1.0,
        "metrics": {
            "pass@1": _estimate(shares),
            "pass@8": _estimate([float(share > 0) for share in shares]),
            "greedy_pass@1": _estimate([float(row["greedy_passed"]) for row in rows]),
        },
        "statuses": statuses,
        "rates": {
            "compile": _estimate([1 - statuses["syntax_error"] / (samples * problems)] * problems),
            "truncated": _estimate([0.004] * problems),
        },
        "seconds": {"sampling": 6.1, "grading": 1.9},
        "rows": rows,
    }
    path = folder / "evaluations" / f"step_{step:06d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def _logit(share: float) -> float:
    return 1.45 * math.log(share / (1 - share))


def _estimate(values: list[float]) -> dict[str, float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))
    half = 1.96 * deviation / math.sqrt(len(values))
    return {"value": mean, "low": max(0.0, mean - half), "high": min(1.0, mean + half)}


def _write_arm(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    session = {
        "started_at": "2026-11-20T10:00:00+00:00",
        "python": "3.12.1",
        "packages": {"greenward": "0.1.0", "torch": "2.13.0"},
        "system": "Linux x86_64",
        "cpu_count": 2,
        "device": "a laptop processor",
        "git": {"commit": "0123456789abcdef", "modified": False},
    }
    (folder / "provenance.json").write_text(json.dumps({"sessions": [session]}))


def _write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_summary(folder: Path, steps: int, wall_seconds: float, peak_rss_mb: float) -> None:
    summary = {
        "status": "finished",
        "steps": steps,
        "wall_seconds": wall_seconds,
        "peak_rss_mb": peak_rss_mb,
        "before": None,
        "after": None,
        "arms": {},
    }
    (folder / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    counts = [int(argument) for argument in sys.argv[2:]]
    write_study(Path(sys.argv[1]), **dict(zip(("seeds", "steps"), counts, strict=False)))
