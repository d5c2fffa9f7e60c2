"""What runs in the answer's own process: limits, then the code, then its calls, then the end.

Speaks on one private descriptor, in frames: the nonce of this run, a length, a JSON list. A frame
says what came back, never whether it was right. The first frame, "ready", is written when every
limit is in force and before the answer's code is loaded.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import atexit
import math
import os
import random
import resource
import struct
import sys
import threading
import types
from collections.abc import Callable
from typing import Any, NoReturn

from greenward.sandbox import codec

RESULT_FD = 3
NONCE_CHARS = 32
FRAME_LENGTH = struct.Struct("!I")
MAX_MESSAGE_CHARS = 500
STACK_BYTES = 64 << 20
OPEN_FILES = 256

# Bound once: the answer's code can swap the names in `os`, `sys` and `builtins`, not these.
_write, _exit, _getpid, _compile, _eval, _exec = os.write, os._exit, os.getpid, compile, eval, exec
_encode, _dumps, _PlainDataError = codec.encode, codec._dumps, codec.PlainDataError
_class_name: Callable[[Any], str] = type.__dict__["__name__"].__get__

Send = Callable[[str], None]


def limit_resources(limits: dict[str, Any]) -> None:
    """Resource limits of this process (the backstop of what the worker watches from outside)."""
    for what, value in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, math.ceil(limits["cpu_seconds"]) + 1),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["user_tasks"]),
        (resource.RLIMIT_STACK, STACK_BYTES),
    ):
        hard = resource.getrlimit(what)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))


# What the child does to itself before it touches the answer, in order.
ISOLATION_LAYERS: tuple[Callable[[dict[str, Any]], None], ...] = (limit_resources,)


def enter_isolation(limits: dict[str, Any]) -> None:
    """Applies every layer; what raises here is the infrastructure's failure."""
    for layer in ISOLATION_LAYERS:
        layer(limits)


def run_answer(limits: dict[str, Any], job: bytes) -> NoReturn:
    """Runs one job in this process and ends the process."""
    nonce, code, entry_point, calls, expressions, setup_code = codec.decode(job.decode("ascii"))
    send = _sender(nonce)
    del nonce, job
    enter_isolation(limits)
    random.seed(0)
    send('["ready"]')
    is_program = entry_point is None and not expressions
    module = types.ModuleType("__main__" if is_program else "answer")
    sys.modules[module.__name__] = module
    _load(send, module, code, setup_code, is_program)
    if entry_point is not None and not callable(module.__dict__.get(entry_point)):
        _end(send, "no_entry_point", "NameError", f"{entry_point} is not defined as a function")
    _answer_calls(send, module, entry_point, calls, expressions)
    _exit(0)


def _sender(nonce: str) -> Send:
    prefix, owner = nonce.encode("ascii"), _getpid()

    def send(text: str) -> None:
        if _getpid() != owner:  # a fork of the answer came back here
            _exit(0)
        payload = text.encode("ascii")
        frame = memoryview(prefix + FRAME_LENGTH.pack(len(payload)) + payload)
        while frame:
            frame = frame[_write(RESULT_FD, frame) :]

    return send


def _load(send: Send, module: types.ModuleType, code: str, setup_code: str, is_program: bool) -> None:
    """Runs the answer and the setup code in `module`; what goes wrong ends the process."""
    try:
        compiled = _compile(code, "<answer>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        _end(send, "syntax_error", *_describe(error))
    try:
        _exec(compiled, module.__dict__)
        if setup_code:
            _exec(_compile(setup_code, "<setup>", "exec", dont_inherit=True), module.__dict__)
        if is_program:
            _finish_program()
    except SystemExit as error:
        if not (is_program and error.code in (None, 0)):
            _end(send, "exited", *_describe(error))
        _finish_program()
    except MemoryError as error:
        _end(send, "memory", *_describe(error))
    except BaseException as error:
        if is_program:
            below_us = error.__traceback__ and error.__traceback__.tb_next
            sys.__excepthook__(type(error), BaseException.with_traceback(error, below_us), below_us)
        _end(send, "load_error", *_describe(error))


def _finish_program() -> None:
    """What the interpreter does at the end of a program: wait for threads, run exit handlers."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _answer_calls(
    send: Send, module: types.ModuleType, entry_point: str | None, calls: list[Any], expressions: list[str]
) -> None:
    function = module.__dict__.get(entry_point) if entry_point is not None else None
    position = 0
    for args, kwargs in calls:
        _answer_one(send, position, lambda a=args, k=kwargs: function(*a, **k))  # type: ignore[misc]
        position += 1
    for expression in expressions:
        _answer_one(send, position, lambda e=expression: _evaluate(e, module.__dict__))  # type: ignore[misc]
        position += 1
    _flush()
    send('["done"]')


def _evaluate(expression: str, namespace: dict[str, Any]) -> Any:
    return _eval(_compile(expression, "<test>", "eval", dont_inherit=True), namespace)


def _answer_one(send: Send, position: int, thunk: Callable[[], Any]) -> None:
    """Sends what one call returned or raised. Leaving the program ends the job."""
    try:
        value = thunk()
        try:
            frame = f'["value",{position},{_encode(value)}]'
        except _PlainDataError as error:
            frame = _dumps(["opaque", position, str(error)[:MAX_MESSAGE_CHARS]])
    except SystemExit as error:
        _end(send, "exited", *_describe(error))
    except BaseException as error:
        frame = _dumps(["raised", position, *_describe(error)])
    send(frame)


def _describe(error: BaseException) -> tuple[str, str]:
    """Class name and bounded message of an exception whose methods cannot be trusted."""
    name = _class_name(type(error))[:MAX_MESSAGE_CHARS]
    try:
        message = str(error)
    except BaseException:
        return name, ""
    return name, str.__str__(message)[:MAX_MESSAGE_CHARS]


def _end(send: Send, outcome: str, error_class: str, message: str) -> NoReturn:
    _flush()
    send(_dumps(["ended", outcome, error_class, message]))
    _exit(0)


def _flush() -> None:
    """Hands over what was printed; a stream that the answer broke has nothing to hand over."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:
            continue
