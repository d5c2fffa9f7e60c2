"""FaultBench, part (b): simulated runs with realistic noise, each with a fault, and healthy ones.

    .venv/bin/python -m benchmarks.faultbench.synthetic [--split report] [--json FILE] [--peer PYTHON]

Thresholds of checks were tuned on the seeds 0 to 2 (`--split tune`) and are reported on 3 to 5. `--peer` is a
Python in which rl-doctor (PyPI rldoctor) is installed: it diagnoses the same signals under TRL's names.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.simulation import HEALTHY as HEALTHY_RUN
from greenward.diagnostics.simulation import KINDS, World, simulate, write

SEEDS = {"tune": range(3), "report": range(3, 6)}
HEALTHY = {"tune": range(1000, 1040), "report": range(2000, 2075)}
HEALTHY_KIND = "healthy"
# TRL's name -> ours, and its value of our signals.
_TRL = {
    "reward": "reward/mean", "reward_std": "reward/std", "entropy": "entropy", "kl": "kl",
    "grad_norm": "grad_norm", "learning_rate": "learning_rate", "loss": "loss",
    "completions/mean_length": "completion/mean_length", "completions/clipped_ratio": "completion/truncated",
    "clip_ratio/region_mean": "clip/fraction", "clip_ratio/low_mean": "clip/low",
    "clip_ratio/high_mean": "clip/high", "step_time": "time/step", "rewards/tests/mean": "reward/tests",
    "rewards/readability/mean": "reward/readability", "perf/throughput": "perf/tokens_per_second",
    "critic/vf_explained_var": "explained_variance",
}  # fmt: skip
# What rl-doctor calls the faults in its scope.
_PEER_NAMES = {
    "gradient": "gradient_pathology", "not a number": "gradient_pathology", "no gradient":
    "gradient_pathology",
    "entropy": "entropy_collapse", "KL": "kl_drift", "large policy": "clip_saturation kl_drift",
    "clip fraction": "clip_saturation", "answers cut": "length_pathology", "length growth":
    "length_pathology",
    "length bias": "length_pathology", "held-out": "reward_hacking", "reward hacking": "reward_hacking",
    "auxiliary": "reward_composition", "reward term": "reward_composition", "no learning": "plateau",
    "all groups": "advantage_collapse", "constant reward": "advantage_collapse plateau reward_composition",
    "reward collapse": "plateau reward_hacking advantage_collapse",
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What was said of one run. `error` is the distance of the onset in steps, None where it has none."""

    kind: str
    seed: int
    cause: str | None
    found: tuple[str, ...]
    named: bool
    as_cause: bool
    error: int | None
    exit_code: int
    critical: bool
    peer: tuple[str, ...] | None = None


def make(kind: str, seed: int, folder: Path) -> tuple[int | None, dict[str, Any]]:
    """Write a run; returns (the first wrong step, None where it is the first one, the signals)."""
    # The place of a kind in the table is part of the seed, so that kinds have runs of their own.
    rng = np.random.default_rng((seed, sum(map(ord, kind))))
    world = World(rng, int(rng.choice([200, 300, 400])))
    chosen = HEALTHY_RUN if kind == HEALTHY_KIND else KINDS[kind]
    onset, place = None, 0
    if kind != HEALTHY_KIND and not chosen.from_start:
        place = int(rng.integers(0.35 * world.steps, 0.7 * world.steps))
        onset = place + 1
    signals = simulate(chosen, world, place)
    write(world, signals, folder)
    if world.calibration is None and kind == HEALTHY_KIND:
        assert (folder / "metrics.jsonl").is_file()
    return onset, {"world": world, "signals": signals}


def judge(kind: str, seed: int, peer: str | None = None) -> Outcome:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        onset, made = make(kind, seed, folder)
        diagnosis = diagnose_run(folder)
        said = peer_findings(peer, folder, made) if peer else None
    names = KINDS[kind].names if kind != HEALTHY_KIND else ()
    findings = [one for one in diagnosis.findings if one.severity != "info"]
    right = [one for one in findings if one.name in names]
    cause = diagnosis.causes[0].finding if diagnosis.causes else None
    error = None
    if onset is not None and right:
        dated = [abs(one.onset.step - onset) for one in right if one.onset is not None]
        as_cause = [abs(cause.onset.step - onset)] if cause in right and cause and cause.onset else dated
        error = min(as_cause) if as_cause else None
    return Outcome(
        kind,
        seed,
        cause.name if cause else None,
        tuple(dict.fromkeys(one.name for one in findings)),
        bool(right),
        cause is not None and cause.name in names,
        error,
        diagnosis.exit_code("warning"),
        any(one.severity == "critical" for one in findings),
        said,
    )


def peer_findings(python: str, folder: Path, made: dict[str, Any]) -> tuple[str, ...]:
    """The names of rl-doctor's findings of warning or above on the same run."""
    world, signals = made["world"], made["signals"]
    groups = signals["groups/dead_all_pass"] + signals["groups/dead_all_fail"]
    scores = {}
    for file in sorted((folder / "evaluations").glob("*.json")):
        record = json.loads(file.read_text())
        scores[record["step"]] = record["metrics"]["pass@1"]["value"]
    log = folder / "trl.jsonl"
    with open(log, "w", encoding="utf-8") as file:
        for i in range(world.steps):
            row = {name: float(signals[ours][i]) for name, ours in _TRL.items() if ours in signals}
            row = {"step": i + 1, **row, "frac_reward_zero_std": float(groups[i] / world.tasks)}
            if i + 1 in scores:
                row["eval/accuracy"] = scores[i + 1]
            file.write(json.dumps(row) + "\n")
    command = [python, "-m", "rl_doctor.cli", "diagnose", str(log), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report = json.loads(done.stdout)
    except json.JSONDecodeError:
        return ("failed",)
    found = [one for one in report.get("findings", report.get("problems", ())) if one]
    return tuple(
        str(one.get("detector"))
        for one in found
        if str(one.get("severity")).lower() in ("warning", "critical")
    )


def runs(split: str) -> Iterator[tuple[str, int]]:
    for seed in SEEDS[split]:
        for kind in KINDS:
            yield kind, seed
    for seed in HEALTHY[split]:
        yield HEALTHY_KIND, seed


def table(outcomes: list[Outcome]) -> Iterator[str]:
    by_kind = defaultdict(list)
    for one in outcomes:
        by_kind[one.kind].append(one)
    yield f"{'kind':36}{'named':>7}{'cause':>7}{'exit 1':>8}{'onset error':>13}  otherwise said"
    for kind, found in by_kind.items():
        errors = sorted(one.error for one in found if one.error is not None)
        shown = f"{np.median(errors):g}" if errors else "–"
        others = sorted({one.cause or "nothing" for one in found if not one.as_cause})
        counts = (sum(getattr(one, name) for one in found) for name in ("named", "as_cause"))
        named, cause = counts
        exits = sum(one.exit_code == 1 for one in found)
        n = len(found)
        cells = f"{named:>5}/{n}{cause:>5}/{n}{exits:>6}/{n}{shown:>13}"
        yield f"{kind:36}{cells}  {', '.join(others)}"


def summary(outcomes: list[Outcome]) -> dict[str, Any]:
    faulty = [one for one in outcomes if one.kind != HEALTHY_KIND]
    healthy = [one for one in outcomes if one.kind == HEALTHY_KIND]
    errors = np.array([one.error for one in faulty if one.error is not None])
    found: dict[str, Any] = {"runs": len(outcomes)}
    if faulty:
        found |= {
            "recall by name": np.mean([one.named for one in faulty]),
            "named as the first cause": np.mean([one.as_cause for one in faulty]),
            "faulty runs with exit 1": np.mean([one.exit_code == 1 for one in faulty]),
        }
    if len(errors):
        found |= {
            "median onset error": np.median(errors),
            "onset within 20 steps": np.mean(errors <= 20),
            "onset off by more than 50": np.mean(errors > 50),
        }
    if healthy:
        found |= {
            "healthy with a warning": np.mean([bool(one.found) for one in healthy]),
            "healthy with a critical finding": np.mean([one.critical for one in healthy]),
        }
    scope = [one for one in faulty if one.peer is not None and KINDS[one.kind].peer]
    if scope:
        found |= {
            "in rl-doctor's scope: runs": len(scope),
            "in rl-doctor's scope: recall by name": np.mean([one.named for one in scope]),
            "rl-doctor: recall by name": np.mean([_peer_named(one) for one in scope]),
            "rl-doctor: healthy with a warning": np.mean([bool(one.peer) for one in healthy])
            if healthy
            else None,
        }
    return {name: round(float(value), 3) if value is not None else None for name, value in found.items()}


def _peer_named(one: Outcome) -> bool:
    names = next((value.split() for part, value in _PEER_NAMES.items() if one.kind.startswith(part)), [])
    return any(name in names for name in one.peer or ())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--split", choices=SEEDS, default="report")
    parser.add_argument("--only", help="kinds whose name holds this")
    parser.add_argument("--peer", metavar="PYTHON", help="with rl-doctor installed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    outcomes = []
    for kind, seed in runs(options.split):
        if options.only is None or options.only in kind:
            outcomes.append(judge(kind, seed, options.peer))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("\n".join(table(outcomes)))
    found = summary(outcomes)
    print("\n".join(f"{name:40}{value}" for name, value in found.items()))
    if options.json:
        record = {"split": options.split, "summary": found, "runs": [asdict(one) for one in outcomes]}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    from benchmarks.entry import run_main

    run_main(main)
