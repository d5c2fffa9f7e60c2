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
import os
import random
import signal
import sys
import threading
from typing import Any

_AS_TREE = 0x400  # ast.PyCF_ONLY_AST, without loading the module
# Bound once: a program can swap the names in `os` and `builtins`, not these.
_compile, _dup2, _close = compile, os.dup2, os.close


class ProcessState:
    """What a program finds in a process before it runs, besides the modules that have been loaded."""

    def __init__(self) -> None:
        self._builtins, self._environment = dict(vars(builtins)), dict(os.environ)
        self._folder, self._files = os.getcwd(), os.listdir(".")
        self._recursion_limit = sys.getrecursionlimit()
        self._streams: list[list[Any]] = [[sys.stdin, sys.stdout, sys.stderr]]

    def restore(self, stdin: int) -> bool:
        """Prepares the next run, on another standard input. False if it needs a process of its own.

        Names in `builtins`, variables of the environment and files must be as they were, and no thread,
        process or function for the end may be left. Streams, the recursion limit, timers and the state of
        `random` and `decimal` are set back.
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
            and vars(builtins) == self._builtins
            and dict(os.environ) == self._environment
            and (os.getcwd(), os.listdir(".")) == (self._folder, self._files)
        )

    def _restore(self, stdin: int) -> bool:
        _dup2(stdin, 0)
        _close(stdin)
        present = sys.stdin, sys.stdout, sys.stderr
        self._streams.append(list(map(_ready_again, present, self._streams[-1])))
        sys.stdin, sys.stdout, sys.stderr = self._streams[-1]
        vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
        sys.setrecursionlimit(self._recursion_limit)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        random.seed(0)
        decimal.setcontext(decimal.Context())
        return True


def _ready_again(stream: Any, given: Any) -> Any:
    """The standard stream for the next run, given this one's: the same one, if it is still in place.

    Of one that was replaced something may be left to write, which no process does that has ended. It is kept
    open, therefore.
    """
    is_input = given.mode == "r"
    if stream is given:
        if is_input:
            given.seek(0)  # it forgets what it has read, and that there was no more
        return given
    buffering, newline = 1 if given.line_buffering else -1, None if is_input else "\n"
    return open(given.fileno(), given.mode, buffering, given.encoding, given.errors, newline, closefd=False)


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
