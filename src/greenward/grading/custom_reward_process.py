"""The process that runs a user's reward function: imports it once, then scores batch after batch."""

from __future__ import annotations

import importlib
import inspect
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from greenward.grading.graded_answer import GradedAnswer
from greenward.grading.plain_answers import answers_from_plain
from greenward.sandbox.codec import decode
from greenward.sandbox.frames import receive_frame, send_frame

Score = Callable[[list[GradedAnswer]], Any]


class _Refused(Exception):
    """A function that cannot serve as a reward: the message says why, the second argument what to do."""


def main() -> None:
    """Serves until the trainer closes its end. Argument: the socket's descriptor."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    request = receive_frame(channel)
    if request is None:
        return
    try:
        score = _load(request[0]["function"], request[0]["options"])
    except _Refused as refusal:
        send_frame(channel, {"error": refusal.args[0], "remedy": refusal.args[1]})
        return
    send_frame(channel, {})
    while (request := receive_frame(channel)) is not None:
        answers = answers_from_plain(decode(request[1].decode("ascii")))
        reply: dict[str, Any]
        try:
            reply = {"scores": _as_numbers(score(answers))}
        except _Refused as refusal:
            reply = {"error": refusal.args[0], "remedy": refusal.args[1]}
        except Exception as error:
            reply = {"error": _explain(error, answers, score), "remedy": traceback.format_exc(limit=-3)}
        send_frame(channel, reply)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _load(path: str, options: dict[str, Any]) -> Score:
    module_name, _, function_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise _Refused(
            f"its module could not be imported: {type(error).__name__}: {error}.",
            "Check the name, and that the module is installed or in the current directory.",
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise _Refused(f"{module_name} has no function {function_name!r}.", "Write it as 'module:function'.")
    parameters = inspect.signature(function).parameters
    if "completions" in parameters:
        return lambda answers: function(**_for_trl(parameters, answers, options))
    try:
        inspect.signature(function).bind([], **options)
    except TypeError as error:
        raise _Refused(
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


def _as_numbers(scores: Any) -> list[Any]:
    """Scores as floats and None; what is neither stays text, for the trainer to refuse by index."""
    try:
        given = list(scores)
    except TypeError:
        raise _Refused(
            f"it returned {type(scores).__name__}, not a list.", "Return one number or None for each answer."
        ) from None
    return [score if score is None else _as_number(score) for score in given]


def _as_number(score: Any) -> float | str:
    if isinstance(score, (str, bytes)):
        return repr(score)[:80]
    try:
        return float(score)
    except (TypeError, ValueError, OverflowError):
        return f"a {type(score).__name__}"


def _explain(error: Exception, answers: list[GradedAnswer], score: Score) -> str:
    """What was raised, and by which answer: the first that raises when scored alone."""
    message = f"it raised {type(error).__name__}: {error}"
    for index, answer in enumerate(answers):
        try:
            score([answer])
        except Exception:
            return f"{message} (answer {index}, problem {answer.problem.task_id})."
    return f"{message} (no single answer raises when scored alone)."
