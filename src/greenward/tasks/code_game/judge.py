"""Judges whether a program is a short deterministic computation, and finds what it prints.

A program may compute, and nothing else. Two barriers keep out what is no computation. First, its syntax tree
is read: it may import `PURE_MODULES` only, and use neither sets, whose order is not defined, nor the
built-in functions that reach outside, nor attributes that lead to the interpreter, be it by the fields of a
format, which is therefore a literal, or a name that stands for literals alone. Then it runs in the sandbox
four times, in interpreters with different hash seeds and different allocators. In all runs but the last, the
memory before it is filled and freed at random and the seed of `random` is another. In the first one the
working folder is another, operations are counted, and recursion is not limited; a program that asks for the
text of a module, or meets the limits of memory or recursion, ends there. A valid program prints the same
each time. Results are not kept: a program that printed the same only by chance is judged anew when it
returns.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from greenward.common.errors import Closeable
from greenward.grading.execution import JobSet, run_unique
from greenward.problems.python_source import parse_or_none
from greenward.sandbox.isolation import Isolation, Level
from greenward.sandbox.pool import LocalExecutor
from greenward.sandbox.protocol import Job, Limits, Outcome, RunResult

PURE_MODULES = frozenset({"bisect", "collections", "heapq", "itertools", "math"})
_REFUSED_BUILTINS = {
    "BaseException", "KeyboardInterrupt", "SystemExit", "breakpoint", "compile", "copyright", "credits",
    "delattr", "dir", "eval", "exec", "exit", "frozenset", "getattr", "globals", "hasattr", "hash", "help",
    "id", "input", "license", "locals", "memoryview", "open", "quit", "set", "setattr", "vars",
}  # fmt: skip
_INNER_ATTRIBUTES = ("_", "ag_", "co_", "cr_", "f_", "gi_", "tb_")  # dunders, frames, code objects
_INNER_MODULE = "abc"  # of `collections`; it holds `sys` since Python 3.13
_INNER_FIELD = re.compile(rf"\.(?:{'|'.join(_INNER_ATTRIBUTES)})")

_OTHER_ADDRESSES = """
def _fill():
    import os, random, sys
    random.seed(os.urandom(8))
    sizes = range(16, 512, 16)
    held = [bytes(size) for size in sizes for _ in range(os.urandom(1)[0])]
    held += [[] for _ in range(os.urandom(1)[0])]
    held.sort(key=lambda one: random.random())
    del held[::2]
    sys.held = held
    random.seed(104_729)
_fill()
del _fill
"""
_OTHER_CONDITIONS = """
def _change():
    import importlib, os, sys
    os.mkdir("elsewhere"), os.chdir("elsewhere")
    sys.setrecursionlimit(1_000_000)
    leave, left = os._exit, iter(range({operations}))
    importlib._bootstrap._module_repr = lambda module: leave({unstable})
    def trace(frame, event, argument):
        if frame.f_code.co_filename != "<answer>":
            return None
        frame.f_trace_opcodes = True
        if event == "exception" and issubclass(argument[0], (MemoryError, RecursionError)):
            leave({unstable})
        if next(left, None) is None:
            leave(1)
        return trace
    sys.settrace(trace)
_change()
del _change
"""
_UNSTABLE = 2  # the exit status of a program that meets what is not its text's


@dataclass(frozen=True)
class ProgramResult:
    """What a program printed, without one newline at the end, if it is valid; else why it is not.

    `status` is "valid", "forbidden" (it does more than compute), "silent" (it prints nothing but white
    space), "long_output", "unstable" (it prints something else under other conditions, or may learn of the
    interpreter's limits or folder), "long_computation", or the value of the sandbox's `Outcome`;
    "infrastructure" is not the program's fault.
    """

    status: str
    output: str = ""

    @property
    def valid(self) -> bool:
        return self.status == "valid"


class ProgramJudge(Closeable):
    """Judges programs that print. A context manager.

    A valid program prints at most `max_output_bytes` and takes at most `max_operations` operations of the
    interpreter and the time in `limits`. Two pools of `workers` processes run programs, isolated at least at
    level `require`; raises `SandboxError` if they cannot start.
    """

    def __init__(
        self,
        limits: Limits,
        workers: int | None = 1,
        *,
        max_output_bytes: int = 32,
        max_operations: int = 10_000,
        require: Level = Level.B,
    ) -> None:
        self._limits = limits
        self._max_output_bytes = max_output_bytes
        changed = _OTHER_CONDITIONS.format(operations=max_operations, unstable=_UNSTABLE)
        self._runs = ((0, _OTHER_ADDRESSES + changed), (1, _OTHER_ADDRESSES), (1, _OTHER_ADDRESSES), (0, ""))
        self._executors: list[LocalExecutor] = []
        try:
            for seed, allocator in (("0", "pymalloc"), ("1", "malloc")):
                variables = {"PYTHONHASHSEED": seed, "PYTHONMALLOC": allocator}
                self._executors.append(LocalExecutor(workers, require=require, variables=variables))
        except BaseException:
            self.close()
            raise

    @property
    def isolation(self) -> Isolation:
        """How well programs are contained."""
        return self._executors[0].isolation

    def judge(self, codes: Sequence[str]) -> list[ProgramResult]:
        """The result of each program, in order; equal ones are run once."""
        found = {code: ProgramResult(status) for code in codes if (status := refusal(code)) is not None}
        pending = [code for code in dict.fromkeys(codes) if code not in found]
        for executor, preamble in self._runs:
            for code, result in self._run(executor, pending, preamble).items():
                if result != found.setdefault(code, result):
                    found[code] = result if result.status == "infrastructure" else ProgramResult("unstable")
            pending = [code for code in pending if found[code].valid]
        return [found[code] for code in codes]

    def close(self) -> None:
        """End all processes. Safe to call twice."""
        for executor in self._executors:
            executor.close()

    def _run(self, executor: int, codes: Sequence[str], preamble: str) -> dict[str, ProgramResult]:
        def prepare(code: str) -> JobSet[ProgramResult]:
            job = Job(code, limits=self._limits, preamble=preamble)
            return JobSet((job,), lambda results: self._reading(results[0]))

        results = run_unique(self._executors[executor], codes, lambda code: code, prepare)
        return {codes[position]: result for position, result in results}

    def _reading(self, run: RunResult) -> ProgramResult:
        """What one run says of a program."""
        if run.outcome is Outcome.EXITED:  # no program that may run can end the interpreter itself
            met_limit = run.error_message.startswith(f"left with status {_UNSTABLE} ")
            return ProgramResult("unstable" if met_limit else "long_computation")
        if run.outcome is not Outcome.COMPLETED:
            return ProgramResult(run.outcome.value)
        printed = run.stdout.removesuffix("\n")
        if not printed.strip():
            return ProgramResult("silent")
        if len(printed.encode()) > self._max_output_bytes:
            return ProgramResult("long_output")
        return ProgramResult("valid", printed)


def refusal(code: str) -> str | None:
    """The status of a program that is not run; None for one that may run.

    Comments are refused: they would be a message to the reader of the program. So is what stands for broken
    characters: the reader would not see what was written.
    """
    if not code.strip():
        return "silent"
    if any(text in code for text in ("#", "__", "\ufffd")) or not all(
        one.isprintable() or one == "\n" for one in code
    ):
        return "forbidden"
    if (tree := parse_or_none(code)) is None:
        return Outcome.SYNTAX_ERROR.value
    return "forbidden" if any(map(_reaches_outside, ast.walk(tree))) or _formats_freely(tree) else None


def _reaches_outside(node: ast.AST) -> bool:
    match node:
        case ast.Set() | ast.SetComp():
            return True
        case ast.Import(names=names):
            return any(name.name not in PURE_MODULES for name in names)
        case ast.ImportFrom(module=module, names=names):
            return module not in PURE_MODULES or any(_is_inner(name.name) for name in names)
        case ast.Name(id=name):
            return name in _REFUSED_BUILTINS
        case ast.Attribute(attr=name):
            return _is_inner(name)
        case ast.MatchClass():  # it reads the attributes that the class names in `__match_args__`
            return True
    return False


def _is_inner(attribute: str) -> bool:
    return attribute.startswith(_INNER_ATTRIBUTES) or attribute == _INNER_MODULE


def _formats_freely(tree: ast.Module) -> bool:
    """Whether the program may format by a text whose fields read attributes that it may not name."""
    literals: dict[str, list[str]] = {}
    bound = Counter[str | None]()
    formats: list[ast.expr] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text))):
                literals.setdefault(name, []).append(text)
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name) | ast.MatchMapping(rest=name):
                bound[name] += 1
            case ast.Attribute(attr="format" | "format_map", value=value):
                formats.append(value)
            case ast.alias(name=name, asname=other):
                bound[other or name] += 1
            case _:
                bound[getattr(node, "name", None)] += 1  # definitions, handlers, patterns
    for value in formats:
        match value:
            case ast.Constant(value=str(text)):
                texts = [text]
            case ast.Name(id=name) if len(literals.get(name, ())) == bound[name]:
                texts = literals.get(name, [])
            case _:
                texts = []
        if not texts or any(map(_INNER_FIELD.search, texts)):
            return True
    return False
