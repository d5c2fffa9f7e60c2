"""Reward functions of the user's own, in a process that can be stopped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from greenward.config.sections import RewardTermConfig
from greenward.errors import RewardError
from greenward.grading.function_process import FunctionProcess
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.grader import Grader
from greenward.grading.plain_answers import answers_to_plain
from greenward.grading.verdict import Status, Verdict
from greenward.problems.problem import Expected, Problem
from greenward.sandbox.codec import PlainDataError, encode
from greenward.text import visible

_SERVER = "greenward.grading.custom_reward_process"
_REMEDY = "It must return one finite number, or None where it does not apply, for each answer."


class CustomReward:
    """The term `module:function`; its signatures are documented in docs/rewards.md.

    `row_columns` are the names of the columns that the problems bring along; a function with TRL's
    signature gets them, too, and sees how many of `max_steps` are done in its `trainer_state`.

    Raises `RewardError`, naming the function and the answer, when the function cannot be imported,
    needs a parameter that nothing fills, raises, takes longer than `timeout_seconds` for a batch, or
    gives the wrong number of scores or a score that is not a finite number.
    """

    def __init__(
        self,
        config: RewardTermConfig,
        *,
        row_columns: Sequence[str] = (),
        max_steps: int = 1,
        steps_per_epoch: float = 1.0,
    ) -> None:
        self.name = config.name
        self.weight = config.weight
        self._timeout_seconds = config.timeout_seconds
        self._step = 0
        self._metrics: dict[str, list[float]] = {}
        self._extra: dict[str, list[Any]] = {}
        header = {
            "options": dict(config.options),
            "columns": dict(config.columns),
            "form": None if config.completions == "auto" else config.completions,
            "row_columns": list(row_columns),
            "max_steps": max_steps,
            "steps_per_epoch": steps_per_epoch,
        }
        self._function = FunctionProcess(config.name, _SERVER, header)
        self.follows_trl: bool = self._function.described["trl"]

    def rehearse(self, answers: Sequence[GradedAnswer]) -> None:
        """Calls a function with TRL's signature once on made-up answers, and forgets the scores.

        What would end the training at its first step (a column missing from `**kwargs`, a result of
        the wrong length) is an error now, and whether texts or messages are expected becomes known.
        """
        if self.follows_trl:
            self._ask(answers, rehearsal=True)
            self.take_metrics()

    def begin(self, step: int) -> None:
        """Says which step the next batches belong to, counted from 0."""
        self._step = step

    def score(self, answers: Sequence[GradedAnswer], grader: Grader) -> list[float | None]:
        """One score per answer, None where the function says that it does not apply."""
        return self._ask(answers, rehearsal=False)

    @property
    def extra(self) -> dict[str, list[Any]]:
        """What the function logged by `log_extra` for the answers of the last batch."""
        return self._extra

    def take_metrics(self) -> dict[str, list[float]]:
        """What the function logged by `log_metric` since the last call, by `function/name`."""
        metrics, self._metrics = self._metrics, {}
        return {f"{self.name}/{name}": values for name, values in metrics.items()}

    def close(self) -> None:
        """Ends the process. Safe to call twice."""
        self._function.close()

    def _ask(self, answers: Sequence[GradedAnswer], *, rehearsal: bool) -> list[float | None]:
        request = {"answers": answers_to_plain(answers), "step": self._step, "rehearsal": rehearsal}
        try:
            blob = encode(request, max_chars=1 << 30).encode("ascii")
        except PlainDataError as error:
            raise RewardError(f"{self.name}: the answers are not plain data: {error}.") from None
        reply = self._function.ask({}, blob, self._timeout_seconds)
        self._extra = reply["extra"]
        for name, values in reply["metrics"].items():
            self._metrics.setdefault(name, []).extend(values)
        return self._checked(reply["scores"], answers)

    def _checked(self, scores: list[Any], answers: Sequence[GradedAnswer]) -> list[float | None]:
        if len(scores) != len(answers):
            raise RewardError(
                f"{self.name} gave {len(scores)} scores for {len(answers)} answers.", remedy=_REMEDY
            )
        for index, score in enumerate(scores):
            if score is not None and not (isinstance(score, float) and math.isfinite(score)):
                raise RewardError(
                    f"{self.name} gave {visible(str(score), 80)} for answer {index} "
                    f"(problem {answers[index].problem.task_id}).",
                    remedy=_REMEDY,
                )
        return scores


def made_up_answers(problem: Problem, number: int) -> list[GradedAnswer]:
    """`number` answers to a problem that no model wrote: the reference, a wrong one and prose by turns."""
    known = tuple(case for case in problem.cases if not isinstance(case.expected, Expected))
    problem = replace(problem, cases=known)
    tests = len(problem.cases) + len(problem.tests) + len(problem.stdio_cases) + len(problem.checks) or 1
    program = problem.reference or f"{problem.starter_code}    pass\n"
    wrong = f"{problem.starter_code}    return None\n"
    kinds = (
        (f"```python\n{program}```\n", program, Verdict(Status.PASSED, (True,) * tests)),
        (f"```python\n{wrong}```\n", wrong, Verdict(Status.FAILED, (False,) * tests)),
        ("I do not know the answer to this question.", None, Verdict(Status.NO_CODE, (False,) * tests)),
    )
    return [
        GradedAnswer(problem, problem.starter_code or problem.prompt, text, code, verdict)
        for text, code, verdict in (kinds[index % len(kinds)] for index in range(number))
    ]
