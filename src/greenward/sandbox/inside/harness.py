"""Runs in the answer's own process: it applies the layers, loads the code, makes its calls, and ends.

It writes to one private descriptor, in frames that carry the nonce of this run and a JSON list. A frame says
what came back, never whether it was right. That every layer is on is reported in memory shared with the
worker, which is unmapped before the answer's code is loaded.
A problem's test programs run by the same harness, in a process that has never seen an answer, and call a
proxy of the function; the answer's process serves those calls. Arguments and results cross as plain data,
rebuilt from text: no object of the answer ever takes part in a test. A function or an iterator stays in its
process, be it of a test or of the answer, and the other side gets a stand-in whose calls, or elements, are
asked for one by one. Changes that the answer makes to its arguments do not come back. A call is ["call",
number of the function, args, kwargs], in either direction. One of the answer comes to ["value", value],
["opaque", message] or ["raised", name of the class, message, built-in base class]; one of the tests to
["value", value] or ["raised", class, message].
"""

from __future__ import annotations

import builtins
import contextlib
import itertools
import mmap
import operator
import os
import sys
import time
import types
from _thread import RLock, allocate_lock
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn

from greenward.sandbox.inside import codec, programs, sharing
from greenward.sandbox.inside.codec import read_frame, write_frame
from greenward.sandbox.inside.files import (
    find_modules_here,
    load_module,
    module_name,
    replace_originals,
    write_changes,
    write_files,
)
from greenward.sandbox.inside.layers import OPEN_FILES, LayerStack

RESULT_FD = 3
READY, SHARES = 1, 2
MAX_MESSAGE_CHARS = 500
_MAX_PLACES, _MAX_NAME_CHARS = 10, 60  # of a traceback

# Bound once: the answer's code can swap the names in `os`, `sys` and `builtins`, not these.
_exit, _getpid, _write, _process_time = os._exit, os.getpid, os.write, time.process_time
_sleep = time.sleep
_most_frames, _set_most_frames = sys.getrecursionlimit, sys.setrecursionlimit
_compile, _eval, _exec = compile, eval, exec
_encode, _dumps, _PlainDataError = codec.encode, codec.dumps, codec.PlainDataError
_class_name: Callable[[Any], str] = type.__dict__["__name__"].__get__
_traceback_of: Callable[[Any], Any] = BaseException.__dict__["__traceback__"].__get__


def run_job(
    layers: LayerStack, ready: mmap.mmap, limits: Mapping[str, Any], job: memoryview, stdins: list[int]
) -> NoReturn:
    """Runs one job in this process and ends the process.

    `stdins` are open files: the first one is standard input. A program runs once for each if its runs may
    share a process, else once.

    Sets the first byte of `ready` to `READY` when the layers are on, and then to `SHARES` if runs share this
    process. Only a process that has not loaded an answer can do so, and no answer can undo it: it has no
    descriptor, and no address, of this memory.
    """
    nonce, kind, files, *fields = codec.decode(str(job, "ascii"))
    del job
    if files:
        write_files(files)
    if originals := layers.originals(limits["completes"]):
        replace_originals(limits["completes"], originals)
    layers.apply(limits)  # what raises here is the infrastructure's failure
    ready[0] = READY
    if len(stdins) > 1:
        preamble, code, *_ = fields
        if sharing.may_share_process(code, preamble):
            ready[0] = SHARES
        else:
            del stdins[1:]  # they are closed below
    ready.close()
    harness = _Harness(nonce.encode("ascii"), files, stdins)
    del nonce
    is_tested_apart = kind == "checks" or fields[-1]
    _close_others((CALL_FD if is_tested_apart else RESULT_FD) + 1, stdins[1:])
    if kind == "checks":
        harness.run_checks(*fields)
    else:
        harness.run_answer(min(codec.MAX_CHARS, limits["result_bytes"]), *fields)
    harness.end(["done"])


class _Harness:
    """Runs an answer, or test programs, and sends what comes of it."""

    def __init__(self, nonce: bytes, files: Mapping[str, str], stdins: list[int]) -> None:
        self._nonce, self._owner, self._files, self._stdins = nonce, _getpid(), files, stdins

    def run_answer(
        self,
        most_chars: int,
        preamble: str,
        code: str,
        path: str,
        changes: dict[str, str | None],
        entry_point: str | None,
        calls: list[Any],
        expressions: list[str],
        setup_code: str,
        is_called_by_checks: bool,
    ) -> None:
        changes |= {path: code} if path else {}
        if self._files or changes:
            find_modules_here(self._files)
        compiled = {one: _compile(one, "<test>", "eval", dont_inherit=True) for one in expressions}
        stand_in = path if path not in self._files else ""
        inputs = {} if entry_point is None else _plain_inputs(entry_point, compiled, setup_code, stand_in)
        if changes:
            self._files = write_changes(self._files, changes, path)
        if entry_point is None and not expressions:
            self._run_program(preamble, code, setup_code)
            return
        calls += [codec.decode(inputs[one]) if one in inputs else compiled[one] for one in expressions]
        namespace = _new_module("answer")
        if preamble:
            self._begin(preamble, namespace)
        namespace = self._load(namespace, code, setup_code, path=path)
        function = _named(entry_point, namespace)
        if entry_point is not None and not callable(function):
            missing = f"{entry_point} is not defined as a function"
            self.end(["ended", "no_entry_point", "NameError", missing, ""])
        for position, call in enumerate(calls):
            is_expression = type(call) is types.CodeType
            act = partial(_eval, call, namespace) if is_expression else partial(function, *call[0], **call[1])
            self._send(self._text_of(act, position, most_chars=most_chars))
        if is_called_by_checks:
            serve_calls(function, self._text_of, partial(self.end, ["done"]))

    def run_checks(self, entry_point: str, setup_code: str, checks: list[str]) -> None:
        """Runs test programs in one namespace; there the entry point is a proxy of the answer's function."""
        if self._files:
            find_modules_here(self._files)
        namespace, answer = _new_module("checks"), RemoteFunction(entry_point)
        namespace[entry_point] = answer.proxy
        self._load(namespace, setup_code, "", answer=answer)
        namespace[entry_point] = answer.proxy
        for position, check in enumerate(checks):
            test = partial(_execute, check, "<check>", namespace)
            self._send(self._text_of(partial(answer.run, test), position))

    def end(self, message: list[Any]) -> NoReturn:
        """Flushes what was printed, sends the last message and ends the process."""
        programs.flush()
        self._send(_dumps(message))
        _exit(0)

    def _send(self, text: str) -> None:
        if _getpid() != self._owner:  # a fork of the answer came back here
            _exit(0)
        write_frame(RESULT_FD, text.encode("ascii"), nonce=self._nonce)

    def _text_of(self, act: Callable[[], Any], *position: int, most_chars: int = codec.MAX_CHARS) -> str:
        """The text of what one call returned or raised. Leaving the program ends the job.

        Without a position it is the reply to a test program.
        """
        try:
            value = act()
            try:
                text = _encode(value, max_chars=most_chars)
                return f'["value",{"".join(f"{place}," for place in position)}{text}]'
            except _PlainDataError as error:
                return _dumps(["opaque", *position, str(error)[:MAX_MESSAGE_CHARS]])
        except SystemExit as error:
            self.end(_ended_by(error))
        except BaseException as error:
            last = _traceback(error) if position else builtin_base(type(error))
            return _dumps(["raised", *position, *_describe(error), last])

    def _run_program(self, preamble: str, code: str, setup_code: str) -> None:
        """Runs a program once for each standard input.

        The outputs of runs that share this process end with the nonce. As in contests, a program with a
        preamble may end with a top-level `return` and with any exit status.
        """
        compiled = self._compiled(partial(programs.compile_program, code, may_return=bool(preamble)))
        state = programs.RunState(preamble + code) if len(self._stdins) > 1 else None
        last = ["done"]
        for position, stdin in enumerate(self._stdins or [0]):
            if state is not None and position > 0:
                state.open_streams(stdin)
            failure = self._run_once(compiled, preamble, setup_code)
            if state is not None:
                state.reset()
            programs.finish(self._files)
            if failure is not None:
                last = failure
                break
            if state is not None:
                programs.close_streams()
                for stream in (1, 2):
                    _write(stream, self._nonce)
            if self._stdins:
                self._send(f'["value",{position},{_process_time():.6f}]')
        self._send(_dumps(last))
        programs.leave()

    def _run_once(self, compiled: types.CodeType, preamble: str, setup_code: str) -> list[str] | None:
        """Runs a program up to its last statement. The message of what has ended it, None if that is fine."""
        namespace = _new_module("__main__")
        if preamble:
            self._begin(preamble, namespace)
        try:
            try:
                _exec(compiled, namespace)
                if setup_code:
                    _execute(setup_code, "<setup>", namespace)
            finally:
                programs.flush()  # as the interpreter does, before a hook or an exit function leaves
        except SystemExit as error:
            is_fine = programs.exit_status(error.code) == 0 or preamble
            return None if is_fine else _ended_by(error)
        except BaseException as error:
            below_us = error.__traceback__ and error.__traceback__.tb_next
            with contextlib.suppress(BaseException):
                sys.excepthook(type(error), BaseException.with_traceback(error, below_us), below_us)
            return _ended_by(error)
        return None

    def _begin(self, preamble: str, namespace: dict[str, Any]) -> None:
        """Runs what a suite has before the answer. What goes wrong there, as an import of a package that is
        missing, is said to be the problem's.
        """
        try:
            _execute(preamble, "<preamble>", namespace)
        except BaseException as error:
            *ended, message, traceback = _ended_by(error)
            self.end([*ended, f"in the code that the problem has before it: {message}", traceback])

    def _load(
        self,
        namespace: dict[str, Any],
        code: str,
        setup_code: str,
        *,
        path: str = "",
        answer: RemoteFunction | None = None,
    ) -> dict[str, Any]:
        """Runs the code, an answer or the setup of its test programs; what goes wrong ends the process.

        Gives the namespace that the code has filled: the given one, or that of the module at `path`. The
        files are written anew then, whatever the code has made of them.

        A setup that calls the answer may fail because of the answer.
        """
        compiled = self._compiled(partial(_compile, code, "<answer>", "exec", dont_inherit=True))
        try:
            if path:
                namespace = load_module(path)
            else:
                _exec(compiled, namespace)
            if self._files:
                write_files(self._files)
            if setup_code:
                _execute(setup_code, "<setup>", namespace)
        except BaseException as error:
            self.end(_ended_by(error, "exited" if answer and answer.was_called else "load_error"))
        return namespace

    def _compiled(self, compiled: Callable[[], types.CodeType]) -> types.CodeType:
        try:
            return compiled()
        except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
            self.end(["ended", "syntax_error", *_describe(error), ""])


def _ended_by(error: BaseException, outcome: str = "load_error") -> list[str]:
    """The message that an exception has ended the answer."""
    if issubclass(type(error), SystemExit):
        outcome = "exited"
    elif issubclass(type(error), MemoryError):
        outcome = "memory"
    return ["ended", outcome, *_describe(error), _traceback(error)]


def _named(entry_point: str | None, namespace: Mapping[str, Any]) -> Any:
    """What a dotted name means in a namespace; None if it means nothing."""
    if entry_point is None:
        return None
    first, *attributes = entry_point.split(".")
    found = namespace.get(first)
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found


def _new_module(name: str) -> dict[str, Any]:
    module = sys.modules[name] = types.ModuleType(name)
    return module.__dict__


class _Unknown:
    """What is imported from the answer's module before the answer is loaded: using it fails."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise NameError("the answer is not loaded yet")

    __getattr__ = __call__ = __bool__ = __eq__ = __hash__ = __repr__ = _refuse


def _stand_in_for(path: str) -> None:
    """Puts a module in the place of the answer's that gives something for every name."""
    name, is_package = module_name(path)
    if name.partition(".")[0] in sys.stdlib_module_names:  # others that are loaded meanwhile may need it
        return
    module = sys.modules[name] = types.ModuleType(name)
    if is_package:
        module.__path__ = [os.path.abspath(os.path.dirname(path))]

    def __getattr__(name: str) -> _Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unknown()

    module.__dict__["__getattr__"] = __getattr__


def _plain_inputs(
    entry_point: str, compiled: Mapping[str, types.CodeType], setup_code: str, path: str
) -> dict[str, str]:
    """The arguments, as text, of calls that use further names; no answer has changed yet what these mean.

    Left out are arguments that need the answer or are not plain data, nor are instances of subclasses of it
    (a Counter, a namedtuple): such a call is evaluated beside the answer, which can change its own inputs
    then, but not what is expected of its result. The problem's files may import the module at `path`, which
    is not there yet.
    """
    found: dict[str, str] = {}
    namespace: dict[str, Any] = {"__name__": "answer"}
    named = {expression: code for expression, code in compiled.items() if _uses_more(code, entry_point)}
    try:
        if named and path:
            _stand_in_for(path)
        if named:
            _execute(setup_code, "<setup>", namespace)
    except BaseException:  # it needs the answer, or will fail there, too
        return found
    namespace[entry_point] = lambda *args, **kwargs: [args, kwargs]
    for expression, code in named.items():
        with contextlib.suppress(BaseException):
            if codec.has_exact_types(arguments := _eval(code, namespace)):
                found[expression] = _encode(arguments)
    return found


def _uses_more(code: types.CodeType, entry_point: str) -> bool:
    """Whether a call of the entry point uses other names than that."""
    has_functions = any(isinstance(constant, types.CodeType) for constant in code.co_consts)
    return code.co_names[:1] == (entry_point,) and (len(code.co_names) > 1 or has_functions)


def _close_others(first: int, kept: list[int]) -> None:
    """Closes the descriptors from `first` on, but for those that are kept."""
    for one in kept:
        os.closerange(first, one)
        first = one + 1
    os.closerange(first, OPEN_FILES)


def _execute(program: str, name: str, namespace: dict[str, Any]) -> None:
    _exec(_compile(program, name, "exec", dont_inherit=True), namespace)


def _describe(error: BaseException) -> tuple[str, str]:
    """Class name and bounded message of an exception whose methods cannot be trusted."""
    name = str.__getitem__(_class_name(type(error)), slice(MAX_MESSAGE_CHARS))
    try:
        message = str(error)
    except BaseException:
        return name, ""
    return name, str.__str__(message)[:MAX_MESSAGE_CHARS]


def _traceback(error: BaseException) -> str:
    """The innermost places at which an exception was raised, as Python names them, without ours."""
    places: list[str] = []
    place = _traceback_of(error)
    while place is not None:
        code = place.tb_frame.f_code
        file, name = str.__str__(code.co_filename), str.__str__(code.co_name)
        if file != __file__:
            file = file.rpartition("/")[2][:_MAX_NAME_CHARS]
            places.append(f'  File "{file}", line {place.tb_lineno}, in {name[:_MAX_NAME_CHARS]}\n')
            del places[:-_MAX_PLACES]
        place = place.tb_next
    return "".join(places)


CALL_FD = 4
ENTRY_POINT = 0  # its place among the functions of the answer's process
_MAX_REPLY_BYTES = codec.MAX_CHARS + 4096
# What nests between a function and one of the other side that it calls counts little against the limit of
# Python, and an exchange that has begun is not broken off by it.
_FRAMES_OF_EXCHANGE, _FRAMES_OF_SERVING, _FRAMES_OF_CALLING = 50, 6, 3
_MOST_FRAMES = (1 << 31) - 1
_VARARGS, _VARKEYWORDS = 4, 8  # of `co_flags`, as in `inspect`
_ENDS_LOOPS = (StopIteration, StopAsyncIteration)
_OF_GENERATORS = dir(types.GeneratorType)
# By each of these an answer that gets it could reach more of the tests' process than they hand over.
_REACH_EVERYTHING = (
    eval, exec, compile, getattr, setattr, delattr, vars, globals, locals, open, __import__, str.format,
    str.format_map, object.__getattribute__, object.__setattr__, type.__getattribute__, types.FunctionType,
    operator.attrgetter, operator.methodcaller,
)  # fmt: skip


class AnswerError(Exception):
    """In a test: an exception of the answer that derives from `Exception` alone, or a fault of the answer."""


class _Fault(BaseException):
    """Ends a test whose answer has done what no test may expect; `RemoteFunction.run` gives the reason."""


class RemoteFunction:
    """The answer's function as test programs see it: `proxy` has each call made by the answer's process.

    Functions and iterators that tests hand over, or that the answer returns, stay in their process, too: the
    other one has a stand-in for each, whose calls it makes. Calls of several threads are made in turn.

    It raises an exception of the answer as the built-in exception of that name (or that it derives
    from), or as `AnswerError`; one that a function of the test has raised comes back as it was. A test
    may expect such an exception. It may not expect what ends Python's loops or a program (StopIteration,
    StopAsyncIteration and all that is no `Exception`), a result that is not plain data, or no reply: such
    a fault is kept, and `run` raises it whatever the test has made of it.
    """

    def __init__(self, name: str) -> None:
        self.was_called = False
        self._faults: list[Exception] = []
        self._turn = RLock()
        self._is_decoding = False
        self._raised_here: dict[tuple[str, str], Exception] = {}
        self._functions = _FunctionsOfTests(self._call)
        self.proxy = self._functions.stand_in(ENTRY_POINT, name, None, None)
        codec.exchange_functions(self._functions)

    def run(self, test: Callable[[], None]) -> None:
        """Runs a test. Raises what it raises, or the first fault of the answer since the last test."""
        try:
            test()
        finally:
            faults, self._faults = self._faults, []
            if faults:
                raise faults[0]

    def _call(self, number: int, args: Any, kwargs: Any, *, ends: bool = False) -> Any:
        """What a function of the answer returns; with `ends`, its StopIteration is raised as what it is."""
        with self._turn, _DeeperBy(_FRAMES_OF_EXCHANGE):
            return self._call_now(number, args, kwargs, ends)

    def _call_now(self, number: int, args: Any, kwargs: Any, ends: bool) -> Any:
        if self._is_decoding:  # an iterator where a list belongs: it would be asked without end
            raise self._fault(AnswerError("the answer's process sent a reply that is not plain data"))
        self.was_called = True
        message: list[Any] = ["call", number, args, kwargs]
        while True:
            match self._exchange(message):
                case ["call", number, args, kwargs]:
                    message = self._called(number, args, kwargs)
                case ["value", value]:
                    return value
                case ["opaque", str(reason)]:
                    raise self._fault(TypeError(reason))
                case ["raised", str(error_class), str(reason), str(base)]:
                    raise self._raised(error_class, reason, base, ends)
                case _:
                    raise self._fault(AnswerError("the answer's process sent a reply that is not plain data"))

    def _called(self, number: Any, args: Any, kwargs: Any) -> list[Any]:
        """What a call of a function that a test has handed over comes to."""
        try:
            with _DeeperBy(_FRAMES_OF_CALLING - _FRAMES_OF_EXCHANGE):
                return ["value", self._functions.function(number)(*args, **kwargs)]
        except Exception as error:
            name, reason = _describe(error)
            if not isinstance(error, _ENDS_LOOPS):
                self._raised_here[name, reason] = error
            return ["raised", type(error), reason]

    def _exchange(self, message: list[Any]) -> Any:
        """What the answer's process sends after a message; None for what it cannot have sent by itself."""
        try:
            write_frame(CALL_FD, codec.encode(message).encode("ascii"))
            reply = read_frame(CALL_FD, _MAX_REPLY_BYTES)
        except codec.PlainDataError as error:
            raise self._fault(TypeError(f"a test cannot hand this over to the answer: {error}")) from None
        except OSError:
            reply = None
        if reply is None:
            raise self._fault(AnswerError("the answer's process did not reply"))
        self._is_decoding = True
        try:
            return codec.decode(reply.decode("ascii"))
        except Exception:
            return None
        finally:
            self._is_decoding = False

    def _raised(self, error_class: str, message: str, base: str, ends: bool) -> Exception:
        """What a test gets for an exception that is the built-in one `base` or derives from it."""
        known: Any = getattr(builtins, base, None)
        if ends and known is StopIteration:
            return StopIteration()
        may_be_expected = isinstance(known, type) and issubclass(known, Exception)
        if not may_be_expected or issubclass(known, _ENDS_LOOPS):
            raise self._fault(AnswerError(f"{error_class}: {message}"))
        own = self._raised_here.get((error_class, message))
        if isinstance(own, known):
            return own
        own_class = self._functions.classes.get(error_class)
        if own_class is not None and issubclass(own_class, known):
            known = own_class
        is_known = known is not Exception or error_class == "Exception"
        return (is_known and _exception(known, message)) or AnswerError(f"{error_class}: {message}")

    def _fault(self, error: Exception) -> _Fault:
        self._faults.append(error)
        return _Fault()


class _Functions:
    """Functions of this process that the other one calls by number, and stand-ins for those of the other.

    `call` makes a call in the other process.
    """

    of_tests = False

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call
        self._next = itertools.count()
        self._kept: dict[int, Callable[..., Any]] = {}
        self._handed_over: set[int] = set()  # of those, not what gives the elements of iterators
        self._stand_ins: dict[int, Callable[..., Any]] = {}
        # By identity. What they stand for is kept for ever, so that no other object gets its identity.
        self._places: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._classes: dict[tuple[str, str], type[Exception]] = {}

    def keep(self, function: Callable[..., Any]) -> int:
        number = self._places.setdefault(id(function), next(self._next))
        self._kept[number] = function
        return number

    def refer(self, function: Callable[..., Any]) -> tuple[str, list[Any]]:
        if (number := self._numbers.get(id(function))) is not None:
            return "own", [number]
        name, text = getattr(function, "__name__", ""), getattr(function, "__doc__", None)
        name, text = (name if type(name) is str else ""), (text if type(text) is str else None)
        self._handed_over.add(number := self.keep(function))
        return "function", [number, name, text, self._parameters(function)]

    def _parameters(self, function: Any) -> list[Any] | None:
        """What `_with_parameters` takes; None where it is not said."""
        return None

    def keep_iterator(self, iterator: Any) -> int:
        return self.keep(iterator.__next__)

    def keep_class(self, kind: type[Exception]) -> str:
        return _class_name(kind)

    def function(self, number: int) -> Callable[..., Any]:
        """What a call by this number calls."""
        return self._kept[number]

    def own(self, number: int) -> Callable[..., Any]:
        """A function that comes back as a value. What gives elements never does: it would end a loop."""
        if number not in self._handed_over:
            raise KeyError(number)
        return self._kept[number]

    def stand_in(self, number: int, name: str, text: str | None, parameters: Any) -> Callable[..., Any]:
        if (known := self._stand_ins.get(number)) is not None:
            return known

        def function(*args: Any, **kwargs: Any) -> Any:
            return self._call(number, args, kwargs)

        if parameters:
            function = _with_parameters(function, *parameters)
        function.__name__ = function.__qualname__ = name
        function.__doc__ = text
        self._stand_ins[number] = function
        self._numbers[id(function)] = number
        return function

    def iterator(self, number: int) -> Iterator[Any]:
        return _Elements(partial(self._call, number, (), {}, ends=True))

    def generator(self, number: int) -> Iterator[Any]:
        sent = None
        while True:
            try:
                element = self._call(number, (sent,), {}, ends=True)
            except StopIteration:
                return
            sent = yield element

    def exception_class(self, name: str, module: str, base: type[Exception]) -> type[Exception]:
        """The class of this process that stands for one of the other: always the same one."""
        standard = module.partition(".")[0] in sys.stdlib_module_names and sys.modules.get(module)
        found = getattr(standard or None, name, self._classes.get((module, name)))
        if not isinstance(found, type) or not issubclass(found, base):
            found = self._classes[module, name] = type(name, (base,), {})
        return found


class _FunctionsOfTests(_Functions):
    """The same on the side of the tests. Their functions are sent with their parameters: answers may ask for
    them. Those of an answer's functions are not trusted. Functions that reach everything are not sent.

    `classes` are their own exception classes, which an answer may raise.
    """

    of_tests = True

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__(call)
        self.classes: dict[str, type[Exception]] = {}

    def keep(self, function: Callable[..., Any]) -> int:
        if any(function is one for one in _REACH_EVERYTHING):
            raise _PlainDataError(f"by {function.__name__} the answer could do all that tests can")
        return super().keep(function)

    def keep_iterator(self, iterator: Any) -> int:
        kind = type(iterator)
        if further := [name for name in dir(kind) if name[:1] != "_" and name not in _OF_GENERATORS]:
            raise _PlainDataError(f"{kind} is no mere iterator: it also has {further[0]}")
        return super().keep_iterator(iterator)

    def keep_class(self, kind: type[Exception]) -> str:
        name = super().keep_class(kind)
        if not issubclass(kind, _ENDS_LOOPS):
            self.classes[name] = kind
        return name

    def stand_in(self, number: int, name: str, text: str | None, parameters: Any) -> Callable[..., Any]:
        return super().stand_in(number, name, text, None)

    def _parameters(self, function: Any) -> list[Any] | None:
        if type(function) is not types.FunctionType:
            return None
        code = function.__code__
        by_position, by_name = code.co_argcount, code.co_kwonlyargcount
        has_more = [bool(code.co_flags & flag) for flag in (_VARARGS, _VARKEYWORDS)]
        names = code.co_varnames[: by_position + by_name + sum(has_more)]
        optional = [*names[by_position - len(function.__defaults__ or ()) : by_position]]
        optional += function.__kwdefaults__ or ()
        return [list(names), by_position, code.co_posonlyargcount, by_name, *has_more, optional]


class _DeeperBy:
    """Within it, Python's calls may nest so much deeper. Raises `RecursionError` where they already do so."""

    def __init__(self, frames: int) -> None:
        self._frames = frames

    def __enter__(self) -> None:
        _set_most_frames(max(1, min(_most_frames() + self._frames, _MOST_FRAMES)))

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(RecursionError):  # an answer has set the limit meanwhile
            _set_most_frames(max(1, min(_most_frames() - self._frames, _MOST_FRAMES)))


class _Elements(Iterator[Any]):
    """An iterator whose elements come from a function."""

    def __init__(self, next_element: Callable[[], Any]) -> None:
        self._next = next_element

    def __next__(self) -> Any:
        return self._next()


def _with_parameters(
    call: Callable[..., Any],
    names: list[str],
    by_position: int,
    by_position_only: int,
    by_name: int,
    has_args: bool,
    has_kwargs: bool,
    optional: list[str],
) -> Any:
    """A function with the given parameters that hands what it is given to `call`."""
    ours = "_" + "_".join(names)  # longer than each of them

    def relay(given: tuple[Any, ...], args: Any, named: dict[str, Any], kwargs: Any) -> Any:
        count = next((place for place, one in enumerate(given) if one is relay), by_position)
        later = zip(names[count:by_position], given[count:], strict=True)
        named = {name: one for name, one in (*later, *named.items()) if one is not relay}
        return call(*given[:count], *args, **named, **kwargs)

    written = [f"{name}={ours}" if name in optional else name for name in names]
    first, named = written[:by_position], written[by_position:][:by_name]
    if by_position_only:
        first.insert(by_position_only, "/")
    args, kwargs, rest = "()", "{}", names[by_position + by_name :]
    if has_args:
        args = rest[0]
        first.append(f"*{args}")
    elif by_name:
        first.append("*")
    if has_kwargs:
        kwargs = rest[-1]
        named.append(f"**{kwargs}")
    given = "".join(f"{name}," for name in names[:by_position])
    by_names = ",".join(f"{name!r}:{name}" for name in names[by_position:][:by_name])
    namespace: dict[str, Any] = {ours: relay}
    heading = f"def function({','.join((*first, *named))}):"
    _execute(f"{heading} return {ours}(({given}),{args},{{{by_names}}},{kwargs})", "<test>", namespace)
    return namespace["function"]


def _exception(kind: type[Exception], message: str) -> Exception | None:
    """An exception with this message alone. None of a built-in class that wants more (UnicodeDecodeError)."""
    try:
        return kind(_key_of(message) if issubclass(kind, KeyError) else message)
    except Exception:
        return None if kind.__module__ == "builtins" else kind.__new__(kind, message)


def _key_of(message: str) -> Any:
    """The key of a KeyError, whose text is the key's representation."""
    import ast  # here, so that only tests that need it wait for it

    try:
        return ast.literal_eval(message)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return message


def serve_calls(
    entry_point: Callable[..., Any],
    answer_one: Callable[[Callable[[], Any]], str],
    end: Callable[[], NoReturn],
) -> None:
    """Serves calls until the other side closes, and ends the process by `end` then, whatever else it does.

    `answer_one` gives the text of what a call comes to.
    """
    turn = allocate_lock()  # of the thread that reads and writes: an answer may call back in several
    served: list[object] = []  # calls that wait for their reply; the other side expects that of the last one

    def serve() -> list[Any]:
        """In its turn, serves calls until what a test's function has come to arrives."""
        while True:
            message = read_frame(CALL_FD, _MAX_REPLY_BYTES)
            if message is None:
                end()
            kind, *fields = codec.decode(message.decode("ascii"))
            if kind != "call":
                return [kind, *fields]
            this = object()
            served.append(this)
            turn.release()
            try:
                with _DeeperBy(_FRAMES_OF_SERVING - _FRAMES_OF_EXCHANGE):
                    reply = reply_to(*fields)
            except RecursionError as error:
                reply = _dumps(["raised", "RecursionError", str(error), "RecursionError"])
            finally:
                turn.acquire()
                while served[-1] is not this:  # another thread has called back, and its call led to one
                    turn.release()
                    _sleep(0.001)
                    turn.acquire()
                served.pop()
            send(reply)

    def send(text: str) -> None:
        try:
            write_frame(CALL_FD, text.encode("ascii"))
        except BrokenPipeError:
            end()

    def reply_to(number: int, args: Any, kwargs: Any) -> str:
        return answer_one(lambda: functions.function(number)(*args, **kwargs))

    def call(number: int, args: Any, kwargs: Any, *, ends: bool = False) -> Any:
        text = codec.encode(["call", number, args, kwargs])
        with turn, _DeeperBy(_FRAMES_OF_EXCHANGE):
            send(text)
            reply = serve()
        match reply:
            case ["value", value]:
                return value
            case ["raised", kind, message]:
                raise _exception(kind, message) or RuntimeError(f"{kind.__name__}: {message}")
        raise EOFError("a reply that is none")

    functions = _Functions(call)
    functions.refer(entry_point)
    codec.exchange_functions(functions)
    with turn, _DeeperBy(_FRAMES_OF_EXCHANGE):
        serve()


def builtin_base(kind: type) -> str:
    """The name of the built-in class that a class is or derives from: one that ends loops, or the nearest."""
    bases = [one for one in kind.__mro__ if one.__module__ == "builtins"]
    return next((one for one in bases if one in _ENDS_LOOPS), bases[0]).__name__
