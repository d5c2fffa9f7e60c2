"""The process that runs a user's function: imports it once, then answers request after request."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from greenward.sandbox.codec import decode
from greenward.sandbox.frames import receive_frame, send_frame

Header = dict[str, Any]
Handler = Callable[[Any], Header]


class Refused(Exception):
    """A function that cannot serve: the message says why, the second argument what to do."""


def serve(present: Callable[[Callable[..., Any], Header], tuple[Header, Handler]]) -> None:
    """Serves until the caller closes its end. The process's argument is the socket's descriptor.

    `present` gets the imported function and the first request; it gives what is told about the
    function and what answers each later request. Either may raise `Refused`.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    request = receive_frame(channel)
    if request is None:
        return
    try:
        described, handle = present(_load(request[0]["function"]), request[0])
    except Refused as refusal:
        send_frame(channel, {"error": refusal.args[0], "remedy": refusal.args[1]})
        return
    send_frame(channel, described)
    while (request := receive_frame(channel)) is not None:
        try:
            reply = handle(decode(request[1].decode("ascii")))
        except Refused as refusal:
            reply = {"error": refusal.args[0], "remedy": refusal.args[1]}
        send_frame(channel, reply)


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _load(path: str) -> Callable[..., Any]:
    module_name, _, function_name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise Refused(
            f"its module could not be imported: {type(error).__name__}: {error}.",
            "Check the name, and that the module is installed or in the current directory.",
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        raise Refused(f"{module_name} has no function {function_name!r}.", "Write it as 'module:function'.")
    loaded: Callable[..., Any] = function
    return loaded


def as_numbers(scores: Any) -> list[Any]:
    """Scores as floats and None; what is neither stays text, for the caller to refuse by index."""
    try:
        given = list(scores)
    except TypeError:
        raise Refused(
            f"it returned {type(scores).__name__}, not a list.", "Return one number or None for each answer."
        ) from None
    return [score if score is None else as_number(score) for score in given]


def as_number(score: Any) -> float | str:
    """A number as a float; text that says what else it is."""
    if isinstance(score, (str, bytes)):
        return repr(score)[:80]
    try:
        return float(score)
    except (TypeError, ValueError, OverflowError):
        return f"a {type(score).__name__}"
