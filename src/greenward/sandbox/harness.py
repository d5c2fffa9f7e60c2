"""What runs in the answer's own process: the layers, then the code, then its calls, then the end.

Speaks on one private descriptor, in frames: the nonce of this run, a length, a JSON list. A frame
says what came back, never whether it was right. That every layer is on is told to the worker in
memory which is given up before the answer's code is loaded (`Announcement`).

A problem's test programs run by the same harness, in a process of their own.

Standard library only: this module is loaded in the worker, too.
"""

from __future__ import annotations

import atexit
import mmap
import os
import random
import struct
import sys
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from greenward.sandbox import codec, stand_in
from greenward.sandbox.layers.stack import LayerStack

RESULT_FD = 3
LAST_FD = stand_in.CALL_FD
MAX_FD = 256
NONCE_CHARS = 32
FRAME_LENGTH = struct.Struct("!I")
MAX_MESSAGE_CHARS = 500
_AS_TREE = 0x400  # ast.PyCF_ONLY_AST, without loading the module

# Bound once: the answer's code can swap the names in `os`, `sys` and `builtins`, not these.
_write, _exit, _getpid, _compile, _eval, _exec = os.write, os._exit, os.getpid, compile, eval, exec
_encode, _dumps, _PlainDataError = codec.encode, codec.dumps, codec.PlainDataError
_class_name: Callable[[Any], str] = type.__dict__["__name__"].__get__

Send = Callable[[str], None]


class Announcement:
    """One byte of memory that a child shares with its worker until it gives the memory up.

    It says that every layer was put on. Only a child that has not loaded an answer can say so, and no
    answer can undo it: it has no descriptor, and no address, of this memory.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def clear(self) -> None:
        """Begins a new job (in the worker)."""
        self._shared[0] = 0

    def make(self) -> None:
        """Says that the layers are on, and gives the memory up (in the child)."""
        self._shared[0] = 1
        self._shared.close()

    def was_made(self) -> bool:
        """Whether the child of this job has said so (in the worker)."""
        return self._shared[0] == 1


def run_job(shield: LayerStack, ready: Announcement, limits: Mapping[str, Any], job: memoryview) -> NoReturn:
    """Runs one job in this process and ends the process."""
    nonce, kind, *fields = codec.decode(str(job, "ascii"))
    send = _sender(nonce)
    del nonce, job
    shield.apply(limits)  # what raises here is the infrastructure's failure
    ready.make()
    is_tested_apart = kind == "checks" or fields[-1]
    os.closerange((LAST_FD if is_tested_apart else RESULT_FD) + 1, MAX_FD)
    random.seed(0)
    if kind == "checks":
        _run_checks(send, *fields)
    else:
        _run_answer(send, min(codec.MAX_CHARS, limits["result_bytes"]), *fields)
    _flush()
    send('["done"]')
    _exit(0)


def _run_answer(
    send: Send,
    most_chars: int,
    preamble: str,
    code: str,
    entry_point: str | None,
    calls: list[Any],
    expressions: list[str],
    setup_code: str,
    is_called_by_checks: bool,
) -> None:
    is_program = entry_point is None and not expressions
    compiled = {one: _compile(one, "<test>", "eval", dont_inherit=True) for one in expressions}
    inputs = {} if entry_point is None else _plain_inputs(entry_point, compiled, setup_code)
    calls += [codec.decode(inputs[one]) if one in inputs else compiled[one] for one in expressions]
    module = types.ModuleType("__main__" if is_program else "answer")
    sys.modules[module.__name__] = module
    if preamble:
        _execute(preamble, "<preamble>", module.__dict__)
    _load(send, module, code, setup_code, is_program, as_in_contests=bool(preamble))
    function = module.__dict__.get(entry_point) if entry_point is not None else None
    if entry_point is not None and not callable(function):
        _end(send, "no_entry_point", "NameError", f"{entry_point} is not defined as a function")
    for position, call in enumerate(calls):

        def make(call: Any = call) -> Any:
            if type(call) is types.CodeType:
                return _eval(call, module.__dict__)
            args, kwargs = call
            return function(*args, **kwargs)  # type: ignore[misc]

        send(_answer_one(send, make, position, most_chars=most_chars))
    if is_called_by_checks:
        stand_in.serve(function, lambda thunk: _answer_one(send, thunk))  # type: ignore[arg-type]


def _run_checks(send: Send, entry_point: str, setup_code: str, checks: list[str]) -> None:
    """Runs test programs in one namespace in which the entry point is a stand-in."""
    module = types.ModuleType("checks")
    sys.modules[module.__name__] = module
    answer = stand_in.StandIn(entry_point)
    module.__dict__[entry_point] = answer.function
    # A setup that calls the answer may fail because of the answer.
    failed = lambda: "exited" if answer.was_called else "load_error"  # noqa: E731
    _load(send, module, setup_code, "", is_program=False, failed=failed)
    module.__dict__[entry_point] = answer.function
    for position, check in enumerate(checks):

        def test(check: str = check) -> None:
            _execute(check, "<check>", module.__dict__)

        send(_answer_one(send, lambda test=test: answer.run(test), position))  # type: ignore[misc]


def _plain_inputs(
    entry_point: str, compiled: Mapping[str, types.CodeType], setup_code: str
) -> dict[str, str]:
    """The arguments, as text, of calls that use further names; no answer has changed yet what these mean.

    Left out are arguments that need the answer or are not plain data: such a call is evaluated beside
    the answer, which can change its own inputs then, but not what is expected of its result.
    """
    named = {expression: code for expression, code in compiled.items() if _uses_more(code, entry_point)}
    found: dict[str, str] = {}
    if not named:
        return found
    namespace: dict[str, Any] = {"__name__": "answer"}
    try:
        _execute(setup_code, "<setup>", namespace)
    except BaseException:  # it needs the answer, or will fail there, too
        return found
    namespace[entry_point] = lambda *args, **kwargs: [args, kwargs]
    for expression, code in named.items():
        try:
            found[expression] = _encode(_eval(code, namespace))
        except BaseException:
            continue
    return found


def _uses_more(code: types.CodeType, entry_point: str) -> bool:
    """Whether a call of the entry point uses other names than that."""
    has_functions = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    return code.co_names[:1] == (entry_point,) and (len(code.co_names) > 1 or has_functions)


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
    failed: Callable[[], str] = lambda: "load_error",
    as_in_contests: bool = False,
) -> None:
    """Runs the answer and the setup code in `module`; what goes wrong ends the process.

    `failed` names the outcome when they raise. As in contests, a program may end with a top-level
    `return` and with any exit status.
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
        _end(send, failed(), *_describe(error))


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


def _execute(program: str, name: str, namespace: dict[str, Any]) -> None:
    _exec(_compile(program, name, "exec", dont_inherit=True), namespace)


def _answer_one(
    send: Send, thunk: Callable[[], Any], *position: int, most_chars: int = codec.MAX_CHARS
) -> str:
    """The text of what one call returned or raised. Leaving the program ends the job.

    Without a position it is the reply to a test program (`stand_in`).
    """
    try:
        value = thunk()
        try:
            text = _encode(value, max_chars=most_chars)
            return f'["value",{"".join(f"{place}," for place in position)}{text}]'
        except _PlainDataError as error:
            return _dumps(["opaque", *position, str(error)[:MAX_MESSAGE_CHARS]])
    except SystemExit as error:
        _end(send, "exited", *_describe(error))
    except BaseException as error:
        base = () if position else (stand_in.builtin_base(type(error)),)
        return _dumps(["raised", *position, *_describe(error), *base])


def _describe(error: BaseException) -> tuple[str, str]:
    """Class name and bounded message of an exception whose methods cannot be trusted."""
    name = str.__getitem__(_class_name(type(error)), slice(MAX_MESSAGE_CHARS))
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
