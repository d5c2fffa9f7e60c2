"""Calls of an answer's function from another process; arguments and results cross as plain data.

A problem's test program runs in a process that has never seen an answer and calls a proxy of the
function; the answer's process serves those calls. What the test program gets is rebuilt from text: no
object of the answer ever takes part in a test. An iterator stays with the answer, and the test program
gets a generator that asks for its elements one by one. Changes that the answer makes to its arguments
do not come back.

A request is ["call", args, kwargs] or ["next", number of an iterator]; a reply is ["value", value],
["iterator", number], ["opaque", message] or ["raised", class, message, built-in base class]. For a view of a
dict it is ["keys", elements], ["values", elements] or ["items", elements].
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from greenward.sandbox import codec
from greenward.sandbox.frames import read_frame, write_frame

CALL_FD = 4
_MAX_REPLY_BYTES = codec.MAX_CHARS + 4096
_ENDS_LOOPS = (StopIteration, StopAsyncIteration)
_VIEWS = {type({}.keys()): "keys", type({}.values()): "values", type({}.items()): "items"}


class AnswerError(Exception):
    """In a test: an exception of the answer that derives from `Exception` alone, or a fault of the answer."""


class _Fault(BaseException):
    """Ends a test whose answer has done what no test may expect; `RemoteFunction.run` gives the reason."""


class RemoteFunction:
    """The answer's function as test programs see it: `proxy` has each call made by the answer's process.

    It raises an exception of the answer as the built-in exception of that name (or that it derives
    from), or as `AnswerError`. A test may expect such an exception. It may not expect what ends
    Python's loops or a program (StopIteration, StopAsyncIteration and all that is no `Exception`), a
    result that is not plain data, or no reply: such a fault is kept, and `run` raises it whatever
    the test has made of it.
    """

    def __init__(self, name: str) -> None:
        self.was_called = False
        self._faults: list[Exception] = []

        def proxy(*args: Any, **kwargs: Any) -> Any:
            return self._ask(["call", args, kwargs])

        proxy.__name__ = proxy.__qualname__ = name
        self.proxy = proxy

    def run(self, test: Callable[[], None]) -> None:
        """Runs a test. Raises what it raises, or the first fault of the answer since the last test."""
        try:
            test()
        finally:
            faults, self._faults = self._faults, []
            if faults:
                raise faults[0]

    def _ask(self, request: list[Any], *, ends: bool = False) -> Any:
        """The value of a request; with `ends`, the answer's StopIteration is raised as what it is."""
        self.was_called = True
        try:
            write_frame(CALL_FD, codec.encode(request).encode("ascii"))
            reply = read_frame(CALL_FD, _MAX_REPLY_BYTES)
        except codec.PlainDataError as error:
            raise self._fault(TypeError(f"a test cannot hand this over to the answer: {error}")) from None
        except OSError:
            reply = None
        if reply is None:
            raise self._fault(AnswerError("the answer's process did not reply"))
        try:
            content = codec.decode(reply.decode("ascii"))
        except Exception:  # text that only an answer in its own process can have written
            content = None
        match content:
            case ["value", value]:
                return value
            case ["iterator", number]:
                return self._elements(number)
            case ["keys" | "values" | "items" as view, list(elements)]:
                return _view(view, elements)
            case ["opaque", message]:
                raise self._fault(TypeError(str(message)))
            case ["raised", str(error_class), str(message), str(base)]:
                raise self._raised(error_class, message, getattr(builtins, base, None), ends)
        raise self._fault(AnswerError("the answer's process sent a reply that is not plain data"))

    def _raised(self, error_class: str, message: str, known: Any, ends: bool) -> Exception:
        """What a test gets for an exception that is the built-in one `known` or derives from it."""
        if ends and known is StopIteration:
            return StopIteration()
        may_be_expected = isinstance(known, type) and issubclass(known, Exception)
        if not may_be_expected or issubclass(known, _ENDS_LOOPS):
            raise self._fault(AnswerError(f"{error_class}: {message}"))
        if known is not Exception or error_class == "Exception":
            # A class may want more arguments (UnicodeDecodeError).
            with contextlib.suppress(TypeError):
                raised: Exception = known(_key_of(message) if issubclass(known, KeyError) else message)
                return raised
        return AnswerError(f"{error_class}: {message}")

    def _elements(self, number: int) -> Iterator[Any]:
        while True:
            try:
                element = self._ask(["next", number], ends=True)
            except StopIteration:
                return
            yield element

    def _fault(self, error: Exception) -> _Fault:
        self._faults.append(error)
        return _Fault()


def _key_of(message: str) -> Any:
    """The key of a KeyError, whose text is the key's representation."""
    import ast  # here, so that only tests that need it wait for it

    try:
        return ast.literal_eval(message)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return message


def _view(kind: str, elements: list[Any]) -> Any:
    """The view of a dict that the answer returned."""
    if kind == "values":
        return dict(enumerate(elements)).values()
    return dict(elements).items() if kind == "items" else dict.fromkeys(elements).keys()


def serve_calls(function: Callable[..., Any], answer_one: Callable[[Callable[[], Any]], str]) -> None:
    """Serves requests until the other side closes; `answer_one` gives the text of a reply."""
    iterators: list[Any] = []
    while (request := read_frame(CALL_FD, _MAX_REPLY_BYTES)) is not None:
        kind, *fields = codec.decode(request.decode("ascii"))
        value: Any = None

        def act(kind: str = kind, fields: list[Any] = fields) -> Any:
            nonlocal value
            value = next(iterators[fields[0]]) if kind == "next" else function(*fields[0], **fields[1])
            return value

        reply = answer_one(act)
        if reply.startswith('["opaque"'):
            if hasattr(type(value), "__next__"):
                reply = f'["iterator",{len(iterators)}]'
                iterators.append(value)
            elif type(value) in _VIEWS:
                elements = answer_one(partial(list, value))
                reply = elements.replace('["value"', f'["{_VIEWS[type(value)]}"', 1)
        write_frame(CALL_FD, reply.encode("ascii"))


def builtin_base(kind: type) -> str:
    """The name of the built-in class that a class is or derives from: one that ends loops, or the nearest."""
    bases = [one for one in kind.__mro__ if one.__module__ == "builtins"]
    return next((one for one in bases if one in _ENDS_LOOPS), bases[0]).__name__
