"""The process that runs a user's reward function: fits its signature, scores batch after batch."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from greenward.grading.function_server import Handler, Header, Refused, as_numbers, serve
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.plain_answers import answers_from_plain
from greenward.grading.trl_reward import Logged, Parameters, Progress, TrlReward, awaited

Score = Callable[[list[GradedAnswer]], tuple[Any, Logged]]


def main() -> None:
    """Serves until the trainer closes its end."""
    serve(_present)


def _present(function: Callable[..., Any], header: Header) -> tuple[Header, Handler]:
    options = header["options"]
    trl = None
    if Parameters.of(function).follow_trl((*header["row_columns"], *header["columns"])):
        trl = TrlReward(
            function,
            options=options,
            columns=header["columns"],
            row_columns=tuple(header["row_columns"]),
            form=header["form"],
        )
    else:
        _refuse_unless_it_fits(function, options)

    def handle(request: Any) -> Header:
        answers = answers_from_plain(request["answers"])
        progress = Progress(request["step"], header["max_steps"], request["step"] / header["steps_per_epoch"])

        def score(answers: list[GradedAnswer]) -> tuple[Any, Logged]:
            if trl is None:
                return awaited(function(answers, **options)), Logged()
            asked = trl.rehearse if request["rehearsal"] else trl.score
            return asked(answers, progress)

        try:
            scores, logged = score(answers)
            return {"scores": as_numbers(scores), **logged.to_plain(len(answers))}
        except Refused:
            raise
        except Exception as error:
            message = _explain(error, answers, score)
            if request["rehearsal"]:
                message = f"on made-up answers, before training, {message}"
            raise Refused(message, _remedy(trl)) from None

    return {"trl": trl is not None}, handle


def _refuse_unless_it_fits(function: Callable[..., Any], options: dict[str, Any]) -> None:
    try:
        inspect.signature(function).bind([], **options)
    except TypeError as error:
        raise Refused(
            f"its signature {inspect.signature(function)} does not fit: {error}.",
            "Write f(answers, **options) or, as in TRL, f(prompts, completions, **columns). A function that "
            "makes reward functions is to be called in a module of yours: reward = get_reward(…).",
        ) from None


def _remedy(trl: TrlReward | None) -> str:
    served = "" if trl is None else f"It is called with: {', '.join(trl.served)}.\n"
    return served + traceback.format_exc(limit=-3)


def _explain(error: Exception, answers: list[GradedAnswer], score: Score) -> str:
    """What was raised, and by which answer: the first that raises when scored alone."""
    message = f"it raised {type(error).__name__}: {error}"
    for index, answer in enumerate(answers):
        try:
            score([answer])
        except Exception:
            return f"{message} (answer {index}, problem {answer.problem.task_id})."
    return f"{message} (no single answer raises when scored alone)."
