"""What runs in the answer's own process: the layers, then the code, then its calls, then the end.

Speaks on one private descriptor, in frames: the nonce of this run, a length, a JSON list. A frame
says what came back, never whether it was right. The first frame, "ready", is written when every
layer is on and before the answer's code is loaded.

A problem's test programs run by the same harness, in a process of their own.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import atexit
import os
import random
import struct
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from greenward.sandbox import codec, stand_in
from greenward.sandbox.layers.shield import Shield

RESULT_FD = 3
LAST_FD = stand_in.CALL_FD
MAX_FD = 256
NONCE_CHARS = 32
FRAME_LENGTH = struct.Struct("!I")
MAX_MESSAGE_CHARS = 500
_AS_TREE = 0x400  # ast.PyCF_ONLY_AST, without loading the module

# Bound once: the answer's code can swap the names in `os`, `sys` and `builtins`, not these.
_write, _exit, _getpid, _compile, _eval, _exec = os.write, os._exit, os.getpid, compile, eval, exec
_encode, _dumps, _PlainDataError = codec.encode, codec._dumps, codec.PlainDataError
_class_name: Callable[[Any], str] = type.__dict__["__name__"].__get__

Send = Callable[[str], None]


def run_job(shield: Shield, limits: Mapping[str, Any], job: memoryview) -> NoReturn:
    """Runs one job in this process and ends the process."""
    nonce, kind, *fields = codec.decode(str(job, "ascii"))
    send = _sender(nonce)
    del nonce, job
    shield.put_on(limits)  # what raises here is the infrastructure's failure
    is_tested_apart = kind == "checks" or fields[-1]
    os.closerange((LAST_FD if is_tested_apart else RESULT_FD) + 1, MAX_FD)
    random.seed(0)
    send('["ready"]')
    if kind == "checks":
        _run_checks(send, *fields)
    else:
        _run_answer(send, *fields)
    _flush()
    send('["done"]')
    _exit(0)


def _run_answer(
    send: Send,
    preamble: str,
    code: str,
    entry_point: str | None,
    calls: list[Any],
    expressions: list[str],
    setup_code: str,
    is_called_by_checks: bool,
) -> None:
    is_program = entry_point is None and not expressions
    module = types.ModuleType("__main__" if is_program else "answer")
    sys.modules[module.__name__] = module
    if preamble:
        _execute(preamble, "<preamble>", module.__dict__)
    _load(send, module, code, setup_code, is_program, as_in_contests=bool(preamble))
    function = module.__dict__.get(entry_point) if entry_point is not None else None
    if entry_point is not None and not callable(function):
        _end(send, "no_entry_point", "NameError", f"{entry_point} is not defined as a function")
    thunks = [lambda a=args, k=kwargs: function(*a, **k) for args, kwargs in calls]  # type: ignore[misc]
    thunks += [lambda e=expression: _evaluate(e, module.__dict__) for expression in expressions]  # type: ignore[misc]
    for position, thunk in enumerate(thunks):
        send(_answer_one(send, thunk, position))
    if is_called_by_checks:
        stand_in.serve(function, lambda thunk: _answer_one(send, thunk))  # type: ignore[arg-type]


def _run_checks(send: Send, entry_point: str, setup_code: str, checks: list[str]) -> None:
    """Runs test programs in one namespace in which the entry point is a stand-in."""
    module = types.ModuleType("checks")
    sys.modules[module.__name__] = module
    function = stand_in.make_stand_in(entry_point)
    module.__dict__[entry_point] = function
    _load(send, module, setup_code, "", is_program=False)
    module.__dict__[entry_point] = function
    for position, check in enumerate(checks):
        send(_answer_one(send, lambda c=check: _execute(c, "<check>", module.__dict__), position))  # type: ignore[misc]


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


def _load(
    send: Send,
    module: types.ModuleType,
    code: str,
    setup_code: str,
    is_program: bool,
    as_in_contests: bool = False,
) -> None:
    """Runs the answer and the setup code in `module`; what goes wrong ends the process.

    As in contests, a program may end with a top-level `return` and with any exit status.
    """
    try:
        compiled = _compile_answer(code, may_return=is_program and as_in_contests)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        _end(send, "syntax_error", *_describe(error))
    try:
        _exec(compiled, module.__dict__)
        if setup_code:
            _execute(setup_code, "<setup>", module.__dict__)
        if is_program:
            _finish_program()
    except SystemExit as error:
        if not (is_program and (as_in_contests or error.code in (None, 0))):
            _end(send, "exited", *_describe(error))
        _finish_program()
    except MemoryError as error:
        _end(send, "memory", *_describe(error))
    except BaseException as error:
        if is_program:
            below_us = error.__traceback__ and error.__traceback__.tb_next
            sys.__excepthook__(type(error), BaseException.with_traceback(error, below_us), below_us)
        _end(send, "load_error", *_describe(error))


def _compile_answer(code: str, *, may_return: bool) -> Any:
    """The compiled code; a program with a top-level `return` as the body of a function, after its imports."""
    try:
        return _compile(code, "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        if not may_return or error.msg != "'return' outside function":
            raise
    tree, wrapped = (
        _compile(source, "<answer>", "exec", _AS_TREE, dont_inherit=True)
        for source in (code, "def program(): pass\nprogram()")
    )
    imports: list[Any] = []
    others: list[Any] = []
    for statement in tree.body:
        is_import = type(statement).__name__ in ("Import", "ImportFrom")
        (imports if is_import else others).append(statement)
    wrapped.body[0].body = others
    wrapped.body[:0] = imports
    return _compile(wrapped, "<answer>", "exec", dont_inherit=True)


def _finish_program() -> None:
    """What the interpreter does at the end of a program: wait for threads, run exit handlers."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _evaluate(expression: str, namespace: dict[str, Any]) -> Any:
    return _eval(_compile(expression, "<test>", "eval", dont_inherit=True), namespace)


def _execute(program: str, name: str, namespace: dict[str, Any]) -> None:
    _exec(_compile(program, name, "exec", dont_inherit=True), namespace)


def _answer_one(send: Send, thunk: Callable[[], Any], *position: int) -> str:
    """The text of what one call returned or raised. Leaving the program ends the job."""
    try:
        value = thunk()
        try:
            return f'["value",{"".join(f"{place}," for place in position)}{_encode(value)}]'
        except _PlainDataError as error:
            return _dumps(["opaque", *position, str(error)[:MAX_MESSAGE_CHARS]])
    except SystemExit as error:
        _end(send, "exited", *_describe(error))
    except BaseException as error:
        return _dumps(["raised", *position, *_describe(error)])


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
