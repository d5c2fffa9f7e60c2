"""Runs programs that read standard input, and ends them as the interpreter does.

One process runs a program on several texts, each in a new `__main__`, if the program's text says that no run
can leave anything to another (`sharing`).
"""

from __future__ import annotations

import _thread
import atexit
import ctypes
import decimal
import gc
import os
import random
import sys
import threading
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

from greenward.sandbox.inside.files import forget_modules

MOST_RUNS = 32  # in one process; the standard input of each is an open file
_AS_TREE = 0x400  # ast.PyCF_ONLY_AST, without loading the module
# Bound once: a program can swap the names in `os`, `gc`, `atexit` and `builtins`, not these.
_compile, _dup2, _close, _exit = compile, os.dup2, os.close, os._exit
_collect, _get_objects = gc.collect, gc.get_objects
_call_exit_functions = atexit._run_exitfuncs
_finalize_and_exit = ctypes.pythonapi.Py_Exit
_set_max_digits = getattr(sys, "set_int_max_str_digits", lambda _: None)  # from Python 3.10.7 on
_MAX_DIGITS = getattr(sys, "get_int_max_str_digits", lambda: 0)()
_STREAMS = ("stdin", "stdout", "stderr")


# What sets a module back, by its name.
_RESETS: dict[str, Callable[[], object]] = {
    "decimal": lambda: decimal.setcontext(decimal.Context()),
    "random": lambda: random.seed(0),
    # Its caches hold what types were made of, such as classes of the program.
    "typing": lambda: [clear() for clear in typing._cleanups],  # type: ignore[attr-defined]
}


class RunState:
    """All that a program that may share a process can have changed when the next run begins."""

    def __init__(self, text: str) -> None:
        """`text` is that of the program."""
        # An identifier of other characters may be written in several ways.
        self._resets = [reset for module, reset in _RESETS.items() if module in text or not text.isascii()]
        self._forms = {name: _form_of(getattr(sys, name)) for name in _STREAMS}
        self._recursion_limit = sys.getrecursionlimit()

    def reset(self) -> None:
        """Sets back what the last run has changed; modules hold nothing of it then."""
        _set_max_digits(_MAX_DIGITS)
        sys.setrecursionlimit(self._recursion_limit)
        for reset in self._resets:
            reset()

    def open_streams(self, stdin: int) -> None:
        """Opens the streams of the next run, on another standard input."""
        _dup2(stdin, 0)
        _close(stdin)
        for name, form in self._forms.items():
            _set_stream(name, _open(form))


def open_standard_streams() -> None:
    """Opens `sys.stdout` and `sys.stderr` anew on what cannot seek, as the pipes of an answer cannot.

    A file object finds this out once: those that an interpreter opens on a file or a device fail on a pipe
    when a program wraps or reconfigures them.
    """
    read, write = os.pipe()
    for name, number in (("stdout", 1), ("stderr", 2)):
        kept = os.dup(number)
        _dup2(write, number)
        _set_stream(name, _open(_form_of(getattr(sys, name))))
        _dup2(kept, number)
        _close(kept)
    _close(read)
    _close(write)


def _set_stream(name: str, stream: Any) -> None:
    vars(sys).update({name: stream, f"__{name}__": stream})


def _form_of(stream: Any) -> tuple[tuple[Any, ...], str]:
    """What `open` needs to open it anew, and its name."""
    buffering = 1 if stream.line_buffering else -1
    return (stream.fileno(), stream.mode, buffering, stream.encoding, stream.errors, "\n", False), stream.name


def _open(form: tuple[tuple[Any, ...], str]) -> Any:
    arguments, name = form
    stream = open(*arguments)  # noqa: SIM115 (it is open as long as the process)
    stream.buffer.raw.name = name
    return stream


def finish(files: Iterable[str]) -> None:
    """Ends a program as the interpreter does, so that all that it holds back is written.

    Threads end and functions for the end are called. Then what its modules hold is collected, `__main__` and
    those of `files`: files that are still open are flushed, and finalizers run. The streams are left.
    """
    if _thread._count() or threading._threading_atexits:  # type: ignore[attr-defined]
        with suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
    _call_exit_functions()
    flush()
    _collect(0)  # it puts the parts of a new file in the order in which they can be finalized
    for name in _STREAMS:
        setattr(sys, name, vars(sys).get(f"__{name}__"))
    sys.modules.pop("__main__", None)
    if files:
        forget_modules(files)
    _collect()
    flush()


def close_streams() -> None:
    """Ends the streams of a program that is finished."""
    for name in _STREAMS:
        _set_stream(name, None)
    _collect()


def leave() -> NoReturn:
    """Ends the process of a program that is finished.

    The interpreter's modules may hold objects of the program that have a finalizer (a function in place of
    `builtins.print`). Only the interpreter's own end reaches these. It takes 6 ms, so others do without.
    """
    if any(hasattr(type(one), "__del__") for one in _get_objects()):
        _finalize_and_exit(0)
    close_streams()
    _exit(0)


def flush() -> None:
    """Writes what `sys.stdout` and `sys.stderr` hold back."""
    for name in ("stdout", "stderr"):
        with suppress(BaseException):  # the answer has broken this stream
            getattr(sys, name).flush()


def exit_status(code: object) -> int:
    """The status of a process that ends by `SystemExit(code)`; what is no number is printed."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def compile_program(code: str, *, may_return: bool) -> Any:
    """The compiled code; with a top-level `return`, as the body of a function after its imports."""
    try:
        return _compile(code, "<answer>", "exec", dont_inherit=True)
    except SyntaxError as error:
        if not may_return or error.msg != "'return' outside function":
            raise
    tree, wrapped = (
        _compile(source, "<answer>", "exec", _AS_TREE, dont_inherit=True)
        for source in (code, "def program(): pass\nprogram()")
    )
    is_import = [type(statement).__name__ in ("Import", "ImportFrom") for statement in tree.body]
    wrapped.body[0].body = [one for one, first in zip(tree.body, is_import, strict=True) if not first]
    wrapped.body[:0] = [one for one, first in zip(tree.body, is_import, strict=True) if first]
    return _compile(wrapped, "<answer>", "exec", dont_inherit=True)
