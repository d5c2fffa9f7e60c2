"""Evaluation with the real renderer, grader and sandbox; only the policy is scripted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from greenward.config.sections import EvaluationConfig
from greenward.environments.prompts import PromptRenderer
from greenward.evaluation import engine
from greenward.evaluation.engine import evaluate
from greenward.grading.grader import Grader
from greenward.policies.engine import Completion, OnGroup, SamplingParams, StopReason
from greenward.problems.problem import Case, Problem, ProblemSet

RIGHT, WRONG, BROKEN = "    return 2 * n\n", "    return n\n", "    return (\n"


class CodePoints:
    """A tokenizer whose tokens are the code points of the text."""

    chat_template = None

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(map(chr, token_ids))

    def render_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        raise NotImplementedError


class Bodies:
    """Answers every problem with the same bodies, the first of them greedily."""

    max_positions = 1_000_000

    def __init__(self, *bodies: str) -> None:
        self.bodies = bodies

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        params: SamplingParams,
        *,
        seed: int,
        on_group: OnGroup,
    ) -> None:
        for number in range(len(prompts)):
            on_group(number, [self._completion(body) for body in self.bodies[:group_size]])

    @staticmethod
    def _completion(body: str) -> Completion:
        token_ids = np.array([ord(character) for character in body])
        return Completion(token_ids, np.zeros(len(token_ids)), StopReason.END, 0)


def test_programs_are_run_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "ANSWERS_PER_CHUNK", 8)  # three chunks: grading runs beside sampling
    problems = ProblemSet(
        (
            Problem(
                task_id=f"double_{number}",
                prompt="Return twice n.",
                entry_point="double",
                starter_code='def double(n):\n    """Return twice n."""\n',
                cases=(Case((number + 1,), 2 * number + 2), Case((0,), 0)),
            )
            for number in range(5)
        ),
        name="doubles",
    )
    with Grader(workers=1) as grader:
        result = evaluate(
            Bodies(RIGHT, WRONG, BROKEN, RIGHT),
            problems,
            PromptRenderer(CodePoints(), style="completion"),
            grader,
            EvaluationConfig(samples=4, k=(1, 4)),
            sampling=SamplingParams(),
        )
    assert result["statuses"] == {"passed": 10, "failed": 5, "syntax_error": 5}
    assert result["metrics"]["pass@1"]["value"] == 0.5
    assert result["metrics"]["pass@4"]["value"] == 1.0
    assert result["metrics"]["greedy_pass@1"]["value"] == 1.0
    assert result["rates"]["compile"]["value"] == 0.75
    assert result["rates"]["infrastructure"]["value"] == 0.0
    failed = result["rows"][1]
    assert failed["code"].endswith(WRONG)
    assert failed["first_failure"]


def test_a_prompt_that_does_not_fit_is_a_question_not_answered() -> None:
    long = 'def double(n):\n    """' + "Return twice n. " * 50 + '"""\n'
    problems = ProblemSet(
        Problem(name, "Return twice n.", "double", cases=(Case((1,), 2),), starter_code=starter)
        for name, starter in (("short", 'def double(n):\n    """Return twice n."""\n'), ("long", long))
    )
    policy = Bodies(RIGHT)
    policy.max_positions = 400
    with Grader(workers=1) as grader:
        result = evaluate(
            policy,
            problems,
            PromptRenderer(CodePoints(), style="completion"),
            grader,
            EvaluationConfig(samples=1, k=(1,), greedy=False),
            sampling=SamplingParams(max_tokens=64),
        )
    assert result["statuses"] == {"passed": 1, "no_code": 1}
    assert result["metrics"]["pass@1"]["value"] == 0.5
