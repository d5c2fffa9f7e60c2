"""Writes a project to start from: a recipe, problems in two files, examples for a warm start, and a reward.

The problems are compositions of a few generated operations, so that a small model can learn them and do what
it was never asked: a held-out problem has operations of the training problems in a new order.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from greenward.common.errors import RunError
from greenward.config.section import FamiliesConfig
from greenward.problems.formats import save_json
from greenward.problems.generated import generate
from greenward.problems.names import FAMILY_PREFIX
from greenward.problems.problem import Problem, stable_hash
from greenward.runs.files import writing
from greenward.tasks.corpus import generated_examples

RECIPE, REWARDS = "recipe.yaml", "my_rewards.py"
TRAIN, HELD_OUT, PAIRS = "problems.json", "held_out.json", "pairs.jsonl"
_OPERATIONS = frozenset(
    {
        "keep_even", "keep_odd", "keep_positive", "keep_negative", "remove_zeros", "multiply_each_2",
        "add_each_3", "square_each", "negate_each", "absolute_each", "sort_ascending", "reverse_list",
        "remove_duplicates", "sum", "count", "largest", "smallest", "first_number", "last_number",
        "count_distinct",
    }
)  # fmt: skip
_HELD_OUT = 30  # problems, all of two operations
_WRONG = 0.8  # of the examples


def write_project(folder: Path) -> list[Path]:
    """Write the files into `folder`, which may hold others; their paths, the recipe first.

    Raises `RunError` where one of them is there already; nothing is written then.
    """
    files = [folder / name for name in (RECIPE, TRAIN, HELD_OUT, PAIRS, REWARDS)]
    if there := [file.name for file in files if file.exists() or file.is_symlink()]:
        raise RunError(
            f"{folder} holds {', '.join(there)} already; nothing was written.",
            remedy="Name another folder, or move these files away.",
        )
    with writing(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    problems = [
        problem for problem in generate(FamiliesConfig(max_depth=2)) if _operations(problem) <= _OPERATIONS
    ]
    of_two = (problem for problem in problems if len(_operations(problem)) == 2)
    held_out = sorted(of_two, key=lambda problem: stable_hash(problem.task_id))[:_HELD_OUT]
    train = [problem for problem in problems if problem not in held_out]
    examples = [
        {"prompt": one.prompt_text, "completion": one.completion_text}
        for one in generated_examples(train, _WRONG, seed=0)
    ]
    recipe, trained, tested, pairs, rewards = files
    with writing(str(folder)):
        save_json(map(_as_of_a_user, train), trained)
        save_json(map(_as_of_a_user, held_out), tested)
        pairs.write_text("".join(json.dumps(row) + "\n" for row in examples), encoding="utf-8")
        for file in (recipe, rewards):
            file.write_bytes((Path(__file__).parent / file.name).read_bytes())
    return files


def _operations(problem: Problem) -> set[str]:
    return set(problem.task_id.removeprefix(FAMILY_PREFIX).split("+"))


def _as_of_a_user(problem: Problem) -> Problem:
    """Under an id that says nothing of where the problem is from: its examples stand in a file."""
    return replace(problem, task_id=problem.task_id.removeprefix(FAMILY_PREFIX), tags=())
