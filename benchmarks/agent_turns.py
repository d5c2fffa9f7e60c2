"""The time of episodes by their number of turns: sampling, tools and judging; does it grow in proportion?

    python benchmarks/agent_turns.py [--turns 6 12] [--repeats 5]

A decoder of the shape of `grpo_agent_repair` samples; in place of what it wrote, each answer counts as the
same call with an output of constant length, so that all episodes have as many turns as were asked for. The
rounds alternate between the numbers of turns. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from greenward.config.loading import load_recipe
from greenward.config.recipe import GRPORecipe
from greenward.config.sections import RewardTermConfig, ToolsConfig
from greenward.environments.agent import AgentEnvironment, AgentPrompts
from greenward.grading.judge import Grader
from greenward.grading.reward_terms import make_reward
from greenward.models.policy import Policy
from greenward.models.tokenizer import train_tokenizer
from greenward.problems.problem import Case, Problem
from greenward.rollouts.protocols import POLICY, Completion, OnGroup, SamplingParams, StopReason
from greenward.tasks.corpus import demonstration_text

CALL = "<shell>cat solution.py</shell>"
PROGRAM = "def add(a, b):\n    c = a - b\n    return c\n"
TASK = Problem(
    "add", "Add two numbers.", "add", tests=(Case((1, 2), 3),), buggy_code=PROGRAM,
    reference=PROGRAM.replace("-", "+"),
)  # fmt: skip
TOKENS, GROUPS, GROUP_SIZE = 24, 4, 8


class Talkative:
    """Samples from a policy and says something else."""

    deterministic = True

    def __init__(self, policy: Policy) -> None:
        self._policy, self.max_positions = policy, policy.max_positions
        self._ids = np.array(policy.tokenizer.encode(CALL))

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_sizes: int | Sequence[int],
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup | None = None,
    ) -> list[list[Completion]]:
        """As `RolloutEngine.sample`."""
        found = self._policy.sample(prompts, group_sizes, replace(params, stop_strings=()), seed=seed)
        said = Completion(self._ids, np.zeros(len(self._ids), np.float32), StopReason.STOP_STRING, 0)
        return [[said] * len(group) for group in found]

    def sync(self, policy: Policy) -> None:
        """Nothing."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, nargs="+", default=[6, 12])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe("grpo_agent_repair")
    assert isinstance(recipe, GRPORecipe)
    tokenizer = train_tokenizer([demonstration_text(TASK)] * 3, recipe.model.shape.vocab_size)
    shape = recipe.model.shape.model_copy(update={"max_positions": 2048})
    policy = Policy.random(shape, tokenizer, seed=0, dtype="float32", device="cpu")
    engine = Talkative(policy)
    seconds: dict[int, list[float]] = {turns: [] for turns in options.turns}
    with Grader(workers=2) as grader:
        for repeat in range(options.repeats + 1):
            for turns in options.turns:
                environment = AgentEnvironment(
                    [TASK], AgentPrompts(tokenizer, style="completion"), grader,
                    [make_reward(RewardTermConfig(name="all_tests"))],
                    sampling=SamplingParams(max_tokens=TOKENS), group_size=GROUP_SIZE, seed=0,
                    executor=grader.executor, tools=ToolsConfig(max_calls=turns),
                )  # fmt: skip
                began = time.process_time(), time.perf_counter()
                found = environment.collect({POLICY: engine}, range(GROUPS), seed=repeat)
                assert found.metrics["tools/calls"] == [float(turns)] * GROUPS * GROUP_SIZE
                if repeat:  # the first round starts workers
                    seconds[turns].append(time.process_time() - began[0])
    medians = {turns: statistics.median(times) for turns, times in seconds.items()}
    first, last = min(medians), max(medians)
    figures: dict[str, Any] = {
        "cpu_seconds": {str(turns): medians[turns] for turns in medians},
        f"ratio_{last}_to_{first}": medians[last] / medians[first],
        "episodes": GROUPS * GROUP_SIZE,
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    from entry import run_main

    run_main(main)
