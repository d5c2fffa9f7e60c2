"""How often `greenward diff` parts healthy runs of one world, and runs one of which has a fault.

    .venv/bin/python -m benchmarks.faultbench.pairs [--pairs 120] [--first-seed 0] [--json FILE]

Both runs of a pair have the constants of one world (difficulty, levels, kinds of noise) and noise of their
own. Beside them stand pairs of AR(1) series, 35 in each run, which are noise around one level.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from greenward.common.statistics import proportion
from greenward.diagnostics.change_points import simulate_autoregression
from greenward.diagnostics.diff import RunDiff, diff_runs
from greenward.diagnostics.simulation import HEALTHY, KINDS, Kind, World, simulate
from greenward.runs.files import dump_json

AUTOCORRELATIONS = (0.3, 0.7, 0.9, 0.98)
STEPS = (60, 301)
SIGNALS = 35
# Faults that two runs show by a level or a change of the metrics.
FAULTS = (
    *("gradient explosion", "gradient growth", "reward collapse", "reward scale jump", "entropy collapse"),
    *("KL runs away", "large policy steps", "answers cut off", "length collapse", "syntax errors"),
    *("diversity lost", "memory leak, midway", "group signal fades", "throughput drop"),
)
Signals = dict[str, np.ndarray]


class _Draws:
    """Numbers of a world that two runs share, and noise that each has of its own."""

    def __init__(self, world: int, noise: tuple[int, int]) -> None:
        self._constants, self._noise = np.random.default_rng((world, 0)), np.random.default_rng(noise)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def draw(*arguments: Any, **options: Any) -> Any:
            is_constant = name in ("uniform", "choice", "integers") and len(arguments) < 3 and not options
            return getattr(self._constants if is_constant else self._noise, name)(*arguments, **options)

        return draw


def played(kind: Kind, seed: int, side: int) -> Signals:
    """One run of the pair of this seed."""
    steps = int(np.random.default_rng((seed, 9)).integers(*STEPS))
    world = World(_Draws(seed, (seed, 1 + side)), steps)  # type: ignore[arg-type]
    return simulate(kind, world, steps // 2)


def walks(autocorrelation: float, seed: int, side: int) -> Signals:
    """A run of noise alone."""
    steps = int(np.random.default_rng((seed, 9)).integers(*STEPS))
    rng = np.random.default_rng((seed, 1 + side))
    series = 5 + simulate_autoregression(rng, SIGNALS, steps, autocorrelation)
    return {f"signal/{place}": values for place, values in enumerate(series)}


def compared(a: Signals, b: Signals) -> RunDiff:
    """The difference of two runs that are written to files, as a trainer would."""
    with tempfile.TemporaryDirectory() as temporary:
        folders = [Path(temporary, side) for side in "ab"]
        for seed, (folder, signals) in enumerate(zip(folders, (a, b), strict=True)):
            folder.mkdir()
            rows = zip(*(values.tolist() for values in signals.values()), strict=True)
            lines = (
                dump_json({"step": step, **dict(zip(signals, row, strict=True))}) + "\n"
                for step, row in enumerate(rows, start=1)
            )
            (folder / "metrics.jsonl").write_text("".join(lines))
            (folder / "config.yaml").write_text(json.dumps({"name": folder.name, "seed": seed}))
        return diff_runs(*folders)


def measured(make: Callable[[int, int], Signals], other: Callable[[int, int], Signals], seeds: range) -> dict:
    """Of pairs of runs: in how many a signal differs, and which signals do, by what."""
    parted, signals = 0, Counter()
    for seed in seeds:
        found = [one for one in compared(make(seed, 0), other(seed, 1)).differences if one.onset is not None]
        parted += bool(found)
        signals.update(f"{one.signal} ({one.found})" for one in found)
        print(".", end="", file=sys.stderr, flush=True)
    return {"pairs": len(seeds), "parted": parted, "signals": dict(signals.most_common())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=120)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.pairs)
    few = seeds[: max(len(seeds) // 12, 1)]

    def of(kind: Kind) -> Callable[[int, int], Signals]:
        return lambda seed, side: played(kind, seed, side)

    def noise(phi: float) -> Callable[[int, int], Signals]:
        return lambda seed, side: walks(phi, seed, side)

    found = {"healthy runs": measured(of(HEALTHY), of(HEALTHY), seeds)}
    for phi in AUTOCORRELATIONS:
        found[f"AR(1), φ = {phi}"] = measured(noise(phi), noise(phi), seeds[: len(seeds) // 2])
    for name in FAULTS:
        found[name] = measured(of(HEALTHY), of(KINDS[name]), few)
    print(file=sys.stderr)
    for name, one in found.items():
        share = proportion(one["parted"], one["pairs"])
        by = ", ".join(f"{signal} {count}" for signal, count in [*one["signals"].items()][:6])
        rate = f"{share.value:5.0%} [{share.low:.0%}, {share.high:.0%}]"
        print(f"{name:26}{one['parted']:4}/{one['pairs']:<4}{rate}  {by}")
    if options.json:
        options.json.write_text(json.dumps({"seeds": [*seeds], **found}, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    from benchmarks.entry import run_main

    run_main(main)
