"""How well a training uses the cores: wall time of its steps times the cores, over processor seconds.

    .venv/bin/python benchmarks/core_use.py [RECIPE] [KEY=VALUE ...] [--steps 12] [--most 1.10]

The processor seconds are those of the trainer and of all its processes, answers included, from the end of the
second step to that of the last. 1 means that no core was ever idle; other work on the machine raises the
figure. Exit code 1 above `--most`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def tree_seconds(root: int) -> float:
    """Processor seconds of a process, of its descendants, and of those descendants that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        ticks[pid] = sum(map(int, fields[11:15]))  # its own and those of its children that were waited for
    inside = {root}
    while more := {pid for pid, parent in parents.items() if parent in inside} - inside:
        inside |= more
    return sum(ticks.get(pid, 0) for pid in inside) / TICKS


def main() -> int:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("recipe", nargs="?", default="quickstart")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--most", type=float, default=1.10)
    options = parser.parse_args()
    if options.steps < 3:
        parser.error(f"--steps: expected at least 3, found {options.steps}")
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        given = [f"training.max_steps={options.steps}", "evaluation.enabled=false", *options.overrides]
        command = [str(Path(sys.executable).with_name("greenward")), "train", options.recipe, *given]
        trainer = subprocess.Popen([*command, "--quiet", "--output", f"{folder}/run"])
        metrics, seen = Path(folder, "run", "metrics.jsonl"), 0
        moments: dict[int, tuple[float, float]] = {}
        try:
            while seen < options.steps and trainer.poll() is None:
                rows = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
                if rows > seen:
                    seen = rows
                    moments[seen] = time.perf_counter(), tree_seconds(trainer.pid)
                time.sleep(0.005)
        finally:
            trainer.terminate()
            trainer.wait()
    if 2 not in moments or options.steps not in moments:
        raise SystemExit(f"expected {options.steps} steps, found {seen}: the training ended early.")
    wall, used = (b - a for a, b in zip(moments[2], moments[options.steps], strict=True))
    steps = options.steps - 2
    print(
        f"{wall / steps:.3f} s a step on {cores} cores, {used / steps:.3f} processor seconds: "
        f"{cores * wall / used:.2f} (at most {options.most:g} asked)"
    )
    return int(cores * wall / used > options.most)


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
