"""A rollout engine, and a renderer of numbers, for tests of evaluation: the answers are written in the test."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from greenward.grading.extracted import Extracted
from greenward.problems.problem import Problem
from greenward.rollouts.protocols import Completion, OnGroup, SamplingParams, StopReason, per_prompt


class ScriptedEngine:
    """Answers each prompt by `answers(prompt, group_size, params, seed)`; the last prompt is done first."""

    max_positions = 1_000_000

    def answers(
        self, prompt: Sequence[int], group_size: int, params: SamplingParams, seed: int
    ) -> list[Completion]:
        raise NotImplementedError

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int | Sequence[int],
        on_group: OnGroup,
    ) -> None:
        seeds = per_prompt(seed, len(prompts))
        for number, prompt in reversed(list(enumerate(prompts))):
            on_group(number, self.answers(prompt, group_size, params, seeds[number]))


def completion(token_ids: Sequence[int], stop: StopReason = StopReason.END) -> Completion:
    return Completion(np.array(token_ids), np.zeros(len(token_ids)), stop, 0)


class NumberRenderer:
    """The prompt of problem 7 or p7 is the token 7, and the program in an answer its first token as text."""

    prompt, style = "greenward", "completion"

    def prompt_ids(self, problem: Problem) -> tuple[int, ...]:
        return (int(problem.task_id.removeprefix("p")),)

    def prompt_text(self, problem: Problem) -> str:
        return f"problem {problem.task_id}"

    def completion_text(self, completion_ids: Sequence[int]) -> str:
        return f"{completion_ids[0]}"

    def extracted(self, problem: Problem, text: str) -> Extracted:
        return Extracted(text)
