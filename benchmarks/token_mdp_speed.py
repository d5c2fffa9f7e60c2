"""Masked steps of the token MDP in one process, without grading: mask, observation and step.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/token_mdp_speed.py

Programs are written by the token prior, 48 side by side; time is CPU time of this process.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from greenward.problems.catalog import load_suite
from greenward.tasks.token_mdp import features
from greenward.tasks.token_mdp.grammar import Vocabulary
from greenward.tasks.token_mdp.mdp import TokenMDP, Writing

SIDE_BY_SIDE, WARM_UP = 48, 20_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    for size in (64, 500, 5000):
        rate, tokens = steps_per_second(size, options.steps if size == 64 else options.steps // 10)
        results[size] = {"steps_per_second": rate, "tokens_per_step": tokens}
        print(f"{size} tokens: {rate:,.0f} masked steps/s, {tokens:.2f} tokens a step", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=1)


def steps_per_second(vocabulary: int, steps: int) -> tuple[float, float]:
    """Steps and, per step, tokens: those without an alternative are written along."""
    mdp = TokenMDP(list(load_suite("classic_training")), Vocabulary(vocabulary))
    rng = np.random.default_rng(0)
    weights = np.array(mdp.vocabulary.weights)
    points = rng.random(1 << 16)
    running = [start(mdp, number) for number in range(SIDE_BY_SIDE)]
    seen = done = tokens = 0
    began = time.process_time()
    while done < steps:
        for place, writing in enumerate(running):
            observation, legal = writing.observation, writing.legal_V
            sums = np.cumsum(weights * legal)
            writing.act(int(np.searchsorted(sums, points[seen & 0xFFFF] * sums[-1], side="right")))
            seen += 1
            assert observation.shape == (features.SIZE,)
            if writing.outcome:
                tokens += len(writing.tokens)
                running[place] = start(mdp, seen)
        done = seen - WARM_UP
        if seen - SIDE_BY_SIDE <= WARM_UP < seen + SIDE_BY_SIDE:
            began, tokens = time.process_time(), 0
    return done / (time.process_time() - began), tokens / done


def start(mdp: TokenMDP, number: int) -> Writing:
    return mdp.start(mdp.problems[number % len(mdp.problems)])


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
