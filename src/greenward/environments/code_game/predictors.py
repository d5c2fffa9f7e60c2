"""Predictors that need no model, from weak to strong: they measure how difficult programs are.

None of them executes a program: the strongest evaluates the syntax tree of a small part of Python, in
bounded steps and on bounded values.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from greenward.problems.python_source import parse, parse_or_none

MAX_STEPS = 2_000  # statements and expressions
MAX_ITEMS = 200
MAX_PRINTED = 10_000  # characters
MAX_NUMBER = 10**30


def predict_constant(code: str) -> str:
    """0, whatever the program."""
    return "0"


def predict_last_literal(code: str) -> str:
    """The last constant that stands in the program; nothing for a number of more than `MAX_ITEMS` digits."""
    tree = parse_or_none(code)
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Constant)] if tree else []
    last = max(nodes, key=lambda node: (node.lineno, node.col_offset), default=None)
    if last is None or (isinstance(last.value, int) and abs(last.value) >= 10**MAX_ITEMS):
        return ""
    return str(last.value)[:MAX_ITEMS]


def predict_by_interpreting(code: str) -> str:
    """What the program prints, if it keeps to the part of Python that `_Interpreter` knows; else nothing."""
    interpreter = _Interpreter()
    try:
        interpreter.run(parse(code).body)
    except (ArithmeticError, LookupError, MemoryError, RecursionError, SyntaxError, TypeError, ValueError):
        return ""
    return "\n".join(interpreter.printed)


def trace_by_interpreting(code: str) -> str:
    """A random program without its last statement; after each other statement, what `a` is then."""
    interpreter, lines = _Interpreter(), code.splitlines()
    for statement in parse(code).body[:-1]:
        interpreter.run([statement])
        lines[(statement.end_lineno or 0) - 1] += f" # {interpreter.names['a']}"
    return "\n".join(lines[:-1])


SCRIPTED_PREDICTORS: Mapping[str, Callable[[str], str]] = MappingProxyType(
    {
        "constant": predict_constant,
        "last_literal": predict_last_literal,
        "interpreter": predict_by_interpreting,
    }
)
"""Each predicts what a program prints from its text."""

_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt,
    ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.USub: operator.neg,
    ast.Not: operator.not_,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "int": int, "len": len, "list": list, "max": max, "min": min, "str": str, "sorted": sorted,
    "sum": sum, "range": lambda *bounds: list(range(*bounds)[: MAX_ITEMS + 1]),
}  # fmt: skip
_METHODS = {"count", "find", "lower", "replace", "upper"}  # of texts


class _Unknown(ValueError):
    """The program leaves the part of Python that is interpreted, or its bounds."""


class _Interpreter:
    """Evaluates assignments, `if`, `for` and `print` on numbers, texts and flat lists, which never change."""

    def __init__(self) -> None:
        self.printed: list[str] = []
        self.names: dict[str, Any] = {}
        self._steps = self._printed_chars = 0

    def run(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            self._count_step()
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self.names[name] = self._value(value)
                case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value):
                    before = ast.Name(target.id, ast.Load())
                    self.names[name] = self._value(ast.BinOp(before, op, value))
                case ast.Expr(value=ast.Call(func=ast.Name(id="print"), args=arguments, keywords=[])):
                    text = " ".join(str(self._value(argument)) for argument in arguments)
                    self._printed_chars += len(text) + 1
                    if self._printed_chars > MAX_PRINTED:
                        raise _Unknown
                    self.printed.append(text)
                case ast.If(test=test, body=body, orelse=otherwise):
                    self.run(body if self._value(test) else otherwise)
                case ast.For(target=ast.Name(id=name), iter=items, body=body, orelse=[]):
                    for item in self._value(items):
                        self.names[name] = item
                        self.run(body)
                case _:
                    raise _Unknown

    def _value(self, node: ast.expr) -> Any:
        """The value, if it is a number, a text or a flat list, and small."""
        self._count_step()
        value = self._evaluate(node)
        items = value if isinstance(value, list) else [value]
        for item in items:
            if type(item) not in (int, bool, str, type(None)) or (
                len(item) > MAX_ITEMS if isinstance(item, str) else abs(item or 0) > MAX_NUMBER
            ):
                raise _Unknown
        if len(items) > MAX_ITEMS:
            raise _Unknown
        return value

    def _count_step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _Unknown

    def _evaluate(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in self.names:
                return self.names[name]
            case ast.List(elts=elements):
                return [self._value(element) for element in elements]
            case ast.UnaryOp(op=op, operand=operand):
                return self._combined(op, self._value(operand))
            case ast.BinOp(left=left, op=op, right=right):
                return self._combined(op, self._value(left), self._value(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                return self._combined(op, self._value(left), self._value(right))
            case ast.Subscript(value=value, slice=ast.Slice(lower=lower, upper=upper, step=step)):
                bounds = [None if bound is None else self._value(bound) for bound in (lower, upper, step)]
                return self._value(value)[slice(*bounds)]
            case ast.Subscript(value=value, slice=index):
                return self._value(value)[self._value(index)]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
                return _FUNCTIONS[name](*map(self._value, arguments))
            case ast.Call(func=ast.Attribute(value=value, attr=name), args=arguments, keywords=[]):
                owner = self._value(value)
                if isinstance(owner, str) and name in _METHODS:
                    return getattr(owner, name)(*map(self._value, arguments))
        raise _Unknown

    def _combined(self, op: ast.AST, *values: Any) -> Any:
        texts = any(isinstance(value, str | list) for value in values)
        long = texts and any(isinstance(value, int) and value > MAX_ITEMS for value in values)
        if type(op) not in _OPERATORS or long or (texts and isinstance(op, ast.Mod)):
            raise _Unknown
        return _OPERATORS[type(op)](*values)
