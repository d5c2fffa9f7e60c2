"""Throughput of training in one process and in two, with one thread each: python benchmarks/processes.py

Both train the same batches: a warm start, then GRPO on the problems of quickstart, without evaluation.
Seconds are those of whole steps, tokens those that were sampled and trained on. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SETTINGS = (
    "training.threads=1",
    "evaluation.enabled=false",
    "warm_start.max_steps=10",
    "training.prompts_per_step=16",
    "training.num_generations=16",
    "sandbox.workers=2",
)


def measured(output: Path, processes: int, config: str, steps: int) -> dict[str, float]:
    """Medians over the steps after the first: seconds of a step, of its parts, and tokens per second."""
    program = ["train"] if processes == 1 else ["launch"]
    options = [] if processes == 1 else ["--processes", str(processes), "--config", config]
    arguments = ["quickstart", *SETTINGS, f"training.max_steps={steps}", "--quiet", "--output", str(output)]
    subprocess.run(
        [sys.executable, "-m", "greenward", *program, *arguments, *options],
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    rows = [json.loads(line) for line in (output / "metrics.jsonl").open()][1:]
    warm = [json.loads(line) for line in (output / "warm_start/metrics.jsonl").open()][1:]

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2]

    return {
        "seconds/step": median([row["time/step"] for row in rows]),
        "seconds/sampling": median([row["time/sampling"] for row in rows]),
        "seconds/update": median([row["time/update"] for row in rows]),
        "tokens/second": median([row["completion/mean_length"] * 256 / row["time/step"] for row in rows]),
        "supervised tokens/second": median([row["perf/tokens_per_second"] for row in warm]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="ddp", help="of the run in two processes")
    parser.add_argument("--steps", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one = measured(Path(folder, "one"), 1, options.config, options.steps)
        two = measured(Path(folder, "two"), 2, options.config, options.steps)
    ratios = {name: (two[name] / one[name] if "tokens" in name else one[name] / two[name]) for name in one}
    print(json.dumps({"one": one, "two": two, "times as fast": ratios}, indent=1))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
