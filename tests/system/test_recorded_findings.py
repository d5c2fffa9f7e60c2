"""Safety net: what the diagnostics find in runs with known faults, as recorded.

The runs are metrics of 300 steps from a generator with a seed: a healthy run, another healthy one, and two
with faults. For each command the exit code, the verdict, and the findings with name, severity and onset are
compared with `recorded_findings.json`, and so are the signals in which two runs part. To record them anew
after a change of what a check means:

    PYTHONPATH=tests python tests/system/test_recorded_findings.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recording import call, check, record_lines

from diagnostics.synthetic_runs import predictions, write_run

RECORD = Path(__file__).with_name("recorded_findings.json")
STEPS, FAULT = 300, 180  # the first step with a fault, as metrics.jsonl counts
COMMANDS = (
    "reward-health --run healthy",
    "reward-health --run healthy --fail-on info",
    "reward-health --run broken",
    "reward-health --run decaying",
    "reward-health --run decaying --fail-on warning --calibration-threshold 0.9",
    "reward-health --run decaying --memory-limit-mb 2000",
    "reward-health --run short",
    "evals --run healthy",
    "evals --run broken",
    "evals --run decaying --fail-on warning",
    "evals --run decaying --suite mbpp",
    "diff --a healthy --b other",
    "diff --a healthy --b broken",
    "diff --a healthy --b replay",
    "diff --a healthy --b healthy",
    "diff --a broken --b decaying --signals gradient_norm,entropy",
    "diff --a short --b healthy",
)

Signals = dict[str, np.ndarray]


def _noise(rng: np.random.Generator) -> np.ndarray:
    """An AR(1) of variance 1 with autocorrelation 0.6."""
    values = rng.standard_normal(STEPS)
    for step in range(1, STEPS):
        values[step] = 0.6 * values[step - 1] + 0.8 * values[step]
    return values


def _healthy(seed: int) -> Signals:
    rng = np.random.default_rng(seed)
    time = np.linspace(0, 1, STEPS)
    correct = 0.35 + 0.4 * (1 - 0.05**time) + 0.04 * _noise(rng)
    readable = 0.8 + 0.01 * _noise(rng)
    return {
        "reward/mean": 0.8 * correct + 0.2 * readable,
        "reward/std": 0.4 + 0.02 * _noise(rng),
        "reward/correctness": correct,
        "reward/readability": readable,
        "pass_rate": correct - 0.1,
        "grad_norm": 0.5 * 1.3 ** _noise(rng),
        "entropy": 0.5 - 0.1 * time + 0.02 * _noise(rng),
        "kl": 0.02 + 0.03 * time + 0.002 * _noise(rng),
        "approx_kl": 0.005 + 0.0005 * _noise(rng),
        "explained_variance": 0.5 - 0.4 * 0.01**time + 0.04 * _noise(rng),
        "completion/mean_length": 30 + 2 * _noise(rng),
        "completion/truncated": 0.05 + 0.01 * _noise(rng),
        "completion/unique": 0.6 - 0.1 * time + 0.02 * _noise(rng),
        "groups/with_signal": np.round(12 + _noise(rng)),
        "groups/dead_all_pass": np.full(STEPS, 2.0),
        "groups/dead_all_fail": np.full(STEPS, 2.0),
        "status/passed": correct - 0.1,
        "status/timeout": 0.03 + 0.005 * _noise(rng),
        "learning_rate": np.full(STEPS, 1e-4),
        "perf/tokens_per_second": 20_000 + 800 * _noise(rng),
        "perf/rss_mb": 900 + 30 * (1 - 0.001**time) + 4 * _noise(rng),
        "time/step": 1 + 0.05 * _noise(rng),
        "updates/non_finite": np.zeros(STEPS),
    }


def _broken(seed: int) -> Signals:
    """Norms 30 times as large and rewards that fall from step 180 on, and memory that doubles."""
    signals, after = _healthy(seed), np.arange(1, STEPS + 1) >= FAULT
    signals["grad_norm"] = signals["grad_norm"] * np.where(after, 30.0, 1.0)
    for name in ("reward/mean", "reward/correctness", "pass_rate", "status/passed"):
        signals[name] = signals[name] - 0.25 * after
    signals["perf/rss_mb"] = signals["perf/rss_mb"] + np.linspace(0, 1000, STEPS)
    signals["perf/tokens_per_second"] = signals["perf/tokens_per_second"] * np.where(after, 0.5, 1.0)
    signals["updates/non_finite"][FAULT + 20] = 1
    return signals


def _decaying(seed: int) -> Signals:
    """Entropy collapses, KL runs away, answers get long and alike, groups die, the critic is useless."""
    signals, time = _healthy(seed), np.linspace(0, 1, STEPS)
    signals["entropy"] = 0.4 * 0.02**time + 0.002 * (1 + signals["entropy"])
    signals["kl"] = 0.02 + 2.7 ** (6 * time - 5)
    signals["approx_kl"] = signals["approx_kl"] + 0.08
    signals["explained_variance"] = signals["explained_variance"] - 0.9
    signals["completion/truncated"] = signals["completion/truncated"] + 0.7 * time
    signals["completion/unique"] = signals["completion/unique"] * (1 - 0.8 * time)
    signals["groups/with_signal"] = np.full(STEPS, 1.0)
    signals["groups/dead_all_fail"] = np.full(STEPS, 13.0)
    signals["reward/mean"] = np.full(STEPS, 0.25)
    signals["status/timeout"] = signals["status/timeout"] + 0.4 * time
    return signals


def _write(run: Path, signals: Signals, *, seed: int, overconfidence: float, passed_after: int) -> None:
    """A run directory: settings, metrics, predictions of a reward model, and two evaluations."""
    count = len(signals["grad_norm"])
    write_run(run, signals, predictions(seed, scale=overconfidence, steps=count, each=8), seed=seed)
    (run / "evaluations").mkdir()
    for suite in ("", ".mbpp"):
        for step, right in ((0, 30), (count, passed_after)):
            path = run / "evaluations" / f"step_{step:06d}{suite}.json"
            path.write_text(json.dumps(_evaluation(step, right, suite.strip("."))))


def _evaluation(step: int, right: int, suite: str) -> dict[str, Any]:
    """The evaluation of 60 problems with one answer each, of which the first `right` pass."""
    value = right / 60
    rows = [
        {
            "task_id": f"task/{number}",
            "prompt": f"def f{number}():\n",
            "passed": int(number < right),
            "samples": 1,
            "greedy_passed": None,
            "answers": [
                {"code": "pass", "status": "passed" if number < right else "failed", "first_failure": ""}
            ],
        }
        for number in range(60)
    ]
    return {
        "step": step,
        "problems": 60,
        "samples": 1,
        "temperature": 1.0,
        "elapsed_seconds": 1.0,
        "metrics": {"pass@1": {"value": value, "low": value - 0.1, "high": value + 0.1}},
        "statuses": {"passed": right, "failed": 60 - right},
        "rates": {},
        "tags": {},
        "rows": rows,
    } | ({"suite": suite} if suite else {})


def make_runs(folder: Path) -> None:
    replay = _healthy(0)
    replay["grad_norm"] = replay["grad_norm"] * np.where(np.arange(1, STEPS + 1) >= FAULT, 1.5, 1.0)
    short = {name: values[:20] for name, values in _healthy(0).items()}
    _write(folder / "healthy", _healthy(0), seed=0, overconfidence=1, passed_after=45)
    _write(folder / "other", _healthy(1), seed=1, overconfidence=1, passed_after=44)
    _write(folder / "replay", replay, seed=0, overconfidence=1, passed_after=45)
    _write(folder / "short", short, seed=0, overconfidence=1, passed_after=30)
    _write(folder / "broken", _broken(2), seed=2, overconfidence=4, passed_after=12)
    _write(folder / "decaying", _decaying(3), seed=3, overconfidence=2, passed_after=31)


def _of_command(command: str) -> dict[str, Any]:
    code, text = call(*command.split(), "--json")
    record = json.loads(text)
    found: dict[str, Any] = {"exit": code, "verdict": record["verdict"]}
    if command.startswith("diff"):
        found["settings"] = record["settings"]
        kept = ("found", "onset", "onset_low", "onset_high", "a", "b")
        found["differences"] = {row["signal"]: [row[key] for key in kept] for row in record["differences"]}
    else:
        found["findings"] = [[one["name"], one["severity"], one["onset"]] for one in record["findings"]]
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    make_runs(folder)
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_diagnosis_says_what_was_recorded(
    command: str, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runs)
    recorded = json.loads(RECORD.read_text())["commands"][command]
    check(recorded, _of_command(command))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_runs(Path(folder))
        os.chdir(folder)
        record_lines(RECORD, {"commands": {command: _of_command(command) for command in COMMANDS}})
        os.chdir(RECORD.parent)
