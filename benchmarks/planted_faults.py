"""Plants each fault in the training of `ppo_code_fix`, and asks `reward-health` what is wrong with the run.

    .venv/bin/python benchmarks/planted_faults.py [--folder runs/planted_faults] [--json FILE]
    .venv/bin/python benchmarks/planted_faults.py --seeds 0 --healthy 0 --together 5

Five runs with each of the three faults, five with all three at once and twenty without any, each of a seed
of its own and 500 steps, from one warm start. Of three faults at once each must be measured rightly, have a
cause of its own, and every other critical finding must be listed as a consequence of one of these causes.

So that it takes about an hour on two cores, runs are smaller than the recipe's (8 answers a step, one thread,
no evaluation) and two go side by side; all else is the recipe's. Finished runs in the folder are not
repeated. The diagnosis sees a run directory; the truth it is compared with is in faults.json, which it never
reads.

Exits with 1 when a fault is missed or misjudged, or when more than one critical finding is false. Of a run
with all three faults there is one row for each.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from greenward.diagnostics.diagnose import diagnose_reward_health
from greenward.diagnostics.finding import Diagnosis
from greenward.runs.reading import read_summary

RECIPE = "ppo_code_fix"
HEALTHY, TOGETHER = "healthy", "together"
FAULTS = ("memory_leak", "gradient_explosion", "reward_overconfidence")
SMALLER = (
    "training.prompts_per_step=2",
    "training.num_generations=4",
    "training.threads=1",
    "sandbox.workers=1",
    "evaluation.enabled=false",
    "training.checkpoint_interval_steps=1000",
    "training.keep_checkpoints=1",
    "problems.families.limit=1000",
)
# How far a measurement may be from the truth.
FACTOR_TOLERANCE, SCORE_TOLERANCE, ONSET_TOLERANCE = 0.1, 0.03, 5
FALSE_CRITICAL_ALLOWED = 1


@dataclass(frozen=True)
class Arm:
    """One run: which fault is planted (or none), and the seed."""

    fault: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.fault}_{self.seed}"

    @property
    def overrides(self) -> list[str]:
        planted = {HEALTHY: (), TOGETHER: FAULTS}.get(self.fault, (self.fault,))
        return [f"seed={self.seed}", *(f"faults.{fault}={{}}" for fault in planted)]


@dataclass(frozen=True)
class Outcome:
    """What was planted in a run, what was measured of it, and all findings of note.

    `false` are the critical findings that the planted fault does not explain.
    """

    fault: str
    seed: int
    planted: float | None
    measured: float | None
    low: float | None
    high: float | None
    found: bool
    right: bool
    critical: tuple[str, ...]
    warnings: tuple[str, ...]
    false: tuple[str, ...]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/planted_faults"))
    parser.add_argument("--seeds", type=int, default=5, help="runs with each fault (5)")
    parser.add_argument("--together", type=int, default=5, help="runs with all faults (5)")
    parser.add_argument("--healthy", type=int, default=20, help="runs without any (20)")
    parser.add_argument("--steps", type=int, default=500, help="of each run (500)")
    parser.add_argument("--parallel", type=int, default=2, help="runs side by side (2)")
    parser.add_argument("--only-judge", action="store_true", help="diagnose finished runs; train nothing")
    parser.add_argument("--json", type=Path, help="keep all numbers here")
    options = parser.parse_args()
    arms = [Arm(fault, seed) for seed in range(options.seeds) for fault in FAULTS]
    arms += [Arm(TOGETHER, seed) for seed in range(options.together)]
    arms += [Arm(HEALTHY, 100 + seed) for seed in range(options.healthy)]
    if not options.only_judge:
        train_all(arms, options.folder, steps=options.steps, parallel=options.parallel)
    done = [arm for arm in arms if finished(options.folder / arm.name)]
    outcomes = [outcome for arm in done for outcome in judged(arm, options.folder / arm.name)]
    print("\n".join(table(outcomes)))
    passed = verdict(outcomes, len(arms) - len(done))
    if options.json:
        record = {"steps": options.steps, "passed": passed, "runs": [asdict(outcome) for outcome in outcomes]}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0 if passed else 1


def train_all(arms: Sequence[Arm], folder: Path, *, steps: int, parallel: int) -> None:
    """Train what is not finished yet, `parallel` at a time, each as a user would."""
    start = folder / "start"
    if not finished(start):
        subprocess.run([*train(start), "training.max_steps=1", "evaluation.enabled=false"], check=True)
    model = [f"model={start / 'warm_start/checkpoints/last'}", "pretrained=null", "warm_start=null"]
    waiting = [arm for arm in arms if not finished(folder / arm.name)]
    running: list[subprocess.Popen[bytes]] = []
    began = time.perf_counter()
    for count, arm in enumerate(waiting):
        command = [*train(folder / arm.name), *model, *SMALLER, f"training.max_steps={steps}", *arm.overrides]
        running.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        minutes = (time.perf_counter() - began) / 60
        print(f"{minutes:5.1f} min: run {count + 1} of {len(waiting)}, {arm.name}", flush=True)
        while len(running) >= parallel:
            running = still_running(running)
    while running:
        running = still_running(running)


def train(output: Path) -> list[str]:
    command = [sys.executable, "-m", "greenward", "train", RECIPE, "--quiet", "--resume"]
    return [*command, "--output", str(output)]


def still_running(processes: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Those that go on, after a moment. Ends the program if one failed."""
    time.sleep(0.2)
    for process in processes:
        if process.poll() not in (None, 0):
            raise SystemExit(f"a run failed with exit code {process.returncode}: {process.args!r}")
    return [process for process in processes if process.poll() is None]


def finished(folder: Path) -> bool:
    summary = read_summary(folder)
    return summary is not None and summary["status"] == "finished"


def judged(arm: Arm, folder: Path) -> list[Outcome]:
    """Diagnose one run and compare with each fault that was planted in it."""
    diagnosis = diagnose_reward_health(folder)
    critical = tuple(finding.name for finding in diagnosis.findings if finding.severity == "critical")
    warnings = tuple(finding.name for finding in diagnosis.findings if finding.severity == "warning")
    if arm.fault == HEALTHY:
        no_fault = (HEALTHY, arm.seed, None, None, None, None, False, not critical)
        return [Outcome(*no_fault, critical, warnings, critical)]
    together = arm.fault == TOGETHER
    outcomes = []
    for fault in FAULTS if together else (arm.fault,):
        truth = json.loads((folder / "faults.json").read_text())["faults"][fault]
        name, planted, tolerance, (measured, low, high) = measurement(fault, truth, diagnosis)
        right = name in critical and measured is not None and abs(measured - planted) <= tolerance
        false = tuple(finding for finding in critical if finding not in CONSEQUENCES[fault])
        if together:
            right = right and cause_of(name, diagnosis) in CAUSES[fault]
            every = set().union(*CAUSES.values())
            false = tuple(finding for finding in critical if cause_of(finding, diagnosis) not in every)
        outcomes.append(
            Outcome(
                f"{TOGETHER}: {fault}" if together else fault, arm.seed, planted, measured, low, high,
                name in critical, right, critical, warnings, false,
            )
        )  # fmt: skip
    return outcomes


def cause_of(finding: str, diagnosis: Diagnosis) -> str | None:
    """The name of the cause that the diagnosis gives for a finding, which may be itself."""
    names = {
        one.name: cause.finding.name
        for cause in diagnosis.causes
        for one in (cause.finding, *cause.consequences)
    }
    return names.get(finding)


# What a diagnosis may name as the cause where a fault was planted: the explosion is one of the learning rate.
CAUSES = {
    "memory_leak": {"memory-leak"},
    "gradient_explosion": {"gradient-explosion", "learning-rate-jump"},
    "reward_overconfidence": {"poor-calibration"},
}
# Findings that a fault brings with it: a policy that is torn apart earns nothing, and so on.
CONSEQUENCES = {
    "memory_leak": {"memory-leak"},
    "gradient_explosion": {
        "gradient-explosion",
        "non-finite",
        "constant-reward",  # whatever a torn policy writes earns nothing
        "reward-drop",
        "kl-runaway",
        "poor-calibration",
    },
    "reward_overconfidence": {"poor-calibration"},
}

Measured = tuple[float | None, float | None, float | None]


def measurement(
    fault: str, truth: dict[str, Any], diagnosis: Diagnosis
) -> tuple[str, float, float, Measured]:
    """(name of the finding, what was planted, tolerance, what was measured with its interval)."""
    data = {card.name: card.data for card in diagnosis.cards}
    if fault == "memory_leak":
        growth = data["compute_profile"].get("perf/rss_mb") or {}
        measured = (growth.get("factor"), growth.get("factor_low"), growth.get("factor_high"))
        return "memory-leak", truth["growth_factor"], FACTOR_TOLERANCE, measured
    if fault == "gradient_explosion":
        explosion = data["gradient_drift_card"].get("explosion") or {}
        measured = (explosion.get("onset"), explosion.get("onset_low"), explosion.get("onset_high"))
        return "gradient-explosion", truth["onset"], ONSET_TOLERANCE, measured
    score = data["calibration_report"].get("score")
    return "poor-calibration", truth["calibration_score"], SCORE_TOLERANCE, (score, None, None)


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield f"{'planted':32}{'seed':>5}{'truth':>9}{'measured':>10}  {'interval':18}{'right':7}findings"
    for one in outcomes:
        interval = "" if one.low is None else f"{one.low:.4g} to {one.high:.4g}"
        truth = "" if one.planted is None else f"{one.planted:.4g}"
        measured = "" if one.measured is None else f"{one.measured:.4g}"
        findings = ", ".join([name.upper() for name in one.critical] + list(one.warnings)) or "none"
        yield (
            f"{one.fault:32}{one.seed:5}{truth:>9}{measured:>10}  {interval:18}"
            f"{'yes' if one.right else 'NO':7}{findings}"
        )


def verdict(outcomes: Sequence[Outcome], missing: int) -> bool:
    """Print the figures; True if all hold and no run is missing."""
    names = [*FAULTS, *(f"{TOGETHER}: {fault}" for fault in FAULTS)]
    for fault in names:
        of_fault = [one for one in outcomes if one.fault == fault]
        if not of_fault:
            continue
        errors = [abs(one.measured - one.planted) for one in of_fault if one.measured and one.planted]
        worst = f", at most {max(errors):.3g} off the truth" if errors else ""
        found, right = sum(one.found for one in of_fault), sum(one.right for one in of_fault)
        print(f"{fault}: found in {found} of {len(of_fault)} runs, measured rightly in {right}{worst}")
    healthy = [one for one in outcomes if one.fault == HEALTHY]
    false = sum(len(one.false) for one in healthy)
    print(f"{HEALTHY}: {false} false critical findings in {len(healthy)} runs")
    unexplained = sum(len(one.false) for one in outcomes if one.fault == f"{TOGETHER}: {FAULTS[0]}")
    if any(one.fault.startswith(TOGETHER) for one in outcomes):
        print(f"{TOGETHER}: {unexplained} critical findings that are listed with none of the three")
    for fault in (*names, HEALTHY):
        counts = [len(one.warnings) for one in outcomes if one.fault == fault]
        if counts:
            print(f"{fault}: {min(counts)} to {max(counts)} warnings a run besides the critical findings")
    if missing:
        print(f"{missing} runs are not finished")
        return False
    return (
        false <= FALSE_CRITICAL_ALLOWED
        and not unexplained
        and all(one.right for one in outcomes if one.fault != HEALTHY)
    )


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
