"""GRPO of a real model as a user starts it: does it learn from rewards, survive SIGKILL, and fit into memory?

    python benchmarks/real_training.py MODEL [--lora 16] [--kills 2] [--memory-limit 5] [KEY=VALUE ...]

MODEL is a folder or a .gguf file. `greenward train` takes ten steps on public problems and is repeated in
another folder, where it is killed at random moments after the third step and resumed. Its metrics, those of
time left out, must equal those of the first run. In at least eight steps of ten, answers to one problem must
have earned different rewards. `greenward eval` then answers eight problems, and one. The peak of a command is
the largest sum, over its processes, of their peaks (VmHWM), looked at ten times a second; that of a training
is printed after each step, so that it is known of one that is interrupted, too. The exit code is 1 where the
runs differ, too few steps have a signal, or a peak is above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from greenward.runs.reading import read_metrics, without_timing

KILLED_AFTER, WITH_SIGNAL = 3, 0.8
INTERVAL = 0.1


class Command:
    """A running `greenward` command, and the peak of its memory so far."""

    def __init__(self, *arguments: str) -> None:
        self.arguments, self.peak_gib = arguments, 0.0
        self.began = time.monotonic()
        with tempfile.TemporaryFile() as errors:
            self._errors = os.fdopen(os.dup(errors.fileno()), "rb")
            self.process = subprocess.Popen(
                [sys.executable, "-m", "greenward", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def runs(self) -> bool:
        """Whether it still runs, after a moment in which its memory was looked at."""
        kib = sum(_peak_kib(pid) for pid in _tree(self.process.pid))
        self.peak_gib = max(self.peak_gib, kib / 2**20)
        time.sleep(INTERVAL)
        return self.process.poll() is None

    def finish(self, run: Path | None = None) -> float:
        """Wait for its end; the peak. A command that fails ends this program.

        After each step of `run`, the peak so far is printed.
        """
        told = 0
        while self.runs():
            if run is not None and (done := len(metrics(run))) > told:
                told = done
                print(f"{run.name}: {done} steps, {self.peak_gib:.2f} GiB at most so far", flush=True)
        if self.process.returncode:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
            sys.exit(
                f"greenward {' '.join(self.arguments)}: exit code {self.process.returncode}\n{said[-3000:]}"
            )
        return self.peak_gib


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in children:
            yield from _tree(int(child))


def _peak_kib(pid: int) -> int:
    try:
        found = Path(f"/proc/{pid}/status").read_text().partition("VmHWM:")[2].split()
    except OSError:
        return 0
    return int(found[0]) if found else 0


def metrics(run: Path) -> list[dict[str, Any]]:
    file = run / "metrics.jsonl"
    return [without_timing(row) for row in read_metrics(file).rows] if file.is_file() else []


def interrupted(settings: list[str], run: Path, fastest_step: float, steps: int, options: Any) -> str:
    """Start the run, kill it in the middle of random steps, resume it to its end; when it was killed."""
    chance, moments, resumed = random.Random(options.seed), [], []
    for done in sorted(chance.sample(range(KILLED_AFTER, steps - 1), options.kills)):
        wait = chance.uniform(0, fastest_step)
        command = Command(*settings, "--output", str(run), *resumed)
        while len(metrics(run)) < done and command.runs():
            pass
        until = time.monotonic() + wait
        while time.monotonic() < until and command.runs():
            pass
        if command.process.poll() is not None:
            command.finish()
            sys.exit(f"the run ended before it could be killed, {wait:.1f} s after step {done}")
        command.process.kill()
        command.process.wait()
        moments.append(f"{wait:.1f} s after step {done}")
        print(f"{run.name}: killed {moments[-1]}, {command.peak_gib:.2f} GiB at most", flush=True)
        resumed = ["--resume"]
    Command(*settings, "--output", str(run), *resumed).finish(run)
    return f"killed {' and '.join(moments)}"


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("model", help="a model's folder or .gguf file")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="other settings of the recipe")
    parser.add_argument("--recipe", default="grpo_code_execution")
    parser.add_argument(
        "--problems", default="mbpp:train", help="what it trains on; `families` are generated"
    )
    parser.add_argument("--suite", default="mbpp:test", help="what `greenward eval` asks")
    parser.add_argument("--lora", type=int, metavar="RANK", help="train an adapter, alpha 2 · RANK")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--kills", type=int, default=1, help="how often it is killed")
    parser.add_argument(
        "--max-tokens", type=int, default=256, help="of an answer, in training and evaluation"
    )
    parser.add_argument("--memory-limit", type=float, metavar="GIB", help="that no peak may exceed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the run, and of the moment of SIGKILL")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    options = parser.parse_intermixed_args()
    if options.kills < 1 or options.steps < KILLED_AFTER + 1 + options.kills:
        parser.error(f"expected --kills 1 or more, and --steps {KILLED_AFTER + 1} more than --kills")
    settings = [
        "train", options.recipe, f"model={options.model}", "model.device=cpu",
        f"problems.train={options.problems}", "evaluation.enabled=false",
        "sampling.temperature=1", f"sampling.max_tokens={options.max_tokens}",
        f"training.max_steps={options.steps}", "training.prompts_per_step=4", "training.num_generations=8",
        "training.checkpoint_interval_steps=2", f"training.threads={options.threads}", f"seed={options.seed}",
        *([f"model.lora={{r: {options.lora}, alpha: {2 * options.lora}}}"] if options.lora else []),
        *options.settings,
    ]  # fmt: skip
    peaks, seconds = {}, {}
    with tempfile.TemporaryDirectory(prefix="real-training-") as place:
        whole, again = Path(place) / "whole", Path(place) / "again"
        command = Command(*settings, "--output", str(whole))
        peaks["training"] = command.finish(whole)
        seconds["training"] = time.monotonic() - command.began
        rows = metrics(whole)
        per_step = [row["time/step"] for row in read_metrics(whole / "metrics.jsonl").rows]
        moment = interrupted(settings, again, min(per_step), options.steps, options)
        is_equal = metrics(again) == rows
        for name, limit in (("8 problems", 8), ("one answer", 1)):
            command = Command(
                "eval", options.model, "--suite", options.suite, "--limit", str(limit), "--device", "cpu",
                "--max-tokens", str(options.max_tokens), "--out", f"{place}/{limit}",
            )  # fmt: skip
            peaks[name] = command.finish()
            seconds[name] = time.monotonic() - command.began
    with_signal = sum(row["groups/with_signal"] > 0 for row in rows)
    print(f"{with_signal} of {len(rows)} steps had a group whose answers earned different rewards")
    print(f"{moment}; resumed, its metrics are {'equal' if is_equal else 'NOT equal'}")
    too_large = (
        [] if options.memory_limit is None else [n for n, gib in peaks.items() if gib > options.memory_limit]
    )
    for name, gib in peaks.items():
        above = " (above the limit)" if name in too_large else ""
        print(f"{name:12}{gib:8.2f} GiB at most, {seconds[name]:7.1f} s{above}")
    if options.json:
        record = {
            "settings": vars(options), "steps": len(rows), "with_signal": with_signal, "equal": is_equal,
            "moment": moment, "peak_gib": peaks, "seconds": seconds, "seconds_per_step": per_step,
        }  # fmt: skip
        options.json.write_text(json.dumps(record, indent=1, default=str) + "\n")
    return int(not is_equal or with_signal < WITH_SIGNAL * len(rows) or bool(too_large))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
