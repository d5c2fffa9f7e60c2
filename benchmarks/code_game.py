"""The recipe `grpo_code_game` over several seeds: what is gained, and what the predictor regains.

    .venv/bin/python benchmarks/code_game.py --seeds 0,1,2

A run that is finished is not repeated. The programs that won recorded games are run again by new interpreters
under two hash seeds; those that do not print the recorded text both times are counted as degenerate.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from greenward import api
from greenward.runs.reading import read_evaluations, read_rollouts, read_summary
from greenward.tasks.code_game.task import CODE_GAME

HEAD = ("", "start", "generator trained", "predictor trained", "gained", "regained", "winners", "degenerate")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("runs/code_game"))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    print("Games that the generator wins: at the start, and after each of the two phases.\n")
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for seed in options.seeds.split(","):
        run = options.output / f"seed_{seed}"
        summary = read_summary(run)
        if summary is None or summary["status"] != "finished":
            api.train("grpo_code_game", [f"seed={seed}"], output=run, quiet=True, resume=True)
        print("| " + " | ".join([f"seed {seed}", *figures(run)]) + " |", flush=True)


def figures(run: Path) -> list[str]:
    """The cells of a run, in the order of `HEAD`."""
    first, *_, last = read_evaluations(run, CODE_GAME)
    start = first["metrics"]["policy_beats_start"]
    after, regained = (last["metrics"][f"frozen_beats_{name}"] for name in ("start", "policy"))
    won = winners(run)
    return [
        *map(percent, (start, after, regained)),
        f"{100 * (after['value'] - start['value']):+.1f}",
        f"{100 * (after['value'] - regained['value']):+.1f}",
        f"{len(won)}",
        f"{sum(not prints(program, text) for program, text in won.items())}",
    ]


def percent(found: dict[str, float]) -> str:
    return "{value:.1f} % [{low:.1f}, {high:.1f}]".format(**{name: 100 * one for name, one in found.items()})


def winners(run: Path) -> dict[str, str]:
    """The different programs that won recorded games, and what each printed."""
    return {
        row["answer"]: row["extra"]["printed"]
        for _, row in read_rollouts(run)
        if row["rewards"]["generator"] > 0
    }


def prints(program: str, text: str) -> bool:
    """Whether the program prints this text under both of two hash seeds."""
    for hash_seed in ("0", "1"):
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                [sys.executable, "-S", "-c", program],
                cwd=folder,
                env={**os.environ, "PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                timeout=20,
            )
        if done.returncode or done.stdout.removesuffix("\n") != text or not text.strip():
            return False
    return True


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
