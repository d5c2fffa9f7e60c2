"""Two versions of the source in turns: a step of GRPO, an answer, MBPP+'s references, a diagnosis, the demo.

    git worktree add /tmp/before COMMIT
    python benchmarks/two_versions.py /tmp/before [--rounds 8] [--only PROGRAM ...] [--json FILE]

Each round runs every program once with each version, in an order that alternates. A program imports the
version by `PYTHONPATH` and uses public names and commands only. What is printed is the time of the given
version over that of this one: the median over rounds, and the interval of 95 % of resampled medians.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parents[1]
STEPS, ROWS, ANSWERS = 12, 500, 200
TRAIN = (
    "train", "quickstart", "warm_start.max_steps=20", f"training.max_steps={STEPS}", "training.threads=1",
    "model.shape={layers: 2, hidden_size: 64, heads: 2, kv_heads: 2, intermediate_size: 128}",
    "evaluation.enabled=false", "--quiet", "--overwrite",
)  # fmt: skip
DEMO = (
    "demo", "--quick", "--seeds", "0", "warm_start.max_steps=12", "training.max_steps=4",
    "evaluation.num_questions=4", "--quiet", "--overwrite",
)  # fmt: skip
TRIVIAL = f"""
import time
from greenward import Case, Grader, Problem
from greenward.grading.extracted import Extracted
problem = Problem("a", "", "f", (Case((1,), 1),))
answers = [Extracted(f"def f(x):\\n    return x  # {{number}}") for number in range({ANSWERS})]
with Grader(workers=1) as grader:
    grader.grade([(problem, answers[0])])
    began = time.perf_counter()
    for answer in answers[1:]:
        assert grader.grade([(problem, answer)])[0].passed
    print(time.perf_counter() - began)
"""
REFERENCES = """
import time
from greenward import Grader, load_problems
problems = load_problems("mbpp+")
with Grader(workers=2) as grader:
    grader.grade([])
    began = time.perf_counter()
    problems = grader.complete(problems)
    assert all(verdict.passed for verdict in grader.grade([(one, one.reference) for one in problems]))
    print(time.perf_counter() - began)
"""


def run(version: Path, *arguments: str) -> str:
    """What a program prints with a version of the source."""
    environment = {**os.environ, "PYTHONPATH": str(version / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1 is a finding of a diagnosis
        raise SystemExit(f"{version}: {arguments}\n{done.stderr}")
    return done.stdout


def step_of_grpo(version: Path, folder: Path) -> float:
    """The median of the seconds of a step; the first one compiles and warms up."""
    run(version, "-m", "greenward", *TRAIN, "--output", str(folder / "run"))
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return statistics.median(row["time/step"] for row in rows[1:])


def trivial_answer(version: Path, _: Path) -> float:
    return float(run(version, "-c", TRIVIAL))


def references(version: Path, _: Path) -> float:
    """Seconds of the references of MBPP+, which tell the expected values and are judged by them."""
    return float(run(version, "-c", REFERENCES))


def diagnosis(version: Path, folder: Path) -> float:
    """The seconds of the command, of a run of 500 steps."""
    rng = random.Random(0)
    names = ("reward/mean", "grad_norm", "entropy", "kl", "approx_kl", "loss", "completion/mean_length")
    rows = ({"step": step + 1, **{name: 1 + rng.gauss(0, 0.1) for name in names}} for step in range(ROWS))
    log = folder / "log.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    began = time.perf_counter()
    run(version, "-m", "greenward", "diagnose", str(log))
    return time.perf_counter() - began


def quick_demo(version: Path, folder: Path) -> float:
    began = time.perf_counter()
    run(version, "-m", "greenward", *DEMO, "--output", str(folder / "demo"))
    return time.perf_counter() - began


def demo(version: Path, folder: Path) -> float:
    """The demo as users start it, but of one seed."""
    began = time.perf_counter()
    run(version, "-m", "greenward", "demo", "--seeds", "0", "--quiet", "--output", str(folder / "demo"))
    return time.perf_counter() - began


PROGRAMS: dict[str, Callable[[Path, Path], float]] = {
    "step of GRPO": step_of_grpo,
    "trivial answer": trivial_answer,
    "references of MBPP+": references,
    "diagnosis of 500 rows": diagnosis,
    "quick demo": quick_demo,
    "demo of one seed": demo,
}


def main() -> None:
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("before", type=Path, help="a folder with the other version")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), help="these programs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    versions = (options.before.resolve(), HERE)
    programs = {name: one for name, one in PROGRAMS.items() if name in (options.only or PROGRAMS)}
    ratios: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(options.rounds):
        for name, program in programs.items():
            seconds = {}
            for version in versions if number % 2 else versions[::-1]:
                with tempfile.TemporaryDirectory() as folder:
                    seconds[version] = program(version, Path(folder))
            ratios[name].append(seconds[versions[0]] / seconds[versions[1]])
            print(f"{name}: {seconds[versions[0]]:.2f} and {seconds[versions[1]]:.2f} s", file=sys.stderr)
    rng = random.Random(0)
    found = {}
    for name, values in ratios.items():
        medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
        found[name] = {"ratio": statistics.median(values), "low": medians[50], "high": medians[1949]}
        print(f"{name:24}{found[name]['ratio']:.2f} [{medians[50]:.2f}, {medians[1949]:.2f}]")
    if options.json:
        record = json.dumps({"rounds": options.rounds, **found}, indent=1)
        options.json.write_text(f"{record}\n", encoding="utf-8")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
