"""An answer's function, called from another process: arguments and results cross as plain data.

A problem's test program runs in a process that has never seen an answer and calls a stand-in; the
answer's process serves those calls. What the test program gets is rebuilt from text: no object of
the answer ever takes part in a test. Changes that the answer makes to its arguments do not come back.

On the socket: a length, then a list as text of `codec`. Standard library only: this module is
loaded in the worker, too.
"""

from __future__ import annotations

import builtins
import os
import struct
from collections.abc import Callable
from typing import Any

from greenward.sandbox import codec

CALL_FD = 4
LENGTH = struct.Struct("!I")
MAX_REPLY_BYTES = codec.MAX_CHARS + 4096

# Bound once: the answer's code can swap the names in `os`, not these.
_read, _write = os.read, os.write
_called = False


class AnswerError(Exception):
    """Raised in a test for an exception of the answer that is not a built-in one, or for no reply."""


def make_stand_in(name: str) -> Callable[..., Any]:
    """A function that has each call made by the answer's process.

    It raises what the answer raised, as the built-in exception of that name or as `AnswerError`.
    """

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        global _called
        _called = True
        _send(codec.encode([args, kwargs]).encode("ascii"))
        reply = _receive()
        if reply is None:
            raise AnswerError("the answer's process did not reply")
        return _unpack(reply)

    stand_in.__name__ = stand_in.__qualname__ = name
    return stand_in


def was_called() -> bool:
    """Whether a stand-in was called in this process."""
    return _called


def serve(function: Callable[..., Any], answer_one: Callable[[Callable[[], Any]], str]) -> None:
    """Makes the calls that arrive until the other side closes; `answer_one` gives the text of a reply."""
    while (request := _receive()) is not None:
        args, kwargs = codec.decode(request.decode("ascii"))
        _send(answer_one(lambda a=args, k=kwargs: function(*a, **k)).encode("ascii"))  # type: ignore[misc]


def _unpack(reply: bytes) -> Any:
    try:
        kind, *fields = codec.decode(reply.decode("ascii"))
        if kind == "value":
            (value,) = fields
            return value
        error_class, message = map(str, ["TypeError", *fields] if kind == "opaque" else fields)
    except Exception:  # text that only an answer in its own process can have written
        raise AnswerError("the answer's process sent a reply that is not plain data") from None
    known = getattr(builtins, error_class, None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            error = known(message)
        except TypeError:  # a class that wants more arguments (UnicodeDecodeError)
            error = AnswerError(f"{error_class}: {message}")
        raise error
    raise AnswerError(f"{error_class}: {message}")


def _send(payload: bytes) -> None:
    frame = memoryview(LENGTH.pack(len(payload)) + payload)
    while frame:
        frame = frame[_write(CALL_FD, frame) :]


def _receive() -> bytes | None:
    """One frame; None when the other side has closed or speaks another language."""
    prefix = _receive_exactly(LENGTH.size)
    if len(prefix) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(prefix)
    if length > MAX_REPLY_BYTES:
        return None
    payload = _receive_exactly(length)
    return payload if len(payload) == length else None


def _receive_exactly(count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        chunk = _read(CALL_FD, min(count - len(received), 1 << 16))
        if not chunk:
            break
        received += chunk
    return bytes(received)
