"""FaultBench, part (a): faults planted in real trainings, and what `greenward diagnose` says of them.

    .venv/bin/python -m benchmarks.faultbench.real train [--seeds 6] [--healthy 160] [--only NAME]
    .venv/bin/python -m benchmarks.faultbench.real judge [--split report] [--json FILE]
    .venv/bin/python -m benchmarks.faultbench.real bisect [--seeds 1]

`train` resumes: finished runs are not repeated, and of each only what diagnoses read is kept. Thresholds may
be tuned on the seeds 0 to 2 and the first 120 healthy runs (`--split tune`); figures are of the seeds 3 to 5
and the last 40 (`--split report`). `judge --json FILE` keeps what the file says of runs that are not in the
folder.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from greenward.diagnostics.diagnose import diagnose_run
from greenward.diagnostics.proof import bisect_settings
from greenward.runs.reading import read_summary

STEPS, ONSET = 160, 81  # planted faults begin at step 81, those of the config at the first
SPLITS = {"tune": (*range(3), *range(100, 220)), "report": (*range(3, 6), *range(220, 260))}
_SIZE = (
    "training.prompts_per_step=6", "training.num_generations=6", "training.threads=1",
    "training.rollouts_per_step=12", "sandbox.workers=1", f"training.max_steps={STEPS}",
    "training.checkpoint_interval_steps=40", "training.keep_spaced_checkpoints=0",
    "evaluation.num_questions=40", "evaluation.samples=1", "evaluation.k=[1]",
    "evaluation.eval_interval_steps=40",
    "algorithm.kl.coefficient=0.02",
)  # fmt: skip
_SIZES: dict[str, tuple[str, ...]] = {
    "quickstart": _SIZE,
    "ppo_code_fix": _SIZE,
    # At a constant rate some runs unlearn in the later rounds; more than these 50 teach any its own mistakes.
    "rejection_sampling": ("training.threads=1", "training.schedule=linear", "training.final_rate=0.05"),
    "kuhn_self_play": (f"training.max_steps={STEPS}", "training.threads=1"),
}
BASES = {
    "grpo": ("quickstart", ("algorithm.importance={}",)),
    "ppo": ("ppo_code_fix", ("problems.families.limit=1000",)),
}
HEALTHY = {
    **BASES,
    "rejection": ("rejection_sampling", ()),
    "self_play": ("kuhn_self_play", ()),
}


@dataclass(frozen=True)
class Kind:
    """A fault: its recipe, what is set or planted, what names it, and the settings that cause it together.

    With `own_start` the run is warmed up for itself, since the fault acts there too.
    """

    base: str
    overrides: tuple[str, ...]
    names: tuple[str, ...]
    dated: bool = True
    settings: tuple[str, ...] = ()
    own_start: bool = False


def _planted(section: str, values: str = "") -> tuple[str, ...]:
    return (f"faults.{section}={{after_step: {ONSET - 1}{', ' if values else ''}{values}}}",)


_BROKEN = ("reward-drop", "quality-drop", "no-learning", "held-out-regression")
KINDS: dict[str, Kind] = {
    "memory_leak": Kind("grpo", ("faults.memory_leak={}",), ("memory-leak",), False),
    "memory_leak_noisy": Kind("grpo", ("faults.memory_leak={shape: noisy}",), ("memory-leak",), False),
    "memory_leak_steps": Kind("grpo", ("faults.memory_leak={shape: steps}",), ("memory-leak",), False),
    "gradient_explosion": Kind(
        "ppo", _planted("gradient_explosion"), ("gradient-explosion", "learning-rate-jump")
    ),
    "overconfidence": Kind(
        "ppo", ("faults.reward_overconfidence={logit_scale: 4}",), ("poor-calibration",), False
    ),
    "advantage_sign": Kind("grpo", _planted("advantage_sign_flipped"), _BROKEN),
    "loss_mask": Kind("grpo", _planted("loss_mask_shifted"), (*_BROKEN, "sampler-mismatch")),
    "end_never_trained": Kind(
        "grpo",
        ("faults.end_never_trained={}",),
        ("truncated-answers", "length-growth", *_BROKEN),
        dated=False,
        own_start=True,
    ),
    "padding_in_loss": Kind(
        "grpo", _planted("padding_in_loss"), ("sampler-mismatch", "length-growth", *_BROKEN)
    ),
    "temperature_mismatch": Kind("grpo", _planted("temperature_mismatch"), ("sampler-mismatch",)),
    "stale_sampler": Kind(
        "grpo", _planted("stale_sampler", "renewed_every: 20"), ("stale-policy", "sampler-mismatch")
    ),
    "learning_rate": Kind(
        "ppo",
        ("training.learning_rate=0.006",),
        (
            "gradient-explosion",
            "gradient-always-clipped",
            "large-policy-steps",
            "clip-fraction-high",
            *_BROKEN,
        ),
        False,
        ("training.learning_rate",),
    ),
    "no_kl": Kind(
        "ppo",
        ("algorithm.kl.coefficient=0", "training.learning_rate=0.001"),
        ("kl-runaway", "large-policy-steps", *_BROKEN),
        False,
        ("algorithm.kl.coefficient", "training.learning_rate"),
    ),
    "entropy_bonus": Kind(
        "grpo",
        ("algorithm.entropy_coefficient=0.5",),
        ("entropy-rise", "truncated-answers", "failing-answers-rise", *_BROKEN),
        False,
        ("algorithm.entropy_coefficient",),
    ),
    "hot_sampler": Kind(
        "grpo",
        ("sampling.temperature=2.5",),
        ("truncated-answers", "dead-groups", "no-learning", "constant-reward"),
        False,
        ("sampling.temperature",),
    ),
    "short_answers": Kind(
        "grpo",
        ("sampling.max_tokens=8",),
        ("truncated-answers", "constant-reward", "dead-groups"),
        False,
        ("sampling.max_tokens",),
    ),
    "many_passes": Kind(
        "grpo",
        ("algorithm.updates_per_batch=12", "training.learning_rate=0.002"),
        ("clip-fraction-high", "large-policy-steps", *_BROKEN),
        False,
        ("algorithm.updates_per_batch", "training.learning_rate"),
    ),
    "unlearned_value": Kind(
        "ppo",
        ("algorithm.critic.learning_rate=1.0e-9",),
        ("value-function-useless",),
        False,
        ("algorithm.critic.learning_rate",),
    ),
    "dead_term": Kind(
        "grpo",
        ("rewards=[{name: tests, weight: 1.0}, {name: 'benchmarks.faultbench.rewards:dead', weight: 0.5}]",),
        ("reward-term-dead",),
        False,
        ("rewards",),
    ),
    "hackable_reward": Kind(
        "grpo",
        (
            "rewards=[{name: tests, weight: 0.2}, "
            "{name: 'benchmarks.faultbench.rewards:hackable', weight: 2.0}]",
        ),
        ("reward-hacking", "auxiliary-reward-dominates", "held-out-regression", "quality-drop"),
        False,
        ("rewards",),
    ),
    "duplicated_data": Kind(
        "grpo",
        ("problems.families.limit=30",),  # 27 to train on, each 36 times
        ("dead-groups", "group-signal-fades", "train-held-out-gap", "reward-hacking"),
        False,
        ("problems.families.limit",),
    ),
}


@dataclass(frozen=True)
class Arm:
    """One run: a fault, or none in the recipe `base`."""

    kind: str
    seed: int

    @property
    def healthy(self) -> bool:
        return self.kind.startswith("healthy")

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.seed}"

    @property
    def recipe(self) -> tuple[str, tuple[str, ...]]:
        if self.healthy:
            return HEALTHY[self.kind.partition("_")[2]]
        kind = KINDS[self.kind]
        name, base = BASES[kind.base]
        return name, (*base, *kind.overrides)


def arms(seeds: int, healthy: int) -> Iterator[Arm]:
    for seed in range(seeds):
        for kind in KINDS:
            yield Arm(kind, seed)
    for number in range(healthy):
        yield Arm(f"healthy_{list(HEALTHY)[number % len(HEALTHY)]}", 100 + number)


def command(recipe: str, output: Path, overrides: Sequence[str]) -> list[str]:
    trains = [sys.executable, "-m", "greenward", "train", recipe, *overrides]
    return [*trains, "--output", str(output), "--quiet", "--resume"]


def train(arm: Arm, folder: Path) -> subprocess.Popen[bytes]:
    """Begin the training of an arm from the warm start that all runs of its recipe share."""
    recipe, overrides = arm.recipe
    start = folder / "starts" / recipe
    size = _SIZES[recipe]
    model: tuple[str, ...] = ()
    if size is _SIZE and (arm.healthy or not KINDS[arm.kind].own_start):
        if not finished(start):
            subprocess.run(
                command(recipe, start, ("training.max_steps=1", "evaluation.enabled=false")), check=True
            )
        model = (f"model={start / 'warm_start/checkpoints/last'}", "pretrained=null", "warm_start=null")
    given = command(recipe, folder / arm.name, (*model, *size, f"seed={arm.seed}", *overrides))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]),
    }
    return subprocess.Popen(given, stdin=subprocess.DEVNULL, env=environment)


def train_all(wanted: list[Arm], folder: Path, parallel: int) -> None:
    began, running = time.perf_counter(), {}
    for number, arm in enumerate(wanted, start=1):
        print(
            f"{(time.perf_counter() - began) / 60:6.1f} min: run {number} of {len(wanted)}, {arm.name}",
            flush=True,
        )
        running[arm] = train(arm, folder)
        while len(running) >= parallel:
            running = reaped(running, folder)
    while running:
        running = reaped(running, folder)


def reaped(running: dict[Arm, subprocess.Popen[bytes]], folder: Path) -> dict[Arm, subprocess.Popen[bytes]]:
    """Those that go on, after a moment. What has ended keeps only what diagnoses read."""
    time.sleep(0.2)
    for arm, process in running.items():
        code = process.poll()
        if code == 0:
            for name in ("checkpoints", "warm_start"):
                shutil.rmtree(folder / arm.name / name, ignore_errors=True)
            for page in (folder / arm.name).glob("report.*"):
                page.unlink()
        elif code is not None:
            print(f"{arm.name} ended with {code}", flush=True)
    return {arm: process for arm, process in running.items() if process.poll() is None}


def finished(folder: Path) -> bool:
    summary = read_summary(folder)
    return summary is not None and summary["status"] == "finished"


@dataclass(frozen=True)
class Outcome:
    """What was said of one run; `error` is the distance of the onset in steps."""

    kind: str
    seed: int
    cause: str | None
    found: tuple[str, ...]
    named: bool
    error: int | None
    exit_code: int
    critical: bool


def judged(arm: Arm, folder: Path) -> Outcome:
    diagnosis = diagnose_run(folder / arm.name)
    findings = [one for one in diagnosis.findings if one.severity != "info"]
    kind = None if arm.healthy else KINDS[arm.kind]
    right = [one for one in findings if kind is not None and one.name in kind.names]
    dated = (
        [abs(one.onset.step - ONSET) for one in right if one.onset] if kind is not None and kind.dated else []
    )
    return Outcome(
        arm.kind,
        arm.seed,
        diagnosis.causes[0].finding.name if diagnosis.causes else None,
        tuple(dict.fromkeys(one.name for one in findings)),
        bool(right),
        min(dated, default=None),
        diagnosis.exit_code("warning"),
        any(one.severity == "critical" for one in findings),
    )


def recorded(file: Path) -> dict[tuple[str, int], Outcome]:
    """What a record says, by kind and seed: its runs may have been trained and judged on other machines."""
    runs = json.loads(file.read_text(encoding="utf-8"))["runs"] if file.is_file() else ()
    return {(one["kind"], one["seed"]): Outcome(**{**one, "found": tuple(one["found"])}) for one in runs}


def report(outcomes: list[Outcome]) -> dict[str, float]:
    for one in outcomes:
        mark = "" if one.kind.startswith("healthy") else "yes" if one.named else "NO"
        error = "" if one.error is None else str(one.error)
        print(f"{one.kind:24}{one.seed:5}{mark:>5}{error:>5}  {', '.join(one.found) or 'nothing'}")
    faulty = [one for one in outcomes if not one.kind.startswith("healthy")]
    healthy = [one for one in outcomes if one.kind.startswith("healthy")]
    errors = [one.error for one in faulty if one.error is not None]
    found: dict[str, float] = {"runs": len(outcomes)}
    if faulty:
        found["recall by name"] = float(np.mean([one.named for one in faulty]))
        found["faulty runs with exit 1"] = float(np.mean([one.exit_code == 1 for one in faulty]))
    if errors:
        found["median onset error"] = float(np.median(errors))
        found["onset within 20 steps"] = float(np.mean(np.array(errors) <= 20))
    if healthy:
        found["healthy with a warning"] = float(np.mean([bool(one.found) for one in healthy]))
        found["healthy with a critical finding"] = float(np.mean([one.critical for one in healthy]))
        for kind in dict.fromkeys(one.kind for one in healthy):
            own = [bool(one.found) for one in healthy if one.kind == kind]
            found[f"{kind} with a warning, of {len(own)}"] = sum(own)
    for name, value in found.items():
        print(f"{name:44}{value:.3g}")
    return found


def bisect_all(wanted: list[Arm], folder: Path) -> None:
    """Whether a bisection against a healthy run names one of the planted settings."""
    right = total = 0
    for arm in wanted:
        kind = KINDS[arm.kind]
        good = next((one for one in folder.glob(f"healthy_{kind.base}_*") if finished(one)), None)
        if not kind.settings or good is None or not finished(folder / arm.name):
            continue
        trials = folder / "bisections" / arm.name
        shutil.rmtree(trials, ignore_errors=True)
        found = bisect_settings(folder / arm.name, trials, good=good, say=print)
        total += 1
        right += found.cure is not None and found.cure.key.startswith(kind.settings)
        cure = found.cure.key if found.cure else "nothing"
        print(f"{arm.name}: planted {', '.join(kind.settings)}, cured by {cure}", flush=True)
    print(f"named rightly: {right} of {total}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=("train", "judge", "bisect"))
    parser.add_argument("--folder", type=Path, default=Path("runs/faultbench"))
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--healthy", type=int, default=160)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--only", help="arms whose name holds this")
    parser.add_argument("--split", choices=SPLITS, help="these seeds alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    wanted = [
        one
        for one in arms(options.seeds, options.healthy)
        if (options.only is None or options.only in one.name)
        and (options.split is None or one.seed in SPLITS[options.split])
    ]
    if options.action == "train":
        unfinished = [one for one in wanted if not finished(options.folder / one.name)]
        train_all(unfinished, options.folder, options.parallel)
    elif options.action == "bisect":
        bisect_all([one for one in wanted if not one.healthy], options.folder)
    else:
        known = recorded(options.json) if options.json else {}
        for arm in wanted:
            if finished(options.folder / arm.name):
                known[arm.kind, arm.seed] = judged(arm, options.folder)
        outcomes = list(known.values())
        found = report(outcomes)
        if options.json:
            record = {"summary": found, "runs": [asdict(one) for one in outcomes]}
            options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    from benchmarks.entry import run_main

    run_main(main)
