"""What demonstrations teach about functions that are held out: to choose their settings before any episode.

    .venv/bin/python benchmarks/dqn_held_out.py [SETTING=VALUE ...] [--seeds 2] [--json FILE]

A part of the generated functions is held out, and the agent of the recipe `dqn_code_generation` learns from
the demonstrations of the others alone (`algorithm.pretraining_updates`). Counted are held-out functions whose
greedy program passes the hidden tests: with their docstrings, whose words demonstrations have in other
combinations, and with the docstring of another function in words that no demonstration has. Classic and
evaluation problems take no part.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from greenward import api
from greenward.grading.judge import build_grader
from greenward.problems.problem import Problem, stable_hash
from greenward.tasks.token_mdp import task
from greenward.tasks.token_mdp.mdp import CodeGrading, TokenMDP, write
from greenward.tasks.token_mdp.task import DQNRecipe

HELD_OUT = 150


def in_foreign_words(problem: Problem) -> Problem:
    """The problem with every word of its docstring replaced by one that occurs nowhere else."""
    words = (f"w{stable_hash(word) % 10**6}" for word in problem.prompt.split())
    return replace(problem, prompt=" ".join(words))


def solved(trainer: task.DQNTrainer, mdp: TokenMDP, grading: CodeGrading) -> int:
    rows = task.judged(write(mdp, mdp.problems, task.greedily(trainer.policy), grading), grading)
    return sum(bool(row.success) for row, _ in rows)


def measure(overrides: Sequence[str], seed: int) -> dict[str, int]:
    recipe = api.load_recipe("dqn_code_generation", [*overrides, f"seed={seed}"])
    assert isinstance(recipe, DQNRecipe)
    functions = list(task.generated_problems(recipe, []))
    order = np.random.default_rng(0).permutation(len(functions))  # the same for all settings and seeds
    held_out = [functions[index] for index in order[:HELD_OUT]]
    made = task.TokenMDPTask(recipe)
    names = {problem.task_id for problem in held_out}
    made.mdp.corpus = [one for one in made.mdp.corpus if one[0].task_id not in names]
    with ExitStack() as stack:
        made.grader = stack.enter_context(build_grader(recipe.sandbox))
        made.grading = CodeGrading(made.grader)
        trainer, rng = made.trainer(), np.random.default_rng(seed)
        for _ in range(recipe.algorithm.pretraining_updates):
            trainer.policy.learn(rng, trainer.policy.demonstrated(rng))
        suites = {"own words": held_out, "foreign words": [in_foreign_words(one) for one in held_out]}
        return {
            name: solved(trainer, task.build_mdp(recipe, suite), made.grading)
            for name, suite in suites.items()
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", type=Path, help="a record to which these figures are added")
    options = parser.parse_args()
    name = " ".join(options.overrides) or "the recipe"
    found = [measure(options.overrides, seed) for seed in range(options.seeds)]
    print(f"{name}, of {HELD_OUT}: {found}", flush=True)
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.is_file() else {}
        options.json.write_text(json.dumps(known | {name: found}, indent=1) + "\n")


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
