"""Programs that read standard input: how they end, and what one process needs to run them again.

One process runs a program on several texts, each in a new `__main__`, as long as a run leaves nothing behind
that the next one would meet. Contest graders do so too, but without looking at what a run has left.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import contextlib
import decimal
import gc
import os
import random
import signal
import sys
import threading
from typing import Any

MOST_RUNS = 32  # in one process; the standard input of each is an open file
_AS_TREE = 0x400  # ast.PyCF_ONLY_AST, without loading the module
# Bound once: a program can swap the names in `os` and `builtins`, not these.
_compile, _dup2, _close = compile, os.dup2, os.close
_set_max_digits = getattr(sys, "set_int_max_str_digits", lambda _: None)  # from Python 3.10.7 on
_MAX_DIGITS = getattr(sys, "get_int_max_str_digits", lambda: 0)()


class ProcessState:
    """What a program finds in a process before it runs, besides the modules that have been loaded."""

    def __init__(self) -> None:
        self._streams = {name: _form_of(getattr(sys, name)) for name in ("stdin", "stdout", "stderr")}
        self._outputs, self._nowhere = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_WRONLY)
        self._pipes = _standard_outputs()
        self._builtins, self._environment = _watched_builtins(), dict(os.environ)
        self._folder, self._files = os.getcwd(), os.listdir(".")
        self._arguments, self._recursion_limit = list(sys.argv), sys.getrecursionlimit()

    def restore(self, stdin: int) -> bool:
        """Prepares the next run, on another standard input. False if it needs a process of its own.

        Descriptors of output, names in `builtins`, variables of the environment and files must be as they
        were, and no thread, process or function for the end may be left. Streams, arguments, the limits of
        recursion and of digits, timers and the state of `random` and `decimal` are set back, and objects of
        the last run are collected.
        """
        try:
            return self._is_clean() and self._restore(stdin)
        except BaseException:  # the run has broken a descriptor or a module
            return False

    def _is_clean(self) -> bool:
        with contextlib.suppress(ChildProcessError, PermissionError):  # it has, or may have, none
            os.waitpid(-1, os.WNOHANG)
            return False
        return (
            not has_work_left()
            and _standard_outputs() == self._pipes
            and _watched_builtins() == self._builtins
            and dict(os.environ) == self._environment
            and (os.getcwd(), os.listdir(".")) == (self._folder, self._files)
        )

    def _restore(self, stdin: int) -> bool:
        # What a process has not written when it ends is lost, and so is what finalizers write here.
        for stream in (1, 2):
            _dup2(self._nowhere, stream)
        sys.argv = list(self._arguments)
        for name in self._streams:
            _set_stream(name, None)
        sys.modules["__main__"].__dict__.clear()
        gc.collect()
        for descriptor, stream in zip(self._outputs, (1, 2), strict=True):
            _dup2(descriptor, stream)
        _dup2(stdin, 0)
        _close(stdin)
        for name, form in self._streams.items():
            _set_stream(name, _open(form))
        _set_max_digits(_MAX_DIGITS)
        sys.setrecursionlimit(self._recursion_limit)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        random.seed(0)
        decimal.setcontext(decimal.Context())
        return True


def _standard_outputs() -> list[tuple[int, int]]:
    return [(found.st_dev, found.st_ino) for found in map(os.fstat, (1, 2))]


def _watched_builtins() -> tuple[Any, ...]:
    """The names that programs replace, and the number of all: comparing each would copy all their memory."""
    return len(vars(builtins)), builtins.print, builtins.input, builtins.open


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
    form = (stream.fileno(), stream.mode, buffering, stream.encoding, stream.errors, "\n", False)
    return form, stream.name


def _open(form: tuple[tuple[Any, ...], str]) -> Any:
    arguments, name = form
    stream = open(*arguments)  # noqa: SIM115 (it is open as long as the process)
    stream.buffer.raw.name = name
    return stream


def has_work_left() -> bool:
    """Whether threads run, or functions wait for the end, after which loaded modules may not work."""
    return bool(_thread._count() or threading._threading_atexits or atexit._ncallbacks())  # type: ignore[attr-defined]


def finish() -> bool:
    """Does what an interpreter does at the end of a program; False if no other can run here."""
    if not has_work_left():
        return True
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    return False


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
