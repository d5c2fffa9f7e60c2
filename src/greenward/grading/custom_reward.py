"""Reward functions of the user's own, in a process that can be stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from greenward.errors import RewardError
from greenward.grading.function_process import FunctionProcess
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.plain_answers import answers_to_plain
from greenward.grading.text import sanitise
from greenward.sandbox.codec import PlainDataError, encode

_SERVER = "greenward.grading.custom_reward_process"
_REMEDY = "It must return one finite number, or None where it does not apply, for each answer."


class CustomReward:
    """The term `module:function`; its signatures are documented in docs/rewards.md.

    Raises `RewardError`, naming the function and the answer, when the function cannot be imported,
    raises, takes longer than `timeout_seconds` for a batch, or gives the wrong number of scores or
    a score that is not a finite number.
    """

    def __init__(
        self,
        name: str,
        weight: float = 1.0,
        options: Mapping[str, Any] | None = None,
        timeout_seconds: float = 60.0,
    ) -> None:
        self.name = name
        self.weight = weight
        self._timeout_seconds = timeout_seconds
        self._function = FunctionProcess(name, _SERVER, {"options": dict(options or {})})

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        """One score per answer, None where the function says that it does not apply."""
        try:
            blob = encode(answers_to_plain(answers), max_chars=1 << 30).encode("ascii")
        except PlainDataError as error:
            raise RewardError(f"{self.name}: the answers are not plain data: {error}.") from None
        scores = self._function.ask({}, blob, self._timeout_seconds)["scores"]
        if len(scores) != len(answers):
            raise RewardError(
                f"{self.name} gave {len(scores)} scores for {len(answers)} answers.", remedy=_REMEDY
            )
        for index, score in enumerate(scores):
            if score is not None and not (isinstance(score, float) and math.isfinite(score)):
                raise RewardError(
                    f"{self.name} gave {sanitise(str(score), 80)} for answer {index} "
                    f"(problem {answers[index].problem.task_id}).",
                    remedy=_REMEDY,
                )
        return list(scores)

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        self._function.close()
