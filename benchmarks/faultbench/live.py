"""How soon the monitor alarms, and how often on healthy runs: it is fed simulated runs step by step.

.venv/bin/python -m benchmarks.faultbench.live [--split report] [--healthy 200] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from benchmarks.faultbench.synthetic import SEEDS

from greenward.diagnostics.monitor import Monitor, Rules
from greenward.diagnostics.simulation import HEALTHY, KINDS, World, simulate

# Faults that are there at once; the others grow, or are there from the start.
ABRUPT = (
    "throughput drop", "gradient explosion", "gradient explosion, then recovery", "not a number",
    "reward scale jump", "large policy steps", "clip fraction 0.45", "stale policy",
    "sampler and learner differ", "learning rate jumps", "answers cut off", "length collapse", "timeouts",
    "syntax errors", "cheating", "one answer dominates",
)  # fmt: skip


def alarms_of(kind: str | None, seed: int, alpha: float) -> tuple[int, list[tuple[int, str]]]:
    """(the first wrong step, [(step, name) of the alarms])."""
    rng = np.random.default_rng((seed, sum(map(ord, kind or "live"))))
    world = World(rng, int(rng.choice([200, 300, 400])))
    place = int(rng.integers(0.35 * world.steps, 0.7 * world.steps))
    signals = simulate(KINDS[kind] if kind else HEALTHY, world, place)
    monitor = Monitor(Rules(alpha=alpha), say=lambda text: None)
    found = []
    for i in range(world.steps):
        row = {name: float(values[i]) for name, values in signals.items()}
        found += [(alarm.step, alarm.name) for alarm in monitor.log(i + 1, row)]
    return place + 1, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--split", choices=SEEDS, default="report")
    parser.add_argument("--healthy", type=int, default=200)
    parser.add_argument("--alpha", type=float, default=0.05)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    delays: dict[str, list[int | None]] = {}
    early = 0
    for kind in ABRUPT:
        for seed in SEEDS[options.split]:
            onset, found = alarms_of(kind, seed, options.alpha)
            after = [step - onset for step, _ in found if step >= onset]
            early += any(step < onset for step, _ in found)
            delays.setdefault(kind, []).append(min(after, default=None))
    false = {}
    for seed in range(options.healthy):
        _, found = alarms_of(None, (3000 if options.split == "report" else 5000) + seed, options.alpha)
        if found:
            false[seed] = found
    for kind, found in delays.items():
        print(f"{kind:36}{found}")
    flat = [delay for found in delays.values() for delay in found]
    summary = {
        "abrupt faults alarmed within 15 steps": np.mean([d is not None and d <= 15 for d in flat]),
        "median delay": np.median([d for d in flat if d is not None]),
        "faulty runs with an alarm before the onset": early / len(flat),
        "healthy runs": options.healthy,
        "healthy runs with any alarm": len(false) / max(options.healthy, 1),
    }
    for name, value in summary.items():
        print(f"{name:44}{value:.3g}")
    print({seed: found[0] for seed, found in list(false.items())[:10]})
    if options.json:
        options.json.write_text(
            json.dumps({name: float(value) for name, value in summary.items()}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    from benchmarks.entry import run_main

    run_main(main)
