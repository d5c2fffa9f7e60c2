"""The process that runs a user's reward function: fits its signature, scores batch after batch."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

from greenward.grading.function_server import Handler, Header, Refused, as_numbers, serve
from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.plain_answers import answers_from_plain

Score = Callable[[list[GradedAnswer]], Any]


def main() -> None:
    """Serves until the trainer closes its end."""
    serve(_present)


def _present(function: Callable[..., Any], header: Header) -> tuple[Header, Handler]:
    score = _fit(function, header["options"])

    def handle(plain: Any) -> Header:
        answers = answers_from_plain(plain)
        try:
            return {"scores": as_numbers(score(answers))}
        except Refused:
            raise
        except Exception as error:
            raise Refused(_explain(error, answers, score), traceback.format_exc(limit=-3)) from None

    return {}, handle


def _fit(function: Callable[..., Any], options: dict[str, Any]) -> Score:
    parameters = inspect.signature(function).parameters
    if "completions" in parameters:
        return lambda answers: function(**_for_trl(parameters, answers, options))
    try:
        inspect.signature(function).bind([], **options)
    except TypeError as error:
        raise Refused(
            f"its signature {inspect.signature(function)} does not fit: {error}.",
            "Write f(answers, **options) or, as in TRL, f(prompts, completions, **columns).",
        ) from None
    return lambda answers: function(answers, **options)


def _for_trl(parameters: Any, answers: list[GradedAnswer], options: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of TRL's signature; a function without `**kwargs` gets those it names."""
    columns: dict[str, Any] = {
        "prompts": [answer.prompt for answer in answers],
        "completions": [answer.completion for answer in answers],
        "codes": [answer.code for answer in answers],
        "verdicts": [answer.verdict for answer in answers],
        "task_id": [answer.problem.task_id for answer in answers],
        "entry_point": [answer.problem.entry_point for answer in answers],
        "reference": [answer.problem.reference for answer in answers],
        **options,
    }
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return columns
    return {name: column for name, column in columns.items() if name in parameters}


def _explain(error: Exception, answers: list[GradedAnswer], score: Score) -> str:
    """What was raised, and by which answer: the first that raises when scored alone."""
    message = f"it raised {type(error).__name__}: {error}"
    for index, answer in enumerate(answers):
        try:
            score([answer])
        except Exception:
            return f"{message} (answer {index}, problem {answer.problem.task_id})."
    return f"{message} (no single answer raises when scored alone)."
