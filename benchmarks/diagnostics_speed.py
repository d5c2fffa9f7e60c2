"""How long `rldk reward-health` and `rldk diagnose` take, and how much memory: usual runs, long runs, help.

    .venv/bin/python benchmarks/diagnostics_speed.py

Writes `results/diagnostics_speed.json`. The runs are simulated, healthy AR(1) signals with predictions. Each
command is a process of its own that writes its pages. It starts from compiled modules, as an installed
package does; the table has the median and the least of several.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from greenward.diagnostics.change_points import simulate_autoregression

RESULTS = Path(__file__).parent / "results" / "diagnostics_speed.json"
SIGNALS = 30
COMMAND = (sys.executable, "-c", "from greenward.cli.rldk import main; main()")
# Names that are checked; the rest up to SIGNALS are logged beside them.
NAMED = (
    *(
        "grad_norm",
        "reward/mean",
        "reward/std",
        "reward/correctness",
        "reward/readability",
        "reward/code_score",
    ),
    *(
        "pass_rate",
        "entropy",
        "kl",
        "approx_kl",
        "explained_variance",
        "perf/rss_mb",
        "perf/tokens_per_second",
    ),
    *(
        "time/step",
        "completion/truncated",
        "groups/with_signal",
        "groups/dead_all_pass",
        "groups/dead_all_fail",
    ),
)


def write_run(folder: Path, steps: int, predictions_each: int) -> None:
    """A run of SIGNALS positive signals, and that many predictions a step."""
    rng = np.random.default_rng(0)
    names = [*NAMED, *(f"other/{i}" for i in range(SIGNALS - len(NAMED)))]
    values = np.exp(0.1 * simulate_autoregression(rng, SIGNALS, steps, 0.7)).T.tolist()
    with open(folder / "metrics.jsonl", "w") as file:
        for step, row in enumerate(values, start=1):
            file.write(json.dumps({"step": step, **dict(zip(names, row, strict=True))}) + "\n")
    logits = rng.standard_normal((steps, predictions_each))
    chances = 1 / (1 + np.exp(-logits))
    passed = (rng.random(chances.shape) < chances).astype(int).tolist()
    predicted = chances.round(6).tolist()
    with open(folder / "predictions.jsonl", "w") as file:
        for step in range(steps):
            row = {
                "step": step + 1,
                "predicted": predicted[step],
                "passed": passed[step],
            }
            file.write(json.dumps(row) + "\n")


def measure(arguments: list[str], repeats: int) -> dict[str, Any]:
    """Seconds on the clock and on the processor, and the peak resident memory; a first run compiles."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    seconds, on_processor, peaks = [], [], []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        process = subprocess.Popen(
            [*COMMAND, *arguments], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds.append(time.perf_counter() - started)
        on_processor.append(usage.ru_utime + usage.ru_stime)
        peaks.append(usage.ru_maxrss / 1024)
        if os.waitstatus_to_exitcode(status) not in (0, 1):
            raise SystemExit(f"{arguments} ended with {os.waitstatus_to_exitcode(status)}")
    return {
        "seconds": round(statistics.median(seconds[1:]), 3),
        "least_seconds": round(min(seconds[1:]), 3),
        "processor_seconds": round(statistics.median(on_processor[1:]), 3),
        "peak_rss_mb": round(max(peaks), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000, help="of the long run")
    options = parser.parse_args()
    found: dict[str, Any] = {
        "machine": {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "signals": SIGNALS,
        "help": measure(["reward-health", "--help"], 5),
    }
    for name, steps, each, repeats in (("usual run", 500, 32, 9), ("long run", options.steps, 8, 3)):
        with tempfile.TemporaryDirectory() as folder:
            write_run(Path(folder), steps, each)
            output = ["--output-dir", str(Path(folder, "out"))]
            found[name] = {
                "steps": steps,
                "predictions": steps * each,
                "reward-health": measure(["reward-health", "--run", folder, *output], repeats),
                "diagnose": measure(["diagnose", folder, *output], repeats),
            }
        print(f"{name}: {found[name]}", flush=True)
    print(f"help: {found['help']}")
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
